"""Tables that compare across cells: what other forms of a product cost, and where we lose."""

from __future__ import annotations

from collections.abc import Callable
from statistics import geometric_mean

from benchmarks.markdown import lines
from benchmarks.result import CHOICE, DENSE_RATE

from .results import Run, is_of_attention, label, of_matmul, of_suite, speedup
from .tables import WORST, foot, measure, number, peers, timed

# Slower than a peer by so much is a loss: less, and the next run may say otherwise.
_LOSS = 0.95


def companions(runs: list[Run], suite: str) -> str:
    """What the choice takes beside another product's: the same in fp16, or on a uniform pattern."""
    parts = []
    for run in of_suite(runs, suite):
        ratios: dict[tuple[str, str], list[tuple[float, str]]] = {}
        for result in run.results:
            for row in (row for row in result.rows if row.kind == "companion"):
                for mode in timed(result, run.modes):
                    ratio = speedup(result, row.name, mode)
                    if ratio is not None:
                        at = ratios.setdefault((row.name, mode), [])
                        at.append((1 / ratio, label(result.cell)))
        table = [
            {
                "beside": f"`{name}`, {mode}",
                "products": str(len(found)),
                "times as long": f"{geometric_mean([ratio for ratio, _ in found]):.2f}",
                "least": f"{min(found)[0]:.2f}",
                "most": "{:.2f}: {}".format(*max(found)),
            }
            for (name, mode), found in ratios.items()
        ]
        if table:
            parts += [f"**{run.device}**, `{suite}`:", lines(table), *foot(run)]
    return "\n\n".join(parts)


def losses(runs: list[Run]) -> str:
    """Every measured product and attention that a peer computes faster, the worst first."""
    found = []
    products, attentions = of_matmul(runs), [run for run in runs if is_of_attention(run)]
    for run in [*products, *attentions]:
        for result in run.results:
            modes = timed(result, run.modes)
            mode = result.judged if result.judged in modes else modes[0]
            ratio = speedup(result, result.best_peer(mode), mode)
            if ratio is not None and ratio < _LOSS:
                found.append((ratio, run, result, mode))
    found.sort(key=lambda item: item[0])
    table = [
        {
            "computation": label(result.cell),
            "on": f"{run.device.removeprefix('NVIDIA ')}{f', {mode}' * run.gpu}",
            "choice, µs": measure(result, CHOICE, mode, False),
            "faster, µs": peers(result, [mode], False),
            "×": f"{ratio:.2f}",
        }
        for ratio, run, result, mode in found[:WORST]
    ]
    counts = [sum(len(run.results) for run in kind) for kind in (products, attentions)]
    counted = f"{counts[0]} products" + f" and {counts[1]} problems of attention" * bool(counts[1])
    text = (
        f"Of the {counted} whose figures are kept, {len(found)} "
        f"{'is' if len(found) == 1 else 'are'} slower than the best peer by more than 5%"
    )
    return f"{text}:\n\n{lines(table)}" if table else f"{text}."


def densities(runs: list[Run]) -> str:
    """From which density on the dense product is faster, estimated from the rates at 25%."""
    table = []
    for run in of_matmul(runs):
        for result in run.results:
            full = result.median(DENSE_RATE, "warm")
            us = result.median(CHOICE, "warm")
            if full and us and result.cell.density == 0.25 and result.cell.m == 8192:
                ours, dense = result.nnz_flops / us / 1e6, result.cell.dense_flops / full / 1e6
                line = {"GPU": run.device, "block": str(result.cell.block)}
                line |= {"choice, TFLOP/s": number(ours), "dense, TFLOP/s": number(dense)}
                table.append(line | {"dense is faster from": f"{min(ours / dense, 1):.0%}"})
    return lines(table) if table else ""


SECTIONS: dict[str, Callable[..., str]] = {
    "companions": companions,
    "losses": losses,
    "densities": densities,
}

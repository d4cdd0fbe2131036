"""README's picture and table: a row of each kind of work, one where we lose among them."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.markdown import lines
from benchmarks.result import CHOICE, Result
from benchmarks.training.layer import DENSE, OURS

from . import names
from .results import Run, median_us, speedup
from .tables import number

# Suite, what the row is called, the mode, the unit, and what its cell is.
_CELLS: tuple[tuple[str, str, str, str, dict], ...] = (
    (
        *("gpu_large_blocks", "8192³ bf16, blocks of 128, 12.5% stored", "warm", "TFLOP/s"),
        {"m": 8192, "n": 8192, "block": 128, "density": 0.125},
    ),
    (
        *("gpu_large_blocks", "8192³ bf16, blocks of 64, 12.5%", "warm", "TFLOP/s"),
        {"m": 8192, "n": 8192, "block": 64, "density": 0.125},
    ),
    (
        *("gpu_small_blocks", "8192³ bf16, blocks of 16, 12.5%", "warm", "TFLOP/s"),
        {"m": 8192, "n": 8192, "block": 16, "density": 0.125},
    ),
    (
        *("gpu_small_n", "`linear`, 1 token, 4096² bf16, blocks of 64, 12.5%", "warm", "µs"),
        {"m": 4096, "n": 1, "block": 64, "density": 0.125, "op": "linear"},
    ),
    (
        *("gpu_science", "1,000,000² × vector, fp64, 27 blocks of 3×3 a row", "warm", "µs"),
        {"m": 999_999, "n": 1, "block": 3, "dtype": "float64"},
    ),
)
_LOSS: tuple[str, str, str, str, dict] = (
    *("gpu_losses", "4096² × 16 columns, bf16, single elements, 10%", "cold", "µs"),
    {"n": 16, "block": 1, "density": 0.1},
)
_MLP = {"block": 64, "density": 0.125, "width": 4096, "hidden": 14336}
_TARGETS = {"gpu_large_blocks": "make bench-gpu", "training": "make bench-training"}


def _row(what: str, ours: str, peer: str, ratio: float) -> dict[str, str]:
    return {"product": what, "`matmul`'s choice": ours, "best peer": peer, "×": f"{ratio:.2f}"}


def _of_cell(
    run: Run, what: str, mode: str, unit: str, wanted: dict
) -> Iterator[tuple[str, dict[str, str]]]:
    def figure(result: Result, name: str | None) -> str:
        us = result.median(name, mode)
        assert us is not None
        return number(result.nnz_flops / (us * 1e6) if unit == "TFLOP/s" else us)

    for result in run.results:
        ratio = speedup(result, result.best_peer(mode), mode)
        same = all(getattr(result.cell, key) == value for key, value in wanted.items())
        if same and ratio is not None:
            best = result.best_peer(mode)
            ours, theirs = figure(result, CHOICE), figure(result, best)
            ours, theirs = (
                (f"**{ours}** {unit}", f"{names.shown(best)} {theirs}")
                if ratio >= 1
                else (f"{ours} {unit}", f"{names.shown(best)} **{theirs}**")
            )
            what += " (cold caches)" if mode == "cold" else ""
            yield run.suite, _row(what, ours, theirs, ratio)
            return


def _of_models(by_suite: dict[str, Run]) -> Iterator[tuple[str, dict[str, str]]]:
    if "training" in by_suite:
        for mlp in by_suite["training"].kept["mlps"]:
            if all(mlp[key] == value for key, value in _MLP.items()):
                ours, dense = (
                    f"{median_us(mlp['us'][name]) / 1e3:.2f} ms" if "us" in mlp else "–"
                    for name in (OURS, DENSE)
                )
                what = "training step of an MLP 4096 → 14336 → 4096, blocks of 64, 12.5%"
                shown = f"**{ours}**" if ours != "–" else ours
                peer = f"dense {dense}" if dense != "–" else "dense"
                yield "training", _row(what, shown, peer, mlp["speedup"])
    if "llama" in by_suite:
        run = by_suite["llama"]
        step = run.kept["steps"][0]
        dense, ours = (median_us(step["us"][name]) for name in (DENSE, OURS))
        model = run.kept["model"]
        what = (
            f"Llama, {model['layers']} layers of the 8B model's size, {step['name']}, MLPs in "
            f"blocks of {model['block']}, 12.5%"
        )
        peer = f"dense {number(dense / 1e3)} ms"
        yield "llama", _row(what, f"**{number(ours / 1e3)}** ms", peer, dense / ours)


def _device(runs: list[Run]) -> str | None:
    """The first GPU that has results."""
    return next((run.folder for run in runs if run.gpu), None)


def picture(runs: list[Run]) -> str:
    """The speed over each peer."""
    device = _device(runs)
    path = f"docs/figures/speedups_{device}.svg"
    return "" if device is None else f"![Speed over each peer, a point for each product]({path})"


def table(runs: list[Run]) -> str:
    """A row of each kind of work, and how to measure them."""
    device = _device(runs)
    by_suite = {run.suite: run for run in runs if run.folder == device}
    found = [
        row
        for suite, *what in _CELLS
        if suite in by_suite
        for row in _of_cell(by_suite[suite], *what)
    ]
    found += _of_models(by_suite)
    if _LOSS[0] in by_suite:
        found += _of_cell(by_suite[_LOSS[0]], *_LOSS[1:])
    if not found:
        return ""
    used = [by_suite[suite] for suite in dict.fromkeys(suite for suite, _ in found)]
    dates = sorted({run.date for run in used})
    commands = [
        f"`{_TARGETS.get(suite, f'make bench-gpu SUITE={suite}')}` (row"
        f"{'s' * (len(at) > 1)} {' and '.join(map(str, at))})"
        for suite in dict.fromkeys(suite for suite, _ in found)
        for at in [[i for i, (other, _) in enumerate(found, 1) if other == suite]]
    ]
    first = used[0]
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return "\n\n".join(
        [
            lines([row for _, row in found]),
            f"{first.device}, {first.versions}, {when}. TFLOP/s count stored blocks only; times are "
            "of kernels, with warm caches unless a row says otherwise, medians of interleaved "
            f"rounds; × is how many times as fast. Measure them with {', '.join(commands)}.",
        ]
    )


SECTIONS = {"first_picture": picture, "first_table": table}

"""Results as text: one cell in full, all cells in a line each."""

from __future__ import annotations

from statistics import geometric_mean

from .result import CHOICE, Result


def of_cell(result: Result) -> str:
    """A line per contestant, fastest first, then the ratios.

    Rates are of the judged mode. Those of a dense product count all of A: "dense-eq.".
    """
    modes, judged = result.modes, result.judged
    lines = [f"{result.cell}  (choice: {result.chosen}; rates: {judged})"]
    header = "".join(f"{mode + ' µs':>11}" for mode in modes)
    lines.append(f"  {'':30}{header}{'TFLOP/s nnz':>13}{'dense-eq.':>11}{'spread':>8}{'rounds':>8}")
    ordered = sorted(result.rows, key=lambda r: r.median(judged) or float("inf"))
    for row in ordered:
        label = row.name if row.kind == "choice" else f"{row.name} ({row.kind})"
        if row.median(judged) is None:
            lines.append(f"  {label:30}  {row.status}: {row.reason}")
            continue
        times = "".join(f"{row.median(mode) or float('nan'):11.1f}" for mode in modes)
        t = row.timings[judged]
        nnz = result.nnz_flops / (t.median_us * 1e6)
        dense = result.cell.dense_flops / (t.median_us * 1e6)
        spread = (t.high_us - t.low_us) / t.median_us
        note = "" if row.status == "ok" else f"  {row.status.upper()}: {row.reason}"
        note += f"  {row.detail}" if row.detail else ""
        rates = f"{'' if row.kind == 'rate' else f'{nnz:.4g}':>13}{dense:11.4g}"
        lines.append(f"  {label:30}{times}{rates}{spread:8.0%}{t.rounds:8}{note}")
    lines += [f"  {label}: {value:.3f}" for label, value in result.ratios().items()]
    return "\n".join(lines)


def of_results(results: list[Result]) -> str:
    """A line per cell with choice, best peer (warm, on a CPU wall time) and ratios; a summary.

    Beside a peer that left the rounds before the choice did stands how many it took part in.
    """
    labels = list(dict.fromkeys(label for result in results for label in result.ratios()))
    width = max(len(str(result.cell)) for result in results) + 2
    header = f"{'cell':{width}}{'choice':30}{'µs':>9}{'TFLOP/s':>9}  {'best peer':31}{'µs':>9}"
    lines = [header + "".join(f"{f'[{i}]':>8}" for i in range(1, len(labels) + 1))]
    for result in results:
        mode = "wall" if result.device == "cpu" else "warm"
        peer = result.best_peer(mode)
        peer_us = result.median(peer, mode)
        ratios, us = result.ratios(), result.median(CHOICE, mode)
        rate = f"{result.nnz_flops / (us * 1e6):9.3g}" if us is not None else f"{'':9}"
        cells = "".join(f"{ratios[at]:8.3f}" if at in ratios else " " * 8 for at in labels)
        lines.append(
            f"{result.cell!s:{width}}{result.chosen:30}{_us(us)}{rate}  "
            f"{_named(result, peer, mode):31}{_us(peer_us)}{cells}"
        )
    lines.append(
        f"{'':5}{'ratio':45}{'cells':>6}{'geo. mean':>10}{'least':>8}{'most':>8}  worst in"
    )
    for i, label in enumerate(labels, 1):
        found = [(r.ratios()[label], str(r.cell)) for r in results if label in r.ratios()]
        values = [value for value, _ in found]
        # Of times the largest is the worst, of speeds and rates the smallest.
        worst = max(found) if label.startswith("time") else min(found)
        lines.append(
            f"{f'[{i}]':5}{label:45}{len(found):6}{geometric_mean(values):10.3f}"
            f"{min(values):8.3f}{max(values):8.3f}  {worst[1]}"
        )
    return "\n".join(lines)


def headline(results: list[Result]) -> str:
    """Choice against the best peer of each cell: the geometric mean and the worst."""
    said = []
    for mode in ("wall", "warm", "cold"):
        found = [result.ratios().get(f"speed choice / best peer, {mode}") for result in results]
        known = [ratio for ratio in found if ratio is not None]
        if known:
            missing = len(found) - len(known)
            without = f" ({missing} without)" if missing else ""
            said.append(
                f"{mode} {geometric_mean(known):.3f} in geometric mean, at least "
                f"{min(known):.3f}, of {len(found)} cells{without}"
            )
    return f"speed choice / best peer: {'; '.join(said)}" if said else "no peer was measured"


def _named(result: Result, peer: str | None, mode: str) -> str:
    row, choice = result.row(peer), result.row(CHOICE)
    if row is None or choice is None or mode not in choice.timings:
        return peer or ""
    rounds = row.timings[mode].rounds
    return f"{peer}, rounds: {rounds}" if rounds < choice.timings[mode].rounds else f"{peer}"


def _us(value: float | None) -> str:
    return f"{value:9.1f}" if value is not None else f"{'':9}"

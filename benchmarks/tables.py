"""Results as text: one cell in full, all cells in a line each."""

from __future__ import annotations

import math

from .comparison import CHOICE, Result


def of_cell(result: Result) -> str:
    """A line per contestant, fastest first, then the ratios."""
    modes = ["wall"] if result.device == "cpu" else ["warm", "cold", "eager"]
    judged = result.judged
    lines = [f"{result.cell}  (choice: {result.chosen}; compared: {judged})"]
    header = "".join(f"{mode + ' µs':>12}" for mode in modes)
    lines.append(f"  {'':22}{header}{'TFLOP/s (nnz)':>15}{'spread':>9}{'rounds':>8}")
    ordered = sorted(result.rows, key=lambda r: r.median(judged) or float("inf"))
    for row in ordered:
        label = f"{row.name}{' (peer)' if row.kind == 'peer' else ''}"
        if row.median(judged) is None:
            lines.append(f"  {label:22}  {row.status}: {row.reason}")
            continue
        times = "".join(f"{row.median(mode) or float('nan'):12.1f}" for mode in modes)
        t = row.timings[judged]
        rate = result.nnz_flops / (t.median_us * 1e6)
        spread = (t.high_us - t.low_us) / t.median_us
        note = "" if row.status == "ok" else f"  {row.status.upper()}: {row.reason}"
        note += f"  {row.detail}" if row.detail else ""
        lines.append(f"  {label:22}{times}{rate:15.3f}{spread:9.0%}{t.rounds:8}{note}")
    lines += [f"  {label}: {value:.3f}" for label, value in result.ratios().items()]
    return "\n".join(lines)


def of_results(results: list[Result]) -> str:
    """A line per cell with the choice, the best peer and the ratios; then the ratios' summary."""
    labels = list(dict.fromkeys(label for result in results for label in result.ratios()))
    width = max(len(str(result.cell)) for result in results) + 2
    lines = [f"{'cell':{width}}{'choice':30}{'µs':>10}  {'best peer':22}{'µs':>10}   ratios"]
    for result in results:
        peer = result.best_peer()
        peer_us = result.median(peer) if peer is not None else None
        ratios = result.ratios()
        cells = "".join(f"{ratios[at]:8.3f}" if at in ratios else " " * 8 for at in labels)
        lines.append(
            f"{result.cell!s:{width}}{result.chosen:30}{_us(result.median(CHOICE))}  "
            f"{peer or '':22}{_us(peer_us)}  {cells}"
        )
    lines.append(f"ratios: {'; '.join(labels)}")
    lines.append(f"{'ratio':38}{'geo. mean':>10}{'least':>8}{'most':>8}  cell of the worse end")
    for label in labels:
        found = [(r.ratios()[label], str(r.cell)) for r in results if label in r.ratios()]
        values = [value for value, _ in found]
        mean = math.exp(sum(map(math.log, values)) / len(values))
        # Of times the largest is the worst, of speeds and rates the smallest.
        worst = max(found) if label.startswith("time") else min(found)
        lines.append(f"{label:38}{mean:10.3f}{min(values):8.3f}{max(values):8.3f}  {worst[1]}")
    return "\n".join(lines)


def headline(results: list[Result]) -> str:
    """The worst that the choice did against the best peer of each cell."""
    label = "time choice / best peer"
    found = [result.ratios().get(label) for result in results]
    known = [ratio for ratio in found if ratio is not None]
    missing = len(found) - len(known)
    without = f", {missing} without a result" if missing else ""
    most = f"at most {max(known):.3f}" if known else "unknown"
    return f"{label}: {most} in {len(results)} cells{without}"


def _us(value: float | None) -> str:
    return f"{value:10.1f}" if value is not None else f"{'':10}"

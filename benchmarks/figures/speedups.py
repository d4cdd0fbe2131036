"""The picture of README: how many times as fast as each peer, a point for each cell."""

from __future__ import annotations

from statistics import geometric_mean

from benchmarks.result import Result

from . import names
from .results import Run, is_of_attention, label, speedup
from .svg import WIDTH, LogAxis, Svg, short

_LEFT, _RIGHT, _TOP, _ROW = 140, WIDTH - 104, 88, 36
_BEST = "best of them"
# Cells that were chosen because others win them say nothing of how often that happens.
_WITHOUT = ("gpu_losses",)


def _ratios(results: list[Result], mode: str) -> dict[str, list[tuple[float, str]]]:
    found: dict[str | None, list[tuple[float, str]]] = {peer: [] for peer in (None, *names.PEERS)}
    for result in results:
        for peer in (None, *names.PEERS):
            ratio = speedup(result, peer or result.best_peer(mode), mode)
            if ratio is not None:
                found[peer].append((ratio, f"{label(result.cell)}: {ratio:.2f}"))
    return {
        _BEST if peer is None else names.shown(peer): points
        for peer, points in found.items()
        if points
    }


def draw(runs: list[Run]) -> str | None:
    """Of a device's runs; None where none has a peer."""
    runs = [run for run in runs if run.results and run.suite not in _WITHOUT]
    results = [result for run in runs for result in run.results]
    rows = _ratios(results, runs[0].modes[0]) if runs else {}
    if not rows:
        return None
    values = [ratio for points in rows.values() for ratio, _ in points]
    x = LogAxis(min(0.5, *values) / 1.1, max(10.0, *values) * 1.15, _LEFT, _RIGHT)
    bottom = _TOP + _ROW * len(rows)
    dates = sorted({run.date for run in runs})
    what = "attentions" if is_of_attention(runs[0]) else "products"
    svg = Svg(
        "How many times as fast as each alternative",
        f"{runs[0].device}, {dates[-1]}: a point for each of {len(results)} {what}",
        f"Rows are peers; points right of 1 are {what} that sparse_autotune computes faster.",
        bottom + 52,
    )
    svg.rect(_LEFT, _TOP - 8, x(1) - _LEFT, bottom - _TOP + 8, "shade")
    for tick in x.ticks(8):
        svg.line([(x(tick), _TOP - 8), (x(tick), bottom)], "grid")
        svg.text(x(tick), bottom + 18, f"{short(tick)}×", "quiet", size=14, anchor="middle")
    svg.line([(x(1), _TOP - 14), (x(1), bottom)], "axis", 1.5)
    svg.text(x(1) - 6, _TOP - 14, "slower", "quiet", size=13, anchor="end")
    svg.text(x(1) + 6, _TOP - 14, "faster", "quiet", size=13)
    for i, (peer, points) in enumerate(rows.items()):
        y = _TOP + _ROW * (i + 0.5)
        bold = 600 if peer == _BEST else 400
        svg.text(_LEFT - 10, y + 5, peer, anchor="end", weight=bold)
        for j, (ratio, tip) in enumerate(sorted(points)):
            svg.marker(x(ratio), y + (j * 3 % 5 - 2) * 3, 1 if ratio < 1 else 0, tip, 3.5, 0.55)
        mean = geometric_mean([ratio for ratio, _ in points])
        tip = f"{peer}: {mean:.2f} in geometric mean"
        svg.rect(x(mean) - 1, y - 13, 2, 26, "text")
        svg.marker(x(mean), y, 3, tip, 6)
        cells = f"of {len(points)}"
        svg.text(_RIGHT + 8, y, f"{mean:.3g}×", weight=bold)
        svg.text(_RIGHT + 8, y + 14, cells, "quiet", size=13)
    svg.text(
        (_LEFT + _RIGHT) / 2,
        bottom + 40,
        "times as fast; ◆ geometric mean",
        size=14,
        anchor="middle",
    )
    return svg.render()

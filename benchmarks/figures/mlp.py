"""The step of an MLP: how many times as fast as the dense one, a bar for each pattern."""

from __future__ import annotations

from benchmarks.keep import median_us
from benchmarks.training.layer import DENSE, OURS

from .results import DTYPES, Run, of_suite, percent
from .svg import WIDTH, Svg

_LEFT, _TOP, _ROW = 160, 72, 40


def draw(runs: list[Run]) -> str | None:
    """Of a device's runs; None where no MLP was measured."""
    found = [(run, mlp) for run in of_suite(runs, "training") for mlp in run.kept["mlps"]]
    if not found:
        return None
    run, first = found[0]
    bottom = _TOP + _ROW * (len(found) + 1)
    svg = Svg(
        f"A training step of an MLP, {first['width']} → {first['hidden']} → {first['width']}",
        f"{run.device}, {run.date}: forward and backward, {first['tokens']} tokens, "
        f"{DTYPES[first['dtype']]}",
        "Bars: how many times as fast as the dense MLP a step of the sparse one is.",
        bottom + 28,
    )
    most = max(mlp["speedup"] for _, mlp in found)
    unit = (WIDTH - _LEFT - 150) / most
    bars = [("dense", 1.0, "c5", _us(found[0][1], DENSE))] + [
        (f"{mlp['block']} × {mlp['block']}, {percent(mlp['density'])}", mlp["speedup"], "c0",
         _us(mlp, OURS))
        for _, mlp in sorted(found, key=lambda item: -item[1]["speedup"])
    ]  # fmt: skip
    for i, (name, speed, colour, us) in enumerate(bars):
        y = _TOP + _ROW * i
        svg.text(_LEFT - 10, y + 18, name, anchor="end")
        svg.rect(_LEFT, y, unit * speed, 26, colour)
        svg.text(_LEFT + unit * speed + 8, y + 18, f"{speed:.2f}×{us}", weight=600)
    svg.line([(_LEFT + unit, _TOP - 6), (_LEFT + unit, bottom - 8)], "axis", 1.5, "4 4")
    svg.text(_LEFT, bottom + 12, "times as fast as the dense step", "quiet", size=14)
    return svg.render()


def _us(mlp: dict, name: str) -> str:
    return f", {median_us(mlp['us'][name]) / 1e3:.2f} ms" if mlp["us"] else ""

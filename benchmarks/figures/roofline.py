"""Every cell under the limits of the device: arithmetic intensity against the rate."""

from __future__ import annotations

import torch

from benchmarks.result import CHOICE, Result

from .results import DTYPES, Run, label
from .svg import WIDTH, LogAxis, Plot, Svg, axis_around, legend

# Terabytes and TFLOP/s of a second, by the data sheets, with tensor cores; fp32 without TF32.
_LIMITS: dict[str, tuple[float, dict[str, float]]] = {
    "NVIDIA H200": (4.8, {"bfloat16": 989.0, "float64": 67.0, "float32": 67.0}),
    "NVIDIA H100 80GB HBM3": (3.35, {"bfloat16": 989.0, "float64": 67.0, "float32": 67.0}),
}
_SERIES = {"bfloat16": 0, "float64": 1, "float32": 2, "float16": 3}


def intensity(result: Result) -> float:
    """FLOPs for each byte that any variant must move: values, int64 indices, b and the result."""
    cell, size = result.cell, getattr(torch, result.cell.dtype).itemsize
    elements = result.nnzb * cell.block**2 + (cell.k + cell.m) * cell.n
    indices = result.nnzb + cell.m // cell.block + 1
    return result.nnz_flops / (elements * size + indices * 8)


def draw(runs: list[Run]) -> str | None:
    """Of a device's runs, cold where that was measured; None without cells or without limits."""
    runs = [run for run in runs if run.results]
    if not runs or runs[0].device not in _LIMITS:
        return None
    bandwidth, peaks = _LIMITS[runs[0].device]
    points: list[tuple[str, float, float, str]] = []
    for result in (result for run in runs for result in run.results):
        us = result.median(CHOICE, "cold") or result.median(CHOICE, "warm")
        if us is not None:
            rate = result.nnz_flops / (us * 1e6)
            said = f"{label(result.cell)}: {rate:.3g} TFLOP/s"
            points.append((result.cell.dtype, intensity(result), rate, said))
    svg = Svg(
        "Every product under the limits of the device",
        f"{runs[0].device}: cold caches where measured; lines by data sheet",
        "Each point is a product; sloped line: memory bandwidth; level lines: arithmetic.",
    )
    x = axis_around([p[1] for p in points], 70, WIDTH - 20, 1.6)
    y = LogAxis(min(p[2] for p in points) / 1.6, max(peaks.values()) * 1.5, 430, 70)
    plot = Plot(svg, x, y, "FLOP for each byte that has to move", "TFLOP/s on stored blocks")
    used = [dtype for dtype in _SERIES if any(point[0] == dtype for point in points)]
    top = max(peaks[dtype] for dtype in used if dtype in peaks)
    low, knee = max(x.low, y.low / bandwidth), min(x.high, top / bandwidth)
    plot.svg.line([(x(low), y(low * bandwidth)), (x(knee), y(knee * bandwidth))], "text", 2)
    drawn: dict[float, list[str]] = {}
    for dtype in used:
        drawn.setdefault(peaks.get(dtype, top), []).append(DTYPES[dtype])
    for peak, dtypes in drawn.items():
        start = max(x.low, peak / bandwidth)
        if start < x.high:
            svg.line([(x(start), y(peak)), (x(x.high), y(peak))], "text", 2)
            text = f"{', '.join(dtypes)}: {peak:.0f}"
            svg.text(x(x.high) - 4, y(peak) - 7, text, size=13, anchor="end")
    middle = (low * knee) ** 0.5
    svg.text(x(middle) - 8, y(middle * bandwidth) - 8, f"{bandwidth:g} TB/s", size=13, anchor="end")
    for dtype, at, rate, tip in points:
        svg.marker(x(at), y(rate), _SERIES[dtype], tip, 4, 0.75)
    legend(svg, 488, [(_SERIES[dtype], DTYPES[dtype]) for dtype in used], 70)
    return svg.render()

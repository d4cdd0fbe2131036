"""Time against density, with the density at which the dense product is as fast; against columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable

from benchmarks.cell import Cell
from benchmarks.result import CHOICE, DENSE_RATE, Result

from . import names
from .results import DTYPES, Run, label, percent
from .svg import SERIES, WIDTH, Plot, Svg, axis_around, legend

_LEAST = 3  # points that make a line


def _largest_group(
    results: list[Result], key: Callable[[Cell], Hashable], along: Callable[[Cell], float]
) -> list[Result]:
    """The most cells of one `key`, at least three by `along`; of a cell in two suites the first."""
    groups: dict[Hashable, list[Result]] = {}
    for result in {result.cell: result for result in reversed(results)}.values():
        if result.cell.pattern == "uniform":
            groups.setdefault(key(result.cell), []).append(result)
    useful = [g for g in groups.values() if len({along(r.cell) for r in g}) >= _LEAST]
    return max(useful, key=lambda g: (len(g), sum(len(r.rows) for r in g)), default=[])


def _crossing(points: list[tuple[float, float]], level: float) -> float | None:
    """Where a line through points, straight between logarithms, passes a level; None: nowhere."""
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if y0 <= level < y1:
            share = math.log(level / y0) / math.log(y1 / y0)
            return x0 * (x1 / x0) ** share
    return None


def density(runs: list[Run]) -> str | None:
    """Time against density for each block size; None where no three densities were measured."""
    found = [(run, result) for run in runs for result in run.results]
    mode = runs[0].modes[0]
    group = _largest_group(
        [result for _, result in found if result.median(CHOICE, mode) is not None],
        lambda c: (c.m, c.n, c.k, c.dtype, c.op),
        lambda c: c.density,
    )
    full = [r.median(DENSE_RATE, mode) or r.median("torch_dense", mode) for r in group]
    times = sorted(us for us in full if us is not None)
    dense = times[len(times) // 2 :][:1]  # the middle one of what it took beside each cell
    lines: dict[int, list[tuple[float, float, str]]] = {}
    for result in sorted(group, key=lambda r: r.cell.density):
        us = result.median(CHOICE, mode)
        if us is not None:
            point = (result.cell.density, us, f"{label(result.cell)}: {us:.1f} µs")
            lines.setdefault(result.cell.block, []).append(point)
    lines = {block: points for block, points in sorted(lines.items()) if len(points) >= _LEAST}
    if not lines:
        return None
    cell = group[0].cell
    svg = Svg(
        "Time against density",
        f"{runs[0].device}: {cell.m} × {cell.k} × {cell.n}, {DTYPES[cell.dtype]}, {mode}",
        "A line for each block size; the level line is the dense product.",
    )
    every = [us for points in lines.values() for _, us, _ in points] + dense
    x = axis_around(
        [100 * d for points in lines.values() for d, _, _ in points], 74, WIDTH - 20, 1.15
    )
    y = axis_around(every, 420, 70)
    plot = Plot(svg, x, y, "stored blocks, %", "µs")
    for i, points in enumerate(lines.values()):
        plot.series(i, [(100 * d, us, tip) for d, us, tip in points])
    entries = []
    for i, (block, points) in enumerate(lines.items()):
        said = f"blocks of {block}"
        if dense and (at := _crossing([(d, us) for d, us, _ in points], dense[0])) is not None:
            said += f" (as fast as dense at {percent(float(f'{at:.2g}'))})"
            svg.line([(x(100 * at), y(dense[0])), (x(100 * at), y(y.low))], f"c{i}", 1.5, "2 4")
        entries.append((i % SERIES, said))
    if dense:
        svg.line([(x(x.low), y(dense[0])), (x(x.high), y(dense[0]))], "text", 2, "7 4")
        svg.text(x(x.low) + 6, y(dense[0]) - 7, f"dense product, {dense[0]:.0f} µs", size=14)
    legend(svg, 482, entries, 74)
    return svg.render()


def columns(runs: list[Run]) -> str | None:
    """Time against the number of columns, with the peers; None without three such cells."""
    mode = runs[0].modes[0]
    group = _largest_group(
        [result for run in runs for result in run.results if result.median(CHOICE, mode)],
        lambda c: (c.m, c.k, c.block, c.density, c.dtype, c.op),
        lambda c: c.n,
    )
    if not group:
        return None
    group.sort(key=lambda result: result.cell.n)
    lines: dict[str, list[tuple[float, float, str]]] = {}
    for name in (CHOICE, *names.PEERS):
        for result in group:
            if (us := result.median(name, mode)) is not None:
                tip = f"{names.shown(name)}, {result.cell.n} columns: {us:.1f} µs"
                lines.setdefault(name, []).append((result.cell.n, us, tip))
    lines = {name: points for name, points in lines.items() if len(points) > 1}
    # More lines than markers would repeat a marker: those of the slowest are left out.
    kept = sorted(lines, key=lambda name: min(us for _, us, _ in lines[name]))[:SERIES]
    lines = {name: points for name, points in lines.items() if name in kept}
    cell = group[0].cell
    svg = Svg(
        "Time against the number of columns",
        f"{runs[0].device}: {cell.op}, {cell.m} × {cell.k}, {DTYPES[cell.dtype]}, blocks of "
        f"{cell.block}, {percent(cell.density)}, {mode}",
        "A line for sparse_autotune's choice and for each peer.",
    )
    every = [point for points in lines.values() for point in points]
    x = axis_around([point[0] for point in every], 74, WIDTH - 20, 1.3)
    y = axis_around([point[1] for point in every], 420, 70)
    plot = Plot(svg, x, y, "columns", "µs")
    for i, points in reversed(list(enumerate(lines.values()))):
        plot.series(i, points, 3 if i == 0 else 1.5)
    legend(svg, 482, [(i, names.shown(name)) for i, name in enumerate(lines)], 74)
    return svg.render()

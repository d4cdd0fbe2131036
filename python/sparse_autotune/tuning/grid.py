"""`benchmark_grid`: a benchmark for each size, block, density and dtype; its data and pictures."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import _tuner, cache
from ..checks.matrix import block_shape, check_divides, check_value_dtype, kind, share, size
from ..generators import random_bsr
from ..settings import settings
from .announcements import DENSE, with_progress
from .races import benchmark, check_budget
from .report import frame_of

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas

_KEY = ("m", "k", "n", "block", "density", "dtype")  # what names a cell
_OF_THE_WINNER = ("median_us", "tflops", "peak_share", "memory_share")


@dataclass(frozen=True)
class GridReport:
    """The results of `benchmark_grid`.

    Attributes:
        device: the device's name, on a CPU with the number of threads.
        timing: "cold" or "warm", as `settings` said; on a CPU always "warm".
        versions: a hash of the build and of the libraries that timings depend on.
        cells: a dict for each dtype, size, block and density, in this order. ``m``, ``k``, ``n``,
            ``block`` ("64x64"), ``density`` (as asked for) and ``dtype`` name the product;
            ``winner``, ``median_us``, ``tflops`` (nnz), ``peak_share`` and ``memory_share`` are
            those of the fastest variant, as in `VariantRecord`; ``dense_us`` is the time of the
            dense product, ``sparse_us`` that of the best variant that is not dense, ``speed_up``
            the first over the second. What was not measured is None, and ``failure`` says why.
    """

    device: str
    timing: str
    versions: str
    cells: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python objects."""
        return asdict(self)

    def to_pandas(self) -> pandas.DataFrame:
        """A row per cell; what the cells share is in the frame's ``attrs``. Needs pandas."""
        return frame_of(self.to_dict(), "cells")

    def plot(self) -> matplotlib.figure.Figure:
        """Time against density: a line per block size, and the dense product's time.

        A ring marks the density from which on the dense product is faster. There is a panel per
        size and dtype. Needs matplotlib and pandas.
        """
        return self._panels(_draw_times, 5.5)

    def heat_map(self) -> matplotlib.figure.Figure:
        """Speed-up over the dense product, and the winning family, by block size and density.

        There is a panel per size and dtype. Needs matplotlib and pandas.
        """
        densities = {cell["density"] for cell in self.cells}
        return self._panels(_draw_speed_ups, 1 + 1.3 * len(densities))

    def _panels(self, draw: Callable[..., None], width: float) -> matplotlib.figure.Figure:
        import matplotlib.pyplot as plt

        frame = self.to_pandas()
        panels = list(frame.groupby(["dtype", "m", "k", "n"], sort=False))
        rows = frame["dtype"].nunique()
        cols = len(panels) // rows
        size = (width * cols, 4 * rows + 0.4)
        figure, axes = plt.subplots(rows, cols, squeeze=False, figsize=size, layout="constrained")
        for ax, ((dtype, m, k, n), panel) in zip(axes.flat, panels, strict=True):
            draw(ax, panel)
            ax.set(title=f"{m} × {k} × {n}, {dtype}", xlabel="stored blocks")
        figure.suptitle(f"{self.device}, {self.timing}")
        return figure


def benchmark_grid(
    sizes: Iterable[int | Sequence[int]],
    *,
    blocks: Iterable[int | Sequence[int]] = (16, 32, 64, 128),
    densities: Iterable[float] = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5),
    dtypes: Iterable[torch.dtype] = (torch.float32,),
    device: torch.device | str | None = None,
    path: str | os.PathLike[str] | None = None,
    budget_s: float | None = None,
) -> GridReport:
    """`benchmark` for each size, block size, density and dtype, with a progress bar (tqdm).

    Blocks are at random places. The values are frozen, as those of a trained model: variants that
    convert the matrix do so once, and the dense product has its dense matrix from the start.

    With a ``path`` the results so far are written there after each product, all or nothing. The
    same call goes on after an interruption; a larger grid measures only what the file lacks.

    Args:
        sizes: of the products, each a number, for m = k = n, or ``(m, k, n)``.
        blocks: block sizes as for `random_bsr`; each must divide every m and k.
        densities: fractions of the blocks to store, 0 to 1.
        dtypes: of float16, bfloat16, float32 and float64.
        device: where to measure; by default torch's default device.
        path: a file for the results, JSON.
        budget_s: seconds to spend on one product; None: as for `benchmark`.

    Raises:
        TypeError, ValueError: an argument of the wrong kind or out of range, before anything is
            measured; ValueError also if the file at ``path`` is not one of these, or was measured
            on another device, by another build or with another ``settings.timing``.
        RuntimeError: the device is neither a CPU nor a CUDA device.
        OSError: the file cannot be read or written.
    """
    keys = _keys(sizes, blocks, densities, dtypes)
    check_budget(budget_s)
    where = torch.empty(0, device=device).device
    if where.type not in ("cpu", "cuda"):
        raise RuntimeError(f"variants run on the CPU and on CUDA devices, but device is {where}")
    name = _tuner.device_info(-1 if where.type == "cpu" else where.index)["name"]
    timing = settings.timing if where.type == "cuda" else "warm"
    if where.type == "cpu":
        name += f", {torch.get_num_threads()} threads"
    report = GridReport(name, timing, cache.environment(), [])
    file = None if path is None else Path(path)
    cells = {} if file is None else _read(file, report)
    todo = [key for key in keys if key not in cells]
    for key in with_progress(todo, total=len(keys), initial=len(keys) - len(todo), unit="product"):
        cells[key] = _cell(key, where, budget_s)
        if file is not None:
            report.cells[:] = cells.values()
            cache.replace_file(file, (json.dumps(report.to_dict(), indent=1) + "\n").encode())
    report.cells[:] = [cells[key] for key in keys]
    return report


def _keys(sizes: Any, blocks: Any, densities: Any, dtypes: Any) -> list[tuple[Any, ...]]:
    """All combinations, each once; raises for one that could not be measured."""
    shapes = [_shape(given) for given in _several(sizes, "sizes")]
    pairs = [block_shape(given, "blocks") for given in _several(blocks, "blocks")]
    shares = [share(given, "densities") for given in _several(densities, "densities")]
    for dtype in (types := _several(dtypes, "dtypes")):
        check_value_dtype(dtype, "dtypes")
    for shape, pair in itertools.product(shapes, pairs):
        check_divides(shape[:2], pair, "sizes")
    every = itertools.product(types, shapes, pairs, shares)
    keys = [(*mkn, f"{bm}x{bk}", share, str(dtype)[6:]) for dtype, mkn, (bm, bk), share in every]
    return list(dict.fromkeys(keys))


def _several(values: Any, name: str) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list, got {kind(values)}")
    if not (listed := list(values)):
        raise ValueError(f"{name} must have an element at least")
    return listed


def _shape(given: Any) -> tuple[int, int, int]:
    m, k, n = given if isinstance(given, Sequence) and len(given) == 3 else (given,) * 3
    return size(m, "sizes"), size(k, "sizes"), size(n, "sizes")


def _read(file: Path, report: GridReport) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The cells that the file has; none where it is not there yet."""
    try:
        content = json.loads(file.read_text())
        cells = {tuple(cell[name] for name in _KEY): cell for cell in content["cells"]}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError) as error:  # what other files raise above
        raise ValueError(f"path: {file} is not a file of benchmark_grid: {error!r}") from None
    for name in ("device", "timing", "versions"):
        if content.get(name) != (now := getattr(report, name)):
            raise ValueError(f"path: {file} has {name} {content.get(name)!r}, now it is {now!r}")
    return cells


def _cell(key: tuple[Any, ...], device: torch.device, budget_s: float | None) -> dict[str, Any]:
    m, k, n, block, density, name = key
    dtype, sides = getattr(torch, name), [int(side) for side in block.split("x")]
    seed = torch.Generator().manual_seed(0)
    a = random_bsr(m, k, sides, density=density, dtype=dtype, device=device, generator=seed)
    b = torch.zeros(k, n, dtype=dtype, device=device)
    report = benchmark(a.freeze(), b, budget_s=budget_s)
    times: dict[bool, float] = {}
    for record in report.records:  # the fastest come first
        if record.median_us is not None:
            times.setdefault(record.family in DENSE, record.median_us)
    dense_us, sparse_us = times.get(True), times.get(False)
    return {
        **dict(zip(_KEY, key, strict=True)),
        "winner": report.winner,
        **{name: getattr(report.best, name, None) for name in _OF_THE_WINNER},
        "dense_us": dense_us,
        "sparse_us": sparse_us,
        "speed_up": dense_us / sparse_us if dense_us and sparse_us else None,
        "failure": report.failure,
    }


def _percent(share: float, position: object = None) -> str:
    return f"{100 * share:.3g}%"


def _draw_times(ax: Any, panel: pandas.DataFrame) -> None:
    import numpy as np

    timed = panel[panel["speed_up"].notna() & (panel["density"] > 0)]
    for i, (block, line) in enumerate(timed.groupby("block", sort=False)):
        line = line.sort_values("density")
        x, y, ahead = (np.log(line[name]) for name in ("density", "sparse_us", "speed_up"))
        marker = "osD^v<>P"[i % 8]
        ax.plot(np.exp(x), np.exp(y), f"C{i}-{marker}", label=block)
        if ahead.iloc[0] > 0 > ahead.iloc[-1]:
            behind = np.maximum.accumulate(-ahead)  # np.interp needs it sorted
            crossing = [np.exp(np.interp(0, behind, values)) for values in (x, y)]
            ax.plot(*crossing, f"C{i}o", markersize=13, fillstyle="none")
    ax.axhline(timed["dense_us"].median(), color="0.4", linestyle="--", label="dense")
    ax.set(xscale="log", yscale="log", ylabel="µs")
    ax.xaxis.set_major_formatter(_percent)
    ax.legend()


def _draw_speed_ups(ax: Any, panel: pandas.DataFrame) -> None:
    import numpy as np

    table = panel.pivot(index="block", columns="density", values=["speed_up", "winner"])
    table = table.reindex(panel["block"].unique())  # in the order of the arguments
    shades = np.log2(table["speed_up"].to_numpy(float))
    most = np.nanmax(np.abs(shades), initial=1.0)
    ax.imshow(shades, cmap="PuOr", vmin=-most, vmax=most, aspect="auto")
    for (y, x), shade in np.ndenumerate(shades):
        family = table["winner"].iloc[y, x].partition("/")[0] or "–"
        text = f"{2**shade:.2g}×\n{family}" if np.isfinite(shade) else family
        colour = "white" if abs(shade) > 0.5 * most else "black"
        ax.text(x, y, text, ha="center", va="center", fontsize="x-small", color=colour)
    ax.set_xticks(range(shades.shape[1]), map(_percent, table["speed_up"].columns))
    ax.set_yticks(range(shades.shape[0]), table.index)
    ax.set_ylabel("block")

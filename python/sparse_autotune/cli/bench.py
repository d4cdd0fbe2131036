"""``sparse-autotune bench``: one product or a grid of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
import torch
from rich.table import Table

from ..choices import Pattern
from ..generators import random_bsr
from ..tuning.announcements import DENSE
from ..tuning.races import benchmark
from ..tuning.report import BenchmarkReport, significant
from .output import table

_DTYPES = ("float16", "bfloat16", "float32", "float64")


class _List(click.ParamType):
    """Values separated by commas."""

    name = "LIST"

    def __init__(self, one: Callable[[str], Any], rule: str) -> None:
        """``one`` makes a value of a part; of anything unfit it raises ValueError or KeyError."""
        self._one, self._rule = one, rule

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> list[Any]:
        """The values of an option."""
        found = []
        for text in str(value).split(","):
            try:
                found.append(self._one(text.strip()))
            except (ValueError, KeyError):
                self.fail(f"{text!r} is not {self._rule}.", param, context)
        return found


def _positive(number: float) -> float:
    if not 0 < number < 2**40:
        raise ValueError
    return number


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,12})(?:x(\d{1,12}))?", text)
    if match is None or 0 in (size := (int(match[1]), int(match[2] or match[1]))):
        raise ValueError
    return size


NUMBERS = _List(lambda text: _positive(float(text)), "a positive number")
WHOLE_NUMBERS = _List(lambda text: _positive(int(text)), "a positive whole number")
SIZES = _List(_size, "a size like 64 or 16x48")
DTYPES = _List(
    {name: getattr(torch, name) for name in _DTYPES}.__getitem__, f"one of {', '.join(_DTYPES)}"
)


@dataclass(frozen=True)
class Grid:
    """The products to time: each combination."""

    sizes: list[tuple[int, int]]
    blocks: list[tuple[int, int]]
    densities: list[float]
    columns: list[int]
    dtypes: list[torch.dtype]
    pattern: Pattern
    linear: bool
    device: str | None
    budget: float | None
    seed: int


def device_of(name: str | None) -> torch.device:
    """The device of that name; by default the GPU, if there is one.

    Raises:
        ValueError: it is none for products.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu or cuda; got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device must be cpu: torch sees no usable GPU")
    return device


def matrix_in(file: str) -> torch.Tensor:
    """The matrix that a file holds.

    Raises:
        ValueError: it holds none.
    """
    try:
        if file.endswith(".npy"):
            found = torch.from_numpy(np.load(file, allow_pickle=False))
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # torch.load raises any kind on a file that it did not write
        found = None
    if not isinstance(found, torch.Tensor):
        raise ValueError(f"{file} holds no tensor that torch.save or numpy.save wrote")
    return found


def run(grid: Grid) -> list[BenchmarkReport]:
    """A report for each product.

    Raises:
        ValueError: there is no such product.
    """
    device = device_of(grid.device)
    fixed = grid.pattern in ("block_diagonal", "causal")
    reports = []
    products = (grid.sizes, grid.blocks, grid.densities, grid.dtypes, grid.columns)
    for size, block, density, dtype, n in itertools.product(*products):
        a = random_bsr(
            *size,
            block,
            density=None if fixed else density,
            pattern=grid.pattern,
            dtype=dtype,
            device=device,
            generator=torch.Generator().manual_seed(grid.seed),
        )
        shape = (n, size[1]) if grid.linear else (size[1], n)
        b = torch.randn(shape, device=device).to(dtype)
        reports.append(benchmark(a, b, linear=grid.linear, budget_s=grid.budget))
    return reports


def table_of(reports: list[BenchmarkReport]) -> Table:
    """A line for each product: the winner, and the dense product beside it."""
    rows = []
    for report in reports:
        best = report.best
        times = [r.median_us for r in report.records if r.family in DENSE and r.median_us]
        dense = min(times, default=None)
        rows.append(
            (
                report.problem,
                best.name if best else report.failure or "no winner",
                significant(best.median_us if best else None, 4),
                significant(best.tflops if best else None, 3),
                significant(dense, 4),
            )
        )
    headings = ("problem", "winner", "µs", "TFLOP/s (nnz)", "dense µs")
    return table(headings, rows, right=(2, 3, 4))

"""Which cells are raced, in which order, and one race."""

from __future__ import annotations

import dataclasses

import torch

import sparse_autotune
from benchmarks.cell import Cell, Operands
from benchmarks.suites import (
    gpu_large_blocks,
    gpu_layers,
    gpu_patterns,
    gpu_science,
    gpu_small_blocks,
    gpu_small_n,
    gpu_survey,
)
from sparse_autotune import BenchmarkReport
from sparse_autotune.choices import Timing

from .saved import Race

TIMINGS: tuple[Timing, ...] = ("warm", "cold")
# Gradients of a layer y = x Wᵀ: dX = dY W has the sparse operand on the right, dW is sampled.
_GRADIENTS = ("dX", "dW")


def _gradients() -> list[Cell]:
    shapes = ((4096, 4096), (14336, 4096), (4096, 14336))
    half = [
        Cell(m, 4096, k, block, density, "bfloat16", op=op)
        for op in _GRADIENTS
        for m, k in shapes
        for block in (128, 64, 32, 16)
        for density in (0.25, 0.125, 0.05)
    ]
    exact = [
        Cell(4096, 1024, 4096, block, 0.125, dtype, op=op)
        for op in _GRADIENTS
        for dtype in ("float32", "float64")
        for block in (4, 8, 16, 32, 64)
    ]
    few = [
        Cell(4096, n, 4096, block, 0.125, "bfloat16", op="dX")
        for block in (16, 32, 64, 128)
        for n in (1, 16, 128)
    ]
    wave = [
        Cell(1024, 4096, 1024, block, density, "bfloat16", op="dW")
        for block in (64, 128)
        for density in (0.25, 0.5, 1.0)
    ]
    return [*half, *exact, *few, *wave]


def cells() -> dict[str, list[Cell]]:
    """What is raced, by suite; suites do not time gradients, which are listed here."""
    modules = (
        gpu_large_blocks,
        gpu_small_blocks,
        gpu_small_n,
        gpu_patterns,
        gpu_layers,
        gpu_science,
        gpu_survey,
    )
    found = {"gradients": _gradients()}
    for module in modules:
        found[module.__name__.rpartition(".")[2]] = list(module.SUITE.cells)
    return found


def in_order(of: dict[str, list[Cell]]) -> list[tuple[str, Cell]]:
    """All cells, suites in turn in proportion to their sizes: a run that is cut has some of all."""
    placed = [
        ((i + 0.5) / len(listed), suite, cell)
        for suite, listed in of.items()
        for i, cell in enumerate(listed)
    ]
    return [(suite, cell) for _, suite, cell in sorted(placed, key=lambda one: one[0])]


def _report(cell: Cell, device: str) -> BenchmarkReport:
    tune = sparse_autotune.tune
    if cell.op not in _GRADIENTS:
        operands = Operands(cell, device)
        return tune(operands.a, operands.b, linear=operands.linear)
    operands = Operands(dataclasses.replace(cell, op="linear"), device)
    a, x = operands.a, operands.b
    dy = torch.randn(cell.n, cell.m, device=device, dtype=x.dtype)
    return tune(dy, a) if cell.op == "dX" else tune(dy.mT, x, pattern=a)


def race(suite: str, cell: Cell, timing: Timing, budget_s: float, device: str = "cuda") -> Race:
    """One race of everybody, as the tuner reports it, or why there was none."""
    fields = cell.to_dict()
    try:
        with sparse_autotune.settings.override(budget_s=budget_s, timing=timing):
            report = _report(cell, device)
    except RuntimeError as error:
        return Race(suite, fields, timing, failure=str(error).splitlines()[0])
    best = report.best
    if best is None:
        return Race(suite, fields, timing, failure=report.failure or "nothing could be timed")
    us, tflops, gbps = best.median_us or 0.0, best.tflops or 0.0, best.gbps or 0.0
    expected = {r.name: r.expected_us for r in report.records if r.expected_us is not None}
    guess = min(expected, key=lambda name: expected[name])  # timed or not
    median = {r.name: r.median_us for r in report.records if r.median_us is not None}
    return Race(
        suite,
        fields,
        timing,
        winner=report.captured_winner,  # the times are of kernels
        flops=tflops * us * 1e6,
        bytes=gbps * us * 1e3,
        expected={name: us for name, us in expected.items() if name in median or name == guess},
        median=median,
    )

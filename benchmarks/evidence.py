"""What each family is worth: `python -m benchmarks.evidence --save build/evidence.json`.

Races every variant on the cells of all GPU suites, and on the gradients of layers, warm and cold,
and saves what each variant took and what its cost model had expected. Minutes on an H200.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
import warnings
from pathlib import Path

import torch

import sparse_autotune
from sparse_autotune.choices import Timing

from . import environment
from .cell import Cell, Operands
from .suites import (
    gpu_large_blocks,
    gpu_layers,
    gpu_patterns,
    gpu_science,
    gpu_small_blocks,
    gpu_small_n,
    gpu_survey,
)

# Gradients of a layer y = x Wᵀ: dX = dY W has the sparse operand on the right, dW is sampled.
_GRADIENTS = ("dX", "dW")
_TIMINGS: tuple[Timing, ...] = ("warm", "cold")


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
    """What is raced, by suite; "gradients" is this page's own."""
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


def race(cell: Cell, timing: Timing, budget_s: float) -> dict:
    """One race of everybody, as the tuner reports it."""
    tune = sparse_autotune.tune
    with sparse_autotune.settings.override(budget_s=budget_s, timing=timing):
        if cell.op in _GRADIENTS:
            operands = Operands(dataclasses.replace(cell, op="linear"), "cuda")
            a, x = operands.a, operands.b
            dy = torch.randn(cell.n, cell.m, device="cuda", dtype=x.dtype)
            report = tune(dy, a) if cell.op == "dX" else tune(dy.mT, x, pattern=a)
        else:
            operands = Operands(cell, "cuda")
            report = tune(operands.a, operands.b, linear=operands.linear)
    return {
        "cell": cell.to_dict(),
        "timing": report.timing,
        "measured": report.measured,
        "winner": report.winner,
        "variants": {
            r.name: [r.status, r.expected_us, r.median_us]
            for r in report.records
            if r.status != "unsupported"
        },
    }


def main() -> None:
    """Races all cells and saves after each suite."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence")
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=0.25, help="seconds a race")
    parser.add_argument("--seconds", type=float, default=540, help="no race begins later")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*Sparse BSR tensor support is in beta.*")
    begin = time.monotonic()
    record = environment.Record("evidence", "cuda", options.save)
    found: dict[str, list[dict]] = {}
    with environment.own_cache():
        for suite, listed in cells().items():
            found[suite] = []
            for cell in listed:
                for timing in _TIMINGS:
                    if time.monotonic() - begin > options.seconds:
                        break
                    found[suite].append(race(cell, timing, options.budget))
                torch.cuda.empty_cache()
            print(
                f"{suite}: {len(found[suite])} races, {time.monotonic() - begin:.0f} s", flush=True
            )
            record.save(complete=False, races=found)
    record.save(complete=True, races=found)


if __name__ == "__main__":
    main()

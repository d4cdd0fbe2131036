"""Blocks of 128 and 64 in bf16: 8192³ and 4096³ at three densities, twelve cells."""

from benchmarks.cell import Cell
from benchmarks.suite import Suite

SUITE = Suite(
    device="cuda",
    rounds=9,
    dense_rate=True,
    cells=[
        Cell(size, size, size, block, density, "bfloat16")
        for size in (8192, 4096)
        for block in (128, 64)
        for density in (0.25, 0.125, 0.05)
    ],
)

"""Blocks of 32 and 16 in bf16: 8192³ and 4096³ at three densities, twelve cells; 8192³ at 2%."""

from benchmarks.cell import Cell
from benchmarks.suite import Suite

SUITE = Suite(
    device="cuda",
    rounds=9,
    dense_rate=True,
    cells=[
        Cell(size, size, size, block, density, "bfloat16")
        for size, densities in ((8192, (0.25, 0.125, 0.05, 0.02)), (4096, (0.25, 0.125, 0.05)))
        for block in (32, 16)
        for density in densities
    ],
)

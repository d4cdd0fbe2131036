"""The GPU comparison in about two minutes: 4096³, the four block sizes, bf16."""

from benchmarks.cell import Cell
from benchmarks.suite import Suite

SUITE = Suite(
    device="cuda",
    rounds=9,
    cells=[
        Cell(4096, 4096, 4096, block, density, "bfloat16")
        for block, density in (
            (64, 0.125),
            (64, 0.25),
            (64, 0.05),
            (128, 0.125),
            (32, 0.125),
            (16, 0.125),
        )
    ],
)

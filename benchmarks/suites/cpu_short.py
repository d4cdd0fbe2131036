"""A few of the CPU comparison's cells, in a minute or two."""

from benchmarks.cell import Cell
from benchmarks.suite import Suite

SUITE = Suite(
    device="cpu",
    rounds=15,
    cells=[
        Cell(2048, 2048, 2048, 64, 0.125),
        Cell(4096, 256, 4096, 32, 0.125),
        Cell(4096, 256, 4096, 128, 0.5),
        Cell(4096, 8, 4096, 32, 0.125),
        Cell(4096, 256, 4096, 64, 0.125, "bfloat16"),
    ],
)

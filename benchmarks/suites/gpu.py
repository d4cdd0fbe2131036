"""The GPU comparison: 4096³ and 8192³, four block sizes, three densities, narrow N, bf16."""

from benchmarks.cell import Cell
from benchmarks.suite import Suite

SUITE = Suite(
    device="cuda",
    rounds=9,
    dense_rate=True,
    cells=[
        *(
            Cell(size, size, size, block, density, "bfloat16")
            for size in (4096, 8192)
            for block in (16, 32, 64, 128)
            for density in (0.05, 0.125, 0.25)
        ),
        *(Cell(4096, n, 4096, 64, 0.125, "bfloat16") for n in (16, 128, 1024)),
    ],
)

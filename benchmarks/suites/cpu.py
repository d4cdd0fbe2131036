"""The CPU comparison: wide and narrow N, four block sizes, four densities, fp32 and bf16."""

from benchmarks.cell import Cell
from benchmarks.suite import Suite

SUITE = Suite(
    device="cpu",
    rounds=15,
    cells=[
        Cell(m, n, k, block, density, dtype)
        for dtype in ("float32", "bfloat16")
        for m, k, n in ((2048, 2048, 2048), (4096, 4096, 256), (4096, 4096, 8))
        for block in (16, 32, 64, 128)
        for density in (0.05, 0.125, 0.25, 0.5)
    ],
)

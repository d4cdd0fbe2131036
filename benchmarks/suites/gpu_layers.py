"""Layers of language models in bf16, blocks of 64 and 128, three densities.

300 columns come as tokens of `linear` and as a row-major `b`, whose rows of 600 bytes TMA refuses.
"""

from benchmarks.cell import Cell
from benchmarks.suite import Suite

_SHAPES = ((14336, 4096), (4096, 14336), (5120, 13824), (1024, 8192))
_COLUMNS = ((300, "linear"), (300, "matmul"), (2048, "matmul"), (8192, "matmul"))

SUITE = Suite(
    device="cuda",
    rounds=5,
    modes=("warm", "cold"),
    budget_s=0.5,
    cells=[
        Cell(m, n, k, block, density, "bfloat16", op=op)
        for density in (0.125, 0.25, 0.05)  # a run that ends early has all layers at the first
        for n, op in _COLUMNS
        for m, k in _SHAPES
        for block in (64, 128)
    ],
)

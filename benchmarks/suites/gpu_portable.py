"""Code that Ampere could run, on the GPU at hand: families without `_sm90`, Triton for sm_80.

Memory, clocks and numbers of multiprocessors are still those of the GPU at hand. The kinds of cells
alternate, so that a run which ends early has some of each.
"""

from benchmarks.cell import Cell
from benchmarks.suite import Suite

SUITE = Suite(
    device="cuda",
    rounds=7,
    modes=("warm", "cold"),
    portable=True,
    cells=[
        Cell(8192, 8192, 8192, 128, 0.125, "bfloat16"),
        Cell(4096, 4096, 4096, 16, 0.125, "bfloat16"),
        Cell(4096, 16, 4096, 64, 0.125, "bfloat16", op="linear"),
        Cell(4096, 4096, 4096, 32, 0.125, "float64"),
        Cell(4096, 4096, 4096, 64, 0.125, "bfloat16"),
        Cell(8192, 8192, 8192, 32, 0.125, "bfloat16"),
        Cell(14336, 1, 4096, 16, 0.125, "bfloat16", op="linear"),
        Cell(4096, 4096, 4096, 32, 0.125, "float32"),
        Cell(8192, 8192, 8192, 64, 0.05, "bfloat16"),
        Cell(4096, 4096, 4096, 64, 0.125, "float16"),
        Cell(4096, 128, 4096, 32, 0.125, "bfloat16"),
    ],
)

"""Where dense products and other libraries are ahead: small blocks in half types, high densities.

`docs/reading_figures.md` says what to use then.
"""

from benchmarks.cell import Cell
from benchmarks.suite import Suite

SUITE = Suite(
    device="cuda",
    rounds=7,
    modes=("warm", "cold"),
    budget_s=0.5,
    # Blocks of less than 16 are none of Triton's, and at high densities it is far behind cuBLAS.
    without=("triton_tuned",),
    cells=[
        Cell(4096, 16, 4096, 1, 0.1, "bfloat16"),
        Cell(4096, 512, 4096, 4, 0.125, "bfloat16"),
        Cell(4096, 4096, 4096, 8, 0.125, "bfloat16"),
        Cell(4095, 512, 4095, 3, 0.125, "float64"),
        Cell(4096, 4096, 4096, 16, 0.5, "bfloat16"),
        Cell(4096, 4096, 4096, 32, 0.75, "bfloat16"),
    ],
)

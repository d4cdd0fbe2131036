"""Two lines through the space of problems in bf16: density, and the number of columns."""

from benchmarks.cell import Cell
from benchmarks.suite import Suite

SUITE = Suite(
    device="cuda",
    rounds=5,
    modes=("warm", "cold"),
    budget_s=0.5,
    # Its knobs are swept for each cell, which takes longer than all the rest.
    without=("triton_tuned",),
    dense_rate=True,
    cells=[
        *(
            Cell(4096, 4096, 4096, block, density, "bfloat16")
            for block in (16, 64, 128)
            for density in (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
        ),
        *(
            Cell(4096, n, 4096, 64, 0.125, "bfloat16", op="linear")
            for n in (1, 4, 16, 64, 256, 1024, 4096, 16384)
        ),
    ],
)

"""Few columns in bf16, as a model decodes: blocks of 16, 32 and 64, one to 128 tokens.

The layer of 14336 x 4096 is what is read from memory in every step: its cold times count.
"""

from benchmarks.cell import Cell
from benchmarks.suite import Suite

_BLOCKS = (64, 32, 16)

SUITE = Suite(
    device="cuda",
    rounds=9,
    modes=("warm", "cold"),
    budget_s=0.5,
    cells=[
        *(
            Cell(4096, n, 4096, block, 0.125, "bfloat16", op=op)
            for op in ("linear", "matmul")
            for block in _BLOCKS
            for n in (1, 16, 128)
        ),
        *(
            Cell(14336, n, 4096, block, density, "bfloat16", op="linear")
            for block in _BLOCKS
            for density in (0.125, 0.25, 0.5)
            for n in (1, 16)
        ),
    ],
)

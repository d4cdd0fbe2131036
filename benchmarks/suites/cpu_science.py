"""Scientific computing on a CPU: fp64 and fp32, small and odd blocks, few columns."""

from benchmarks.cell import Cell
from benchmarks.suite import Suite

SUITE = Suite(
    device="cpu",
    rounds=15,
    cells=[
        *(
            Cell.of_mesh(120_000, n, block, dtype)
            for dtype in ("float64", "float32")
            for n in (1, 4, 16)
            for block in (2, 3, 4, 6, 8)
        ),
        *(Cell.of_mesh(120_000, 64, block, "float64") for block in (3, 4)),
        *(Cell(2048, n, 2048, 16, 0.125, "float64") for n in (1, 512)),
        Cell(99_999, 1, 99_999, 3, 0.0002, "float64", "power_law"),
        Cell(99_999, 1, 99_999, 3, 0.0002, "float64", "one_dense_row"),
    ],
)

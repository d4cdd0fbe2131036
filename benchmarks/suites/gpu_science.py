"""Scientific computing on a GPU: fp64 and fp32 without TF32, small and odd blocks, few columns."""

from benchmarks.cell import Cell
from benchmarks.suite import Suite

SUITE = Suite(
    device="cuda",
    rounds=7,
    modes=("warm", "cold"),
    cells=[
        *(
            Cell.of_mesh(1_000_000, n, block, "float64")
            for n in (1, 4, 16)
            for block in (2, 3, 4, 6, 8)
        ),
        *(Cell.of_mesh(1_000_000, n, block, "float32") for n in (1, 16) for block in (3, 4, 8)),
        *(
            Cell.of_mesh(300_000, n, block, dtype)
            for dtype in ("float64", "float32")
            for n in (32, 128)
            for block in (3, 4)
        ),
        *(Cell(8190, 512, 8190, block, 0.05, "float64") for block in (3, 5)),
        *(
            Cell(4096, 4096, 4096, block, density, dtype)
            for dtype in ("float64", "float32")
            for block in (8, 16, 32, 64)
            for density in (0.05, 0.125)
        ),
        *(Cell(4096, 4096, 4096, block, 0.125, "float32", op="linear") for block in (16, 64)),
        *(Cell(4096, 8, 4096, block, 0.125, "float32", op="linear") for block in (16, 64)),
        Cell(99_999, 1, 99_999, 3, 0.0002, "float64", "power_law"),
        Cell(99_999, 1, 99_999, 3, 0.0002, "float64", "one_dense_row"),
    ],
)

"""Patterns other than uniform in bf16, each against a uniform one of as many blocks."""

from benchmarks.cell import Cell
from benchmarks.suite import Suite

SUITE = Suite(
    device="cuda",
    rounds=7,
    modes=("warm", "cold"),
    companions=lambda cell: {"uniform": cell.uniform_twin()},
    cells=[
        *(
            cell
            for block in (64, 128)
            for cell in (
                Cell(8192, 4096, 8192, block, 0.125, "bfloat16", "banded"),
                Cell.of_fixed("block_diagonal", 8192, 8192, block, "bfloat16"),
                Cell.of_fixed("causal", 8192, 4096, block, "bfloat16"),
                Cell(8192, 2048, 8192, block, 0.05, "bfloat16", "one_dense_row"),
                Cell(8192, 4096, 8192, block, 0.125, "bfloat16", "half_empty"),
            )
        ),
        # Rows cannot be longer than 1 / density times their mean: at 2% the longest is 50 times.
        Cell(32768, 2048, 32768, 64, 0.02, "bfloat16", "power_law"),
        Cell(32768, 2048, 32768, 128, 0.02, "bfloat16", "power_law"),
    ],
)

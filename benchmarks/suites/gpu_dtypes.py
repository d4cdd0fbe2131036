"""fp16 against bf16, and `linear` against `matmul`, at equal sizes and on the same pattern."""

from dataclasses import replace

from benchmarks.cell import Cell
from benchmarks.suite import Suite


def _companions(cell: Cell) -> dict[str, Cell]:
    if cell.op == "linear":
        return {"matmul": replace(cell, op="matmul")}
    return {"bfloat16": replace(cell, dtype="bfloat16")}


SUITE = Suite(
    device="cuda",
    rounds=15,
    modes=("warm", "cold"),
    peers=False,
    companions=_companions,
    cells=[
        Cell(size, size, size, block, density, dtype, op=op)
        for dtype, op in (("float16", "matmul"), ("bfloat16", "linear"))
        for size in (8192, 4096)
        for block in (128, 64)
        for density in (0.25, 0.125, 0.05)
    ],
)

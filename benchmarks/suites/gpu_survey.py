"""Cells that nobody chose: a seed draws dtype, block, density, shape, columns, layout and pattern.

`SURVEY_SEED=2 make bench-gpu SUITE=gpu_survey` draws others. The least ratios are what to look at:
a dense peer is handed A with its zeros, which our choice pays for unless values are frozen.
"""

import math
import os
import random

from benchmarks.cell import Cell
from benchmarks.suite import Suite

_CELLS = 120
_DTYPES = {"bfloat16": 0.35, "float16": 0.1, "float32": 0.27, "float64": 0.28}
_BLOCKS = (1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
_SIZES = (256, 512, 768, 1000, 1536, 2048, 3000, 4096, 6144, 8192, 12288, 16384)
_COLUMNS = (1, 2, 3, 4, 7, 8, 12, 16, 17, 24, 32, 48, 64, 100, 128, 200, 256, 300, 512, 1000, 2048)
_PATTERNS = {
    "uniform": 0.64,
    "banded": 0.09,
    "power_law": 0.1,
    "one_dense_row": 0.07,
    "half_empty": 0.1,
}
# Of the dense product, so that a cell takes about a second.
_MOST_FLOPS = {"bfloat16": 4e11, "float16": 4e11, "float32": 4e10, "float64": 4e10}
_MOST_ELEMENTS = 1 << 26  # of A with its zeros
_MOST_DENSE = 0.45  # that half_empty has room for


def _draw(draw: random.Random) -> Cell:
    def one_of(shares: dict[str, float]) -> str:
        return draw.choices(list(shares), list(shares.values()))[0]

    while True:
        dtype, block, n = one_of(_DTYPES), draw.choice(_BLOCKS), draw.choice(_COLUMNS)
        m, k = (draw.choice(_SIZES) // block * block for _ in range(2))
        density = math.exp(draw.uniform(math.log(0.005), math.log(_MOST_DENSE)))
        op = draw.choice(("matmul", "matmul", "linear"))
        cell = Cell(m, n, k, block, round(density, 4), dtype, one_of(_PATTERNS), op)
        blocks = (m // block) * (k // block)
        # A full row, and something besides.
        least = k // block + 8 if cell.pattern == "one_dense_row" else 8
        enough = cell.density * blocks >= least
        if enough and m * k <= _MOST_ELEMENTS and cell.dense_flops <= _MOST_FLOPS[dtype]:
            return cell


def _cells(seed: str) -> list[Cell]:
    draw = random.Random(seed)
    return [_draw(draw) for _ in range(_CELLS)]


SUITE = Suite(
    device="cuda",
    rounds=5,
    modes=("warm", "cold"),
    budget_s=0.2,
    # Their knobs and kernels are compiled for each cell: the other suites have them.
    without=("triton_default", "triton_tuned", "stk"),
    cells=_cells(os.environ.get("SURVEY_SEED", "1")),
)

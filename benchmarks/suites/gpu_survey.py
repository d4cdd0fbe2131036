"""Cells that a seed draws: dtype, block, density, shape, columns, layout and pattern.

`SURVEY_SEED=2 make bench-gpu SUITE=gpu_survey` draws others. The least ratios are what to look at:
a dense peer is handed A with its zeros, which our choice pays for unless values are frozen.
"""

from benchmarks.suite import Suite
from benchmarks.survey import Space

_COLUMNS = (1, 2, 3, 4, 7, 8, 12, 16, 17, 24, 32, 48, 64, 100, 128, 200, 256, 300, 512, 1000, 2048)
_SPACE = Space(
    dtypes={"bfloat16": 0.35, "float16": 0.1, "float32": 0.27, "float64": 0.28},
    sizes=(256, 512, 768, 1000, 1536, 2048, 3000, 4096, 6144, 8192, 12288, 16384),
    columns=_COLUMNS,
    most_flops={"bfloat16": 4e11, "float16": 4e11, "float32": 4e10, "float64": 4e10},
    most_elements=1 << 26,
)

SUITE = Suite(
    device="cuda",
    rounds=5,
    modes=("warm", "cold"),
    budget_s=0.2,
    # Their knobs and kernels are compiled for each cell: the other suites have them.
    without=("triton_default", "triton_tuned", "stk"),
    cells=_SPACE.cells(120),
)

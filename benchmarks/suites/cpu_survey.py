"""Cells that a seed draws, as in gpu_survey, of sizes that a CPU multiplies in milliseconds.

`SURVEY_SEED=2 make bench SUITE=cpu_survey` draws others.
"""

from benchmarks.suite import Suite
from benchmarks.survey import Space

_SPACE = Space(
    dtypes={"bfloat16": 0.25, "float16": 0.1, "float32": 0.4, "float64": 0.25},
    sizes=(64, 128, 256, 500, 512, 768, 1000, 1024, 2048, 3000, 4096),
    columns=(1, 2, 3, 4, 7, 8, 12, 16, 17, 24, 32, 48, 64, 100, 128, 256, 512, 1000),
    most_flops={"bfloat16": 4e9, "float16": 4e9, "float32": 4e9, "float64": 4e9},
    most_elements=1 << 24,
)

SUITE = Suite(device="cpu", rounds=7, budget_s=0.2, cells=_SPACE.cells(100))

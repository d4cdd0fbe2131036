"""Using the tuner directly, and what it tells."""

from .grid import GridReport, benchmark_grid
from .races import benchmark, tune, tuning_count, variants
from .report import BenchmarkReport, VariantRecord

__all__ = [
    "BenchmarkReport",
    "GridReport",
    "VariantRecord",
    "benchmark",
    "benchmark_grid",
    "tune",
    "tuning_count",
    "variants",
]

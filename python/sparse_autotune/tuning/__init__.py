"""Using the tuner directly, and what it tells."""

from .offline import TuneFileReport, tune_file
from .races import benchmark, tune, tuning_count, variants
from .report import BenchmarkReport, VariantRecord

__all__ = [
    "BenchmarkReport",
    "TuneFileReport",
    "VariantRecord",
    "benchmark",
    "tune",
    "tune_file",
    "tuning_count",
    "variants",
]

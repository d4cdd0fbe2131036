"""Using the tuner directly, and what it tells."""

from .races import benchmark, tune, tuning_count, variants
from .report import BenchmarkReport, VariantRecord

__all__ = ["BenchmarkReport", "VariantRecord", "benchmark", "tune", "tuning_count", "variants"]

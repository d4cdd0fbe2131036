"""Using the tuner directly, and what it tells."""

from .advice import Advice, BlockSizeAdvice, advise
from .grid import GridReport, benchmark_grid
from .offline import TuneFileReport, tune_file
from .races import benchmark, tune, tuning_count, variants
from .registration import RegisteredVariant, VariantProblem, register_variant
from .report import BenchmarkReport, VariantRecord

__all__ = [
    "Advice",
    "BenchmarkReport",
    "BlockSizeAdvice",
    "GridReport",
    "RegisteredVariant",
    "TuneFileReport",
    "VariantProblem",
    "VariantRecord",
    "advise",
    "benchmark",
    "benchmark_grid",
    "register_variant",
    "tune",
    "tune_file",
    "tuning_count",
    "variants",
]

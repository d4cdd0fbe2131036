"""Block-sparse (BSR) x dense matrix products for PyTorch, never slower than any alternative."""

from __future__ import annotations

from . import ops as _ops  # noqa: F401  registers the operators before anything needs them
from . import announcements as _announcements  # isort: skip
from . import cache
from .bsr_tensor import BsrTensor
from .configuration import show_config
from .functional import linear, matmul
from .generators import random_bsr
from .report import BenchmarkReport
from .settings import settings
from .tuning import benchmark, tune, tuning_count, variants

_announcements.install()

__all__ = [
    "BenchmarkReport",
    "BsrTensor",
    "benchmark",
    "cache",
    "linear",
    "matmul",
    "random_bsr",
    "settings",
    "show_config",
    "tune",
    "tuning_count",
    "variants",
]

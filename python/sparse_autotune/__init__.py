"""Block-sparse (BSR) x dense matrix products for PyTorch, never slower than any alternative."""

from __future__ import annotations

from . import announcements as _announcements
from . import batching as _batching  # noqa: F401  registers
from . import cache
from . import dispatching as _dispatching  # noqa: F401  registers
from . import pytrees as _pytrees
from ._tuner import build_info as _build_info
from .bsr_tensor import BsrTensor
from .configuration import show_config
from .functional import linear, matmul, sampled_matmul
from .generators import random_bsr
from .report import BenchmarkReport, VariantRecord
from .settings import settings
from .tuning import benchmark, tune, tuning_count, variants

__version__: str = _build_info()["version"]

_announcements.install()
_pytrees.register()

__all__ = [
    "BenchmarkReport",
    "BsrTensor",
    "VariantRecord",
    "benchmark",
    "cache",
    "linear",
    "matmul",
    "random_bsr",
    "sampled_matmul",
    "settings",
    "show_config",
    "tune",
    "tuning_count",
    "variants",
]

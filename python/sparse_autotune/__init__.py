"""Block-sparse (BSR) x dense products for PyTorch: races the legal kernels, keeps the winner."""

from __future__ import annotations

from . import _built as _built  # first: the others would blame a circular import
from . import announcements as _announcements
from . import batching as _batching  # noqa: F401  registers
from . import cache
from . import direct as _direct
from . import dispatching as _dispatching  # noqa: F401  registers
from . import flops as _flops
from . import pytrees as _pytrees
from ._tuner import build_info as _build_info
from .bsr_tensor import BsrTensor
from .configuration import show_config
from .functional import linear, matmul, sampled_matmul
from .generators import random_bsr
from .nn import SparseLinear
from .override import override_torch
from .pruning import PolynomialDensity, prune_, prune_and_regrow_, regrow_, set_pattern_
from .report import BenchmarkReport, VariantRecord
from .settings import settings
from .sparsify import sparsify_
from .tuning import benchmark, tune, tuning_count, variants

__version__: str = _build_info()["version"]

_announcements.install()
_direct.install()
_flops.install()
_pytrees.register()

__all__ = [
    "BenchmarkReport",
    "BsrTensor",
    "PolynomialDensity",
    "SparseLinear",
    "VariantRecord",
    "benchmark",
    "cache",
    "linear",
    "matmul",
    "override_torch",
    "prune_",
    "prune_and_regrow_",
    "random_bsr",
    "regrow_",
    "sampled_matmul",
    "set_pattern_",
    "settings",
    "show_config",
    "sparsify_",
    "tune",
    "tuning_count",
    "variants",
]

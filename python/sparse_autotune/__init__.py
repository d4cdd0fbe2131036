"""Block-sparse (BSR) x dense matrix products for PyTorch, never slower than any alternative."""

from __future__ import annotations

from . import ops as _ops  # noqa: F401  registers the operators before anything needs them
from .bsr_tensor import BsrTensor
from .functional import linear, matmul
from .generators import random_bsr

__all__ = ["BsrTensor", "linear", "matmul", "random_bsr"]

"""Block-sparse (BSR) x dense products for PyTorch: races the legal kernels, keeps the winner."""

from __future__ import annotations

from . import _built as _built  # first: the others would blame a circular import
from . import cache
from ._torch.direct import install as _install_direct
from ._torch.testing import compare_as as _compare_as
from ._tuner import build_info as _build_info
from .block_attention import attention
from .bsr_tensor import BsrTensor
from .configuration import show_config
from .functional import linear, matmul, sampled_matmul
from .generators import random_bsr
from .masks.block_mask import BlockMask
from .nn.prewarming import prewarm
from .nn.pruning import PolynomialDensity, prune_, prune_and_regrow_, regrow_, set_pattern_
from .nn.sparse_linear import SparseLinear
from .nn.sparsify import sparsify_
from .operators import batching as _batching  # noqa: F401  registers
from .operators import dispatching as _dispatching  # noqa: F401  registers
from .operators import flops as _flops  # noqa: F401  registers
from .operators.attention import attention_op
from .operators.library import bsr_matmul, bsr_sampled_matmul
from .override import override_torch
from .pytrees import register as _register_pytree
from .ranks import set_process_group
from .settings import settings
from .torch_functions import comparable as _comparable
from .tuning.advice import Advice, BlockSizeAdvice, advise
from .tuning.announcements import install as _install_announcements
from .tuning.cudnn_bsa import register_cudnn_bsa
from .tuning.flash_attention_4 import register_flash_attention_4
from .tuning.flex_attention import register_flex_attention
from .tuning.grid import GridReport, benchmark_grid
from .tuning.offline import TuneFileReport, tune_file
from .tuning.races import benchmark, tune, tuning_count, variants
from .tuning.registration import RegisteredVariant, register_variant
from .tuning.report import BenchmarkReport, VariantRecord
from .tuning.variant_problems import AttentionProblem, VariantProblem

__version__: str = _build_info()["version"]

_install_announcements()
_install_direct(bsr_matmul, bsr_sampled_matmul, attention_op)
_compare_as(BsrTensor, _comparable)
_register_pytree()
del attention_op, bsr_matmul, bsr_sampled_matmul

__all__ = [
    "Advice",
    "AttentionProblem",
    "BenchmarkReport",
    "BlockMask",
    "BlockSizeAdvice",
    "BsrTensor",
    "GridReport",
    "PolynomialDensity",
    "RegisteredVariant",
    "SparseLinear",
    "TuneFileReport",
    "VariantProblem",
    "VariantRecord",
    "advise",
    "attention",
    "benchmark",
    "benchmark_grid",
    "cache",
    "linear",
    "matmul",
    "override_torch",
    "prewarm",
    "prune_",
    "prune_and_regrow_",
    "random_bsr",
    "register_cudnn_bsa",
    "register_flash_attention_4",
    "register_flex_attention",
    "register_variant",
    "regrow_",
    "sampled_matmul",
    "set_pattern_",
    "set_process_group",
    "settings",
    "show_config",
    "sparsify_",
    "tune",
    "tune_file",
    "tuning_count",
    "variants",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

"""What torch's own switches ask of a product; read per call: the operators cannot see them."""

from __future__ import annotations

import torch
from torch import Tensor

from .._torch.compiling import constant_when_compiled, is_deterministic

# By names of its own: were `torch` looked up here as well as in the modules that ask, each call of
# compiled code would be guarded by a Python function that compares the two.
_FLOAT32 = torch.float32

# Dynamo recompiles what it compiled when either switch changes: what it takes for constant is.


@constant_when_compiled
def _tf32() -> bool:
    try:
        return torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:
        return torch.backends.cuda.matmul.fp32_precision == "tf32"


def allow_tf32(values: Tensor) -> bool:
    """Whether torch lets a matrix product of these values round its inputs to TF32.

    ``torch.backends.cuda.matmul.allow_tf32`` raises once the newer ``fp32_precision`` was set to
    something that it cannot express; then that setting answers.
    """
    return values.is_cuda and values.dtype is _FLOAT32 and _tf32()


@constant_when_compiled
def deterministic() -> bool:
    """Whether ``torch.use_deterministic_algorithms`` asks for repeatable results."""
    return is_deterministic()

"""What torch's own switches ask of a product; read per call: the operators cannot see them."""

from __future__ import annotations

import torch
from torch import Tensor


def allow_tf32(values: Tensor) -> bool:
    """Whether torch lets a matrix product of these values round its inputs to TF32.

    ``torch.backends.cuda.matmul.allow_tf32`` raises once the newer ``fp32_precision`` was set to
    something that it cannot express; then that setting answers.
    """
    if values.dtype is not torch.float32 or not values.is_cuda:
        return False
    try:
        return torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:
        return torch.backends.cuda.matmul.fp32_precision == "tf32"


deterministic = torch.are_deterministic_algorithms_enabled

"""`prewarm`: the races of a model, or of an operand, before its first request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tuner
from ..bsr_tensor import BsrTensor
from ..checks.matrix import kind, size
from ..functional import matmul
from ..operands import is_sparse_operand
from ..settings import settings
from .sparse_linear import SparseLinear


def prewarm(model_or_operand: nn.Module | BsrTensor | Tensor, ns: Iterable[int]) -> int:
    """Races, in every mode, what products with so many columns or tokens would race.

    Of a model each `SparseLinear` is called with n tokens of zeros for each n of ``ns``, as
    inference calls it: without gradients, frozen if it is, in its dtype, outside of autocast. Of a
    block-sparse matrix ``a`` it is ``matmul(a, b)`` with a contiguous ``b`` of n columns. What has
    an entry does not race again; one n of each bucket is enough.

    Args:
        model_or_operand: a module, or a block-sparse matrix as `matmul` takes it.
        ns: numbers of tokens or columns, at least 1.

    Returns:
        The number of races.

    Raises:
        TypeError: ``model_or_operand`` is neither a module nor a block-sparse matrix, or ``ns``
            holds something else than whole numbers.
        ValueError: a number is not positive, or the model has no `SparseLinear`.
    """
    if isinstance(ns, str) or not isinstance(ns, Iterable):
        raise TypeError(f"ns must be whole numbers, got {kind(ns)}")
    numbers = [size(n, "ns") for n in ns]
    if 0 in numbers:
        raise ValueError("ns must be positive; got 0")
    calls = _calls(model_or_operand)
    before = _tuner.tuning_count()
    with torch.inference_mode(), settings.override(mode="on"):
        for call in calls:
            for n in numbers:
                call(n)
    return _tuner.tuning_count() - before


def _calls(model_or_operand: Any) -> list[Any]:
    """What races for a number of columns, for each layer or for the operand."""
    if is_sparse_operand(model_or_operand):
        a = model_or_operand
        return [lambda n: matmul(a, torch.zeros(a.shape[-1], n, dtype=a.dtype, device=a.device))]
    if not isinstance(model_or_operand, nn.Module):
        found = kind(model_or_operand)
        raise TypeError(f"prewarm takes a module or a block-sparse matrix, got {found}")
    layers = [m for m in model_or_operand.modules() if isinstance(m, SparseLinear)]
    if not layers:
        raise ValueError(f"{type(model_or_operand).__name__} has no SparseLinear")
    return [
        lambda n, layer=layer: layer.forward(layer.values.new_zeros(n, layer.in_features))
        for layer in layers
    ]

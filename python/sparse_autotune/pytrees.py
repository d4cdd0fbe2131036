"""`BsrTensor` for torch's machinery: a pytree of its three tensors, and safe to load."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ._torch.pytree import register_node
from ._torch.transforms import differentiates
from .bsr_tensor import BsrTensor
from .checks.matrix import Components
from .plan_owner import own_plan


class _Indices:
    """Index tensors as part of a tree's structure: equal where they are the same objects."""

    def __init__(self, crow_indices: Tensor, col_indices: Tensor) -> None:
        self.tensors = crow_indices, col_indices

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Indices) and all(
            mine is theirs for mine, theirs in zip(self.tensors, other.tensors, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]


def _flatten(a: BsrTensor) -> tuple[list[Any], Any]:
    *indices, values, rows, cols, transposed = a._parts
    context = [rows, cols, *a.block_size, transposed]
    if differentiates():
        # A derivative is taken with respect to every leaf, which torch refuses of integers.
        return [values], [*context, _Indices(*indices)]
    if isinstance(values, Tensor) and values.dim() == 4:
        # For `torch.vmap` the indices of a batch are a batch like any other.
        indices = [index.expand(values.shape[0], *index.shape) for index in indices]
    return [*indices, values], context


def _unflatten(leaves: Iterable[Any], context: Any) -> BsrTensor:
    # The leaves may be anything: pytree users map tensors to shapes, specs and fake tensors.
    rows, cols, block_m, block_k, transposed, *kept = context
    *indices, values = leaves
    if kept:
        indices = kept[0].tensors
    elif all(isinstance(index, Tensor) and index.dim() > 1 for index in indices):
        # The same pattern for each matrix of a batch, or for each entry of a Jacobian.
        indices = [index[(0,) * (index.dim() - 1)] for index in indices]
    crow_indices, col_indices = indices
    parts = Components(crow_indices, col_indices, values, rows, cols, transposed)
    owner = own_plan(crow_indices, col_indices)
    return BsrTensor._made_of(parts, (block_m, block_k), owner)


def register() -> None:
    """Makes BsrTensor a pytree node and a type that ``torch.load(weights_only=True)`` loads."""
    names = ("crow_indices", "col_indices", "values")
    register_node(BsrTensor, _flatten, _unflatten, names, "sparse_autotune.BsrTensor")
    torch.serialization.add_safe_globals([BsrTensor])

"""`BsrTensor` for torch's machinery: a pytree of its three tensors, and safe to load."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .bsr_tensor import BsrTensor
from .lifetimes import own_plan
from .matrix_checks import Components


def _flatten(a: BsrTensor) -> tuple[list[Any], Any]:
    return list(a._parts()[:3]), [a._rows, a._cols, *a._block_size, a._transposed]


def _unflatten(leaves: Iterable[Any], context: Any) -> BsrTensor:
    # The leaves may be anything: pytree users map tensors to shapes, specs and fake tensors.
    rows, cols, block_m, block_k, transposed = context
    crow_indices, col_indices, values = leaves
    if _are_of_a_batch(crow_indices, col_indices):
        crow_indices, col_indices = crow_indices[0], col_indices[0]
    parts = Components(crow_indices, col_indices, values, rows, cols, transposed)
    return BsrTensor._made_of(parts, (block_m, block_k), own_plan(crow_indices, col_indices))


def _are_of_a_batch(*indices: Any) -> bool:
    """Whether these are indices that `torch.vmap` repeats, for which they are results like any."""
    return all(
        isinstance(tensor, Tensor)
        and tensor.dim() == 2
        and (len(tensor) == 1 or (len(tensor) > 1 and tensor.stride(0) == 0))
        for tensor in indices
    )


def _flatten_with_keys(a: BsrTensor) -> tuple[list[tuple[Any, Any]], Any]:
    leaves, context = _flatten(a)
    names = ("crow_indices", "col_indices", "values")
    return [(pytree.GetAttrKey(n), t) for n, t in zip(names, leaves, strict=True)], context


def register() -> None:
    """Makes BsrTensor a pytree node and a type that ``torch.load(weights_only=True)`` loads."""
    pytree.register_pytree_node(
        BsrTensor,
        _flatten,
        _unflatten,
        serialized_type_name="sparse_autotune.BsrTensor",
        to_dumpable_context=list,
        from_dumpable_context=list,
        flatten_with_keys_fn=_flatten_with_keys,
    )
    torch.serialization.add_safe_globals([BsrTensor])

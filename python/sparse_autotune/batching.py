"""`torch.vmap` of the operators: one product where it is only the dense operand that is batched."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .ops import bsr_matmul, bsr_sampled_matmul


def _at(arguments: tuple[Any, ...], in_dims: tuple[int | None, ...], i: int) -> list[Any]:
    return [
        argument if dim is None else argument.select(dim, i)
        for argument, dim in zip(arguments, in_dims, strict=True)
    ]


@torch.library.register_vmap("sparse_autotune::bsr_matmul")
def _vmap_matmul(
    info: Any, in_dims: tuple[int | None, ...], *arguments: Any, **keywords: Any
) -> tuple[Tensor, int]:
    batched = [i for i, dim in enumerate(in_dims) if dim is not None]
    dense = arguments[5]
    if batched == [5] and dense.dim() > 2:
        # A leading dimension like any other.
        folded = dense.movedim(in_dims[5], 0)
        return bsr_matmul(*arguments[:5], folded, *arguments[6:], **keywords), 0
    if batched == [5]:
        # Vectors side by side are the rows of a matrix that stands on the left.
        rows = dense.movedim(in_dims[5], 0)
        if not keywords.get("sparse_right", False):
            keywords["sparse_right"] = True
            keywords["transpose"] = not keywords.get("transpose", False)
        return bsr_matmul(*arguments[:5], rows, *arguments[6:], **keywords), 0
    results = [bsr_matmul(*_at(arguments, in_dims, i), **keywords) for i in range(info.batch_size)]
    return torch.stack(results), 0


@torch.library.register_vmap("sparse_autotune::bsr_sampled_matmul")
def _vmap_sampled_matmul(
    info: Any, in_dims: tuple[int | None, ...], *arguments: Any, **keywords: Any
) -> tuple[Tensor, int]:
    results = [
        bsr_sampled_matmul(*_at(arguments, in_dims, i), **keywords) for i in range(info.batch_size)
    ]
    return torch.stack(results), 0

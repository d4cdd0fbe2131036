"""`torch.vmap` of the operators: one product where it is only the dense operand that is batched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .library import bsr_matmul, bsr_sampled_matmul


def _each(
    operator: Callable[..., Any],
    info: Any,
    in_dims: tuple[int | None, ...],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> list[Any]:
    # Of an empty batch one of zeros tells what the results would be like.
    return [
        operator(
            *(
                argument if dim is None else _at(argument, dim, i)
                for argument, dim in zip(arguments, in_dims, strict=True)
            ),
            **keywords,
        )
        for i in range(max(info.batch_size, 1))
    ]


def one_by_one(operator: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Any]:
    """The rule of ``torch.vmap`` for an operator of several results: a call for each."""

    def rule(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any, **keywords: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        results = _each(operator, info, in_dims, arguments, keywords)
        stacked = tuple(torch.stack(each)[: info.batch_size] for each in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


def _at(argument: Tensor, dim: int, i: int) -> Tensor:
    if argument.shape[dim] > 0:
        return argument.select(dim, i)
    return argument.new_zeros(argument.shape[:dim] + argument.shape[dim + 1 :])


@torch.library.register_vmap("sparse_autotune::bsr_matmul")
def _vmap_matmul(
    info: Any, in_dims: tuple[int | None, ...], *arguments: Any, **keywords: Any
) -> tuple[Tensor, int]:
    batched = [i for i, dim in enumerate(in_dims) if dim is not None]
    dense = arguments[5]
    if batched == [5]:
        folded = dense.movedim(in_dims[5], 0)  # a leading dimension like any other, but that
        # vectors side by side are the rows of a matrix that stands on the left.
        if dense.dim() == 2 and not keywords.get("sparse_right", False):
            keywords["sparse_right"] = True
            keywords["transpose"] = not keywords.get("transpose", False)
        return bsr_matmul(*arguments[:5], folded, *arguments[6:], **keywords), 0
    results = _each(bsr_matmul, info, in_dims, arguments, keywords)
    return torch.stack(results)[: info.batch_size], 0


@torch.library.register_vmap("sparse_autotune::bsr_sampled_matmul")
def _vmap_sampled_matmul(
    info: Any, in_dims: tuple[int | None, ...], *arguments: Any, **keywords: Any
) -> tuple[Tensor, int]:
    results = _each(bsr_sampled_matmul, info, in_dims, arguments, keywords)
    return torch.stack(results)[: info.batch_size], 0

"""`torch.vmap` of the operators: one product where it is only the dense operand that is batched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .library import bsr_matmul, bsr_sampled_matmul


def one_by_one(operator: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """The rule of ``torch.vmap`` that calls an operator for each entry of the batch."""

    def rule(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any, **keywords: Any
    ) -> tuple[Any, Any]:
        # Of an empty batch one of zeros tells what the results would be like.
        results = [
            operator(
                *(
                    argument if dim is None else _at(argument, dim, i)
                    for argument, dim in zip(arguments, in_dims, strict=True)
                ),
                **keywords,
            )
            for i in range(max(info.batch_size, 1))
        ]
        if isinstance(results[0], Tensor):
            return torch.stack(results)[: info.batch_size], 0
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
    rest: tuple[Tensor, int] = one_by_one(bsr_matmul)(info, in_dims, *arguments, **keywords)
    return rest


torch.library.register_vmap("sparse_autotune::bsr_sampled_matmul", one_by_one(bsr_sampled_matmul))

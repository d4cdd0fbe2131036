"""What the operators count in ``torch.utils.flop_counter``: the stored blocks alone.

Formulas of products take an operator's arguments with the shapes of tensors in place of tensors.
Those of attention take tensors: how many blocks a mask stores is written in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from .._torch.flop_counter import count_with
from .attention import attention_backward_op, attention_op
from .library import ProductArguments, bsr_matmul, bsr_matmul_out, bsr_sampled_matmul


def _product(*shapes: Any, sparse_right: bool = False, **_: Any) -> int:
    given = ProductArguments(*shapes)
    outer = list(given.dense)
    del outer[-1 if sparse_right or len(outer) == 1 else -2]
    return 2 * prod(given.values) * prod(outer)


def _sampled(crow: Any, col: Sequence[int], *arguments: Any, **_: Any) -> int:
    _, _, block_m, block_k, x, _y = arguments
    flops: int = 2 * col[0] * block_m * block_k * prod(x[:-2]) * x[-1]
    return flops


def _stored(crow: Tensor, col: Tensor, nnzb: int) -> int:
    """Blocks of all patterns; those that there is room for where nobody can tell."""
    # A counter is no part of a program's speed: it waits for a GPU, but where that is forbidden.
    readable = type(crow) is Tensor and crow.device.type in ("cpu", "cuda")
    if readable and not (crow.is_cuda and torch.cuda.is_current_stream_capturing()):
        return int((crow[..., -1] - crow[..., 0]).sum())
    return col.shape[0] if nnzb < 0 else nnzb


def _pairs(
    q: Tensor, k: Tensor, crow: Tensor | None, col: Tensor | None, block_n: int, nnzb: int
) -> int:
    """Pairs of a query and a key; of a mask its density's part of all of them.

    A causal rule is not counted, as torch does not count it.
    """
    every = prod(q.shape[:3]) * k.shape[2]
    if crow is None or col is None:
        return every
    lines = crow.shape[-1] - 1
    blocks = prod(crow.shape[:-1]) * lines * -(-k.shape[2] // block_n)
    return every * _stored(crow, col, nnzb) // blocks if blocks else 0


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    crow: Tensor | None = None,
    col: Tensor | None = None,
    block_m: int = 0,
    block_n: int = 0,
    *,
    nnzb: int = -1,
    **_: Any,
) -> int:
    return 4 * q.shape[3] * _pairs(q, k, crow, col, block_n, nnzb)


def _attention_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    crow: Tensor | None = None,
    col: Tensor | None = None,
    ccol: Tensor | None = None,
    row: Tensor | None = None,
    block_m: int = 0,
    block_n: int = 0,
    *,
    nnzb: int = -1,
    **_: Any,
) -> int:
    return 10 * q.shape[3] * _pairs(q, k, crow, col, block_n, nnzb)


count_with(_product, bsr_matmul, bsr_matmul_out)
count_with(_sampled, bsr_sampled_matmul)
count_with(_attention, attention_op, of_tensors=True)
count_with(_attention_backward, attention_backward_op, of_tensors=True)

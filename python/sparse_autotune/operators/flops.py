"""What the operators count in ``torch.utils.flop_counter``: the stored blocks alone.

Each formula takes an operator's arguments with the shapes of tensors in place of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from .._torch.flop_counter import count_with
from .library import bsr_matmul, bsr_matmul_backward, bsr_matmul_out, bsr_sampled_matmul


def _product(
    crow: Any,
    col: Any,
    values: Sequence[int],
    rows: int,
    cols: int,
    dense: Sequence[int],
    bias: Any = None,
    *,
    sparse_right: bool = False,
    **_: Any,
) -> int:
    inner = len(dense) - (1 if sparse_right or len(dense) == 1 else 2)
    return 2 * prod(values) * prod(size for axis, size in enumerate(dense) if axis != inner)


def _gradients(*shapes: Any, **keywords: Any) -> int:
    *operands, _grad = shapes
    return 2 * _product(*operands, **keywords)


def _sampled(
    crow: Any,
    col: Sequence[int],
    rows: int,
    cols: int,
    block_m: int,
    block_k: int,
    x: Sequence[int],
    *_: Any,
    **__: Any,
) -> int:
    return 2 * col[0] * block_m * block_k * prod(x[:-2]) * x[-1]


count_with(_product, bsr_matmul, bsr_matmul_out)
count_with(_gradients, bsr_matmul_backward)
count_with(_sampled, bsr_sampled_matmul)

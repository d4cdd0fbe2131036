"""What the operators count in ``torch.utils.flop_counter``: the stored blocks alone.

Each formula takes an operator's arguments with the shapes of tensors in place of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from .._torch.flop_counter import count_with
from .library import bsr_matmul, bsr_matmul_out, bsr_sampled_matmul


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


def _sampled(crow: Any, col: Sequence[int], *arguments: Any, **_: Any) -> int:
    _, _, block_m, block_k, x, _y = arguments
    flops: int = 2 * col[0] * block_m * block_k * prod(x[:-2]) * x[-1]
    return flops


count_with(_product, bsr_matmul, bsr_matmul_out)
count_with(_sampled, bsr_sampled_matmul)

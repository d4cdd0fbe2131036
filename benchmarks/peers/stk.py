"""stk, the kernels of MegaBlocks, where it can be imported: blocks of 128, one configuration."""

from typing import Any

import torch

import sparse_autotune
from benchmarks.cell import Call, Operands, UnsupportedError

DEVICES = ("cuda",)
_BLOCK = 128


def matrix_of(a: sparse_autotune.BsrTensor) -> Any:
    """`a` as a stk.Matrix, which shares its values."""
    if a.block_size != (_BLOCK, _BLOCK):
        raise UnsupportedError(f"stk has blocks of {_BLOCK} alone")
    try:
        import stk
    except Exception as missing:  # an import that fails in any way is no stk
        raise UnsupportedError(f"{type(missing).__name__}: {missing}") from None
    rows = torch.arange(a.shape[0] // _BLOCK, device=a.values.device)
    return stk.Matrix(
        torch.Size(a.shape),
        a.values,
        torch.repeat_interleave(rows, a.crow_indices.diff()).short(),
        a.col_indices.short(),
        a.crow_indices.int(),
    )


def prepare(operands: Operands) -> Call:
    """Builds stk's matrix, with the transposed indices that its `linear` reads."""
    cell, a, b = operands.cell, operands.a, operands.b
    if cell.n % _BLOCK != 0:
        raise UnsupportedError(f"stk needs n to be a multiple of {_BLOCK}")
    matrix = matrix_of(a)
    import stk

    if operands.linear:
        transposed = matrix.t()
        return lambda: stk.ops.dds(b, transposed)
    return lambda: stk.ops.dsd(matrix, b)

"""stk, the kernels of MegaBlocks, where it can be imported: blocks of 128, one configuration."""

import torch

from benchmarks.cell import Call, Operands, UnsupportedError

DEVICES = ("cuda",)
_BLOCK = 128


def prepare(operands: Operands) -> Call:
    """Builds stk's matrix, with the transposed indices that its `linear` reads."""
    cell, a, b = operands.cell, operands.a, operands.b
    if cell.block != _BLOCK:
        raise UnsupportedError(f"stk has blocks of {_BLOCK} alone")
    if cell.n % _BLOCK != 0:
        raise UnsupportedError(f"stk needs n to be a multiple of {_BLOCK}")
    try:
        import stk
    except Exception as missing:  # an import that fails in any way is no stk
        raise UnsupportedError(f"{type(missing).__name__}: {missing}") from None
    rows = torch.arange(cell.m // _BLOCK, device=b.device)
    matrix = stk.Matrix(
        torch.Size(a.shape),
        a.values,
        torch.repeat_interleave(rows, a.crow_indices.diff()).short(),
        a.col_indices.short(),
        a.crow_indices.int(),
    )
    if operands.linear:
        transposed = matrix.t()
        return lambda: stk.ops.dds(b, transposed)
    return lambda: stk.ops.dsd(matrix, b)

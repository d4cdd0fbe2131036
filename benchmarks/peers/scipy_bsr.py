"""SciPy's bsr_array @ ndarray: one thread, no half types."""

import torch

from benchmarks.cell import Call, Operands, UnsupportedError

DEVICES = ("cpu",)


def prepare(operands: Operands) -> Call:
    """Shares the components' memory with NumPy."""
    if operands.b.dtype not in (torch.float32, torch.float64):
        raise UnsupportedError(f"SciPy has no {operands.cell.dtype}")
    try:
        from scipy.sparse import bsr_array
    except ImportError as missing:
        raise UnsupportedError(str(missing)) from None
    a = operands.a
    parts = (a.values.numpy(), a.col_indices.numpy(), a.crow_indices.numpy())
    matrix, b = bsr_array(parts, shape=a.shape), operands.b.numpy()
    if operands.linear:
        return lambda: (matrix @ b.T).T
    return lambda: matrix @ b

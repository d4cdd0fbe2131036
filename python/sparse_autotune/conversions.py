"""BSR components from dense tensors and SciPy matrices, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .checks.matrix import (
    Components,
    check_components,
    check_dense,
    check_divides,
    check_indices,
    check_keep,
    check_value_dtype,
    kind,
)

if TYPE_CHECKING:
    import scipy.sparse


def from_dense(dense: Tensor, block: tuple[int, int], keep: Tensor | None) -> Components:
    """The blocks of ``dense`` that ``keep`` marks, by default those that hold a non-zero."""
    check_dense(dense, "dense")
    check_value_dtype(dense.dtype, "dense")
    if dense.dim() != 2:
        raise ValueError(f"dense must have 2 dimensions, got shape {tuple(dense.shape)}")
    check_divides(dense.shape, block, "dense")
    rows, cols = dense.shape
    grid = (rows // block[0], cols // block[1])
    blocks = dense.reshape(grid[0], block[0], grid[1], block[1]).transpose(1, 2)
    if keep is None:
        keep = nonzero_blocks(blocks)
    else:
        check_keep(keep, grid, dense, "keep", "dense")
    row_indices, col_indices = keep.nonzero(as_tuple=True)
    values = blocks[row_indices, col_indices].contiguous()
    return Components(*indices_of(row_indices * grid[1] + col_indices, grid), values, rows, cols)


def nonzero_blocks(blocks: Tensor) -> Tensor:
    """The bool mask of those of a grid of blocks that hold a non-zero, which NaN is, too."""
    return (blocks.detach() != 0).flatten(2).any(2)


def indices_of(positions: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """crow_indices and col_indices of blocks numbered row by row, ascending.

    By operators whose results have shapes that do not depend on data: fake tensors take them.
    """
    rows, cols = grid
    row_indices = positions // max(cols, 1)
    starts = torch.arange(rows + 1, device=positions.device)
    return torch.searchsorted(row_indices, starts), positions % max(cols, 1)


def to_dense(matrix: Components) -> Tensor:
    """The dense tensor; reads the indices and raises ValueError if they are not BSR's."""
    check_indices(matrix)
    crow, col, values, rows, cols = matrix[:5]
    if values.dim() == 4:
        return torch.stack([to_dense(matrix._replace(values=one)) for one in values.unbind()])
    nnzb, block_m, block_k = values.shape
    grid = (rows // block_m, cols // block_k)
    blocks = torch.zeros(*grid, block_m, block_k, dtype=values.dtype, device=values.device)
    blocks = blocks.index_put((block_rows(crow, nnzb), col.long()), values)
    dense = blocks.transpose(1, 2).reshape(rows, cols)
    return dense.t().contiguous() if matrix.transposed else dense


def block_rows(crow_indices: Tensor, nnzb: int) -> Tensor:
    """(nnzb,): the block row of each stored block."""
    count = crow_indices.shape[0] - 1
    return torch.repeat_interleave(
        torch.arange(count, device=crow_indices.device), crow_indices.diff(), output_size=nnzb
    )


def from_scipy(matrix: Any) -> Components:
    """A copy of a SciPy BSR matrix with sorted columns and duplicate blocks summed."""
    import numpy as np

    in_scipy = type(matrix).__module__.startswith("scipy.sparse")
    if not (in_scipy and hasattr(matrix, "format")):  # its LinearOperator has none
        raise TypeError(f"matrix must be a scipy.sparse BSR matrix, got {kind(matrix)}")
    if matrix.format != "bsr":
        raise TypeError(
            f"matrix must be in SciPy's BSR format, got {matrix.format.upper()}: convert it with "
            ".tobsr(blocksize=(block_m, block_k))"
        )
    dtype = matrix.dtype.newbyteorder("=")  # torch has none but the machine's own order
    if dtype not in (np.float32, np.float64):
        raise TypeError(
            f"matrix must be float32 or float64, got {matrix.dtype}: convert it, e.g. with "
            ".astype(numpy.float32)"
        )
    rows, cols = (int(size) for size in matrix.shape)
    matrix = matrix.astype(dtype)  # a copy
    matrix.sum_duplicates()  # and sorts
    matrix.prune()  # of the room that SciPy allows behind the last block
    crow, col = (torch.from_numpy(i.astype(np.int64)) for i in (matrix.indptr, matrix.indices))
    values = torch.from_numpy(np.ascontiguousarray(matrix.data))
    return Components(crow, col, values, rows, cols)


def to_scipy(matrix: Components) -> scipy.sparse.bsr_array:
    """A copy on the CPU as ``scipy.sparse.bsr_array``, of a transpose too."""
    import scipy.sparse

    check_components(matrix, "a")
    check_indices(matrix)
    crow, col, values, rows, cols = matrix[:5]
    if values.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"SciPy has no sparse matrices of {values.dtype}: use .to(torch.float32).to_scipy()"
        )
    data, indices, indptr = (
        tensor.detach().to("cpu", copy=True).numpy() for tensor in (values, col, crow)
    )
    stored = scipy.sparse.bsr_array((data, indices, indptr), shape=(rows, cols))
    return stored.T.copy() if matrix.transposed else stored

"""The same matrix in blocks of another size, and the blocks of largest norm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .checks.matrix import Components, check_divides
from .conversions import block_rows, indices_of


def _made_of(
    matrix: Components, positions: Tensor, grid: tuple[int, int], values: Tensor
) -> Components:
    """Blocks numbered row by row, ascending; indices of the matrix's dtype."""
    crow, col = indices_of(positions, grid)
    dtype = matrix.crow_indices.dtype
    return Components(crow.to(dtype), col.to(dtype), values, matrix.rows, matrix.cols)


def reblocked(matrix: Components, block: tuple[int, int]) -> Components:
    """The stored matrix, not its transpose, in blocks of another size; differentiable.

    Blocks are cut into the largest parts that both sizes are made of, and put together anew.

    Raises:
        ValueError: the size does not divide the matrix.
    """
    check_divides((matrix.rows, matrix.cols), block, "the matrix")
    crow, col, values = matrix.crow_indices, matrix.col_indices.long(), matrix.values
    *batch, count, old_m, old_k = values.shape
    part_m, part_k = math.gcd(old_m, block[0]), math.gcd(old_k, block[1])
    down, across = old_m // part_m, old_k // part_k  # parts of an old block
    new_down, new_across = block[0] // part_m, block[1] // part_k
    steps = torch.arange(max(down, across), device=values.device)
    row = block_rows(crow, count)[:, None, None] * down + steps[:down, None]
    column = col[:, None, None] * across + steps[:across]
    grid = matrix.rows // block[0], matrix.cols // block[1]
    positions, number = torch.unique(
        row // new_down * grid[1] + column // new_across, return_inverse=True
    )
    parts = values.reshape(*batch, count, down, part_m, across, part_k).transpose(-3, -2)
    made = values.new_zeros(*batch, positions.numel(), new_down, new_across, part_m, part_k)
    row, column = torch.broadcast_tensors(row % new_down, column % new_across)
    made[(slice(None),) * len(batch) + (number, row, column)] = parts
    merged = made.transpose(-3, -2).reshape(*batch, positions.numel(), *block)
    return _made_of(matrix, positions, grid, merged)


def block_norms(matrix: Components) -> Tensor:
    """The Frobenius norm of each stored block, float64."""
    return matrix.values.detach().double().flatten(-2).norm(dim=-1)


def with_largest(matrix: Components, count: int) -> Components:
    """The stored blocks of largest norm, as many as there are up to ``count``."""
    _, block_m, block_k = matrix.values.shape
    grid = matrix.rows // block_m, matrix.cols // block_k
    count = min(count, matrix.values.shape[0])
    kept = block_norms(matrix).topk(count).indices.sort().values
    positions = (
        block_rows(matrix.crow_indices, matrix.values.shape[0]) * grid[1]
        + matrix.col_indices.long()
    )
    return _made_of(matrix, positions[kept], grid, matrix.values[kept])

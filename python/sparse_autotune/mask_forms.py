"""The same stored blocks in three forms: a bool grid, compressed rows, and a list of each row.

- *grid*: (..., block_rows, block_cols) bool.
- *compressed rows*: ``crow`` (..., block_rows + 1) and ``col`` (capacity,), both int32. All
  patterns share ``col``: block row r of a pattern has the columns ``col[crow[r]]`` to
  ``col[crow[r + 1] - 1]``. There may be room between the patterns.
- *lists*: ``counts`` (..., block_rows) and ``columns`` (..., block_rows, most), both int32; those
  of a row behind its count mean nothing.

From a grid to compressed rows, and from these to compressed columns, are operators of their own
(`operators.mask_lists`). Every function here is a fixed number of tensor operators whose results
have shapes that do not depend on data: nothing waits for a GPU, and compilers and fake tensors take
them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def grid_of_rows(crow: Tensor, col: Tensor, block_cols: int) -> Tensor:
    """The grid of compressed rows; a column out of range is torch's error."""
    *lead, entries = crow.shape
    counts, columns = lists_of_rows(crow, col, block_cols)
    return grid_of_lists(counts, columns, block_cols).view(*lead, entries - 1, block_cols)


def lists_of_rows(crow: Tensor, col: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Lists of compressed rows; ``most`` is the longest that a row can be."""
    starts, counts = crow[..., :-1], crow.diff(dim=-1)
    number = torch.arange(most, dtype=torch.int32, device=crow.device)
    if col.numel() == 0:
        return counts, _zeros(crow, (*counts.shape, most))
    place = (starts[..., None] + number).clamp(max=col.numel() - 1)
    taken = torch.where(number < counts[..., None], col[place.long()], 0)
    return counts, taken


def grid_of_lists(counts: Tensor, columns: Tensor, block_cols: int) -> Tensor:
    """The grid of lists; a column out of range within a row's count is torch's error."""
    most = columns.shape[-1]
    number = torch.arange(most, device=columns.device)
    # One column more takes the entries behind a row's count, and no wrong column.
    checked = columns.long() + (columns >= block_cols)
    place = torch.where(number < counts[..., None], checked, block_cols)
    grid = torch.zeros((*counts.shape, block_cols + 1), dtype=torch.bool, device=columns.device)
    return grid.scatter_(-1, place, True)[..., :block_cols]


def lead_count(lead: list[int] | tuple[int, ...]) -> int:
    """How many patterns leading dimensions make."""
    count = 1
    for size in lead:
        count *= size
    return count


def _zeros(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32, device=like.device)

"""The operators that list the blocks of a mask, and what compilers know of them.

They enqueue two or three kernels on a GPU and wait for nothing; the shapes of their results do not
depend on data. They have no derivative: masks are no numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import library as _library  # noqa: F401  loads the operators
from .batching import one_by_one

# (..., rows, columns) bool to compressed rows; see `mask_forms`.
mask_rows: Callable[[Tensor], tuple[Tensor, Tensor]] = torch.ops.sparse_autotune.mask_rows.default
# Compressed rows and the number of columns to compressed columns: the same of the transpose.
mask_columns: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]] = (
    torch.ops.sparse_autotune.mask_columns.default
)


def _lists(like: Tensor, lead: torch.Size, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    room = lead.numel() * rows * columns
    begins = like.new_empty((*lead, rows + 1), dtype=torch.int32)
    return begins, like.new_empty((room,), dtype=torch.int32)


@torch.library.register_fake("sparse_autotune::mask_rows")
def _fake_rows(grid: Tensor) -> tuple[Tensor, Tensor]:
    *_, rows, columns = grid.shape
    return _lists(grid, grid.shape[:-2], rows, columns)


@torch.library.register_fake("sparse_autotune::mask_columns")
def _fake_columns(crow: Tensor, _: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    return _lists(crow, crow.shape[:-1], columns, crow.shape[-1] - 1)


torch.library.register_vmap("sparse_autotune::mask_rows", one_by_one(mask_rows))
torch.library.register_vmap("sparse_autotune::mask_columns", one_by_one(mask_columns))

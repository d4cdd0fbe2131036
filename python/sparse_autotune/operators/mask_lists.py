"""The operators that list the blocks of a mask, and what compilers know of them.

They enqueue one to three kernels on a GPU and wait for nothing; the shapes of their results do not
depend on data. They have no derivative: masks are no numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import library as _library  # noqa: F401  loads the operators
from .batching import one_by_one

_Lists = Callable[..., tuple[Tensor, Tensor]]
# (..., rows, columns) bool to compressed rows; see `mask_forms`.
mask_rows: _Lists = torch.ops.sparse_autotune.mask_rows.default
# Compressed rows and the number of columns to compressed columns: the same of the transpose.
mask_columns: _Lists = torch.ops.sparse_autotune.mask_columns.default
# Lists of columns in any order, counts or None, and the number of columns to compressed rows.
mask_of_lists: _Lists = torch.ops.sparse_autotune.mask_of_lists.default
# A tensor where the mask shall be, ends of documents or None, and a rule to compressed rows.
mask_of_rule: _Lists = torch.ops.sparse_autotune.mask_of_rule.default


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


@torch.library.register_fake("sparse_autotune::mask_of_lists")
def _fake_of_lists(lists: Tensor, _: Tensor | None, columns: int) -> tuple[Tensor, Tensor]:
    return _lists(lists, lists.shape[:-2], lists.shape[-2], columns)


@torch.library.register_fake("sparse_autotune::mask_of_rule")
def _fake_of_rule(like: Tensor, ends: Tensor | None, *rule: Any) -> tuple[Tensor, Tensor]:
    queries, keys, block_m, block_n = rule[:4]
    lead = torch.Size() if ends is None else ends.shape[:-1]
    return _lists(like, lead, -(-queries // block_m), -(-keys // block_n))


for _name, _operator in (
    ("mask_rows", mask_rows),
    ("mask_columns", mask_columns),
    ("mask_of_lists", mask_of_lists),
    ("mask_of_rule", mask_of_rule),
):
    torch.library.register_vmap(f"sparse_autotune::{_name}", one_by_one(_operator))

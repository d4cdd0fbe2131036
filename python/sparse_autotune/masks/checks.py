"""The rules of a block mask's arguments: types, shapes, index content.

Errors name the argument, the rule and the value. Only `check_rows` reads elements of tensors that
may be on a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from .._torch.transforms import is_plainly_eager
from ..checks.matrix import INDEX_DTYPES, check_dense, check_local, size


def flag(value: Any, name: str) -> bool:
    """A bool, as which Python's numbers and tensors do not count."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def lengths_of(lengths: Any) -> tuple[int, int]:
    """``(S, T)``."""
    if not isinstance(lengths, Sequence) or len(lengths) != 2:
        raise TypeError(f"lengths must be (S, T), two ints, got {lengths!r}")
    return size(lengths[0], "S"), size(lengths[1], "T")


def grid_shape(block: tuple[int, int], lengths: tuple[int, int]) -> tuple[int, int]:
    """Block rows and block columns."""
    return -(-lengths[0] // block[0]), -(-lengths[1] // block[1])


def part_of(value: Any, name: str) -> float:
    """A number from 0 to 1."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    part = float(value)
    if not 0 <= part <= 1:
        raise ValueError(f"{name} must be 0 to 1, got {value!r}")
    return part


def positive(value: Any, name: str) -> int:
    """A number of at least 1."""
    number = size(value, name)
    if number == 0:
        raise ValueError(f"{name} must be at least 1, got 0")
    return number


def ends_of(lengths: Any, total: int | None, block: int) -> tuple[Tensor | list[int], int]:
    """Where each document ends, (..., documents), and how many tokens there are.

    A list of one pattern's ends where the host knows them, otherwise an int64 tensor.
    """
    if isinstance(lengths, (list, tuple)) and {int}.issuperset(map(type, lengths)):
        entries, shape = [lengths], (len(lengths),)  # made in every call: no tensor of them
    else:
        if not isinstance(lengths, Tensor):
            try:
                lengths = torch.tensor(lengths, device="cpu")
            except (TypeError, ValueError, RuntimeError):
                raise TypeError(f"lengths must be ints, got {lengths!r}") from None
        check_dense(lengths, "lengths")
        if lengths.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"lengths must be int32 or int64, got {lengths.dtype}")
        if lengths.dim() not in (1, 2):
            raise ValueError(
                "lengths must have shape (documents,) or (batch, documents), got "
                f"{tuple(lengths.shape)}"
            )
        if lengths.device.type != "cpu" or not is_plainly_eager():
            if total is None:
                raise ValueError(
                    f"S must be given for lengths on {lengths.device}, or of compiled code: their "
                    "sum is not waited for"
                )
            return lengths.cumsum(-1, dtype=torch.int64), size(total, "S")
        shape = tuple(lengths.shape)
        entries = lengths.tolist() if len(shape) == 2 else [lengths.tolist()]
    ends = [list(itertools.accumulate(entry)) for entry in entries]
    longest = 0
    for entry, of_entry in zip(entries, ends, strict=True):
        if entry:
            if (least := min(entry)) < 0:
                raise ValueError(f"lengths must not be negative, got {least}")
            longest = max(longest, of_entry[-1])
    total = longest if total is None else size(total, "S")
    if longest > total:
        raise ValueError(f"lengths must not sum up to more than S = {total}, got {longest}")
    for of_entry in ends:
        for end in of_entry[:-1]:
            if end % block:
                raise ValueError(
                    f"each document must begin at a block, a multiple of {block} tokens, but one "
                    f"begins at {end}: pad the documents"
                )
    if len(shape) == 1:
        return ends[0], total
    return torch.tensor(ends, dtype=torch.int64, device="cpu").view(shape), total


def check_mask(crow: Any, col: Any, block: tuple[int, int], lengths: tuple[int, int]) -> None:
    """The O(1) rules of compressed rows: types, dtypes, devices, shapes."""
    for tensor, name in ((crow, "crow_indices"), (col, "col_indices")):
        check_dense(tensor, name)
        check_local(tensor, name)
        if tensor.dtype != torch.int32:
            raise TypeError(f"{name} must be int32, got {tensor.dtype}")
    if crow.device != col.device:
        raise RuntimeError(
            f"crow_indices and col_indices must be on one device, got {crow.device} and "
            f"{col.device}"
        )
    rows = grid_shape(block, lengths)[0]
    _check_lead(crow, 1, "crow_indices", "block rows + 1")
    if crow.shape[-1] != rows + 1:
        raise ValueError(
            f"crow_indices must have block rows + 1 = {rows + 1} entries (S = {lengths[0]}, block "
            f"{block}), got shape {tuple(crow.shape)}"
        )
    if col.dim() != 1:
        raise ValueError(
            f"col_indices must be 1-dimensional, one for all patterns, got shape {tuple(col.shape)}"
        )


def check_rows(crow: Tensor, col: Tensor, block_cols: int) -> None:
    """The contents of compressed rows, which is read: this waits for a GPU."""
    flat = crow.reshape(-1, crow.shape[-1]).cpu().long()
    columns = col.cpu()
    if (flat.diff(dim=-1) < 0).any():
        raise ValueError("crow_indices must not decrease within a pattern")
    if flat.numel() and (int(flat.min()) < 0 or int(flat.max()) > columns.shape[0]):
        raise ValueError(
            f"crow_indices must lie in [0, {columns.shape[0]}], the length of col_indices; got "
            f"{int(flat.min())} to {int(flat.max())}"
        )
    counts = flat.diff(dim=-1).flatten()
    rows = torch.repeat_interleave(counts)
    places = torch.arange(rows.shape[0], device="cpu") - (counts.cumsum(0) - counts)[rows]
    used = columns[flat[:, :-1].flatten()[rows] + places]
    outside = (used < 0) | (used >= block_cols)
    if outside.any():
        raise ValueError(
            f"col_indices must lie in [0, {block_cols}) (block columns), got "
            f"{int(used[outside][0])}"
        )
    if (rows * max(block_cols, 1) + used).unique().shape[0] != used.shape[0]:
        raise ValueError("col_indices must be distinct within a block row")


def check_bool_blocks(blocks: Any, grid: tuple[int, int] | None = None) -> None:
    """A bool tensor of blocks, and of that many where they are given."""
    check_dense(blocks, "blocks")
    check_local(blocks, "blocks")
    if blocks.dtype is not torch.bool:
        raise TypeError(f"blocks must be a bool tensor, got {blocks.dtype}")
    _check_lead(blocks, 2, "blocks", "block rows, block columns")
    if grid is not None and blocks.shape[-2:] != grid:
        raise ValueError(
            f"blocks must have one element per block, shape (..., {grid[0]}, {grid[1]}); got "
            f"{tuple(blocks.shape)}"
        )


def check_counts(lists: Any, counts: Any, rows: int) -> Tensor | None:
    """The counts of index lists, in the dtype of these, or None."""
    # A mask may be made in every call: what is nearly always so is asked first.
    if (
        type(lists) is Tensor
        and (counts is None or type(counts) is Tensor)
        and lists.layout is torch.strided
        and 2 <= lists.dim() <= 4
        and not lists.is_nested
        and lists.shape[-2] == rows
        and lists.dtype in INDEX_DTYPES
        and (counts is None or _counts_fit(lists, counts))
    ):
        return counts
    check_dense(lists, "q2k_block_index")
    check_local(lists, "q2k_block_index")
    if lists.dtype not in INDEX_DTYPES:
        raise TypeError(f"q2k_block_index must be int32 or int64, got {lists.dtype}")
    _check_lead(lists, 2, "q2k_block_index", "block rows, most")
    if lists.shape[-2] != rows:
        raise ValueError(
            f"q2k_block_index must have a list for each of {rows} block rows, got shape "
            f"{tuple(lists.shape)}"
        )
    if counts is None:
        return None
    check_dense(counts, "counts")
    if counts.dtype not in INDEX_DTYPES:
        raise TypeError(f"counts must be int32 or int64, got {counts.dtype}")
    if counts.shape != lists.shape[:-1]:
        raise ValueError(
            f"counts must have shape {tuple(lists.shape[:-1])}, one for each list; got "
            f"{tuple(counts.shape)}"
        )
    if counts.device != lists.device:
        raise RuntimeError(
            f"counts must be on the device of q2k_block_index, {lists.device}; got {counts.device}"
        )
    return counts.to(lists.dtype)


def _counts_fit(lists: Tensor, counts: Tensor) -> bool:
    return (
        counts.dtype is lists.dtype
        and counts.layout is torch.strided
        and counts.shape == lists.shape[:-1]
        and counts.device == lists.device
    )


def _check_lead(tensor: Tensor, own: int, name: str, what: str) -> None:
    """At most (batch, heads) before the ``own`` dimensions that a pattern has."""
    if not own <= tensor.dim() <= own + 2:
        raise ValueError(
            f"{name} must have shape ({what}), (heads, {what}) or (batch, heads, {what}), got "
            f"{tuple(tensor.shape)}"
        )

"""PyTorch's own Triton kernel (bsr_dense_addmm) on a cell's operands, with given knobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from .cell import Call, Cell, Operands, UnsupportedError

# Knobs as torch calls them, except that TILE, the columns of a tile, stands for SPLIT_N; "arch" is
# Triton's own option.
Knobs = Mapping[str, int | str]


def describe(knobs: Knobs) -> str:
    """The knobs in a line."""
    return " ".join(f"{name}={value}" for name, value in knobs.items())


def check_block(cell: Cell) -> None:
    """Raises UnsupportedError for a block that the kernel does not take."""
    if cell.block < 16 or cell.block & (cell.block - 1):
        raise UnsupportedError("torch's Triton kernel needs blocks of 16, 32, 64, ...")


def _columns(t: torch.Tensor, linear: bool) -> torch.Tensor:
    """The right-hand side, or the result, of the product A @ B."""
    return t.mT if linear else t


def prepared(operands: Operands, knobs: Knobs | None) -> Call:
    """A call of the kernel; None leaves the knobs to torch.

    x and the result of a "linear" are read and written in place, through transposed views. The
    kernel wants n to be a multiple of the tile: otherwise b is copied into a wider matrix in every
    call, as a user would have to, and the result is a part of a wider one.
    """
    from torch.sparse._triton_ops import bsr_dense_addmm

    cell, a, b, linear = operands.cell, operands.torch_bsr, operands.b, operands.linear
    width, meta = cell.n, None
    if knobs is not None:
        tile = int(knobs["TILE"])
        tiles = -(-cell.n // tile)
        width = tiles * tile
        meta = {"SPLIT_N": tiles, **{k: v for k, v in knobs.items() if k != "TILE"}}
    wide = b if width == cell.n else b.new_zeros((width, cell.k) if linear else (cell.k, width))
    out = b.new_empty((width, cell.m) if linear else (cell.m, width))
    whole = _columns(out, linear)
    inside = _columns(wide, linear)[:, : cell.n]
    given, result = _columns(b, linear), _columns(whole[:, : cell.n], linear)
    padded = wide is not b

    def call() -> torch.Tensor:
        if padded:
            inside.copy_(given)
        options = None if meta is None else dict(meta)
        bsr_dense_addmm(whole, a, _columns(wide, linear), beta=0, alpha=1, out=whole, meta=options)
        return result

    call.detail = "" if knobs is None else describe(knobs)  # type: ignore[attr-defined]
    return call


def small_twin(cell: Cell, nnzb: int) -> Cell:
    """A small cell that runs the very kernel which Triton compiles for `cell` with `nnzb` blocks.

    Triton compiles anew for each block, n and dtype, and for arguments divisible by 16, which of
    those that sizes decide is only the number of blocks.
    """
    side = 8 * cell.block
    blocks = 16 if nnzb % 16 == 0 else 17
    return dataclasses.replace(cell, m=side, k=side, density=blocks / 64, pattern="uniform")

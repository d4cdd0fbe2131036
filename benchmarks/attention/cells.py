"""Cells of attention, and the operands of one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property

import torch

import sparse_autotune as sa

# The side of FlexAttention's blocks on a GPU, by default and at its fastest.
FLEX_BLOCK = 128


@dataclass(frozen=True)
class AttentionCell:
    """One attention: `batch` entries with `heads` heads of `dim` numbers, S = T = `length`.

    `mask` is "random" (of `density`, other blocks in each head), "window" (a causal band of
    `density`), "causal", or without a mask "none" or "is_causal", the causal rule alone.
    """

    heads: int
    length: int
    dim: int
    block: int
    mask: str = "random"
    density: float = 1.0
    dtype: str = "bfloat16"
    backward: bool = False
    batch: int = 1

    def __str__(self) -> str:
        what = f"block {self.block} {self.mask}" if self.has_mask else self.mask
        part = f" {self.density:.3g}" if self.mask in ("random", "window") else ""
        way = " backward" if self.backward else ""
        entries = f"{self.batch}x" if self.batch > 1 else ""
        return f"{entries}{self.heads}x{self.length}x{self.dim} {self.dtype} {what}{part}{way}"

    @property
    def has_mask(self) -> bool:
        """Whether blocks are left out."""
        return self.mask not in ("none", "is_causal")

    @property
    def dense_flops(self) -> float:
        """Floating-point operations on all pairs of a query and a key."""
        return self._flops_of(float(self.heads) * self.length**2)

    def nnz_flops(self, nnzb: int) -> float:
        """Those on stored blocks, counted whole; without a mask, on all pairs that are seen."""
        if self.mask == "none":
            return self.dense_flops
        if self.mask == "is_causal":
            return self._flops_of(self.heads * self.length * (self.length + 1) / 2)
        heads = 1 if self.mask == "random" else self.heads  # that share a pattern
        return self._flops_of(float(heads) * nnzb * self.block**2)

    def _flops_of(self, pairs: float) -> float:
        return (10.0 if self.backward else 4.0) * self.batch * pairs * self.dim

    def to_dict(self) -> dict:
        """The fields, for JSON; a batch of one is left out, so that older runs name the same."""
        fields = asdict(self)
        if self.batch == 1:
            del fields["batch"]
        return fields


class AttentionOperands:
    """A cell's data."""

    def __init__(self, cell: AttentionCell, device: str) -> None:
        self.cell = cell
        draw = torch.Generator(device).manual_seed(1)
        shape = (cell.batch, cell.length, cell.heads, cell.dim)
        dtype = getattr(torch, cell.dtype)
        self.q, self.k, self.v, self.grad = (
            torch.randn(shape, generator=draw, device=device, dtype=dtype).transpose(1, 2)
            for _ in range(4)
        )
        self.mask = self._mask(device)

    def _mask(self, device: str) -> sa.BlockMask | None:
        cell = self.cell
        if not cell.has_mask:
            return None
        if cell.mask == "causal":
            return sa.BlockMask.causal(cell.length, block_size=cell.block, device=device)
        if cell.mask == "window":
            window = max(round(cell.density * cell.length), 1)
            return sa.BlockMask.sliding_window(
                cell.length, block_size=cell.block, window=window, device=device
            )
        side = cell.length // cell.block
        draw = torch.Generator().manual_seed(0)
        count = max(round(cell.density * side), 1)
        # As many blocks in each row, as masks that are chosen by scores have.
        keep = torch.rand(cell.heads, side, side, generator=draw).argsort(-1) < count
        return sa.BlockMask.from_blocks(keep.to(device), cell.block)

    @property
    def is_causal(self) -> bool:
        """Whether the causal rule holds, apart from what the mask says."""
        return self.cell.mask in ("causal", "is_causal")

    @cached_property
    def dense_mask(self) -> torch.Tensor | None:
        """What torch's scaled_dot_product_attention takes."""
        if self.mask is None or self.is_causal:
            return None
        dense = self.mask.to_dense()
        return dense.view(*[1] * (4 - dense.dim()), *dense.shape)

    @cached_property
    def cover(self) -> sa.BlockMask:
        """The blocks of 128 in which stored blocks lie, of a mask of smaller ones."""
        assert self.mask is not None
        blocks, ratio = self.mask.blocks(), FLEX_BLOCK // self.cell.block
        tiles = blocks.unflatten(-1, (-1, ratio)).unflatten(-3, (-1, ratio))
        return sa.BlockMask.from_blocks(tiles.any(-1).any(-2), FLEX_BLOCK)

    @cached_property
    def nnzb(self) -> int:
        """Stored blocks of all patterns. They are counted: races then know the density."""
        return 0 if self.mask is None else self.mask.nnzb

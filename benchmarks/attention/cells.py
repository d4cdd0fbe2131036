"""The suites of attention: cells, and the operands of one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property

import torch

import sparse_autotune as sa


@dataclass(frozen=True)
class AttentionCell:
    """One attention: a batch entry, `heads` heads of 128 or `dim` numbers, S = T = `length`.

    `mask` is "random" (of `density`, other blocks in each head), "window" (a causal band of
    `density`), "causal" or "none".
    """

    heads: int
    length: int
    dim: int
    block: int
    mask: str = "random"
    density: float = 1.0
    dtype: str = "bfloat16"
    backward: bool = False

    def __str__(self) -> str:
        what = "none" if self.mask == "none" else f"block {self.block} {self.mask}"
        part = f" {self.density:.3g}" if self.mask in ("random", "window") else ""
        way = " backward" if self.backward else ""
        return f"{self.heads}x{self.length}x{self.dim} {self.dtype} {what}{part}{way}"

    def to_dict(self) -> dict:
        """The fields, for JSON."""
        return asdict(self)


class AttentionOperands:
    """A cell's data."""

    def __init__(self, cell: AttentionCell, device: str) -> None:
        self.cell = cell
        draw = torch.Generator(device).manual_seed(1)
        shape = (1, cell.length, cell.heads, cell.dim)
        dtype = getattr(torch, cell.dtype)
        self.q, self.k, self.v, self.grad = (
            torch.randn(shape, generator=draw, device=device, dtype=dtype).transpose(1, 2)
            for _ in range(4)
        )
        self.mask = self._mask(device)

    def _mask(self, device: str) -> sa.BlockMask | None:
        cell = self.cell
        if cell.mask == "none":
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

    @cached_property
    def dense_mask(self) -> torch.Tensor | None:
        """What torch's scaled_dot_product_attention takes."""
        if self.mask is None or self.cell.mask == "causal":
            return None
        dense = self.mask.to_dense()
        return dense.view(*[1] * (4 - dense.dim()), *dense.shape)

    @cached_property
    def pairs(self) -> float:
        """Pairs of a query and a key that are computed, blocks counted whole."""
        cell = self.cell
        if self.mask is None:
            return float(cell.heads) * cell.length**2
        self.mask.nnzb  # noqa: B018  counted once: races then know the density
        return self.mask.density * cell.heads * cell.length**2

    @property
    def flops(self) -> float:
        """Floating-point operations on these."""
        return (10.0 if self.cell.backward else 4.0) * self.pairs * self.cell.dim


def _both(cells: list[AttentionCell]) -> list[AttentionCell]:
    from dataclasses import replace

    return [replace(cell, backward=way) for cell in cells for way in (False, True)]


SUITES: dict[str, tuple[str, list[AttentionCell]]] = {
    "cpu_attention": (
        "cpu",
        _both(
            [
                AttentionCell(8, 2048, dim, block, "random", 0.125, dtype)
                for dtype in ("float32", "bfloat16")
                for dim, block in ((64, 64), (128, 64), (64, 16), (64, 128))
            ]
            + [
                AttentionCell(8, 2048, 64, 64, "window", 0.125, "float32"),
                AttentionCell(8, 2048, 64, 64, "causal", dtype="float32"),
                AttentionCell(8, 2048, 64, 64, "none", dtype="float32"),
            ]
        ),
    ),
    "gpu_attention": (
        "cuda",
        _both(
            [
                AttentionCell(heads, length, 128, 128, "random", density)
                for heads, length, densities in (
                    (32, 8192, (0.26, 0.14, 0.064)),
                    (8, 32768, (0.25, 0.13, 0.053)),
                )
                for density in densities
            ]
            + [
                AttentionCell(heads, length, 128, 128, mask, density)
                for heads, length in ((32, 8192), (8, 32768))
                for mask, density in (("window", 0.11), ("causal", 1.0))
            ]
        ),
    ),
    "gpu_attention_small_blocks": (
        "cuda",
        _both(
            [
                AttentionCell(8, 32768, 128, block, "random", density)
                for block in (64, 32, 16)
                for density in (0.25, 0.13, 0.053)
            ]
        ),
    ),
}

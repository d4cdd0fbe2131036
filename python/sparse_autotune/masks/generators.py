"""Grids of stored blocks of common rules of attention, made on the device that they are for.

A block is stored where any of its elements may be seen. All rules are of whole tokens; what a block
adds to them is the caller's affair (`BlockMask` says what it computes).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor


class Blocks:
    """First and last token of each block, along queries as columns and along keys as rows.

    Of every ``step``-th block row, or of all.
    """

    def __init__(
        self,
        lengths: tuple[int, int],
        block: tuple[int, int],
        device: torch.device | None,
        step: int = 1,
    ) -> None:
        (queries, keys), (block_m, block_n) = lengths, block
        rows = torch.arange(step // 2, -(-queries // block_m), step, device=device)[:, None]
        cols = torch.arange(-(-keys // block_n), device=device)
        self.cols, self.block_n = cols, block_n
        self.first_query, self.first_key = rows * block_m, cols * block_n
        self.last_query = (self.first_query + block_m).clamp(max=queries) - 1
        self.last_key = (self.first_key + block_n).clamp(max=keys) - 1


# Blocks that the host looks at to say how many a rule stores: some tenths of a millisecond.
_MOST_COUNTED = 1 << 16


@functools.lru_cache(maxsize=256)
def count(
    rule: Callable[..., Tensor],
    arguments: tuple[int, ...],
    lengths: tuple[int, int],
    block: tuple[int, int],
    is_causal: bool,
) -> tuple[int, bool]:
    """How many blocks a rule stores, without asking a GPU, and whether that is exact.

    Of more than the host looks at some block rows stand for all.
    """
    rows, cols = -(-lengths[0] // block[0]), -(-lengths[1] // block[1])
    step = max(-(-rows * cols // _MOST_COUNTED), 1)
    blocks = Blocks(lengths, block, torch.device("cpu"), step)
    grid = rule(blocks, *arguments)
    if is_causal:
        grid = grid & causal(blocks)
    found, looked_at = int(grid.sum()), grid.shape[-2]
    return (round(found * rows / looked_at) if looked_at else 0), step == 1


def count_documents(ends: Tensor, block: tuple[int, int], is_causal: bool) -> int:
    """How many blocks `documents` stores, of ends on the host, each of them a multiple of blocks.

    As one document's blocks are its own.
    """
    total = 0
    for entry in ends.reshape(prod(ends.shape[:-1]), ends.shape[-1]).tolist():
        for begin, end in itertools.pairwise((0, *entry)):
            rows, cols = (-(-(end - begin) // side) for side in block)
            if not is_causal:
                total += rows * cols
            elif block[0] == block[1]:
                total += rows * (rows + 1) // 2
            else:
                last = (min((row + 1) * block[0], end - begin) - 1 for row in range(rows))
                total += sum(query // block[1] + 1 for query in last)
    return total


def causal(blocks: Blocks) -> Tensor:
    """Some key of the block is not behind some query of it."""
    return blocks.first_key <= blocks.last_query


def sliding_window(blocks: Blocks, window: int, sinks: int) -> Tensor:
    """Some query sees some key: less than ``window`` tokens away, or of the first ``sinks``."""
    behind = blocks.first_query - blocks.last_key < window
    before = blocks.first_key - blocks.last_query < window
    return (behind & before) | (blocks.first_key < sinks)


def strided(blocks: Blocks, stride: int, local: int) -> Tensor:
    """The diagonal's block and ``local - 1`` before it, and each ``stride``-th block column."""
    distance = (blocks.last_query // blocks.block_n - blocks.cols).abs()
    return (distance < local) | (blocks.cols % stride == stride - 1)


def documents(blocks: Blocks, ends: Tensor) -> Tensor:
    """Some query and some key of the block belong to one document; ``ends`` are (..., documents).

    Documents are numbered by how many ends a token is behind, so those of a block are a range.
    """

    def number(tokens: Tensor) -> Tensor:
        tokens = tokens.flatten().expand(*ends.shape[:-1], -1).contiguous()
        return torch.searchsorted(ends, tokens, right=True)

    first_q, last_q = number(blocks.first_query)[..., None], number(blocks.last_query)[..., None]
    first_k, last_k = number(blocks.first_key)[..., None, :], number(blocks.last_key)[..., None, :]
    count = ends.shape[-1]  # tokens behind the last end belong to none
    return (first_q <= last_k) & (first_k <= last_q) & (first_q < count) & (first_k < count)

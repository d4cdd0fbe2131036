"""Attention with masks of blocks of 64, 32 and 16; the last two no peer takes as they are."""

from benchmarks.attention.cells import AttentionCell
from benchmarks.attention.comparison import both_passes

SUITE = both_passes(
    "cuda",
    [
        AttentionCell(8, 32768, 128, block, "random", density)
        for block in (64, 32, 16)
        for density in (0.25, 0.13, 0.053)
    ],
)

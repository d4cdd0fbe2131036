"""Attention with masks of blocks of 128, forward and backward."""

from benchmarks.attention.cells import AttentionCell
from benchmarks.attention.comparison import both_passes

_SHAPES = {(32, 8192): (0.26, 0.14, 0.064), (8, 32768): (0.25, 0.13, 0.053)}

SUITE = both_passes(
    "cuda",
    [
        AttentionCell(heads, length, 128, 128, "random", density)
        for (heads, length), densities in _SHAPES.items()
        for density in densities
    ]
    + [
        AttentionCell(heads, length, 128, 128, mask, density)
        for heads, length in _SHAPES
        for mask, density in (("window", 0.11), ("causal", 1.0))
    ],
)

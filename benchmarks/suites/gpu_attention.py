"""Attention with masks of blocks of 128, forward and backward."""

from __future__ import annotations

from benchmarks.attention.cells import AttentionCell, both_passes
from benchmarks.attention.comparison import measure
from benchmarks.suite import Suite

_SHAPES = {(32, 8192): (0.26, 0.14, 0.064), (8, 32768): (0.25, 0.13, 0.053)}

SUITE = Suite(
    device="cuda",
    cells=both_passes(
        [
            AttentionCell(heads, length, 128, 128, "random", density)
            for (heads, length), densities in _SHAPES.items()
            for density in densities
        ]
        + [
            AttentionCell(heads, length, 128, 128, mask, density)
            for heads, length in _SHAPES
            for mask, density in (("window", 0.11), ("causal", 1.0))
        ]
    ),
    rounds=7,
    measure=measure,
)

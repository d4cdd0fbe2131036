"""Attention with masks of blocks of 64, 32 and 16; the last two no peer takes as they are."""

from __future__ import annotations

from benchmarks.attention.cells import AttentionCell, both_passes
from benchmarks.attention.comparison import measure
from benchmarks.suite import Suite

SUITE = Suite(
    device="cuda",
    cells=both_passes(
        [
            AttentionCell(8, 32768, 128, block, "random", density)
            for block in (64, 32, 16)
            for density in (0.25, 0.13, 0.053)
        ]
    ),
    rounds=7,
    measure=measure,
)

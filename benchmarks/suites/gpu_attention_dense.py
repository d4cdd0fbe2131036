"""Attention without a mask, causal or not, against each of PyTorch's backends."""

from __future__ import annotations

from benchmarks.attention.cells import AttentionCell, both_passes
from benchmarks.attention.comparison import measure
from benchmarks.suite import Suite

# By length: batch entries, and heads of 64 and of 128 numbers. Together they fill a GPU.
_SHAPES = {512: (16, 16, 32), 2048: (4, 16, 32), 8192: (1, 16, 32), 32768: (1, 8, 8)}

SUITE = Suite(
    device="cuda",
    cells=both_passes(
        [
            AttentionCell(heads, length, dim, 0, mask, batch=batch)
            for length, (batch, *of_64_and_128) in _SHAPES.items()
            for dim, heads in zip((64, 128), of_64_and_128, strict=True)
            for mask in ("none", "is_causal")
        ]
    ),
    rounds=7,
    measure=measure,
)

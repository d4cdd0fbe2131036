"""Attention without a mask, causal or not, against each of PyTorch's backends."""

from __future__ import annotations

from benchmarks.attention.cells import AttentionCell, both_passes
from benchmarks.attention.comparison import measure
from benchmarks.suite import Suite

# As many heads as models have, by their numbers; batches that fill a GPU.
_SHAPES = {64: 16, 128: 32}
_BATCHES = {512: 16, 2048: 4, 8192: 1, 32768: 1}

SUITE = Suite(
    device="cuda",
    cells=both_passes(
        [
            AttentionCell(heads, length, dim, 0, mask, batch=batch)
            for dim, heads in _SHAPES.items()
            for length, batch in _BATCHES.items()
            for mask in ("none", "is_causal")
        ]
    ),
    rounds=7,
    measure=measure,
)

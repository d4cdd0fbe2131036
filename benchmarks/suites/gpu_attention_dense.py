"""Attention without a mask, causal or not, against each of PyTorch's backends."""

from benchmarks.attention.cells import AttentionCell
from benchmarks.attention.comparison import both_passes

# By length: batch entries, and heads of 64 and of 128 numbers. Together they fill a GPU.
_SHAPES = {512: (16, 16, 32), 2048: (4, 16, 32), 8192: (1, 16, 32), 32768: (1, 8, 8)}

SUITE = both_passes(
    "cuda",
    [
        AttentionCell(heads, length, dim, 0, mask, batch=batch)
        for length, (batch, *of_64_and_128) in _SHAPES.items()
        for dim, heads in zip((64, 128), of_64_and_128, strict=True)
        for mask in ("none", "is_causal")
    ],
)

"""Attention on a CPU beside torch's with the same mask, forward and backward."""

from benchmarks.attention.cells import AttentionCell
from benchmarks.attention.comparison import both_passes

SUITE = both_passes(
    "cpu",
    [
        AttentionCell(8, 2048, dim, block, "random", 0.125, dtype)
        for dtype in ("float32", "bfloat16")
        for dim, block in ((64, 64), (128, 64), (64, 16), (64, 128))
    ]
    + [
        AttentionCell(8, 2048, 64, 64, mask, density, "float32")
        for mask, density in (("window", 0.125), ("causal", 1.0), ("none", 1.0))
    ],
)

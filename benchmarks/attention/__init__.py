"""Block-sparse attention against what PyTorch can do with the same mask."""

"""Comparison of sparse_autotune with its peers: `python -m benchmarks.run --help`."""

"""Comparison of sparse_autotune with its peers: `python benchmarks/run.py --help`."""

import sys
from pathlib import Path

# The package as built in place, where no other one is installed.
sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))

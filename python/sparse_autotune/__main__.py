"""``python -m sparse_autotune``: the command line, as ``sparse-autotune``."""

from .cli import main

main()

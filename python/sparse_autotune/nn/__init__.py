"""Layers with block-sparse weights, and what makes them and changes their patterns."""

from .prewarming import prewarm
from .pruning import PolynomialDensity, prune_, prune_and_regrow_, regrow_, set_pattern_
from .sparse_linear import SparseLinear
from .sparsify import sparsify_

__all__ = [
    "PolynomialDensity",
    "SparseLinear",
    "prewarm",
    "prune_",
    "prune_and_regrow_",
    "regrow_",
    "set_pattern_",
    "sparsify_",
]

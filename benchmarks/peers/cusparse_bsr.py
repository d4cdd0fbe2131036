"""cuSPARSE's cusparseSpMM on BSR, reached through this package's variant of that name."""

from benchmarks.cell import Call, Operands
from benchmarks.library_peer import frozen_variant

DEVICES = ("cuda",)


def prepare(operands: Operands) -> Call:
    """Freezes the values, so that a conversion is done once and not timed."""
    return frozen_variant(operands, "cusparse_bsr")

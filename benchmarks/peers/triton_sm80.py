"""`triton_tuned` with what Ampere has: mma.sync and cp.async, and an A100's shared memory.

The peer of suites that leave out what needs Hopper, and of no other: see `Suite.portable`.
"""

from benchmarks.cell import Call, Operands

from . import triton_tuned

DEVICES = ("cuda",)
ARCH = "sm80"


def prepare(operands: Operands) -> Call:
    """Sweeps the cell where it has no stored knobs for this code on this GPU."""
    return triton_tuned.prepare(operands, ARCH)

"""PyTorch's own Triton kernel (bsr_dense_addmm) with the knobs that torch picks."""

from benchmarks import triton_bsr
from benchmarks.cell import Call, Operands, UnsupportedError

DEVICES = ("cuda",)


def prepare(operands: Operands) -> Call:
    """Refuses what the kernel refuses, with its words."""
    triton_bsr.check_block(operands.cell)
    call = triton_bsr.prepared(operands, None)
    try:
        call()
    except Exception as refused:  # Triton has errors of its own for what it cannot compile
        raise UnsupportedError(f"{type(refused).__name__}: {refused}".split("\n")[0]) from None
    return call

"""PyTorch's own `A @ B` on a torch.sparse_bsr tensor: MKL on a CPU, Triton untuned on a GPU."""

import warnings

from benchmarks.cell import Call, Operands, UnsupportedError

DEVICES = ("cpu", "cuda")


def prepare(operands: Operands) -> Call:
    """Refuses what torch refuses, with torch's words."""
    warnings.filterwarnings("ignore", message=".*Sparse BSR tensor support is in beta.*")
    warnings.filterwarnings("ignore", message=".*bsr_dense_addmm uses non-optimal.*")
    a, b = operands.torch_bsr, operands.b
    try:
        a @ b
    except (NotImplementedError, RuntimeError) as refused:
        raise UnsupportedError(str(refused).partition("\n")[0]) from None
    return lambda: a @ b

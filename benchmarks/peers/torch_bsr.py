"""PyTorch's own `A @ B` on a torch.sparse_bsr tensor: MKL on a CPU, Triton untuned on a GPU."""

import torch

from benchmarks.cell import Call, Operands, UnsupportedError

DEVICES = ("cpu", "cuda")


def prepare(operands: Operands) -> Call:
    """Refuses what torch refuses, with torch's words."""
    a, b = operands.torch_bsr, operands.b

    def call() -> torch.Tensor:
        return torch.nn.functional.linear(b, a) if operands.linear else a @ b

    try:
        call()
    except (NotImplementedError, RuntimeError) as refused:
        raise UnsupportedError(str(refused).partition("\n")[0]) from None
    return call

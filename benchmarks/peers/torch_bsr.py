"""PyTorch's own `A @ B` on a torch.sparse_bsr tensor: MKL on a CPU, Triton untuned on a GPU."""

import torch

from benchmarks.cell import Call, Operands, UnsupportedError

DEVICES = ("cpu", "cuda")


def prepare(operands: Operands) -> Call:
    """Refuses what torch refuses, with torch's words where it says them soon."""
    a, b = operands.torch_bsr, operands.b

    if a.is_cuda and a.values().size(-1) == 1:
        # An internal assertion of torch, which takes half a minute to describe its stack.
        raise UnsupportedError("torch's BSR product on a GPU wants blocks of more than one column")

    def call() -> torch.Tensor:
        return torch.nn.functional.linear(b, a) if operands.linear else a @ b

    try:
        call()
    except (NotImplementedError, RuntimeError) as refused:
        raise UnsupportedError(str(refused).partition("\n")[0]) from None
    return call

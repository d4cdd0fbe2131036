"""PyTorch's dense product of the same matrix with its zeros: MKL or oneDNN, cuBLAS on a GPU."""

import torch

from benchmarks.cell import Call, Operands

DEVICES = ("cpu", "cuda")


def product(dense: torch.Tensor, operands: Operands) -> Call:
    """A call with any dense matrix of A's shape."""
    b = operands.b
    if operands.linear:
        return lambda: torch.nn.functional.linear(b, dense)
    return lambda: torch.mm(dense, b)


def prepare(operands: Operands) -> Call:
    """Densifies before the timing."""
    return product(operands.dense, operands)

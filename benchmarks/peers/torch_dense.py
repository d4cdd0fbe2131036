"""PyTorch's dense product of the same matrix with its zeros: MKL or oneDNN, cuBLAS on a GPU."""

import torch

from benchmarks.cell import Call, Operands

DEVICES = ("cpu", "cuda")


def prepare(operands: Operands) -> Call:
    """Densifies before the timing."""
    a, b = operands.dense, operands.b
    return lambda: torch.mm(a, b)

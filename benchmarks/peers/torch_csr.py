"""PyTorch's `A @ B` on the matrix as single elements (CSR): MKL on a CPU, cuSPARSE on a GPU."""

import torch

from benchmarks.cell import Call, Operands, UnsupportedError

DEVICES = ("cpu", "cuda")


def prepare(operands: Operands) -> Call:
    """Refuses half types: nobody multiplies those an element at a time."""
    if operands.b.dtype not in (torch.float32, torch.float64):
        raise UnsupportedError(f"left out in {operands.cell.dtype}: an element at a time")
    a, b = operands.torch_csr, operands.b
    if operands.linear:
        return lambda: (a @ b.mT).mT
    return lambda: a @ b

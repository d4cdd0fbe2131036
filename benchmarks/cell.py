"""What is measured: one product, its operands, and the check of a contestant's result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property

import torch

import sparse_autotune

Call = Callable[[], object]


class UnsupportedError(Exception):
    """A contestant does not serve a cell; the message says why."""


@dataclass(frozen=True)
class Cell:
    """The product of an m x k matrix of square blocks and a dense k x n matrix."""

    m: int
    n: int
    k: int
    block: int
    density: float
    dtype: str = "float32"
    pattern: str = "uniform"

    def __str__(self) -> str:
        return (
            f"{self.m}x{self.k}x{self.n} block {self.block} density {self.density:g} "
            f"{self.dtype} {self.pattern}"
        )

    @property
    def key(self) -> str:
        """A name for files that keep something per cell."""
        return f"{self.m}_{self.n}_{self.k}_b{self.block}_d{self.density:g}_{self.dtype}"

    @property
    def dense_flops(self) -> float:
        """Floating-point operations of the dense product."""
        return 2.0 * self.m * self.n * self.k

    def to_dict(self) -> dict:
        """The fields, for JSON."""
        return asdict(self)


class Operands:
    """One copy of a cell's data: `a` (a BsrTensor), `b`, and forms of `a` that peers want.

    Copies of one cell hold different values on the same pattern, as do calls in a real program.
    """

    def __init__(self, cell: Cell, device: str, copy: int = 0):
        pattern = torch.Generator().manual_seed(0)
        a = sparse_autotune.random_bsr(
            cell.m,
            cell.k,
            cell.block,
            density=cell.density,
            pattern=cell.pattern,
            dtype=torch.float32,
            device="cpu",
            generator=pattern,
        )
        data = torch.Generator().manual_seed(1 + copy)
        dtype = getattr(torch, cell.dtype)
        values = torch.randn(a.values.shape, generator=data).to(dtype)
        self.a = sparse_autotune.BsrTensor(
            a.crow_indices.to(device), a.col_indices.to(device), values.to(device), (cell.m, cell.k)
        )
        self.b = torch.randn(cell.k, cell.n, generator=data).to(dtype).to(device)
        self.cell = cell

    @property
    def nnz_flops(self) -> float:
        """Floating-point operations on stored blocks."""
        return 2.0 * self.a.nnzb * self.cell.block**2 * self.cell.n

    @property
    def bytes(self) -> int:
        """Bytes of the values, b and the result."""
        elements = self.a.values.numel() + self.b.numel() + self.cell.m * self.cell.n
        return elements * self.b.element_size()

    @cached_property
    def dense(self) -> torch.Tensor:
        """`a` with its zeros."""
        return self.a.to_dense()

    @cached_property
    def torch_bsr(self) -> torch.Tensor:
        """`a` as a torch.sparse_bsr tensor."""
        return self.a.to_torch()

    @cached_property
    def frozen(self) -> sparse_autotune.BsrTensor:
        """`a` with its values frozen: variants that convert it do so once, before the timing."""
        return self.a.clone().freeze()

    @cached_property
    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The product in fp64 and the product of the magnitudes, which scales its rounding."""
        a, b = self.dense.double(), self.b.double()
        return a @ b, a.abs() @ b.abs()

    def error(self, result: object) -> float:
        """The largest error of a result, in units of what its dtype's rounding allows.

        Half types accumulate in fp32. Above 1 the result is wrong; NaN counts as infinite.
        """
        expected, magnitude = self.expected
        c = torch.as_tensor(result).to(expected.device)
        accumulation = torch.finfo(torch.float32 if c.element_size() == 2 else c.dtype).eps
        longest = int(self.a.crow_indices.diff().max()) * self.cell.block
        bound = torch.finfo(c.dtype).eps * expected.abs() + accumulation * longest * magnitude
        excess = (c.double() - expected).abs() / bound.clamp_min(1e-300)
        return float(torch.nan_to_num(excess, nan=torch.inf).max()) if c.numel() else 0.0

"""What is measured: one product, its operands, and the check of a contestant's result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch

import sparse_autotune
from sparse_autotune.choices import Pattern

# What a contestant does: it returns what its kind of arrays the product is.
Call = Callable[[], Any]

# Patterns that set their own density: the share of a square grid's blocks that they store.
_SHARES: dict[Pattern, Callable[[int], float]] = {
    "block_diagonal": lambda side: 1 / side,
    "causal": lambda side: (side + 1) / (2 * side),
}
# Elements of A in fp64 at a time, while the expected product is computed.
_CHUNK = 1 << 28
# Elements of A with its zeros, at most: beyond, contestants that need them all are left out.
_MOST_DENSE = 1 << 32


class UnsupportedError(Exception):
    """A contestant does not serve a cell; the message says why."""


@dataclass(frozen=True)
class Cell:
    """A product with an m x k matrix A of square blocks.

    "matmul" is A @ b with a row-major k x n matrix; "linear" is x @ A.T for n tokens: x (n x k) and
    the result (n x m) are row-major, which is the product above with both operands transposed.
    """

    m: int
    n: int
    k: int
    block: int
    density: float
    dtype: str = "float32"
    pattern: Pattern = "uniform"
    op: str = "matmul"

    def __str__(self) -> str:
        return (
            f"{self.m}x{self.k}x{self.n} {self.op} block {self.block} density {self.density:.4g} "
            f"{self.dtype} {self.pattern}"
        )

    @property
    def key(self) -> str:
        """A name for files that keep something per cell."""
        return (
            f"{self.m}_{self.n}_{self.k}_b{self.block}_d{self.density:.6g}_{self.dtype}"
            f"_{self.pattern}_{self.op}"
        )

    @staticmethod
    def of_fixed(pattern: Pattern, size: int, n: int, block: int, dtype: str) -> Cell:
        """A cell of a square matrix whose pattern sets its own density."""
        return Cell(size, n, size, block, _SHARES[pattern](size // block), dtype, pattern)

    @staticmethod
    def of_mesh(rows: int, n: int, block: int, dtype: str) -> Cell:
        """A cell of 27 blocks in each row of a square matrix of some `rows` rows, in a band."""
        blocks = rows // block
        return Cell(blocks * block, n, blocks * block, block, 27 / blocks, dtype, "banded")

    def uniform_twin(self) -> Cell:
        """The cell of equally many blocks in random places."""
        return replace(self, pattern="uniform")

    @property
    def dense_flops(self) -> float:
        """Floating-point operations of the dense product."""
        return 2.0 * self.m * self.n * self.k

    def nnz_flops(self, nnzb: int) -> float:
        """Those on so many stored blocks."""
        return 2.0 * nnzb * self.block**2 * self.n

    def to_dict(self) -> dict:
        """The fields, for JSON."""
        return asdict(self)


def in_tolerances(
    result: torch.Tensor, expected: torch.Tensor, magnitude: torch.Tensor, length: int
) -> float:
    """The largest error of a product, in units of what the rounding of its dtype allows.

    Above 1 the result is wrong; NaN counts as infinite, and so does another shape. Half types
    accumulate in fp32.

    Args:
        result: the product.
        expected: the same in fp64.
        magnitude: the product of the operands' magnitudes, in fp64.
        length: the largest number of terms that an element sums.
    """
    c = result.to(expected.device)
    if c.shape != expected.shape:
        return torch.inf
    accumulation = torch.finfo(torch.float32 if c.element_size() == 2 else c.dtype).eps
    bound = torch.finfo(c.dtype).eps * expected.abs() + accumulation * length * magnitude
    excess = (c.double() - expected).abs() / bound.clamp_min(1e-300)
    return float(torch.nan_to_num(excess, nan=torch.inf).max()) if c.numel() else 0.0


@lru_cache(maxsize=1)
def drawn_pattern(cell: Cell) -> sparse_autotune.BsrTensor:
    """A cell's pattern, on the CPU: the same each time, in blocks of a single element."""
    # Of values, which are not used, there are few.
    return sparse_autotune.random_bsr(
        cell.m // cell.block,
        cell.k // cell.block,
        1,
        density=None if cell.pattern in _SHARES else cell.density,
        pattern=cell.pattern,
        device="cpu",
        generator=torch.Generator().manual_seed(0),
    )


class Operands:
    """One copy of a cell's data: `a` (a BsrTensor), `b` (`x` of a "linear") and forms of `a`.

    Copies of one cell hold different values on the same pattern, as do calls in a real program.
    """

    def __init__(self, cell: Cell, device: str, copy: int = 0):
        pattern = drawn_pattern(cell)
        data = torch.Generator(device).manual_seed(1 + copy)

        def draw(*shape: int) -> torch.Tensor:
            dtype = getattr(torch, cell.dtype)
            return torch.randn(shape, generator=data, device=device, dtype=dtype)

        self.a = sparse_autotune.BsrTensor(
            pattern.crow_indices.to(device, copy=True),
            pattern.col_indices.to(device, copy=True),
            draw(pattern.nnzb, cell.block, cell.block),
            (cell.m, cell.k),
        )
        self.b = draw(cell.n, cell.k) if cell.op == "linear" else draw(cell.k, cell.n)
        self.cell = cell

    @property
    def linear(self) -> bool:
        """Whether the product is x @ A.T."""
        return self.cell.op == "linear"

    def product(self, a: sparse_autotune.BsrTensor, variant: str) -> Call:
        """A call of our own with `a`, or a form of it."""
        b = self.b
        if self.linear:
            return lambda: sparse_autotune.linear(b, a, variant=variant)
        return lambda: sparse_autotune.matmul(a, b, variant=variant)

    @property
    def nnz_flops(self) -> float:
        """Floating-point operations on stored blocks."""
        return self.cell.nnz_flops(self.a.nnzb)

    @property
    def bytes(self) -> int:
        """Bytes of the values, b and the result."""
        elements = self.a.values.numel() + self.b.numel() + self.cell.m * self.cell.n
        return elements * self.b.element_size()

    @property
    def fits_dense(self) -> bool:
        """Whether `a` with its zeros is of a size that anybody would make."""
        return self.cell.m * self.cell.k <= _MOST_DENSE

    @cached_property
    def dense(self) -> torch.Tensor:
        """`a` with its zeros; raises UnsupportedError where they are too many."""
        if not self.fits_dense:
            raise UnsupportedError(f"{self.cell.m} x {self.cell.k} is too large with its zeros")
        return self.a.to_dense()

    @cached_property
    def torch_bsr(self) -> torch.Tensor:
        """`a` as a torch.sparse_bsr tensor."""
        return self.a.to_torch()

    @cached_property
    def torch_csr(self) -> torch.Tensor:
        """`a` as a torch.sparse_csr tensor of single elements, which torch has no conversion to."""
        a, (block_m, block_k) = self.a, self.a.block_size
        crow, device = a.crow_indices.long(), a.device
        lengths = crow.diff()
        before = crow[:-1].repeat_interleave(lengths)  # blocks of the rows above a block's
        ordinal = torch.arange(a.nnzb, device=device) - before
        stride = (lengths * block_k).repeat_interleave(lengths)
        first = before * block_m * block_k + ordinal * block_k
        row = first[:, None] + stride[:, None] * torch.arange(block_m, device=device)
        place = (row[:, :, None] + torch.arange(block_k, device=device)).flatten()
        col = a.col_indices[:, None] * block_k + torch.arange(block_k, device=device)
        cols = torch.empty(place.numel(), dtype=a.col_indices.dtype, device=device)
        cols[place] = col[:, None, :].expand(-1, block_m, -1).flatten().to(cols.dtype)
        values = torch.empty_like(a.values.flatten())
        values[place] = a.values.flatten()
        rows = torch.zeros(self.cell.m + 1, dtype=cols.dtype, device=device)
        rows[1:] = (lengths * block_k).repeat_interleave(block_m).cumsum(0)
        return torch.sparse_csr_tensor(rows, cols, values, tuple(a.shape))

    @cached_property
    def frozen(self) -> sparse_autotune.BsrTensor:
        """`a` with its values frozen: variants that convert it do so once, before the timing."""
        return self.a.clone().freeze()

    @cached_property
    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The product in fp64 and the product of the magnitudes, which scales its rounding."""
        right = (self.b.mT if self.linear else self.b).double()
        magnitude = right.abs()
        if self.fits_dense:
            parts = [
                (rows.double() @ right, rows.double().abs() @ magnitude)
                for rows in self.dense.split(max(_CHUNK // self.cell.k, 1))
            ]
        else:
            a = self.torch_csr.double()
            parts = [(a @ right, a.abs() @ magnitude)]
        first, second = (torch.cat(part) for part in zip(*parts, strict=True))
        return (first.mT, second.mT) if self.linear else (first, second)

    def error(self, result: object) -> float:
        """The largest error of a result, in tolerances: see `in_tolerances`."""
        expected, magnitude = self.expected
        longest = int(self.a.crow_indices.diff().max()) * self.cell.block
        return in_tolerances(torch.as_tensor(result), expected, magnitude, longest)

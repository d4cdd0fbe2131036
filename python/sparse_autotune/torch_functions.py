"""What torch's own functions and methods do with a `BsrTensor`.

Results are block-sparse on the same pattern, or dense where a dense tensor of their shape is what
the function returns for any matrix (a product, a sum along a dimension). Nothing is densified.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor

from .bsr_tensor import TORCH_FUNCTIONS as TORCH_FUNCTIONS
from .bsr_tensor import BsrTensor
from .checks.matrix import check_same_pattern, kind
from .conversions import block_rows
from .functional import linear, matmul
from .operands import autocast_dtype, autocast_to

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _implements(*functions: Callable[..., Any]) -> Callable[[_Function], _Function]:
    def register(implementation: _Function) -> _Function:
        TORCH_FUNCTIONS.update(dict.fromkeys(functions, implementation))
        return implementation

    return register


# Products


@_implements(torch.matmul, Tensor.matmul, Tensor.__matmul__)
def _matmul(input: Any, other: Any, *, out: Tensor | None = None) -> Tensor:
    return matmul(input, other, out=out)


@_implements(Tensor.__rmatmul__)
def _reflected_matmul(other: Any, input: Any) -> Tensor:
    return matmul(input, other)


@_implements(torch.mm, Tensor.mm, torch.sparse.mm)
def _mm(input: Any, mat2: Any, *, out: Tensor | None = None) -> Tensor:
    _check_dims("mm", input, 2, mat2, 2)
    return matmul(input, mat2, out=out)


@_implements(torch.mv, Tensor.mv)
def _mv(input: Any, vec: Any, *, out: Tensor | None = None) -> Tensor:
    _check_dims("mv", input, 2, vec, 1)
    return matmul(input, vec, out=out)


@_implements(torch.addmm, Tensor.addmm, torch.sparse.addmm)
def _addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    _check_dims("addmm", mat1, 2, mat2, 2)
    return add_product(input, mat1, mat2, beta, alpha)


@_implements(torch.nn.functional.linear)
def _linear(input: Any, weight: Any, bias: Tensor | None = None) -> Tensor:
    return linear(input, weight, bias)


def _check_dims(name: str, left: Any, left_dims: int, right: Any, right_dims: int) -> None:
    for operand, dims in ((left, left_dims), (right, right_dims)):
        if isinstance(operand, Tensor | BsrTensor) and operand.dim() != dims:
            raise ValueError(
                f"{name} multiplies operands of {left_dims} and {right_dims} dimensions, got "
                f"shapes {tuple(left.shape)} and {tuple(right.shape)}: use matmul"
            )


def add_product(input: Any, mat1: Any, mat2: Any, beta: Any, alpha: Any) -> Tensor:
    """``beta * input + alpha * (mat1 @ mat2)``, as ``torch.addmm``."""
    # A vector that the kernels add themselves: one value per column of dense @ BSR.
    per_column = tuple(input.shape) == (mat2.shape[-1],)
    if alpha == 1 and beta == 1 and mat1.layout is torch.strided and per_column:
        return matmul(mat1, mat2, bias=input)
    product = matmul(mat1, mat2)
    lower = autocast_dtype(product)
    input = input.to(autocast_to(input.dtype, lower))
    if beta == 0:  # input is not read then, whatever it holds
        return product * alpha
    scaled = input if beta == 1 else input * beta
    return torch.add(scaled.expand_as(product), product, alpha=alpha)


# Arithmetic


def _is_scalar(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dim() == 0 and not value.is_complex()
    return isinstance(value, Real)


def _refuse(function: str, a: Any, b: Any) -> TypeError:
    return TypeError(
        f"{function} of {kind(a)} and {kind(b)} would fill the absent blocks or is not defined: "
        "use to_dense(), or the stored blocks in .values"
    )


@_implements(torch.mul, torch.multiply, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
def _mul(input: Any, other: Any) -> BsrTensor:
    if isinstance(input, BsrTensor) and isinstance(other, BsrTensor):
        check_same_pattern(input._parts, other._parts, "mul")
        return input._with_values(input.values * other.values)
    matrix, factor = (input, other) if isinstance(input, BsrTensor) else (other, input)
    if not _is_scalar(factor):
        raise _refuse("mul", input, other)
    return matrix._with_values(matrix.values * factor)


@_implements(
    torch.div, torch.divide, torch.true_divide, Tensor.div, Tensor.true_divide, Tensor.__truediv__
)
def _div(input: Any, other: Any) -> BsrTensor:
    if not isinstance(input, BsrTensor) or not _is_scalar(other):
        raise _refuse("div", input, other)
    return input._with_values(input.values / other)


@_implements(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
def _add(input: Any, other: Any, *, alpha: Any = 1) -> BsrTensor:
    return _sum_of("add", input, other, alpha)


@_implements(torch.sub, torch.subtract, Tensor.sub, Tensor.__sub__)
def _sub(input: Any, other: Any, *, alpha: Any = 1) -> BsrTensor:
    return _sum_of("sub", input, other, -alpha)


def _sum_of(name: str, input: Any, other: Any, alpha: Any) -> BsrTensor:
    if not isinstance(input, BsrTensor) or not isinstance(other, BsrTensor):
        raise _refuse(name, input, other)
    check_same_pattern(input._parts, other._parts, name)
    return input._with_values(torch.add(input.values, other.values, alpha=alpha))


for _name in ("neg", "abs", "clone", "detach", "t", "numel"):
    TORCH_FUNCTIONS[getattr(torch, _name)] = getattr(BsrTensor, _name)
TORCH_FUNCTIONS.update({torch.negative: BsrTensor.neg, torch.absolute: BsrTensor.abs})


# Reductions


def _reduced_dims(a: BsrTensor, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    """The dimensions that are reduced, not negative; all where none is named."""
    if a.values.dim() == 4:
        raise ValueError("reductions take one matrix, got a batch: use those of unbind()")
    named = () if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    for one in named:
        if not -2 <= one < 2:
            raise IndexError(f"dim must be -2, -1, 0 or 1, got {one}")
    return tuple(sorted({one % 2 for one in named})) or (0, 1)


def _lines(a: BsrTensor, dim: int) -> tuple[int, Tensor, int, int]:
    """Which lines, block rows or block columns, a reduction along ``dim`` leaves.

    The dimension of a block that is reduced, the line of each stored block, the number of lines,
    and how many blocks a line has room for.
    """
    along = 1 - dim if a.is_transposed else dim  # of the matrix as stored
    lines = block_rows(a.crow_indices, a.nnzb) if along == 1 else a.col_indices
    grid = a._grid()
    return along - 2, lines.long(), grid[1 - along], grid[along]


@_implements(torch.sum)
def _sum(
    input: BsrTensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    dims = _reduced_dims(input, dim)
    if len(dims) == 2:
        total = input.values.sum(dtype=dtype)
        return total.reshape(1, 1) if keepdim else total
    within, lines, count, _ = _lines(input, dims[0])
    dtype = dtype or input.dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype  # as torch adds up
    blocks = input.values.sum(within, dtype=wide)
    sums = blocks.new_zeros(count, blocks.shape[1]).index_add(0, lines, blocks)
    result = sums.to(dtype).flatten()
    return result.unsqueeze(dims[0]) if keepdim else result


@_implements(torch.amax)
def _amax(input: BsrTensor, dim: int | Sequence[int] = (), keepdim: bool = False) -> Tensor:
    dims = _reduced_dims(input, dim)
    if input.numel() == 0:
        raise ValueError(f"amax of a matrix without elements, shape {tuple(input.shape)}")
    if len(dims) == 2:
        largest = input.values.amax() if input.nnzb else input.values.new_zeros(())
        largest = largest.clamp(min=0) if input.density < 1 else largest
        return largest.reshape(1, 1) if keepdim else largest
    within, lines, count, room = _lines(input, dims[0])
    blocks = input.values.amax(within)
    # A line without an absent block has no zero among its elements.
    full = torch.bincount(lines, minlength=count) == room
    start = torch.where(full, -math.inf, 0.0).to(blocks.dtype)[:, None]
    start = start.expand(count, blocks.shape[1])
    result = start.scatter_reduce(0, lines[:, None].expand_as(blocks), blocks, "amax").flatten()
    return result.unsqueeze(dims[0]) if keepdim else result


@_implements(torch.norm)
def _norm(input: BsrTensor, p: Any = "fro", dim: Any = None, **options: Any) -> Tensor:
    if dim is not None or any(options.values()):
        raise TypeError("norm of a BsrTensor is that of all elements: use to_dense() for others")
    return _vector_norm(input, 2 if p in (None, "fro") else p)


@_implements(torch.linalg.norm, torch.linalg.matrix_norm)
def _matrix_norm(input: BsrTensor, ord: Any = "fro") -> Tensor:
    if ord not in (None, "fro"):
        raise TypeError(
            f"the matrix norm of a BsrTensor must be 'fro', got {ord!r}: use to_dense()"
        )
    return _vector_norm(input)


@_implements(torch.linalg.vector_norm)
def _vector_norm(input: BsrTensor, ord: Any = 2) -> Tensor:
    if not isinstance(ord, Real) or isinstance(ord, bool) or not float(ord) > 0:
        raise ValueError(f"the order of a norm must be 'fro' or a positive number, got {ord!r}")
    if input.nnzb == 0:  # of which torch knows no largest element
        return input.values.abs().sum()
    return torch.linalg.vector_norm(input.values, float(ord))


# Comparisons


def _by_position(a: BsrTensor) -> tuple[Tensor, Tensor]:
    """Where each stored block lies in the grid, counted along its rows, and the blocks."""
    rows, cols = block_rows(a.crow_indices, a.nnzb), a.col_indices.long()
    if a.is_transposed:
        return cols * a._grid()[0] + rows, a.values.mT
    return rows * a._grid()[1] + cols, a.values


def _aligned(a: BsrTensor, b: BsrTensor) -> tuple[Tensor, Tensor]:
    """The blocks that either matrix stores, of both; absent ones are zeros."""
    (at_a, blocks_a), (at_b, blocks_b) = _by_position(a), _by_position(b)
    if blocks_a.shape[-2:] != blocks_b.shape[-2:]:
        raise TypeError(
            f"matrices of blocks {tuple(blocks_a.shape[-2:])} and {tuple(blocks_b.shape[-2:])} "
            "cannot be compared block by block: use to_dense()"
        )
    union = torch.unique(torch.cat([at_a, at_b]))

    def spread(at: Tensor, blocks: Tensor) -> Tensor:
        shape = (*blocks.shape[:-3], len(union), *blocks.shape[-2:])
        return blocks.new_zeros(shape).index_copy(-3, torch.searchsorted(union, at), blocks)

    return spread(at_a, blocks_a), spread(at_b, blocks_b)


def _comparable(name: str, a: Any, b: Any) -> None:
    if not isinstance(a, BsrTensor) or not isinstance(b, BsrTensor):
        raise TypeError(
            f"{name} compares two BsrTensors, got {kind(a)} and {kind(b)}: use to_dense()"
        )


@_implements(torch.equal, Tensor.equal)
def _equal(input: Any, other: Any) -> bool:
    _comparable("equal", input, other)
    return input.shape == other.shape and torch.equal(*_aligned(input, other))


@_implements(torch.allclose, Tensor.allclose)
def _allclose(
    input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    _comparable("allclose", input, other)
    if input.shape != other.shape:
        raise ValueError(
            f"allclose compares matrices of one shape, got {tuple(input.shape)} and "
            f"{tuple(other.shape)}"
        )
    return torch.allclose(*_aligned(input, other), rtol=rtol, atol=atol, equal_nan=equal_nan)


def comparable(a: BsrTensor) -> Tensor:
    """What ``torch.testing.assert_close`` compares; torch's own BSR tensors have no batches."""
    return a.detach().to_dense() if a.values.dim() == 4 else a.detach().to_torch()

"""The rules of a BSR matrix, whoever made it: types, shapes, index content.

Like `errors`, which holds the rules of a call, this raises errors that name the argument, the rule
and the value. All checks are O(1) and read no element, but for `check_indices`.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

VALUE_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INDEX_DTYPES = (torch.int32, torch.int64)
BSR_LAYOUTS = (torch.sparse_bsr, torch.sparse_bsc)

_NOT_BSR = {
    torch.sparse_coo: "a COO",
    torch.sparse_csr: "a CSR",
    torch.sparse_csc: "a CSC",
}


class Components(NamedTuple):
    """What the operators take for a sparse operand: a stored matrix or its transpose."""

    crow_indices: Tensor
    col_indices: Tensor
    values: Tensor
    rows: int
    cols: int
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """That of the operand, which may be the stored matrix's transpose."""
        return (self.cols, self.rows) if self.transposed else (self.rows, self.cols)


def block_shape(block_size: int | Sequence[int], name: str = "block_size") -> tuple[int, int]:
    """``(block_m, block_k)`` of an int or a pair.

    Raises:
        TypeError: neither an int nor a pair of ints.
        ValueError: a size below 1.
    """
    try:
        if isinstance(block_size, int) or not isinstance(block_size, Sequence):
            block_m = block_k = operator.index(block_size)
        else:
            block_m, block_k = (operator.index(size) for size in block_size)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be an int or a pair of ints, got {block_size!r}") from None
    if block_m < 1 or block_k < 1:
        raise ValueError(f"{name} must be at least 1 in both directions, got {block_size!r}")
    return block_m, block_k


def size(value: Any, name: str) -> int:
    """A number of rows or columns.

    Raises:
        TypeError: not an int.
        ValueError: a negative one.
    """
    try:
        # The index of a symbolic length is a number: compiled code would be of this length alone.
        is_one = isinstance(value, (int, torch.SymInt))
        count: int = value if is_one else operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {value!r}") from None
    if count < 0:
        raise ValueError(f"{name} must not be negative, got {count}")
    return count


def share(value: Any, name: str) -> float:
    """A share of blocks, 0 to 1.

    Raises:
        ValueError: anything but a number in [0, 1].
    """
    # NumPy's numbers are Real, too, and torch's tensors are not.
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {value!r}")
    return float(value)


def check_divides(shape: Sequence[int], block: tuple[int, int], name: str) -> None:
    """Raises ValueError unless ``block`` divides ``shape`` in both directions."""
    if shape[0] % block[0] or shape[1] % block[1]:
        raise ValueError(
            f"the block size must divide the shape: {name} has shape {tuple(shape)} "
            f"and block size {block}"
        )


def check_value_dtype(dtype: torch.dtype, name: str) -> None:
    """Raises TypeError unless the library computes with ``dtype``."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} must be a torch.dtype, got {dtype!r}")
    if dtype.is_complex:
        raise TypeError(
            f"{name} has the complex dtype {dtype}: multiply its real and imaginary parts apart "
            "(torch.view_as_real(values) has both)"
        )
    if dtype not in VALUE_DTYPES:
        raise TypeError(
            f"{name} must be float16, bfloat16, float32 or float64, got {dtype}: convert it, e.g. "
            "with .to(torch.float32)"
        )


def check_components(parts: Components, name: str = "", *, batch: bool = False) -> None:
    """The O(1) rules of a BSR matrix: types, dtypes, devices, shapes. No element is read.

    With ``batch`` the values may be those of several matrices on one pattern.
    """
    prefix = f"{name}." if name else ""
    crow, col, values, rows, cols = parts[:5]
    for tensor, argument in ((crow, "crow_indices"), (col, "col_indices"), (values, "values")):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{prefix}{argument} must be a torch.Tensor, got {kind(tensor)}")
        if tensor.layout != torch.strided:
            raise TypeError(f"{prefix}{argument} must be strided, got layout {tensor.layout}")
    check_value_dtype(values.dtype, f"{prefix}values")
    if crow.dtype not in INDEX_DTYPES or crow.dtype != col.dtype:
        raise TypeError(
            f"{prefix}crow_indices and {prefix}col_indices must both be int32 or both int64, "
            f"got {crow.dtype} and {col.dtype}"
        )
    if not crow.device == col.device == values.device:
        raise RuntimeError(
            f"{prefix}crow_indices, {prefix}col_indices and {prefix}values must be on one device, "
            f"got {crow.device}, {col.device} and {values.device}"
        )
    if values.dim() == 4 and not batch:
        raise ValueError(
            f"{prefix}values must have shape (nnzb, block_m, block_k) here, got "
            f"{tuple(values.shape)}, a batch: take its matrices one at a time, from unbind()"
        )
    if values.dim() not in (3, 4):
        raise ValueError(
            f"{prefix}values must have shape (nnzb, block_m, block_k) or, for a batch of matrices "
            f"on one pattern, (batch, nnzb, block_m, block_k); got {tuple(values.shape)}"
        )
    if values.dim() == 4 and values.shape[0] == 0:
        raise ValueError(f"{prefix}values must hold one matrix at least, got a batch of 0")
    if crow.dim() != 1 or col.dim() != 1:
        raise ValueError(
            f"{prefix}crow_indices and {prefix}col_indices must be 1-dimensional, "
            f"got shapes {tuple(crow.shape)} and {tuple(col.shape)}"
        )
    nnzb, block_m, block_k = values.shape[-3:]
    if block_m < 1 or block_k < 1:
        block_shape((block_m, block_k), f"the block size of {prefix}values")
    if rows < 0 or cols < 0:
        raise ValueError(f"{prefix}shape must not be negative, got {(rows, cols)}")
    check_divides((rows, cols), (block_m, block_k), name or "the matrix")
    if crow.shape[0] != rows // block_m + 1:
        raise ValueError(
            f"{prefix}crow_indices must have block rows + 1 = {rows // block_m + 1} elements "
            f"(shape {(rows, cols)}, block {(block_m, block_k)}), got {crow.shape[0]}"
        )
    if col.shape[0] != nnzb:
        raise ValueError(
            f"{prefix}col_indices must have one element per stored block: values holds {nnzb} "
            f"blocks, col_indices {col.shape[0]}"
        )


def check_freezable(values: Tensor) -> None:
    """Raises RuntimeError for values that cannot be frozen because they are being trained."""
    if values.requires_grad:
        raise RuntimeError(
            "freeze() promises that the values will not change, but they require grad: freeze "
            "a.detach(), or call values.requires_grad_(False) first"
        )


def check_same_pattern(a: Components, b: Components, function: str) -> None:
    """Raises ValueError unless two matrices store the same blocks.

    Equal indices in different tensors are compared, which synchronises with a GPU.
    """
    same = a[3:] == b[3:] and a.values.shape == b.values.shape
    for one, other in zip(a[:2], b[:2], strict=True):
        same = same and (one is other or torch.equal(one, other))
    if not same:
        raise ValueError(
            f"{function} takes BsrTensors of one shape, block size and pattern, got shapes "
            f"{tuple(a.shape)} and {tuple(b.shape)} with values of shapes "
            f"{tuple(a.values.shape)} and {tuple(b.values.shape)}: use to_dense()"
        )


def check_indices(parts: Components, name: str = "") -> None:
    """The content of the indices: reads them, and so synchronises on a GPU.

    Raises:
        RuntimeError: their memory was given back.
        ValueError: crow_indices does not start at 0, decreases or does not end at nnzb; a column
            is out of range; the columns of a block row are not strictly ascending.
    """
    prefix = f"{name}." if name else ""
    crow, col, values, _, cols = parts[:5]
    block_cols, nnzb = cols // values.shape[-1], col.shape[0]
    if crow.is_meta:
        return
    if crow.is_cuda and torch.cuda.is_current_stream_capturing():
        return  # a look would break the capture
    for argument, tensor in (("crow_indices", crow), ("col_indices", col)):
        if tensor.numel() > 0 and tensor.untyped_storage().nbytes() == 0:
            raise RuntimeError(f"the memory of {prefix}{argument} is not allocated")
    first, last = int(crow[0]), int(crow[-1])
    if first != 0:
        raise ValueError(f"{prefix}crow_indices must start at 0, got {first}")
    if (i := _first(crow[1:] < crow[:-1])) is not None:
        raise ValueError(
            f"{prefix}crow_indices must not decrease, got {int(crow[i])} followed by "
            f"{int(crow[i + 1])} at position {i}"
        )
    if last != nnzb:
        raise ValueError(f"{prefix}crow_indices must end at nnzb = {nnzb}, got {last}")
    if (i := _first((col < 0) | (col >= block_cols))) is not None:
        raise ValueError(
            f"{prefix}col_indices must lie in [0, {block_cols}) (block columns), got "
            f"{int(col[i])} at position {i}"
        )
    starts = torch.zeros(nnzb + 1, dtype=torch.bool, device=col.device)
    starts[crow.long()] = True
    if (i := _first((col[1:] <= col[:-1]) & ~starts[1:-1])) is not None:
        row = int((crow <= i).sum()) - 1
        left, right = int(col[i]), int(col[i + 1])
        problem = f"{left} twice" if left == right else f"{left} before {right}"
        raise ValueError(
            f"{prefix}col_indices must ascend within each block row, without duplicates: block "
            f"row {row} has {problem} at position {i}"
        )


def _first(marked: Tensor) -> int | None:
    """The position of the first that is marked."""
    found = marked.nonzero()
    return int(found[0]) if found.numel() else None


def is_dense(value: Any) -> bool:
    """Whether it is a strided tensor."""
    return isinstance(value, Tensor) and value.layout == torch.strided


def check_dense(value: Any, name: str) -> None:
    """Raises TypeError unless ``value`` is a dense (strided) tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a dense torch.Tensor, got {kind(value)}" + _dense_advice(value, name)
        )
    if value.is_nested:
        raise TypeError(
            f"{name} must be one dense tensor, got a nested one: multiply the tensors of "
            f"{name}.unbind(), or {name}.to_padded_tensor(0.0)"
        )
    if value.layout != torch.strided:
        raise TypeError(
            f"{name} must be dense (strided), got layout {value.layout}: convert it with "
            f"{name}.to_dense()"
        )


def check_local(value: Tensor, name: str) -> None:
    """Raises TypeError for a DTensor: torch knows no way to shard these products."""
    if type(value).__module__.startswith("torch.distributed.tensor"):
        raise TypeError(
            f"{name} must be a plain tensor, got a DTensor: multiply the part that is here, "
            f"{name}.to_local(), or all of it, {name}.full_tensor()"
        )


def check_keep(keep: Any, grid: tuple[int, int], like: Tensor, name: str, of: str) -> None:
    """Raises unless ``keep`` is a bool mask of blocks, of shape ``grid``, where ``like`` is.

    ``name`` and ``of`` are what messages call the two.
    """
    check_dense(keep, name)
    if keep.dtype != torch.bool:
        raise TypeError(f"{name} must be a bool mask of blocks, got {keep.dtype}")
    if tuple(keep.shape) != grid:
        raise ValueError(
            f"{name} must have one element per block, shape {grid}; got {tuple(keep.shape)}"
        )
    if keep.device != like.device:
        raise RuntimeError(
            f"{name} must be on the device of {of}, {like.device}; got {keep.device}"
        )


def native_components(a: Any, name: str) -> Components:
    """The components of a ``torch.sparse_bsr`` tensor or of one's transpose.

    The transpose of a ``torch.sparse_bsr`` tensor is a ``torch.sparse_bsc`` tensor whose values are
    transposed views of the blocks, so that undoing it copies nothing.

    Raises:
        TypeError: anything else; the message names the conversion.
    """
    if not isinstance(a, Tensor):
        raise TypeError(
            f"{name} must be a torch.sparse_bsr tensor or a BsrTensor, got {kind(a)}"
            + _scipy_advice(a)
        )
    if a.layout == torch.strided:
        raise TypeError(
            f"{name} must be a BSR matrix, got a dense tensor of shape {tuple(a.shape)}: convert "
            f"it with BsrTensor.from_dense({name}, block_size) or {name}.to_sparse_bsr(block_size)"
        )
    if a.layout not in BSR_LAYOUTS:
        raise TypeError(
            f"{name} must be a BSR matrix, got {_NOT_BSR.get(a.layout, 'a')} tensor "
            f"(layout {a.layout}): convert it with {name}.to_sparse_bsr(block_size)"
        )
    parts = stored_parts(a)
    if a.dim() != 2 or parts.values.dim() != 3:
        what, index = ("hybrid", "..., i") if a.dense_dim() else ("batched", "i")
        raise TypeError(
            f"{name} must be one BSR matrix, got a {what} one of shape {tuple(a.shape)}: multiply "
            f"its matrices {name}[{index}] one at a time"
        )
    check_value_dtype(parts.values.dtype, name)
    return parts


def stored_parts(a: Tensor) -> Components:
    """The components of a tensor of one of `BSR_LAYOUTS`, unchecked."""
    rows, cols = a.shape[:2]
    if a.layout == torch.sparse_bsc:
        return Components(a.ccol_indices(), a.row_indices(), a.values().mT, cols, rows, True)
    return Components(a.crow_indices(), a.col_indices(), a.values(), rows, cols)


def kind(value: Any) -> str:
    """The full name of an argument's type, for messages."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _dense_advice(value: Any, name: str) -> str:
    if hasattr(value, "to_dense"):
        return f": convert it with {name}.to_dense()"
    if kind(value) == "numpy.ndarray":
        return f": convert it with torch.from_numpy({name})"
    return ""


def _scipy_advice(value: Any) -> str:
    from_scipy = type(value).__module__.startswith("scipy.sparse")
    return ": convert it with BsrTensor.from_scipy(matrix.tobsr(blocksize))" if from_scipy else ""

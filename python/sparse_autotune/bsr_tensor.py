"""`BsrTensor`: a block-sparse matrix as three tensors and a shape."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from . import conversions
from .description import Described
from .launching import ShortWay
from .lifetimes import PlanOwner, own_plan
from .matrix_checks import (
    Components,
    block_shape,
    bsr_components,
    check_components,
    check_contiguous,
    check_indices,
    check_value_dtype,
)

if TYPE_CHECKING:
    import scipy.sparse


# `functional`, which needs this module, puts its `matmul` here.
_matmul: Any = None


@final
class BsrTensor(Described):
    """A block-sparse (BSR) matrix in component form.

    Stored blocks are ``values[i]``, dense and row-major; block row ``r`` owns the blocks
    ``crow_indices[r]`` to ``crow_indices[r + 1]`` (exclusive), whose block columns are in
    ``col_indices``, strictly ascending within the row. The tensors are kept as given, never copied.

    ``crow_indices``, ``col_indices`` and ``values`` are attributes, not methods as in a
    ``torch.sparse_bsr`` tensor. Two BsrTensors are equal only if they are the same object.

    The transpose ``a.t()`` is a view that shares the tensors and the plan of ``a``; no data moves.
    Its ``shape`` is the transposed one; ``crow_indices``, ``col_indices``, ``values`` and
    ``block_size`` still describe the matrix as stored, and ``is_transposed`` is True.

    If ``values`` has an additional leading dimension, it is a batch of matrices on one pattern, of
    shape ``(batch, rows, cols)``; `unbind` returns the matrices. `matmul` and `linear` multiply
    each by a matrix of its own, or all by the same one, in one tuned product per matrix. Methods
    and functions for one matrix (`freeze`, `to_torch`, `to_scipy`, `benchmark`) refuse a batch.

    Args:
        crow_indices: (block rows + 1,), int32 or int64.
        col_indices: (nnzb,), the dtype of ``crow_indices``.
        values: (nnzb, block_m, block_k) or (batch, nnzb, block_m, block_k), float16, bfloat16,
            float32 or float64.
        shape: ``(rows, cols)`` of each matrix in elements, multiples of the block size.
        check: also check the contents of the indices now, which synchronises with a GPU; otherwise
            a product checks them, once per pattern.

    Raises:
        TypeError: an argument is not a strided tensor, or has a dtype not listed above.
        ValueError: shapes do not fit together, a tensor is not contiguous or, with ``check``, the
            indices are not those of a BSR matrix.
        RuntimeError: the tensors are on different devices.
    """

    __slots__ = ()

    # With a NumPy array on the left of @, NumPy leaves the answer to __rmatmul__.
    __array_ufunc__ = None

    def __init__(
        self,
        crow_indices: Tensor,
        col_indices: Tensor,
        values: Tensor,
        shape: Sequence[int],
        *,
        check: bool = False,
    ) -> None:
        try:
            rows, cols = (operator.index(size) for size in shape)
        except (TypeError, ValueError):
            raise TypeError(f"shape must be two ints, got {shape!r}") from None
        parts = Components(crow_indices, col_indices, values, rows, cols)
        check_components(parts, batch=True)
        check_contiguous(parts)
        if check:
            check_indices(parts)
        block = values.shape[-2], values.shape[-1]
        self._fill(parts, block, own_plan(crow_indices, col_indices))

    def _fill(self, parts: Components, block: tuple[int, int], owner: PlanOwner | None) -> None:
        self._crow_indices, self._col_indices, self._values = parts[:3]
        # Of the matrix as stored.
        self._rows, self._cols, self._transposed = parts[3:]
        self._block_size = block
        self._plan_owner = owner
        self._short_way: ShortWay | None = None
        self._start_thawed()

    @staticmethod
    def _made_of(parts: Components, block: tuple[int, int], owner: PlanOwner | None) -> BsrTensor:
        """Of parts that are known to fit, and whose plan has that owner."""
        made = object.__new__(BsrTensor)
        made._fill(parts, block, owner)
        return made

    def _with(
        self, crow_indices: Tensor, col_indices: Tensor, values: Tensor, *, turned: bool = False
    ) -> BsrTensor:
        """Other tensors of the same shapes; the plan stays shared while the indices are."""
        check_value_dtype(values.dtype, "values")
        shared = crow_indices is self._crow_indices and col_indices is self._col_indices
        owner = self._plan_owner if shared else own_plan(crow_indices, col_indices)
        transposed = self._transposed != turned
        parts = Components(crow_indices, col_indices, values, self._rows, self._cols, transposed)
        return BsrTensor._made_of(parts, self._block_size, owner)

    # Conversions

    @classmethod
    def from_dense(
        cls, dense: Tensor, block_size: int | Sequence[int], keep: Tensor | None = None
    ) -> BsrTensor:
        """Stores blocks of a dense tensor, with int64 indices; differentiable in ``dense``.

        Args:
            dense: (rows, cols), float16, bfloat16, float32 or float64.
            block_size: an int or ``(block_m, block_k)``; must divide the shape.
            keep: bool, (rows / block_m, cols / block_k): the blocks to store, even if they are
                zero. None stores the blocks that contain a non-zero or NaN.

        Raises:
            TypeError: ``dense`` or ``keep`` has a wrong layout or dtype.
            ValueError: a shape does not fit.
            RuntimeError: ``keep`` is on a different device than ``dense``.
        """
        parts = conversions.from_dense(dense, block_shape(block_size), keep)
        return cls(*parts[:3], parts[3:5])

    @classmethod
    def from_torch(cls, a: Tensor) -> BsrTensor:
        """The matrix of a ``torch.sparse_bsr`` tensor, sharing its memory.

        The transpose of one, of layout ``torch.sparse_bsc``, becomes a transposed view.
        Values whose blocks are not row-major are copied: those of a BSC tensor that is not a
        transpose, and those of a BSC tensor's ``.t()``.

        Raises:
            TypeError: ``a`` has a different layout or is batched; the message names the conversion.
        """
        crow, col, values, rows, cols, transposed = bsr_components(a, "a")
        stored = cls(crow.contiguous(), col.contiguous(), values.contiguous(), (rows, cols))
        return stored.t() if transposed else stored

    @classmethod
    def from_scipy(cls, matrix: scipy.sparse.bsr_array | scipy.sparse.bsr_matrix) -> BsrTensor:
        """A copy of a SciPy BSR matrix on the CPU: sorted, duplicate blocks summed.

        Raises:
            TypeError: not a SciPy BSR matrix, or one that is neither float32 nor float64.
        """
        parts = conversions.from_scipy(matrix)
        return cls(*parts[:3], parts[3:5])

    def to_torch(self) -> Tensor:
        """A ``torch.sparse_bsr`` tensor on the same memory; torch checks the indices.

        For a transpose, the ``torch.sparse_bsc`` tensor that torch's own ``.t()`` returns.

        Raises:
            ValueError: it is a batch; torch's batches have a pattern for each matrix.
            RuntimeError: the indices are not those of a BSR matrix.
        """
        check_components(self._parts(), "a")
        stored = torch.sparse_bsr_tensor(
            self._crow_indices,
            self._col_indices,
            self._values,
            (self._rows, self._cols),
            device=self.device,  # or torch's default device takes it
            check_invariants=True,
        )
        return stored.t() if self._transposed else stored

    def to_dense(self) -> Tensor:
        """The dense tensor of this ``shape``; differentiable in the values.

        Raises:
            ValueError: the indices are not those of a BSR matrix.
        """
        return conversions.to_dense(self._parts())

    def to_scipy(self) -> scipy.sparse.bsr_array:
        """A copy on the CPU for SciPy; for a transpose, re-sorted, with transposed blocks.

        Raises:
            TypeError: the dtype is float16 or bfloat16, which SciPy lacks.
            ValueError: it is a batch, or the indices are not those of a BSR matrix.
        """
        return conversions.to_scipy(self._parts())

    def unbind(self) -> tuple[BsrTensor, ...]:
        """The matrices of a batch, as views that share its pattern and plan.

        Raises:
            ValueError: it is a single matrix.
        """
        if self._values.dim() != 4:
            raise ValueError(
                f"unbind() takes a batch apart, but values has {self._values.dim()} dimensions"
            )
        return tuple(
            self._with(self._crow_indices, self._col_indices, one) for one in self._values.unbind()
        )

    # Copies; all but an unchanged `to` are thawed

    def to(
        self,
        device: torch.device | str | int | torch.dtype | Tensor | BsrTensor | None = None,
        dtype: torch.dtype | bool | None = None,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> BsrTensor:
        """Converts to a device, a dtype, both, or those of another tensor; self if nothing changes.

        As with ``torch.Tensor.to``, ``non_blocking`` and ``copy`` may follow a dtype or a tensor.

        Raises:
            TypeError: the dtype is not supported.
        """
        if isinstance(dtype, bool):
            if not isinstance(device, torch.dtype | Tensor | BsrTensor):
                raise TypeError(f"to() takes a dtype after a device, got {dtype}")
            non_blocking, copy, dtype = dtype, non_blocking or copy, None
        if isinstance(device, torch.dtype | Tensor | BsrTensor) and dtype is not None:
            raise TypeError(f"to() takes one dtype, got {device!r} and {dtype}")
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        elif isinstance(device, Tensor | BsrTensor):
            dtype, device = device.dtype, device.device
        values = self._values.to(device, dtype, non_blocking=non_blocking, copy=copy)
        if values is self._values:
            return self
        crow_indices, col_indices = (
            indices.to(values.device, non_blocking=non_blocking, copy=copy)
            for indices in (self._crow_indices, self._col_indices)
        )
        return self._with(crow_indices, col_indices, values)

    def cuda(self, device: int | torch.device | None = None) -> BsrTensor:
        """On a GPU, by default the current one."""
        return self.to("cuda" if device is None else device)

    def cpu(self) -> BsrTensor:
        """On the CPU."""
        return self.to(torch.device("cpu"))

    def double(self) -> BsrTensor:
        """With float64 values."""
        return self.to(torch.float64)

    def float(self) -> BsrTensor:
        """With float32 values."""
        return self.to(torch.float32)

    def half(self) -> BsrTensor:
        """With float16 values."""
        return self.to(torch.float16)

    def bfloat16(self) -> BsrTensor:
        """With bfloat16 values."""
        return self.to(torch.bfloat16)

    def pin_memory(self) -> BsrTensor:
        """A copy in page-locked memory, from which ``to(…, non_blocking=True)`` is asynchronous."""
        return self._with(
            self._crow_indices.pin_memory(),
            self._col_indices.pin_memory(),
            self._values.pin_memory(),
        )

    def clone(self) -> BsrTensor:
        """A copy of all three tensors; differentiable in the values."""
        return self._with(
            self._crow_indices.clone(), self._col_indices.clone(), self._values.clone()
        )

    def detach(self) -> BsrTensor:
        """The same memory and plan, without a gradient."""
        return self._with(self._crow_indices, self._col_indices, self._values.detach())

    def requires_grad_(self, requires_grad: bool = True) -> BsrTensor:
        """Sets, in place, whether the values require grad. Returns self.

        Raises:
            RuntimeError: the matrix is frozen, which promises that the values do not change.
        """
        if requires_grad and self._frozen:
            raise RuntimeError(
                "requires_grad_() on a frozen BsrTensor, whose values must not change: call thaw() "
                "first"
            )
        self._values.requires_grad_(requires_grad)
        return self

    # `copy.deepcopy` and `torch.load(weights_only=True)` go through here as pickling does.
    def __reduce__(self) -> tuple[Any, ...]:
        made = BsrTensor, (*self._parts()[:3], (self._rows, self._cols))
        return (*made, True) if self._transposed else made

    def __setstate__(self, transposed: bool) -> None:
        self._transposed = transposed

    # The transpose

    def t(self) -> BsrTensor:
        """The transpose: a view that shares the tensors and the plan, but is not frozen."""
        return self._with(self._crow_indices, self._col_indices, self._values, turned=True)

    @property
    def mT(self) -> BsrTensor:  # noqa: N802
        """``self.t()``."""
        return self.t()

    @property
    def T(self) -> BsrTensor:  # noqa: N802
        """``self.t()``."""
        return self.t()

    # Products

    def __matmul__(self, b: Tensor) -> Tensor:
        """``sparse_autotune.matmul(self, b)``."""
        return _matmul(self, b)

    def __rmatmul__(self, b: Tensor) -> Tensor:
        """``sparse_autotune.matmul(b, self)``."""
        return _matmul(b, self)

    def __mul__(self, factor: Any) -> BsrTensor:
        """The stored blocks times a number or a tensor of one element; differentiable in both."""
        if not (
            isinstance(factor, numbers.Real)
            or (isinstance(factor, Tensor) and factor.dim() == 0 and not factor.is_complex())
        ):
            return NotImplemented
        scaled: Tensor = self._values * factor  # type: ignore[assignment]
        return self._with(self._crow_indices, self._col_indices, scaled)

    __rmul__ = __mul__

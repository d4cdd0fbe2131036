"""`BsrTensor`: a block-sparse matrix as three tensors and a shape."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from . import _tuner, checks, conversions
from .lifetimes import PlanOwner, at_end_of, own_plan
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

# The short way to a product (see functional.py): the launcher, whether it is a CPU's, and what
# keeps the memory that it knows.
Known = tuple[_tuner.Launcher, bool, tuple[Tensor, ...]]


@final
class BsrTensor:
    """A block-sparse (BSR) matrix in component form.

    Stored blocks are ``values[i]``, dense and row-major; block row ``r`` owns the blocks
    ``crow_indices[r]`` to ``crow_indices[r + 1]``, whose block columns are in ``col_indices``,
    strictly ascending within the row. The tensors are kept as given, never copied.

    Unlike those of a ``torch.sparse_bsr`` tensor, ``crow_indices``, ``col_indices`` and ``values``
    are attributes, not methods. Two BsrTensors are equal only when they are the same object.

    Args:
        crow_indices: (block rows + 1,), int32 or int64.
        col_indices: (nnzb,), the dtype of ``crow_indices``.
        values: (nnzb, block_m, block_k), float16, bfloat16, float32 or float64.
        shape: ``(rows, cols)`` in elements, multiples of the block size.
        check: also check the content of the indices now, which synchronises with a GPU; otherwise
            a product checks it, once per pattern.

    Raises:
        TypeError: an argument is not a strided tensor, or has another dtype than these.
        ValueError: shapes do not fit together, a tensor is not contiguous or, with ``check``, the
            indices are not those of a BSR matrix.
        RuntimeError: the tensors are on different devices.
    """

    __slots__ = (
        "__weakref__",
        "_block_size",
        "_col_indices",
        "_cols",
        "_crow_indices",
        "_drop_copies",
        "_frozen",
        "_frozen_version",
        "_launcher",
        "_plan_owner",
        "_rows",
        "_values",
    )

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
        check_components(parts)
        check_contiguous(parts)
        if check:
            check_indices(parts)
        self._fill(parts, (values.shape[1], values.shape[2]), own_plan(crow_indices, col_indices))

    def _fill(self, parts: Components, block: tuple[int, int], owner: PlanOwner | None) -> None:
        self._crow_indices, self._col_indices, self._values, self._rows, self._cols = parts
        self._block_size = block
        self._plan_owner = owner
        self._frozen = False
        self._frozen_version: int | None = None
        self._drop_copies: weakref.finalize[..., Any] | None = None
        self._launcher: Known | None = None

    def _with(self, crow_indices: Tensor, col_indices: Tensor, values: Tensor) -> BsrTensor:
        """Other tensors of the same shapes; the plan stays shared while the indices are."""
        check_value_dtype(values.dtype, "values")
        shared = crow_indices is self._crow_indices and col_indices is self._col_indices
        owner = self._plan_owner if shared else own_plan(crow_indices, col_indices)
        other = object.__new__(BsrTensor)
        parts = Components(crow_indices, col_indices, values, self._rows, self._cols)
        other._fill(parts, self._block_size, owner)
        return other

    def _parts(self) -> Components:
        return Components(
            self._crow_indices, self._col_indices, self._values, self._rows, self._cols
        )

    # Attributes

    @property
    def crow_indices(self) -> Tensor:
        """(block rows + 1,): where the blocks of each block row begin in ``values``."""
        return self._crow_indices

    @property
    def col_indices(self) -> Tensor:
        """(nnzb,): the block column of each stored block."""
        return self._col_indices

    @property
    def values(self) -> Tensor:
        """(nnzb, block_m, block_k): the stored blocks."""
        return self._values

    @property
    def shape(self) -> torch.Size:
        """``(rows, cols)`` in elements."""
        return torch.Size((self._rows, self._cols))

    @property
    def block_size(self) -> tuple[int, int]:
        """``(block_m, block_k)``: rows and columns of a block."""
        return self._block_size

    @property
    def nnzb(self) -> int:
        """The number of stored blocks."""
        return self._col_indices.shape[0]

    @property
    def density(self) -> float:
        """The share of blocks that are stored, 0 to 1; 0 for a matrix without elements."""
        block_m, block_k = self._block_size
        blocks = (self._rows // block_m) * (self._cols // block_k)
        return self.nnzb / blocks if blocks else 0.0

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self._values.dtype

    @property
    def device(self) -> torch.device:
        """The device of all three tensors."""
        return self._values.device

    def __repr__(self) -> str:
        (block_m, block_k), frozen = self._block_size, ", frozen" if self._frozen else ""
        return (
            f"BsrTensor({self._rows}x{self._cols}, block {block_m}x{block_k}, nnzb {self.nnzb}, "
            f"density {self.density:.4g}, {str(self.dtype).removeprefix('torch.')}, "
            f"{self.device}{frozen})"
        )

    # Conversions

    @classmethod
    def from_dense(
        cls, dense: Tensor, block_size: int | Sequence[int], keep: Tensor | None = None
    ) -> BsrTensor:
        """The blocks of a dense tensor; differentiable in ``dense``, int64 indices.

        Args:
            dense: (rows, cols), float16, bfloat16, float32 or float64.
            block_size: an int or ``(block_m, block_k)``; must divide the shape.
            keep: bool, (rows / block_m, cols / block_k): the blocks to store, zeros and all. None
                stores the blocks that hold a non-zero; NaN is one.

        Raises:
            TypeError: ``dense`` or ``keep`` has another layout or dtype.
            ValueError: a shape does not fit.
            RuntimeError: ``keep`` is on another device than ``dense``.
        """
        parts = conversions.from_dense(dense, block_shape(block_size), keep)
        return cls(*parts[:3], parts[3:])

    @classmethod
    def from_torch(cls, a: Tensor) -> BsrTensor:
        """The components of a ``torch.sparse_bsr`` tensor, shared with it.

        Values that torch stores transposed, as those of a BSC tensor's ``.t()``, are copied.

        Raises:
            TypeError: ``a`` has another layout or is batched; the message names the conversion.
        """
        crow, col, values, rows, cols = bsr_components(a, "a")
        return cls(crow.contiguous(), col.contiguous(), values.contiguous(), (rows, cols))

    @classmethod
    def from_scipy(cls, matrix: scipy.sparse.bsr_array | scipy.sparse.bsr_matrix) -> BsrTensor:
        """A copy of a SciPy BSR matrix on the CPU: sorted, duplicate blocks summed.

        Raises:
            TypeError: not a SciPy BSR matrix, or one that is neither float32 nor float64.
        """
        parts = conversions.from_scipy(matrix)
        return cls(*parts[:3], parts[3:])

    def to_torch(self) -> Tensor:
        """A ``torch.sparse_bsr`` tensor on the same memory; torch checks the indices.

        Raises:
            RuntimeError: the indices are not those of a BSR matrix.
        """
        return torch.sparse_bsr_tensor(
            self._crow_indices, self._col_indices, self._values, self.shape, check_invariants=True
        )

    def to_dense(self) -> Tensor:
        """The (rows, cols) dense tensor; differentiable in the values.

        Raises:
            ValueError: the indices are not those of a BSR matrix.
        """
        return conversions.to_dense(self._parts())

    def to_scipy(self) -> scipy.sparse.bsr_array:
        """A copy on the CPU for SciPy.

        Raises:
            TypeError: float16 and bfloat16, which SciPy does not have.
            ValueError: the indices are not those of a BSR matrix.
        """
        return conversions.to_scipy(self._parts())

    # Copies; all but an unchanged `to` are thawed

    def to(
        self,
        device: torch.device | str | int | torch.dtype | Tensor | None = None,
        dtype: torch.dtype | None = None,
        *,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> BsrTensor:
        """As ``torch.Tensor.to``: to a device, a dtype, or like a tensor; self if it is there.

        Raises:
            TypeError: the library does not compute with that dtype.
        """
        if isinstance(device, torch.dtype | Tensor) and dtype is not None:
            raise TypeError(f"to() takes one dtype, got {device!r} and {dtype}")
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        elif isinstance(device, Tensor):
            dtype, device = device.dtype, device.device
        values = self._values.to(device, dtype, non_blocking=non_blocking, copy=copy)
        crow_indices, col_indices = (
            indices.to(values.device, non_blocking=non_blocking, copy=copy)
            for indices in (self._crow_indices, self._col_indices)
        )
        if values is self._values and crow_indices is self._crow_indices:
            return self
        return self._with(crow_indices, col_indices, values)

    def cuda(self, device: int | torch.device | None = None) -> BsrTensor:
        """On a GPU, by default the current one."""
        return self.to("cuda" if device is None else device)

    def cpu(self) -> BsrTensor:
        """On the CPU."""
        return self.to(torch.device("cpu"))

    def clone(self) -> BsrTensor:
        """A copy of all three tensors; differentiable in the values."""
        return self._with(
            self._crow_indices.clone(), self._col_indices.clone(), self._values.clone()
        )

    def detach(self) -> BsrTensor:
        """The same memory and plan, without a gradient."""
        return self._with(self._crow_indices, self._col_indices, self._values.detach())

    # `copy.deepcopy` and `torch.load(weights_only=True)` go through here as pickling does.
    def __reduce__(self) -> tuple[Any, ...]:
        return BsrTensor, (*self._parts()[:3], (self._rows, self._cols))

    # Products

    def __matmul__(self, b: Tensor) -> Tensor:
        """``sparse_autotune.matmul(self, b)``."""
        return _matmul()(self, b)

    def __rmatmul__(self, b: Any) -> Any:
        raise NotImplementedError(
            "dense @ BsrTensor is not supported yet: sparse_autotune.linear(x, weight) computes "
            "x @ weight.T"
        )

    def prepare(self) -> BsrTensor:
        """Checks the indices and builds the plan now, rather than in the first product.

        Call it before capturing a CUDA graph. Returns self.

        Raises:
            ValueError: the indices are not those of a BSR matrix.
        """
        try:
            torch.ops.sparse_autotune.bsr_prepare(
                self._crow_indices, self._col_indices, self._rows, self._cols, *self._block_size
            )
        except RuntimeError:
            check_indices(self._parts())
            raise
        return self

    def invalidate(self) -> BsrTensor:
        """Forgets the plan and copies of this matrix. Returns self.

        In-place edits are noticed by themselves, except those of tensors made under
        ``torch.inference_mode`` and writes that bypass torch's version counters.
        """
        _tuner.drop_plan(self._crow_indices.data_ptr(), self._col_indices.data_ptr())
        _tuner.drop_frozen(self._values.data_ptr())
        return self

    def freeze(self) -> BsrTensor:
        """Promises, in place, that ``values`` will not change until `thaw`. Returns self.

        Variants may then keep a converted copy of them. A change that torch's version counter shows
        raises RuntimeError at the next product; ``.data``, raw writes and tensors made under
        ``torch.inference_mode`` show none.

        Raises:
            RuntimeError: the values require grad.
        """
        checks.check_freezable(self._values)
        version = None if self._values.is_inference() else self._values._version
        if self._frozen and (version is None or version != self._frozen_version):
            self.thaw()  # a new promise, about values that changed or may have
        if self._drop_copies is None:
            pointer = self._values.data_ptr()
            self._drop_copies = at_end_of(self, _tuner.drop_frozen, pointer)
        self._frozen_version = version
        self._frozen = True
        return self

    def thaw(self) -> BsrTensor:
        """Takes `freeze` back and drops the copies, in place. Returns self."""
        self._frozen = False
        self._frozen_version = None
        if self._drop_copies is not None:
            self._drop_copies()
            self._drop_copies = None
        return self

    def check_frozen(self) -> None:
        """Raises RuntimeError if the values changed since `freeze`."""
        if self._frozen_version is not None and self._values._version != self._frozen_version:
            raise checks.frozen_values_changed(self._frozen_version, self._values._version)


@functools.cache
def _matmul() -> Callable[..., Tensor]:
    from .functional import matmul  # functional needs this module

    return matmul


def _flatten(a: BsrTensor) -> tuple[list[Any], Any]:
    return list(a._parts()[:3]), [a._rows, a._cols, *a._block_size]


def _unflatten(leaves: Iterable[Any], context: Any) -> BsrTensor:
    # The leaves may be anything: pytree users map tensors to shapes, specs and fake tensors.
    rows, cols, *block = context
    crow_indices, col_indices, values = leaves
    a = object.__new__(BsrTensor)
    parts = Components(crow_indices, col_indices, values, rows, cols)
    a._fill(parts, tuple(block), own_plan(crow_indices, col_indices))
    return a


pytree.register_pytree_node(
    BsrTensor,
    _flatten,
    _unflatten,
    serialized_type_name="sparse_autotune.BsrTensor",
    to_dumpable_context=list,
    from_dumpable_context=list,
)
torch.serialization.add_safe_globals([BsrTensor])

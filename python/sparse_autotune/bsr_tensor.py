"""`BsrTensor`: a block-sparse matrix as three tensors and a shape."""

from __future__ import annotations

import inspect
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from . import _tuner, conversions, picture, reblocking
from ._torch.compiling import distinguish_products
from ._torch.direct import is_matrix
from .checks.matrix import (
    Components,
    block_shape,
    check_components,
    check_freezable,
    check_indices,
    check_value_dtype,
    native_components,
)
from .operators.library import bsr_prepare
from .plan_owner import PlanOwner, at_end_of, own_plan

if TYPE_CHECKING:
    import scipy.sparse

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

# What torch's functions and methods, by torch's own objects for them, do with a BsrTensor. The
# modules that compute register here: this one is below them.
TORCH_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}
# `functional`, which is above this module, too, puts its `matmul` here.
_matmul: Any = None


def _not_offered(name: str, how: str) -> TypeError:
    return TypeError(
        f"torch's {name} takes no BsrTensor{how}: use a.to_dense(), or {name} on a.values, the "
        "stored blocks"
    )


def _takes(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _by(
    function: Callable[..., Any], *, reflected: bool = False
) -> Callable[[BsrTensor, Any], BsrTensor]:
    """An operator of Python's that is one of torch's functions."""

    def computed(self: BsrTensor, other: Any) -> BsrTensor:
        left, right = (other, self) if reflected else (self, other)
        result: BsrTensor = TORCH_FUNCTIONS[function](left, right)
        return result

    return computed


@final
class BsrTensor:
    """A block-sparse (BSR) matrix in component form.

    Stored blocks are ``values[i]``, dense and row-major; block row ``r`` owns the blocks
    ``crow_indices[r]`` to ``crow_indices[r + 1]`` (exclusive), whose block columns are in
    ``col_indices``, strictly ascending within the row. The tensors are kept as given, unless one is
    not contiguous: then a contiguous copy is.

    ``crow_indices``, ``col_indices`` and ``values`` are attributes, not methods as in a
    ``torch.sparse_bsr`` tensor. It is no ``torch.Tensor``, but torch's functions take it where a
    block-sparse result or a product is meant: products (``@``, ``torch.matmul``, ``mm``, ``mv``,
    ``addmm``, ``torch.sparse.mm``, ``linear``), scaling and arithmetic on one pattern, ``sum``,
    ``norm``, ``amax``, comparisons, copies. Whatever would need the absent blocks raises TypeError.

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
        ValueError: shapes do not fit together or, with ``check``, the indices are not those of a
            BSR matrix.
        RuntimeError: the tensors are on different devices.
    """

    __slots__ = (
        "__weakref__",
        "_block_size",
        "_drop_copies",
        "_frozen",
        "_frozen_version",
        "_parts",
        "_plan_owner",
    )

    _parts: Components
    _block_size: tuple[int, int]
    _plan_owner: PlanOwner | None
    _frozen: bool
    _frozen_version: int | None
    _drop_copies: weakref.finalize[..., Any] | None

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
        # New patterns are made in every call of some models: those in order pay for one question.
        if _is_dynamo_compiling() or not is_matrix(*parts[:5]):
            check_components(parts, batch=True)
            tensors = [t if t.is_contiguous() else t.contiguous() for t in parts[:3]]
            parts = Components(tensors[0], tensors[1], tensors[2], rows, cols)
        crow, col, blocks = parts[:3]
        if check:
            check_indices(parts)
        self._fill(parts, (blocks.shape[-2], blocks.shape[-1]), own_plan(crow, col))

    def _fill(self, parts: Components, block: tuple[int, int], owner: PlanOwner | None) -> None:
        self._parts, self._block_size, self._plan_owner = parts, block, owner
        self._frozen = False
        self._frozen_version = self._drop_copies = None

    @staticmethod
    def _made_of(parts: Components, block: tuple[int, int], owner: PlanOwner | None) -> BsrTensor:
        """Of parts that are known to fit, and whose plan has that owner."""
        made = object.__new__(BsrTensor)
        made._fill(parts, block, owner)
        return made

    def _with(self, crow_indices: Tensor, col_indices: Tensor, values: Tensor) -> BsrTensor:
        """Other tensors of the same shapes; the plan stays shared while the indices are."""
        check_value_dtype(values.dtype, "values")
        shared = crow_indices is self.crow_indices and col_indices is self.col_indices
        owner = self._plan_owner if shared else own_plan(crow_indices, col_indices)
        parts = Components(crow_indices, col_indices, values, *self._parts[3:])
        return BsrTensor._made_of(parts, self._block_size, owner)

    def _with_values(self, values: Tensor) -> BsrTensor:
        """Other values on the same pattern."""
        return self._with(self.crow_indices, self.col_indices, values)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Torch's functions and methods with a BsrTensor among their arguments."""
        if _is_dynamo_compiling():
            distinguish_products()
            if func is Tensor.__rmatmul__:  # which it finds in no dict
                return TORCH_FUNCTIONS[torch.matmul](*args[::-1])
        kwargs = kwargs or {}
        if "input" in kwargs:  # torch's name of the first argument
            args = (kwargs.pop("input"), *args)
        function = TORCH_FUNCTIONS.get(func)
        if function is None:
            raise _not_offered(getattr(func, "__name__", str(func)), "")
        try:
            return function(*args, **kwargs)
        except TypeError:
            if _takes(function, args, kwargs):
                raise
            name = function.__name__.removeprefix("_")
            raise _not_offered(name, " with these arguments") from None

    # What it tells of itself

    @property
    def crow_indices(self) -> Tensor:
        """Where the blocks of each block row begin in ``values``, of shape (block rows + 1,)."""
        return self._parts.crow_indices

    @property
    def col_indices(self) -> Tensor:
        """The block column of each stored block, of shape (nnzb,)."""
        return self._parts.col_indices

    @property
    def values(self) -> Tensor:
        """The stored blocks, of shape (nnzb, block_m, block_k); (batch, nnzb, …) for a batch."""
        return self._parts.values

    @property
    def shape(self) -> torch.Size:
        """``(rows, cols)`` in elements, swapped for a transpose; a batch prepends its length."""
        # Of a pytree that was mapped to something else, values have no shape.
        batch = getattr(self.values, "shape", ())[:-3]
        rows, cols, transposed = self._parts[3:]
        return torch.Size((*batch, *((cols, rows) if transposed else (rows, cols))))

    @property
    def block_size(self) -> tuple[int, int]:
        """Rows and columns of a stored block, ``(block_m, block_k)``."""
        return self._block_size

    @property
    def is_transposed(self) -> bool:
        """Whether this is the transpose of the matrix that the tensors describe."""
        return self._parts.transposed

    @property
    def nnzb(self) -> int:
        """The number of stored blocks; for a batch, of each matrix."""
        return self.col_indices.shape[0]

    @property
    def density(self) -> float:
        """The fraction of blocks that are stored, 0 to 1; 0 for a matrix without elements."""
        block_rows, block_cols = self._grid()
        blocks = block_rows * block_cols
        return self.nnzb / blocks if blocks else 0.0

    def _grid(self) -> tuple[int, int]:
        """Block rows and block columns of the matrix as stored."""
        return self._parts.rows // self._block_size[0], self._parts.cols // self._block_size[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """The device of all three tensors."""
        return self.values.device

    @property
    def layout(self) -> torch.layout:
        """``torch.sparse_bsr``; of a transpose ``torch.sparse_bsc``."""
        return torch.sparse_bsc if self.is_transposed else torch.sparse_bsr

    @property
    def is_cuda(self) -> bool:
        """Whether the tensors are on a GPU."""
        return self.values.is_cuda

    @property
    def ndim(self) -> int:
        """2; of a batch 3."""
        return self.values.dim() - 1

    def dim(self) -> int:
        """2; of a batch 3."""
        return self.ndim

    def size(self, dim: int | None = None) -> torch.Size | int:
        """`shape`, or its entry ``dim``."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """The number of elements, absent ones included."""
        return self.shape.numel()

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def requires_grad(self) -> bool:
        """Whether the values require grad; their gradient is ``values.grad``."""
        return self.values.requires_grad

    @property
    def grad(self) -> BsrTensor | None:
        """``values.grad`` on the same pattern; None before a backward."""
        grad = self.values.grad
        return None if grad is None else self._with_values(grad)

    def __bool__(self) -> bool:
        return True  # also without rows

    def __repr__(self) -> str:
        if not isinstance(self.values, Tensor):  # a pytree's placeholders, in torch's messages
            return f"BsrTensor of {self.values!r}"
        block_m, block_k = self._block_size
        turned = " of a transposed matrix" if self.is_transposed else ""
        frozen = ", frozen" if self._frozen else ""
        shape = "x".join(map(str, self.shape))
        return (
            f"BsrTensor({shape}, block {block_m}x{block_k}{turned}, nnzb {self.nnzb}, "
            f"density {self.density:.4g}, {str(self.dtype).removeprefix('torch.')}, "
            f"{self.device}{frozen})"
        )

    def _repr_html_(self) -> str:
        """The pattern as a picture, for notebooks."""
        return picture.html(
            *self._parts[:2],
            *self._grid(),
            self._block_size,
            repr(self),
            transposed=self.is_transposed,
        )

    # The plan, and copies of frozen values

    def _pointers(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self._parts[:3]]

    def prepare(self) -> BsrTensor:
        """Checks the indices and builds the plan now instead of in the first product.

        Call it before capturing a CUDA graph. Returns self.

        Raises:
            ValueError: the indices are not those of a BSR matrix.
        """
        parts = self._parts
        try:
            bsr_prepare(*parts[:2], *parts[3:5], *self._block_size)
        except RuntimeError:
            check_indices(parts)
            raise
        return self

    def invalidate(self) -> BsrTensor:
        """Drops the plan and the converted copies of this matrix. Returns self.

        In-place edits of indices are detected automatically, except, on a GPU, edits of tensors
        created under ``torch.inference_mode`` and writes that bypass torch's version counters.
        """
        _tuner.drop_frozen(*self._pointers())
        _tuner.drop_plan(*self._pointers()[:2])
        return self

    def freeze(self) -> BsrTensor:
        """Promises, in place, that ``values`` will not change until `thaw`. Returns self.

        Variants may then keep a converted copy of them. A change that torch's version counter shows
        raises RuntimeError at the next product; changes through ``.data``, raw writes and changes
        of tensors created under ``torch.inference_mode`` go undetected.

        Raises:
            RuntimeError: the values require grad, or the matrix is a batch.
        """
        check_freezable(self.values)
        if self.values.dim() == 4:
            raise RuntimeError("a batch cannot be frozen: freeze its matrices, from unbind()")
        version = None if self.values.is_inference() else self.values._version
        if self._frozen and (version is None or version != self._frozen_version):
            self.thaw()  # a new promise, about values that changed or may have
        if self._drop_copies is None:
            self._drop_copies = at_end_of(self, _tuner.drop_frozen, *self._pointers())
        self._frozen_version = version
        self._frozen = True
        return self

    def thaw(self) -> BsrTensor:
        """Revokes `freeze` and drops the converted copies, in place. Returns self."""
        self._frozen = False
        self._frozen_version = None
        if self._drop_copies is not None:
            self._drop_copies()
            self._drop_copies = None
        return self

    def check_frozen(self) -> None:
        """Raises RuntimeError if the values changed since `freeze`."""
        if self._frozen_version is not None and self.values._version != self._frozen_version:
            raise RuntimeError(
                "the values of a frozen BsrTensor must not change, but they did: their version was "
                f"{self._frozen_version} at freeze() and is {self.values._version} now. Call "
                "thaw() before changing them and freeze() afterwards"
            )

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
    def from_torch(cls, a: Tensor | BsrTensor) -> BsrTensor:
        """The matrix of a ``torch.sparse_bsr`` tensor, sharing its memory.

        The transpose of one, of layout ``torch.sparse_bsc``, becomes a transposed view.
        Values whose blocks are not row-major are copied: those of a BSC tensor that is not a
        transpose, and those of a BSC tensor's ``.t()``.

        Raises:
            TypeError: ``a`` has a different layout or is batched; the message names the conversion.
        """
        if isinstance(a, BsrTensor):
            return a
        crow, col, values, rows, cols, transposed = native_components(a, "a")
        stored = cls(crow, col, values, (rows, cols))
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
        check_components(self._parts, "a")
        stored = torch.sparse_bsr_tensor(
            *self._parts[:3],
            self._parts[3:5],
            device=self.device,  # or torch's default device takes it
            check_invariants=True,
        )
        return stored.t() if self.is_transposed else stored

    def to_dense(self) -> Tensor:
        """The dense tensor of this ``shape``; differentiable in the values.

        Raises:
            ValueError: the indices are not those of a BSR matrix.
        """
        return conversions.to_dense(self._parts)

    def to_scipy(self) -> scipy.sparse.bsr_array:
        """A copy on the CPU for SciPy; for a transpose, re-sorted, with transposed blocks.

        Raises:
            TypeError: the dtype is float16 or bfloat16, which SciPy lacks.
            ValueError: it is a batch, or the indices are not those of a BSR matrix.
        """
        return conversions.to_scipy(self._parts)

    def unbind(self) -> tuple[BsrTensor, ...]:
        """The matrices of a batch, as views that share its pattern and plan.

        Raises:
            ValueError: it is a single matrix.
        """
        if self.values.dim() != 4:
            raise ValueError(
                f"unbind() takes a batch apart, but values has {self.values.dim()} dimensions"
            )
        return tuple(map(self._with_values, self.values.unbind()))

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
        how: dict[str, Any] = {"non_blocking": non_blocking, "copy": copy}
        values = self.values.to(device, dtype, **how)
        if values is self.values:
            return self
        crow, col = (indices.to(values.device, **how) for indices in self._parts[:2])
        return self._with(crow, col, values)

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
        return self._with(*(tensor.pin_memory() for tensor in self._parts[:3]))

    def clone(self) -> BsrTensor:
        """A copy of all three tensors; differentiable in the values."""
        return self._with(*(tensor.clone() for tensor in self._parts[:3]))

    def detach(self) -> BsrTensor:
        """The same memory and plan, without a gradient."""
        return self._with_values(self.values.detach())

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
        self.values.requires_grad_(requires_grad)
        return self

    # `copy.deepcopy` and `torch.load(weights_only=True)` go through here as pickling does.
    def __reduce__(self) -> tuple[Any, ...]:
        made = BsrTensor, (*self._parts[:3], self._parts[3:5])
        return (*made, True) if self.is_transposed else made

    def __setstate__(self, transposed: bool) -> None:
        self._parts = self._parts._replace(transposed=transposed)

    # The transpose

    def t(self) -> BsrTensor:
        """The transpose: a view that shares the tensors and the plan, but is not frozen."""
        # No _replace(): Dynamo of torch 2.11 cannot return what that made.
        parts = Components(*self._parts[:5], not self.is_transposed)
        return BsrTensor._made_of(parts, self._block_size, self._plan_owner)

    def reblock(self, block_size: int | Sequence[int]) -> BsrTensor:
        """The same matrix in blocks of another size, which stores each element stored before.

        Blocks are cut, or put together and padded with zeros. Differentiable; not frozen.

        Args:
            block_size: an int or ``(block_m, block_k)``, of a stored block as `block_size` is; must
                divide the shape.

        Raises:
            TypeError: ``block_size`` is neither an int nor a pair of ints.
            ValueError: it does not divide the shape.
        """
        block = block_shape(block_size)
        if self.is_transposed:
            return self.t().reblock(block).t()
        parts = reblocking.reblocked(self._parts, block)
        return BsrTensor(*parts[:3], parts[3:5])

    @property
    def mT(self) -> BsrTensor:  # noqa: N802
        """``self.t()``."""
        return self.t()

    @property
    def T(self) -> BsrTensor:  # noqa: N802
        """``self.t()``."""
        return self.t()

    # What it computes: see TORCH_FUNCTIONS

    def __matmul__(self, b: Any) -> Tensor:
        """``sparse_autotune.matmul(self, b)``."""
        return _matmul(self, b)

    def __rmatmul__(self, b: Any) -> Tensor:
        """``sparse_autotune.matmul(b, self)``."""
        return _matmul(b, self)

    def matmul(self, b: Tensor) -> Tensor:
        """``sparse_autotune.matmul(self, b)``."""
        return self @ b

    mm = mv = matmul

    # Scaled by a number or a 0-dimensional tensor, or with a matrix on the same pattern.
    __mul__ = __rmul__ = _by(torch.mul)
    __truediv__ = _by(torch.div)
    __rtruediv__ = _by(torch.div, reflected=True)  # refused: absent blocks would become infinite
    __add__ = __radd__ = _by(torch.add)
    __sub__ = _by(torch.sub)
    __rsub__ = _by(torch.sub, reflected=True)

    def __neg__(self) -> BsrTensor:
        """The same pattern with negated values."""
        return self._with_values(-self.values)

    neg = __neg__

    def __abs__(self) -> BsrTensor:
        """The same pattern with absolute values."""
        return self._with_values(self.values.abs())

    abs = __abs__

    def sum(
        self, dim: int | Sequence[int] | None = None, keepdim: bool = False, **options: Any
    ) -> Tensor:
        """The sum of all elements, or of those along ``dim``, as a dense tensor."""
        return TORCH_FUNCTIONS[torch.sum](self, dim, keepdim, **options)

    def norm(self, p: Any = "fro") -> Tensor:
        """The norm of the elements as one vector: "fro", which is 2, or another positive order."""
        return TORCH_FUNCTIONS[torch.norm](self, p)

    def amax(self, dim: int | Sequence[int] = (), keepdim: bool = False) -> Tensor:
        """The largest element, or those along ``dim``, absent ones counting as 0."""
        return TORCH_FUNCTIONS[torch.amax](self, dim, keepdim)

"""From the arguments of the public functions to those of the operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._torch.compiling import is_deterministic
from ._torch.transforms import is_any_autocast_enabled
from .bsr_tensor import BsrTensor
from .checks.matrix import BSR_LAYOUTS, Components, is_dense, native_components
from .operators.forms import ACTIVATIONS, Form, SampleForm
from .operators.precision import allow_tf32, deterministic

_is_compiling = torch.compiler.is_dynamo_compiling


# What `operators.autograd` takes: crow_indices, col_indices, values, dense, bias and form for a
# product, crow_indices, col_indices, x, y and form for a sampled one.
MatmulOperands = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Form]
SampledOperands = tuple[Tensor, Tensor, Tensor, Tensor, SampleForm]


def is_sparse_operand(value: Any) -> bool:
    """Whether `bsr_components` would look into it rather than refuse its kind."""
    return isinstance(value, BsrTensor) or (
        isinstance(value, Tensor) and value.layout in BSR_LAYOUTS
    )


def bsr_components(a: Any, name: str) -> Components:
    """The components of a BsrTensor, a ``torch.sparse_bsr`` tensor or one's transpose.

    Raises:
        TypeError: anything else; the message names the conversion.
    """
    return a._parts if isinstance(a, BsrTensor) else native_components(a, name)


def autocast_dtype(like: Tensor) -> torch.dtype | None:
    """The dtype in which autocast has matrix products computed there; None where it is off."""
    if not _is_compiling() and not is_any_autocast_enabled():
        return None
    kind = like.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):  # which refuses to speak of meta
        return None
    return torch.get_autocast_dtype(kind)


def autocast_to(dtype: torch.dtype, lower: torch.dtype | None) -> torch.dtype:
    """What autocast, to `autocast_dtype`, makes of a dtype: float64 and integers stay."""
    stays = lower is None or not dtype.is_floating_point or dtype == torch.float64
    return dtype if stays else lower  # type: ignore[return-value]


def _lowered(tensor: Any, lower: torch.dtype) -> Any:
    return tensor.to(autocast_to(tensor.dtype, lower)) if isinstance(tensor, Tensor) else tensor


def matmul_operands(
    matrix: tuple[Tensor, Tensor, Tensor, int, int, bool],
    frozen: bool,
    dense: Any,
    bias: Any,
    sparse_right: bool,
    *,
    linear: bool = False,
    activation: str | None = None,
    variant: str | None = "auto",
    autocast: bool = True,
) -> MatmulOperands:
    """For ``matmul``, or for ``linear`` with the matrix as weight; autocast has been applied.

    ``matrix`` has the fields of `Components`.
    """
    crow, col, values, rows, cols, transposed = matrix
    compiling = _is_compiling()
    lower = autocast_dtype(values) if compiling or is_any_autocast_enabled() else None
    if lower is not None and autocast:
        stored, values = values, _lowered(values, lower)
        dense, bias = _lowered(dense, lower), _lowered(bias, lower)
        frozen = frozen and values is stored
    fields = (
        rows,
        cols,
        sparse_right,
        transposed != linear,
        ACTIVATIONS[activation],
        frozen,
        allow_tf32(values),
        deterministic() if compiling else is_deterministic(),
        None if variant == "auto" else variant,
    )
    # Dynamo knows the one, the other takes a third of the time.
    form = Form(*fields) if compiling else tuple.__new__(Form, fields)
    return crow, col, values, dense, bias, form


def sides(a: Any, b: Any, linear: bool) -> tuple[Any, Any, str, str, bool]:
    """Of ``matmul(a, b)``, or ``linear(a, b)``, the block-sparse argument and the dense one.

    Their names follow, and whether the block-sparse one stands on the right.
    """
    if linear:
        return b, a, "weight", "x", True
    right = is_sparse_operand(b) or (is_dense(a) and not is_dense(b))
    right = right and not is_sparse_operand(a)
    return (b, a, "b", "a", True) if right else (a, b, "a", "b", False)


def product_operands(
    a: Any, b: Any, bias: Any, activation: str | None, *, linear: bool, **options: Any
) -> MatmulOperands:
    """For ``matmul(a, b)``, or ``linear(a, b)``; options as of `matmul_operands`."""
    sparse, dense, name, _, right = sides(a, b, linear)
    frozen = type(sparse) is BsrTensor and sparse._frozen
    if frozen and not _is_compiling():
        sparse.check_frozen()
    matrix, given = bsr_components(sparse, name), {"activation": activation, **options}
    return matmul_operands(matrix, frozen, dense, bias, right, linear=linear, **given)


def sampled_operands(
    x: Tensor, y: Tensor, pattern: Tensor | BsrTensor, variant: str | None = "auto"
) -> SampledOperands:
    """For ``sampled_matmul``."""
    crow, col, values, rows, cols, transposed = bsr_components(pattern, "pattern")
    if (lower := autocast_dtype(values)) is not None:
        x, y = _lowered(x, lower), _lowered(y, lower)
    left, right = (y.mT, x.mT) if transposed else (x, y)
    asked = allow_tf32(x), deterministic(), None if variant == "auto" else variant
    form = SampleForm(rows, cols, values.shape[-2], values.shape[-1], *asked)
    return crow, col, left, right, form

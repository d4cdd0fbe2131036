"""`matmul`, `linear` and `sampled_matmul`: from arguments to operators, on the shortest path.

A valid call pays for no check in Python: the operators refuse what would touch memory they must
not, and only then `errors` looks for the reason.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from . import bsr_tensor, errors
from ._torch import direct
from ._torch.compiling import frame_callback, unwatched, watched_native
from ._torch.transforms import is_any_autocast_enabled
from .bsr_tensor import BsrTensor
from .checks.matrix import BSR_LAYOUTS, stored_parts
from .choices import Activation
from .operands import product_operands, sampled_operands, sides
from .operators.autograd import product, sampled
from .operators.forms import ACTIVATIONS, call_matmul
from .operators.library import bsr_matmul_out
from .operators.precision import allow_tf32

_is_compiling = torch.compiler.is_dynamo_compiling
_deterministic = torch.are_deterministic_algorithms_enabled


def matmul(
    a: Tensor | BsrTensor,
    b: Tensor | BsrTensor,
    *,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    out: Tensor | None = None,
    variant: str = "auto",
) -> Tensor:
    """The product of a block-sparse matrix and a dense one, ``activation(a @ b + bias)``.

    Either operand may be the block-sparse one, and it may be a transpose (``a.t()``). The first
    call with a new kind of problem races every variant that is legal for it and remembers the
    winner (see ``settings``). Half types accumulate in float32. Differentiable, to any order, in
    the dense operand, the stored blocks and ``bias``; gradients are block-sparse products too.
    Under autocast the operands are converted first, as for ``torch.matmul``.

    Args:
        a: (m, k) `BsrTensor`, ``torch.sparse_bsr`` tensor or transpose of one
            (``torch.sparse_bsc``); float16, bfloat16, float32, float64. With the block-sparse
            matrix as ``b``: (m, k), (..., m, k) or (k,), strided.
        b: (k, n), (..., k, n) or (k,), strided, the dtype and device of ``a``. Row-major and
            column-major matrices are read in place, others are copied. Or, with a dense ``a``, the
            (k, n) block-sparse matrix. If the block-sparse operand is a batch of ``batch`` matrices
            on one pattern, the dense one is (batch, …), or one matrix or vector for all.
        bias: (m,), one value per row of the result, or (n,), one per column, if ``b`` is the
            block-sparse matrix; the dtype and device of ``a``.
        activation: "relu", "gelu", "gelu_tanh" or "silu".
        out: receives the result; any strides. Never resized, and must not overlap an input in
            memory. Not differentiable.
        variant: "auto", a family ("simt"), or one variant ("simt/rows4"). Does not apply to
            gradients, which choose their own.

    Returns:
        (m, n), (..., m, n), (m,) or (n,), of the operands' dtype, contiguous unless ``out`` is
        given; a batch adds a leading dimension.

    Raises:
        TypeError: an argument has a wrong type, layout or dtype.
        ValueError: shapes disagree, the indices break a rule of BSR, ``out`` does not fit, the
            activation is unknown, the variant is unknown or not legal here.
        RuntimeError: devices differ, ``out`` overlaps an input, ``out`` is given although gradients
            are required, a frozen matrix requires grad.
    """
    if not _is_compiling():
        sparse_right = type(a) is not BsrTensor and (type(b) is BsrTensor or _is_native(b))
        sparse, dense = (b, a) if sparse_right else (a, b)
        result = _directly(sparse, dense, bias, activation, variant, sparse_right, False, out)
        if result is not None:
            return result
    return _multiply(a, b, bias, activation, out, variant, linear=False)


def linear(
    x: Tensor,
    weight: Tensor | BsrTensor,
    bias: Tensor | None = None,
    *,
    activation: Activation | None = None,
    variant: str = "auto",
) -> Tensor:
    """A linear layer with a block-sparse weight, ``activation(x @ weight.T + bias)``.

    Neither ``x`` nor the result is transposed, though a variant may rearrange ``x`` in its scratch.
    Differentiable like `matmul`.

    Args:
        x: (..., in_features), strided, the dtype and device of ``weight``.
        weight: (out_features, in_features) `BsrTensor`, ``torch.sparse_bsr`` tensor or transpose.
        bias: (out_features,), the dtype and device of ``weight``.
        activation: "relu", "gelu", "gelu_tanh" or "silu".
        variant: "auto", a family, or one variant, as in `matmul`.

    Returns:
        (..., out_features), of the operands' dtype, contiguous.

    Raises:
        TypeError, ValueError, RuntimeError: as `matmul`.
    """
    if not _is_compiling():
        result = _directly(weight, x, bias, activation, variant, True, True, None)
        if result is not None:
            return result
    return _multiply(x, weight, bias, activation, None, variant, linear=True)


def sampled_matmul(
    x: Tensor, y: Tensor, pattern: Tensor | BsrTensor, *, variant: str = "auto"
) -> BsrTensor:
    """``x @ y`` at the stored blocks of a block-sparse matrix only (SDDMM).

    The gradient of a block-sparse operand's values is such a product. Differentiable, to any order,
    in ``x`` and ``y``. Half types accumulate in float32.

    Args:
        x: (m, n) or (..., m, n), strided; the products of leading dimensions are summed.
        y: (n, k) or (..., n, k), the dtype, device and leading dimensions of ``x``.
        pattern: (m, k) `BsrTensor`, ``torch.sparse_bsr`` tensor or transpose; its values and
            their dtype are not used.
        variant: "auto", a family, or one variant.

    Returns:
        (m, k), of the dtype of ``x``, on the indices of ``pattern``; it shares the plan of
        ``pattern`` if that is a BsrTensor, and is a transpose if ``pattern`` is.

    Raises:
        TypeError: an argument has a wrong type, layout or dtype.
        ValueError: shapes disagree, the indices break a rule of BSR, the variant is unknown or not
            legal here.
        RuntimeError: devices differ.
    """
    if not _is_compiling() and watched_native(pattern):
        return unwatched(sampled_matmul, x, y, pattern, variant=variant)
    try:
        operands = sampled_operands(x, y, pattern, variant)
        result = sampled(*operands)
    except errors.REFUSALS:
        if not _is_compiling():
            errors.explain_sampled_matmul(x, y, pattern, variant)
        raise
    return BsrTensor.from_torch(pattern)._with(*operands[:2], result)


def _is_native(value: Any) -> bool:
    return type(value) is Tensor and value.layout in BSR_LAYOUTS


def _is_batch(value: Any) -> bool:
    return type(value) is BsrTensor and value.values.dim() == 4


def _directly(
    sparse: Any,
    dense: Any,
    bias: Any,
    activation: Any,
    variant: Any,
    sparse_right: bool,
    linear: bool,
    out: Any,
) -> Tensor | None:
    """A plain eager product without gradients that was decided before; None: go the long way.

    What is wrong with others, and with those that do not fit together, the long way says.
    """
    number = ACTIVATIONS.get(activation) if activation is None or type(activation) is str else None
    if number is None or is_any_autocast_enabled():
        return None
    if type(sparse) is BsrTensor:
        parts, frozen = sparse._parts, sparse._frozen
        if frozen:
            sparse.check_frozen()
    # In this order: see `watched_native`.
    elif _is_native(sparse) and sparse.dim() == 2 and frame_callback() in (None, False):
        parts, frozen = stored_parts(sparse), False
    else:
        return None
    crow, col, values, rows, cols, transposed = parts
    form = (
        rows,
        cols,
        sparse_right,
        transposed != linear,
        number,
        frozen,
        values.is_cuda and allow_tf32(values),
        _deterministic(),
        None if variant == "auto" else variant,
    )
    result = direct.matmul(crow, col, values, dense, bias, form, out)
    if result is not None and out is not None:  # written behind autograd's back
        increment_version(out)
    return result


def _multiply(
    a: Any, b: Any, bias: Any, activation: Any, out: Any, variant: Any, *, linear: bool
) -> Tensor:
    """``matmul(a, b)``, or ``linear(a, b)``: any that is not directly done.

    What Dynamo cannot look at is left to eager mode: whether frozen values changed, and the content
    of the indices, which each run of the compiled code checks as any product does.
    """
    if not _is_compiling() and watched_native(a, b):
        return unwatched(_multiply, a, b, bias, activation, out, variant, linear=linear)
    try:
        return _computed(a, b, bias, activation, out, variant, linear)
    except errors.REFUSALS:
        # Each product of a batch is explained.
        if not (_is_compiling() or _is_batch(a) or _is_batch(b)):
            errors.explain_matmul(a, b, bias, activation, out, variant, linear=linear)
        raise


def _computed(
    a: Any, b: Any, bias: Any, activation: Any, out: Any, variant: Any, linear: bool
) -> Tensor:
    sparse, dense, name, other, sparse_right = sides(a, b, linear)
    if _is_batch(sparse):  # a product for each matrix, with a matrix of its own or one for all
        if out is not None:
            raise ValueError("out must be None where the block-sparse operand is a batch")
        count = sparse.values.shape[0]
        errors.check_batch(dense, other, count, name)
        products = []
        each = dense.unbind() if dense.dim() == 3 else [dense] * count
        for one, factor in zip(sparse.unbind(), each, strict=True):
            left, right = (factor, one) if sparse_right else (one, factor)
            products.append(_multiply(left, right, bias, activation, None, variant, linear=linear))
        return torch.stack(products)
    options = {"variant": variant, "autocast": out is None}  # as for torch's products into `out`
    operands = product_operands(a, b, bias, activation, linear=linear, **options)
    if out is None:
        return product(*operands)
    if not _is_compiling():
        named = {"a": a, "b": b, "bias": bias, "out": out, name: operands[2]}
        errors.check_out_has_no_gradient(named)
        if out.is_neg():  # torch's fallback for those misreads an operator that returns nothing
            raise ValueError("out is a lazily negated view")
    call_matmul(*operands, operator=bsr_matmul_out, out=out)
    # The operator writes behind autograd's back: saved tensors must notice.
    increment_version(out)
    return out


bsr_tensor._matmul = matmul

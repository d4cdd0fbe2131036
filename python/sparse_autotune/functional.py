"""`matmul`, `linear` and `sampled_matmul`: from arguments to operators, on the shortest path.

A valid call pays for no check in Python: the operators refuse what would touch memory they must
not, and only then `checks` looks for the reason.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import bsr_tensor, checks
from .autograd import product, sampled
from .bsr_tensor import BsrTensor
from .compiling import unwatched, watched_native
from .forms import NONE, Form, SampleForm, call_with_form
from .launching import ShortWay, launched, sample_launched
from .matrix_checks import bsr_components, is_sparse_operand
from .ops import bsr_matmul_out
from .precision import allow_tf32, deterministic
from .variant_names import forced_on_nothing

_is_compiling = torch.compiler.is_dynamo_compiling
ACTIVATIONS = checks.ACTIVATIONS


def matmul(
    a: Tensor | BsrTensor,
    b: Tensor | BsrTensor,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    out: Tensor | None = None,
    variant: str = "auto",
) -> Tensor:
    """The product of a block-sparse matrix and a dense one, ``activation(a @ b + bias)``.

    Either operand may be the block-sparse one, and it may be a transpose (``a.t()``). The first
    call with a new kind of problem races every variant that is legal for it and remembers the
    winner (see ``settings``). Half types accumulate in float32. Differentiable, to any order, in
    the dense operand, the stored blocks and ``bias``; gradients are block-sparse products too.

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
        variant: "auto", a family ("simt"), or one variant ("simt/rows16"). Does not apply to
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
    if not _is_compiling() and variant == "auto" and (number := _known(activation)) is not None:
        result = None
        if type(a) is BsrTensor:
            result = launched(a, b, bias, number, False, False, out)
        elif type(b) is BsrTensor:
            result = launched(b, a, bias, number, True, False, out)
        if result is not None:
            return result
    if _is_batch(a) or _is_batch(b):
        if out is not None:
            raise ValueError("out must be None where the block-sparse operand is a batch")
        return _of_batch(a, b, bias, activation, variant, linear=False)
    if _is_compiling():
        return _traced(a, b, bias, activation, out, variant, linear=False)
    if watched_native(a, b):
        return unwatched(matmul, a, b, bias=bias, activation=activation, out=out, variant=variant)
    try:
        sparse_right = is_sparse_operand(b) and not is_sparse_operand(a)
        if sparse_right:
            tensors, form = _operands(b, "b", a, True, activation, variant)
        else:
            tensors, form = _operands(a, "a", b, False, activation, variant)
        if forced_on_nothing(variant, tensors):
            checks.explain_matmul(a, b, bias, activation, out, variant)
        if out is None:
            return product(*tensors, bias, form, _way(b if sparse_right else a))
        checks.check_out_has_no_gradient({**_named(a, b), "bias": bias, "out": out})
        if out.is_neg():  # torch's fallback for those misreads an operator that returns nothing
            raise ValueError("out is a lazily negated view")
        _write(tensors, bias, form, out)
    except checks.REFUSALS:
        checks.explain_matmul(a, b, bias, activation, out, variant)
        raise
    return out


def linear(
    x: Tensor,
    weight: Tensor | BsrTensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
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
    if (
        type(weight) is BsrTensor
        and variant == "auto"
        and not _is_compiling()
        and (number := _known(activation)) is not None
    ):
        result = launched(weight, x, bias, number, True, True)
        if result is not None:
            return result
    if _is_batch(weight):
        return _of_batch(x, weight, bias, activation, variant, linear=True)
    if _is_compiling():
        return _traced(x, weight, bias, activation, None, variant, linear=True)
    if watched_native(weight):
        return unwatched(linear, x, weight, bias, activation=activation, variant=variant)
    try:
        tensors, form = _operands(weight, "weight", x, True, activation, variant, linear=True)
        if forced_on_nothing(variant, tensors):
            checks.explain_linear(x, weight, bias, activation, variant)
        return product(*tensors, bias, form, _way(weight))
    except checks.REFUSALS:
        checks.explain_linear(x, weight, bias, activation, variant)
        raise


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
    if not _is_compiling():
        if type(pattern) is BsrTensor and variant == "auto":
            values = sample_launched(x, y, pattern)
            if values is not None:
                return pattern._with(pattern._crow_indices, pattern._col_indices, values)
        if watched_native(pattern):
            return unwatched(sampled_matmul, x, y, pattern, variant=variant)
    try:
        tensors, form = _sampled_operands(x, y, pattern, variant)
        if forced_on_nothing(variant, tensors):
            checks.explain_sampled_matmul(x, y, pattern, variant)
        result = sampled(*tensors, form)
    except checks.REFUSALS:
        if not _is_compiling():
            checks.explain_sampled_matmul(x, y, pattern, variant)
        raise
    crow, col, _, _ = tensors
    if type(pattern) is BsrTensor:
        return pattern._with(crow, col, result)
    stored = BsrTensor(crow, col, result, (form.rows, form.cols))
    return stored.t() if pattern.layout == torch.sparse_bsc else stored


def _operands(
    sparse: Any,
    name: str,
    dense: Any,
    sparse_right: bool,
    activation: str | None,
    variant: str,
    *,
    linear: bool = False,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Form]:
    """What `product` takes but for the bias."""
    if type(sparse) is BsrTensor:
        crow, col, values = sparse._crow_indices, sparse._col_indices, sparse._values
        rows, cols, transposed = sparse._rows, sparse._cols, sparse._transposed
        frozen = sparse._frozen
        if frozen and not _is_compiling():
            sparse.check_frozen()
    else:
        crow, col, values, rows, cols, transposed = bsr_components(sparse, name)
        frozen = False
    form = Form(
        rows,
        cols,
        sparse_right,
        transposed != linear,
        frozen,
        allow_tf32(values),
        deterministic(),
        ACTIVATIONS[activation],
        None if variant == "auto" else variant,
    )
    return (crow, col, values, dense), form


def _sampled_operands(
    x: Tensor, y: Tensor, pattern: Tensor | BsrTensor, variant: str
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], SampleForm]:
    """What `sampled` takes."""
    crow, col, values, rows, cols, transposed = bsr_components(pattern, "pattern")
    block_m, block_k = values.shape[-2:]
    form = SampleForm(
        rows,
        cols,
        block_m,
        block_k,
        allow_tf32(x),
        deterministic(),
        None if variant == "auto" else variant,
    )
    left, right = (y.mT, x.mT) if transposed else (x, y)
    return (crow, col, left, right), form


def _known(activation: Any) -> int | None:
    """The number of an activation; None for what is none."""
    if activation is None:
        return NONE
    return ACTIVATIONS.get(activation) if type(activation) is str else None


def _way(sparse: Any) -> ShortWay | None:
    return sparse._short_way if type(sparse) is BsrTensor else None


def linear_form(values: Tensor, rows: int, cols: int, frozen: bool) -> Form:
    """The form of ``linear`` with a (rows, cols) weight."""
    return Form(
        rows,
        cols,
        sparse_right=True,
        transpose=True,
        frozen=frozen,
        allow_tf32=allow_tf32(values),
        deterministic=deterministic(),
    )


def _traced(
    a: Any,
    b: Any,
    bias: Tensor | None,
    activation: str | None,
    out: Tensor | None,
    variant: str,
    *,
    linear: bool,
) -> Tensor:
    """What Dynamo sees of `matmul` and `linear`: straight to the operators.

    What it cannot look at is left to eager mode: whether frozen values changed, and the content of
    the indices, which each run of the compiled code checks as any product does.
    """
    if linear or (type(b) is BsrTensor and type(a) is not BsrTensor):
        name = "weight" if linear else "b"
        tensors, form = _operands(b, name, a, True, activation, variant, linear=linear)
    else:
        tensors, form = _operands(a, "a", b, False, activation, variant)
    if out is None:
        return product(*tensors, bias, form)
    _write(tensors, bias, form, out)
    return out


def _is_batch(operand: Any) -> bool:
    return type(operand) is BsrTensor and operand._values.dim() == 4


def _of_batch(
    a: Any, b: Any, bias: Tensor | None, activation: str | None, variant: str, *, linear: bool
) -> Tensor:
    """A product for each matrix of a batch, with a matrix of its own or one for all."""
    sparse_right = linear or not _is_batch(a)
    sparse, dense = (b, a) if sparse_right else (a, b)
    names = ("x", "weight") if linear else ("a", "b")
    other, name = names if sparse_right else names[::-1]
    count = sparse._values.shape[0]
    checks.check_batch(dense, other, count, name)

    def explain() -> None:
        one, factor = sparse.unbind()[0], dense[0] if dense.dim() == 3 else dense
        if linear:
            checks.explain_linear(factor, one, bias, activation, variant)
        else:
            pair = (factor, one) if sparse_right else (one, factor)
            checks.explain_matmul(*pair, bias, activation, None, variant)

    try:
        each = dense.unbind() if dense.dim() == 3 else [dense] * count
        tensors, form = _operands(
            sparse, name, dense, sparse_right, activation, variant, linear=linear
        )
        if forced_on_nothing(variant, tensors):
            explain()
        crow, col, values, _ = tensors
        return torch.stack(
            [
                product(crow, col, one, factor, bias, form)
                for one, factor in zip(values.unbind(), each, strict=True)
            ]
        )
    except checks.REFUSALS:
        if not _is_compiling():
            explain()
        raise


def _write(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor], bias: Tensor | None, form: Form, out: Tensor
) -> None:
    call_with_form(bsr_matmul_out, *tensors, bias, form, out=out)
    # The operator writes behind autograd's back: saved tensors must notice.
    torch.autograd.graph.increment_version(out)


def _named(a: Any, b: Any) -> dict[str, Any]:
    """The tensors of two operands that may carry a gradient, by the name of the argument."""
    return {
        name: operand._values if type(operand) is BsrTensor else operand
        for name, operand in (("a", a), ("b", b))
    }


def operator_arguments(
    a: Tensor | BsrTensor,
    b: Tensor | BsrTensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    linear: bool = False,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The operators' arguments for ``matmul(a, b)``, or for ``linear(b, a)``.

    Used by whatever asks about a product without computing it: `variants`, `tune`, `benchmark`.
    """
    if not linear and is_sparse_operand(b) and not is_sparse_operand(a):
        tensors, form = _operands(b, "b", a, True, activation, "auto")
    else:
        name = "weight" if linear else "a"
        tensors, form = _operands(a, name, b, linear, activation, "auto", linear=linear)
    crow, col, values, dense = tensors
    keywords = form._asdict()
    rows, cols, _ = (keywords.pop(name) for name in ("rows", "cols", "variant"))
    return (crow, col, values, rows, cols, dense, bias), keywords


def sampled_arguments(
    x: Tensor, y: Tensor, pattern: Tensor | BsrTensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The operators' arguments for ``sampled_matmul(x, y, pattern)``, but for the variant."""
    (crow, col, left, right), form = _sampled_operands(x, y, pattern, "auto")
    keywords = {"allow_tf32": form.allow_tf32, "deterministic": form.deterministic}
    return (crow, col, *form[:4], left, right), keywords


bsr_tensor._matmul = matmul

"""Products and sampled products with their derivatives, by the shortest way that keeps them right.

- Eager calls without gradients reach the operator below autograd.
- Eager calls with gradients go through a ``torch.autograd.Function``.
- Compilers, tracers, ``torch.func`` and forward-mode derivatives must find the operator in the
  dispatcher; `dispatching` gives it the same derivatives there.

The backward is written in `product` and `sampled`, so derivatives of any order exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as _transforms_active
from torch._C import _is_tracing
from torch.autograd import forward_ad

from .checks import check_freezable
from .compiling import surrounding_level, unwatched
from .forms import (
    GELU,
    GELU_TANH,
    NONE,
    RELU,
    SILU,
    Form,
    SampleForm,
    call_operator,
    call_sampled_operator,
    gradients_below_autograd,
    is_for_compiled_code,
    product_below_autograd,
    sampled_below_autograd,
)
from .launching import ShortWay, is_plain_eager

_is_compiling = torch.compiler.is_compiling
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled


def is_transformed() -> bool:
    """Whether what runs is compiled, under a transform of torch.func or in a level of forward AD.

    Compiled code enters such a level, and ``torch.func.jvp``, without telling `forward_ad`.
    """
    return _is_compiling() or _transforms_active() or forward_ad._current_level >= 0


def _is_jit_tracing() -> bool:
    """Whether ``torch.jit.trace`` runs; Dynamo of torch 2.11 cannot trace the question."""
    return not _is_dynamo_compiling() and _is_tracing()


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``Function.apply`` but for its own look for transforms, 5 us of Python."""
    base: Any = super(torch.autograd.Function, function)
    return base.apply(*arguments)


def product(
    crow: Tensor,
    col: Tensor,
    values: Tensor,
    dense: Tensor,
    bias: Tensor | None,
    form: Form,
    way: ShortWay | None = None,
) -> Tensor:
    """``activation(op(A) @ dense + bias)`` or ``activation(dense @ op(A) + bias)``.

    Where a gradient will need the pre-activation, it is computed by the operator and the activation
    by torch, which keeps it; relu's gradient needs only the result. ``way`` is that of the matrix.
    """
    transformed = is_transformed()
    if transformed and _would_drop_tangents():
        return unwatched(product, crow, col, values, dense, bias, form)
    trained = differentiable(values, dense, bias)
    if trained and form.frozen:
        check_freezable(values)
    if trained and _is_jit_tracing():  # which wants one graph, with gradients or without
        return call_operator(crow, col, values, dense, bias, form)
    if trained and form.activation > RELU:
        plain = form._replace(activation=NONE)
        return ACTIVATION_FUNCTIONS[form.activation](
            product(crow, col, values, dense, bias, plain, way)
        )
    if transformed:
        return call_operator(crow, col, values, dense, bias, form)
    if trained:
        return _apply(Product, crow, col, values, dense, bias, form, way)
    return _below_autograd(crow, col, values, dense, bias, form, way)


def _below_autograd(
    crow: Tensor,
    col: Tensor,
    values: Tensor,
    dense: Tensor,
    bias: Tensor | None,
    form: Form,
    way: ShortWay | None,
) -> Tensor:
    if way is not None and form.variant is None:
        result = way.product(
            crow,
            col,
            values,
            dense,
            bias,
            None,
            form.sparse_right,
            form.transpose,
            form.activation,
            form.frozen,
            form.allow_tf32,
            form.deterministic,
        )
        if result is not None:
            return result
    return product_below_autograd(crow, col, values, dense, bias, form)


def sampled(crow: Tensor, col: Tensor, x: Tensor, y: Tensor, form: SampleForm) -> Tensor:
    """The blocks of ``x @ y``, summed over leading dimensions, that a pattern stores."""
    transformed = is_transformed()
    if transformed and _would_drop_tangents():
        return unwatched(sampled, crow, col, x, y, form)
    trained = _is_grad_enabled() and (x.requires_grad or y.requires_grad)
    if transformed or (trained and _is_jit_tracing()):
        return call_sampled_operator(crow, col, x, y, form)
    if trained:
        return _apply(Sampled, crow, col, x, y, form)
    return sampled_below_autograd(crow, col, x, y, form)


def _would_drop_tangents() -> bool:
    """Whether a forward-mode level surrounds what Dynamo compiles, whose graph knows nothing of it.

    Dynamo guards the level that it reads here. Levels that the graph itself enters do no harm.
    """
    return _is_dynamo_compiling() and forward_ad._current_level >= 0 and surrounding_level() >= 0


def differentiable(values: Tensor, dense: Tensor, bias: Tensor | None) -> bool:
    """Whether a gradient of the product may be asked for."""
    return _is_grad_enabled() and (
        values.requires_grad or dense.requires_grad or (bias is not None and bias.requires_grad)
    )


ACTIVATION_FUNCTIONS: dict[int, Callable[[Tensor], Tensor]] = {
    RELU: torch.relu,
    GELU: torch.nn.functional.gelu,
    GELU_TANH: lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
    SILU: torch.nn.functional.silu,
}


def _silu_backward(grad: Tensor, z: Tensor) -> Tensor:
    if not _is_grad_enabled():
        return torch.ops.aten.silu_backward(grad, z)  # which torch cannot differentiate again
    gate = torch.sigmoid(z)
    return grad * gate * (1 + z * (1 - gate))


# (gradient, pre-activation) -> gradient; themselves differentiable.
_ACTIVATION_BACKWARDS: dict[int, Callable[[Tensor, Tensor], Tensor]] = {
    RELU: lambda grad, result: torch.ops.aten.threshold_backward(grad, result, 0),
    GELU: torch.ops.aten.gelu_backward.default,
    GELU_TANH: lambda grad, z: torch.ops.aten.gelu_backward(grad, z, approximate="tanh"),
    SILU: _silu_backward,
}


def _product_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of values, dense and bias."""
    crow, col, values, dense, bias, result = ctx.saved_tensors
    form: Form = ctx.form
    _, _, needs_values, needs_dense, needs_bias = ctx.needs_input_grad[:5]
    plain = form._replace(activation=NONE, variant=None)
    if form.activation == RELU:
        grad = _ACTIVATION_BACKWARDS[RELU](grad, result)
    elif form.activation != NONE:  # only where the operator itself was called with gradients
        z = product(crow, col, values, dense, bias, plain)
        grad = _ACTIVATION_BACKWARDS[form.activation](grad, z)
    grad_values = grad_dense = grad_bias = None
    if needs_values and needs_dense and _come_together(ctx.way, values, dense, grad):
        grad_dense, grad_values = gradients_below_autograd(crow, col, values, dense, grad, plain)
        needs_dense = needs_values = False
    if needs_dense:
        turned = plain._replace(transpose=not form.transpose)
        grad_dense = product(crow, col, values, grad, None, turned, ctx.way)
    if needs_values:
        block_m, block_k = ctx.block
        sample = SampleForm(
            form.rows, form.cols, block_m, block_k, form.allow_tf32, form.deterministic
        )
        grad_values = sampled(crow, col, *_sampled_operands(dense, grad, form), sample)
    if needs_bias:
        along_rows = form.sparse_right or grad.dim() == 1
        over = [d for d in range(grad.dim()) if d - grad.dim() != (-1 if along_rows else -2)]
        grad_bias = grad.sum(over) if over else grad
    return grad_values, grad_dense, grad_bias


def _come_together(way: ShortWay | None, values: Tensor, dense: Tensor, grad: Tensor) -> bool:
    """Whether one operator may compute both gradients: nobody takes a derivative of them.

    It saves a graph a call from Python, and plain eager mode, where there is a way, much of one.
    What Dynamo traces of a backward, AOTAutograd meets once more, as operators.
    """
    if _is_dynamo_compiling() or differentiable(values, dense, grad):
        return False
    if way is None:
        return is_for_compiled_code() and forward_ad._current_level < 0
    return is_plain_eager(dense, grad)


def _sampled_operands(dense: Tensor, grad: Tensor, form: Form) -> tuple[Tensor, Tensor]:
    """(…, rows of A, n) and (…, n, cols of A), whose product holds the gradient of A."""
    if dense.dim() == 1:
        left, right = (dense, grad) if form.transpose != form.sparse_right else (grad, dense)
        return left.unsqueeze(1), right.unsqueeze(0)
    if form.sparse_right:
        return (grad.mT, dense) if form.transpose else (dense.mT, grad)
    return (dense, grad.mT) if form.transpose else (grad, dense.mT)


def _sum(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


class Product(torch.autograd.Function):
    """In the style that keeps everything in ctx, the cheapest one to call."""

    @staticmethod
    def forward(
        ctx: Any,
        crow: Tensor,
        col: Tensor,
        values: Tensor,
        dense: Tensor,
        bias: Tensor | None,
        form: Form,
        way: ShortWay | None = None,
    ) -> Tensor:
        """The operator, and what the gradients that are wanted will need."""
        result = _below_autograd(crow, col, values, dense, bias, form, way)
        _, _, needs_values, needs_dense = ctx.needs_input_grad[:4]
        again = form.activation > RELU  # the pre-activation will be
        ctx.form = form
        ctx.way = way
        ctx.block = values.shape[1], values.shape[2]
        ctx.save_for_backward(
            crow,
            col,
            values if needs_dense or again else None,
            dense if needs_values or again else None,
            bias if again else None,
            result if form.activation == RELU else None,
        )
        if way is None:  # who comes with a tangent comes through the dispatcher
            ctx.save_for_forward(crow, col, values, dense, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """A gradient for each argument of `forward`."""
        return None, None, *_product_backward(ctx, grad), None, None

    @staticmethod
    def jvp(
        ctx: Any,
        d_crow: None,
        d_col: None,
        d_values: Tensor | None,
        d_dense: Tensor | None,
        d_bias: Tensor | None,
        d_form: None,
        d_way: None,
    ) -> Tensor:
        """The tangent of the result."""
        crow, col, values, dense, result = ctx.saved_tensors
        form = ctx.form._replace(activation=NONE, variant=None)
        terms = []
        if d_values is not None:
            thawed = form._replace(frozen=False)  # these are other values
            terms.append(product(crow, col, d_values, dense, None, thawed))
        if d_dense is not None:
            terms.append(product(crow, col, values, d_dense, None, form))
        if d_bias is not None:
            along_rows = form.sparse_right or dense.dim() == 1
            terms.append(d_bias if along_rows else d_bias.unsqueeze(-1))
        tangent = _sum(terms).expand_as(result)
        if ctx.form.activation == RELU:
            return _ACTIVATION_BACKWARDS[RELU](tangent, result)
        return tangent.contiguous()  # never a view of an input's tangent


class Sampled(torch.autograd.Function):
    """The sampled product, in the same style."""

    @staticmethod
    def forward(
        ctx: Any, crow: Tensor, col: Tensor, x: Tensor, y: Tensor, form: SampleForm
    ) -> Tensor:
        """The operator, and what the gradients that are wanted will need."""
        values = sampled_below_autograd(crow, col, x, y, form)
        _, _, needs_x, needs_y, _ = ctx.needs_input_grad
        ctx.form = form
        ctx.save_for_backward(crow, col, x if needs_y else None, y if needs_x else None)
        ctx.save_for_forward(crow, col, x, y)
        return values

    @staticmethod
    def jvp(
        ctx: Any, d_crow: None, d_col: None, d_x: Tensor | None, d_y: Tensor | None, d_form: None
    ) -> Tensor:
        """The tangent of the result."""
        crow, col, x, y = ctx.saved_tensors
        terms = []
        if d_x is not None:
            terms.append(sampled(crow, col, d_x, y, ctx.form))
        if d_y is not None:
            terms.append(sampled(crow, col, x, d_y, ctx.form))
        return _sum(terms)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """A gradient for each argument of `forward`."""
        crow, col, x, y = ctx.saved_tensors
        _, _, needs_x, needs_y, _ = ctx.needs_input_grad
        form: SampleForm = ctx.form
        left = Form(
            form.rows,
            form.cols,
            allow_tf32=form.allow_tf32,
            deterministic=form.deterministic,
        )
        # A gradient of the sum over leading dimensions is the same for each of them.
        grad_x = product(crow, col, grad, y.mT, None, left) if needs_x else None
        right = left._replace(sparse_right=True)
        grad_y = product(crow, col, grad, x.mT, None, right) if needs_y else None
        return None, None, grad_x, grad_y, None

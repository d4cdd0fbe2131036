"""Products and sampled products with their derivatives, by the shortest way that keeps them right.

- Eager calls without gradients stay below autograd.
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

from .._torch import direct
from .._torch.compiling import unwatched
from .._torch.transforms import (
    apply_of,
    is_jit_tracing,
    is_plainly_eager,
    is_transformed,
    would_drop_tangents,
)
from ..checks.matrix import check_freezable
from .forms import (
    GELU,
    GELU_TANH,
    NONE,
    RELU,
    SILU,
    Form,
    SampleForm,
    call_matmul,
    call_sampled,
    differentiable,
    matmul_below_autograd,
    sampled_below_autograd,
)

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled


def product(
    crow: Tensor,
    col: Tensor,
    values: Tensor,
    dense: Tensor,
    bias: Tensor | None,
    form: Form,
) -> Tensor:
    """``activation(op(A) @ dense + bias)`` or ``activation(dense @ op(A) + bias)``.

    Where a gradient will need the pre-activation, it is computed by the operator and the activation
    by torch, which keeps it; relu's gradient needs only the result.
    """
    # As `differentiable`: in a training step each call of Python's costs half a microsecond.
    trained = _is_grad_enabled() and (
        values.requires_grad or dense.requires_grad or (bias is not None and bias.requires_grad)
    )
    if is_plainly_eager():  # there is no more to ask
        if not trained:
            return matmul_below_autograd(crow, col, values, dense, bias, form)
        if form.activation <= RELU and not form.frozen:
            return _apply_product(crow, col, values, dense, bias, form)
    transformed = is_transformed()
    if transformed and would_drop_tangents():
        return unwatched(product, crow, col, values, dense, bias, form)
    if trained:
        if form.frozen:
            check_freezable(values)
        if not transformed and is_jit_tracing():  # which wants one graph in either case
            return call_matmul(crow, col, values, dense, bias, form)
        if form.activation > RELU:
            plain = form._replace(activation=NONE)
            return ACTIVATION_FUNCTIONS[form.activation](
                product(crow, col, values, dense, bias, plain)
            )
    if transformed:
        return call_matmul(crow, col, values, dense, bias, form)
    if trained:
        return _apply_product(crow, col, values, dense, bias, form)
    return matmul_below_autograd(crow, col, values, dense, bias, form)


def sampled(crow: Tensor, col: Tensor, x: Tensor, y: Tensor, form: SampleForm) -> Tensor:
    """The blocks of ``x @ y``, summed over leading dimensions, that a pattern stores."""
    transformed = is_transformed()
    if transformed and would_drop_tangents():
        return unwatched(sampled, crow, col, x, y, form)
    trained = differentiable(x, y)
    if transformed or (trained and is_jit_tracing()):
        return call_sampled(crow, col, x, y, form)
    if trained:
        return _apply_sampled(crow, col, x, y, form)
    return sampled_below_autograd(crow, col, x, y, form)


ACTIVATION_FUNCTIONS: dict[int, Callable[[Tensor], Tensor]] = {
    GELU: torch.nn.functional.gelu,
    GELU_TANH: lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
    SILU: torch.nn.functional.silu,
}


def _relu_gradient(grad: Tensor, result: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(grad, result, 0)


def _bias_gradient(grad: Tensor, form: Form) -> Tensor:
    dims = grad.dim()
    if dims == 1:
        return grad
    if dims == 2:
        return grad.sum(0 if form.sparse_right else 1)
    kept = dims - (1 if form.sparse_right else 2)
    return grad.sum([d for d in range(dims) if d != kept])


def _sampled_operands(dense: Tensor, grad: Tensor, form: Form) -> tuple[Tensor, Tensor]:
    """(…, rows of A, n) and (…, n, cols of A), whose product holds the gradient of A."""
    left, right = (dense, grad) if form.transpose != form.sparse_right else (grad, dense)
    if dense.dim() == 1:
        return left.unsqueeze(1), right.unsqueeze(0)
    return (left.mT, right) if form.sparse_right else (left, right.mT)


class Product(torch.autograd.Function):
    """In the style that keeps everything in ctx, the cheapest one to call.

    Of activations it takes relu alone, whose gradient needs only the result.
    """

    @staticmethod
    def forward(ctx: Any, *operands: Any) -> Tensor:
        """The operator, and what the gradients that are wanted will need."""
        result = matmul_below_autograd(*operands)
        crow, col, values, dense, _, form = operands
        _, _, needs_values, needs_dense, _, _ = ctx.needs_input_grad
        ctx.form = form
        if not needs_dense:  # values need not be kept for their shape
            ctx.block = values.shape[1:]
        ctx.save_for_backward(
            crow,
            col,
            values if needs_dense else None,
            dense if needs_values else None,
            result if form.activation == RELU else None,
        )
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """A gradient for each argument of `forward`."""
        crow, col, values, dense, result = ctx.saved_tensors
        form: Form = ctx.form
        _, _, needs_values, needs_dense, needs_bias, _ = ctx.needs_input_grad
        if form.activation == RELU:
            grad = _relu_gradient(grad, result)
        if form.activation != NONE or form.variant is not None:
            form = form._replace(activation=NONE, variant=None)
        grad_values = grad_dense = both = None
        if needs_values and needs_dense and not _is_dynamo_compiling():
            # None where a derivative of them may be asked for.
            both = direct.gradients(crow, col, values, dense, grad, form)
        if both is not None:
            grad_dense, grad_values = both
        else:
            if needs_dense:
                turned = form._replace(transpose=not form.transpose)
                grad_dense = product(crow, col, values, grad, None, turned)
            if needs_values:
                block_m, block_k = ctx.block if values is None else values.shape[1:]
                precision = form.allow_tf32, form.deterministic
                sample = SampleForm(form.rows, form.cols, block_m, block_k, *precision)
                grad_values = sampled(crow, col, *_sampled_operands(dense, grad, form), sample)
        grad_bias = _bias_gradient(grad, form) if needs_bias else None
        return None, None, grad_values, grad_dense, grad_bias, None


class DispatchedProduct(Product):
    """The same with tangents, which always come through the dispatcher."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        """As `Product`, and what a tangent will need."""
        result = Product.forward(ctx, *arguments)
        ctx.save_for_forward(*arguments[:4], result)
        return result

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """The tangent of the result."""
        _, _, d_values, d_dense, d_bias, _ = tangents
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
        tangent = sum(terms[1:], terms[0]).expand_as(result)
        if ctx.form.activation == RELU:
            return _relu_gradient(tangent, result)
        return tangent.contiguous()  # never a view of an input's tangent


class Sampled(torch.autograd.Function):
    """The sampled product, in the same style."""

    @staticmethod
    def forward(ctx: Any, *operands: Any) -> Tensor:
        """The operator, and what the gradients that are wanted will need."""
        values = sampled_below_autograd(*operands)
        crow, col, x, y, form = operands
        _, _, needs_x, needs_y, _ = ctx.needs_input_grad
        ctx.form = form
        ctx.save_for_backward(crow, col, x if needs_y else None, y if needs_x else None)
        ctx.save_for_forward(crow, col, x, y)
        return values

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """The tangent of the result."""
        _, _, d_x, d_y, _ = tangents
        crow, col, x, y = ctx.saved_tensors
        pairs = [(d_x, y)] if d_x is not None else []
        pairs += [(x, d_y)] if d_y is not None else []
        first, *rest = (sampled(crow, col, *pair, ctx.form) for pair in pairs)
        return sum(rest, first)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """A gradient for each argument of `forward`."""
        crow, col, x, y = ctx.saved_tensors
        _, _, needs_x, needs_y, _ = ctx.needs_input_grad
        form: SampleForm = ctx.form
        precision: Any = {"allow_tf32": form.allow_tf32, "deterministic": form.deterministic}
        left = Form(form.rows, form.cols, **precision)
        # A gradient of the sum over leading dimensions is the same for each of them.
        grad_x = product(crow, col, grad, y.mT, None, left) if needs_x else None
        right = left._replace(sparse_right=True)
        grad_y = product(crow, col, grad, x.mT, None, right) if needs_y else None
        return None, None, grad_x, grad_y, None


_apply_product, _apply_sampled = apply_of(Product), apply_of(Sampled)

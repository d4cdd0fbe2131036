"""What a product is besides its tensors, and the operators called with it.

Below autograd there are two ways to call one: by name, or as compiled code calls it thousands of
times, with all switches in one number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as _transforms_active
from torch._C import _AutoDispatchBelowAutograd as _BelowAutograd
from torch._guards import TracingContext

from .checks import ACTIVATIONS
from .ops import (
    ACTIVATION_SHIFT,
    ALLOW_TF32,
    DETERMINISTIC,
    FROZEN,
    SPARSE_RIGHT,
    TRANSPOSE,
    bsr_matmul,
    bsr_product,
    bsr_product_gradients,
    bsr_sampled_matmul,
    bsr_sampled_product,
)

NONE, RELU, GELU, GELU_TANH, SILU = ACTIVATIONS.values()


class Form(NamedTuple):
    """What a product is besides its tensors: op(A) on the left of ``dense``, or on its right."""

    rows: int  # of A as stored
    cols: int
    sparse_right: bool = False
    transpose: bool = False
    frozen: bool = False
    allow_tf32: bool = False
    deterministic: bool = False
    activation: int = NONE
    variant: str | None = None


class SampleForm(NamedTuple):
    """What a sampled product is besides its tensors."""

    rows: int
    cols: int
    block_m: int
    block_k: int
    allow_tf32: bool = False
    deterministic: bool = False
    variant: str | None = None


def call_operator(
    crow: Tensor, col: Tensor, values: Tensor, dense: Tensor, bias: Tensor | None, form: Form
) -> Tensor:
    """The operator, by whatever the dispatcher has in store."""
    return call_with_form(bsr_matmul, crow, col, values, dense, bias, form)


def call_with_form(
    operator: Callable[..., Any],
    crow: Tensor,
    col: Tensor,
    values: Tensor,
    dense: Tensor,
    bias: Tensor | None,
    form: Form,
    **more: Any,
) -> Any:
    """An operator with the parameters of ``bsr_matmul``, and perhaps more."""
    return operator(
        crow,
        col,
        values,
        form.rows,
        form.cols,
        dense,
        bias,
        sparse_right=form.sparse_right,
        transpose=form.transpose,
        activation=form.activation,
        frozen=form.frozen,
        allow_tf32=form.allow_tf32,
        deterministic=form.deterministic,
        variant=form.variant,
        **more,
    )


def call_sampled_operator(
    crow: Tensor, col: Tensor, x: Tensor, y: Tensor, form: SampleForm
) -> Tensor:
    """The operator of sampled products, likewise."""
    return bsr_sampled_matmul(
        crow,
        col,
        form.rows,
        form.cols,
        form.block_m,
        form.block_k,
        x,
        y,
        allow_tf32=form.allow_tf32,
        deterministic=form.deterministic,
        variant=form.variant,
    )


def product_below_autograd(
    crow: Tensor, col: Tensor, values: Tensor, dense: Tensor, bias: Tensor | None, form: Form
) -> Tensor:
    """The operator, whose derivatives are the caller's affair."""
    with _BelowAutograd():
        if not is_for_compiled_code():
            return call_operator(crow, col, values, dense, bias, form)
        packed = _packed(form)
        return bsr_product(
            crow, col, values, form.rows, form.cols, dense, bias, packed, form.variant
        )


def sampled_below_autograd(
    crow: Tensor, col: Tensor, x: Tensor, y: Tensor, form: SampleForm
) -> Tensor:
    """The operator, whose derivatives are the caller's affair."""
    with _BelowAutograd():
        if not is_for_compiled_code():
            return call_sampled_operator(crow, col, x, y, form)
        switches = form.allow_tf32 * ALLOW_TF32 | form.deterministic * DETERMINISTIC
        sizes = form.rows, form.cols, form.block_m, form.block_k
        return bsr_sampled_product(crow, col, *sizes, x, y, switches, form.variant)


def gradients_below_autograd(
    crow: Tensor, col: Tensor, values: Tensor, dense: Tensor, grad: Tensor, form: Form
) -> tuple[Tensor, Tensor]:
    """What two operators would compute, by one: the graph calls it from Python at every step."""
    with _BelowAutograd():
        sizes = form.rows, form.cols
        return bsr_product_gradients(crow, col, values, *sizes, dense, grad, _packed(form))


def _packed(form: Form) -> int:
    return (
        form.sparse_right * SPARSE_RIGHT
        | form.transpose * TRANSPOSE
        | form.frozen * FROZEN
        | form.allow_tf32 * ALLOW_TF32
        | form.deterministic * DETERMINISTIC
        | form.activation << ACTIVATION_SHIFT
    )


def is_for_compiled_code() -> bool:
    """Whether AOTAutograd traces what it will run below autograd, and perhaps thousands of times.

    Graphs of other tracers, ``torch.export`` among them, may be differentiated, and ``torch.func``
    has rules for operators with derivatives alone.
    """
    return (
        TracingContext.try_get() is not None
        and not torch.compiler.is_exporting()
        and not _transforms_active()
    )

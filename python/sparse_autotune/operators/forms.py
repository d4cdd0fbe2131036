"""What a product is besides its tensors, and the operators called with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._torch import direct
from .library import bsr_matmul, bsr_sampled_matmul

_is_grad_enabled = torch.is_grad_enabled

# The numbers are part of the operators' schema.
ACTIVATIONS: dict[str | None, int] = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
NONE, RELU, GELU, GELU_TANH, SILU = ACTIVATIONS.values()


class Form(NamedTuple):
    """What a product is besides its tensors: op(A) on the left of ``dense``, or on its right."""

    rows: int  # of A as stored
    cols: int
    sparse_right: bool = False
    transpose: bool = False
    activation: int = NONE
    frozen: bool = False
    allow_tf32: bool = False
    deterministic: bool = False
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


def switches(form: Form | SampleForm, sizes: int) -> dict[str, Any]:
    """An operator's keywords but for their defaults, which are all false.

    Compiled code calls the operator from Python in every step, where each name takes time.
    ``sizes`` are the first fields, which are no keywords.
    """
    given = zip(form._fields[sizes:], form[sizes:], strict=True)
    return {name: value for name, value in given if value or value == ""}


def differentiable(*tensors: Tensor | None) -> bool:
    """Whether a gradient with respect to one of them may be asked for."""
    return _is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


# Operands are crow_indices, col_indices, values, dense, bias and form; of sampled products
# crow_indices, col_indices, x, y and form.


def call_matmul(*operands: Any, operator: Any = None, **more: Any) -> Any:
    """The operator, by whatever the dispatcher has in store, or one that takes more."""
    crow, col, values, dense, bias, form = operands
    operator = operator or bsr_matmul
    return operator(crow, col, values, *form[:2], dense, bias, **switches(form, 2), **more)


def call_sampled(*operands: Any, operator: Any = None, **more: Any) -> Any:
    """The operator of sampled products, likewise."""
    crow, col, x, y, form = operands
    operator = operator or bsr_sampled_matmul
    return operator(crow, col, *form[:4], x, y, **switches(form, 4), **more)


# By the direct way where there is one, and without a derivative: that is the caller's affair.
matmul_below_autograd: Callable[..., Tensor] = direct.or_else("bsr_matmul", call_matmul)
sampled_below_autograd: Callable[..., Tensor] = direct.or_else("bsr_sampled_matmul", call_sampled)

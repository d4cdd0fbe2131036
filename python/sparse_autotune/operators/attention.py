"""The operators of attention, what compilers know of them, and their derivatives.

The backward pass is an operator of its own, which races by itself; what it needs of the forward
pass is ``out`` and lse, whoever computed them. It has no derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._torch import direct
from .._torch import sdpa as _sdpa  # noqa: F401  what torch_sdpa_cuda.cpp calls
from .._torch.compiling import never_traced
from .._torch.transforms import (
    BelowAutograd,
    apply_at_this_level,
    apply_of,
    has_tangent,
    is_plainly_eager,
)
from .batching import one_by_one
from .forms import differentiable
from .mask_lists import mask_columns

attention_op = torch.ops.sparse_autotune.attention.default
attention_backward_op = torch.ops.sparse_autotune.attention_backward.default
attention_race_op = torch.ops.sparse_autotune.attention_race.default
attention_backward_race_op = torch.ops.sparse_autotune.attention_backward_race.default
attention_problem_race = torch.ops.sparse_autotune.attention_problem_race.default


class AttentionForm(NamedTuple):
    """What attention is besides its tensors."""

    block_m: int = 0
    block_n: int = 0
    is_causal: bool = False
    scale: float | None = None
    nnzb: int = -1
    allow_tf32: bool = False
    deterministic: bool = False
    variant: str | None = None

    def switches(self) -> dict[str, Any]:
        """The operator's keywords."""
        return dict(zip(self._fields[2:], self[2:], strict=True))


def call_attention(
    q: Tensor, k: Tensor, v: Tensor, crow: Tensor | None, col: Tensor | None, form: AttentionForm
) -> tuple[Tensor, Tensor]:
    """``out`` and lse, by the shortest way that keeps derivatives."""
    if is_plainly_eager():
        if differentiable(q, k, v):
            result: tuple[Tensor, Tensor] = _apply_attention(q, k, v, crow, col, form)
            return result
        return _attention_below_autograd(q, k, v, crow, col, form)
    return _call(q, k, v, crow, col, form)


def _call(*operands: Any) -> tuple[Tensor, Tensor]:
    *tensors, form = operands
    result: tuple[Tensor, Tensor] = attention_op(*tensors, *form[:2], **form.switches())
    return result


# By the direct way where there is one. What it gives has no derivative.
_attention_below_autograd: Callable[..., tuple[Tensor, Tensor]] = direct.or_else("attention", _call)


def row_dtype(dtype: torch.dtype) -> torch.dtype:
    """That of lse."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _check_alike(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> None:
    torch._check(q.dim() == k.dim() == v.dim() == 4, lambda: "q, k and v must have 4 dimensions")
    torch._check(
        q.dtype == k.dtype == v.dtype and q.device == k.device == v.device,
        lambda: "q, k and v must share one dtype and device",
    )
    torch._check(
        all(t.device == q.device for t in others if isinstance(t, Tensor)),
        lambda: "all tensors must be on one device",
    )
    torch._check(
        k.shape == v.shape and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3],
        lambda: f"q, k and v must fit together, got {q.shape}, {k.shape} and {v.shape}",
    )


def _dense_like(operand: Tensor) -> Tensor:
    """As results of it lie (csrc/operators/attention/attention.h)."""
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # 1.5 s of sympy

    _, heads, rows, numbers = operand.stride()
    in_rows = guard_or_false(operand.shape[3] <= 1) or guard_or_false(numbers == 1)
    if in_rows and guard_or_false(heads < rows):
        return operand.new_empty(operand.transpose(1, 2).shape).transpose(1, 2)
    return operand.new_empty(operand.shape)


@torch.library.register_fake("sparse_autotune::attention")
def _fake_attention(
    q: Tensor, k: Tensor, v: Tensor, *others: Any, **_: Any
) -> tuple[Tensor, Tensor]:
    _check_alike(q, k, v, *others)
    return _dense_like(q), q.new_empty(q.shape[:3], dtype=row_dtype(q.dtype))


@torch.library.register_fake("sparse_autotune::attention_backward")
def _fake_attention_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *others: Any,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_alike(q, k, v, grad_out, grad_lse, *others)
    return _dense_like(q), _dense_like(k), _dense_like(v)


@torch.library.register_fake("sparse_autotune::attention_race")
@torch.library.register_fake("sparse_autotune::attention_backward_race")
@torch.library.register_fake("sparse_autotune::attention_problem_race")
def _fake_text(*_: Any, **__: Any) -> Tensor:
    length = torch.library.get_ctx().new_dynamic_size()
    return torch.empty(length, dtype=torch.uint8, device="cpu")


class Attention(torch.autograd.Function):
    """The forward operator with its gradients, in the style that keeps everything in ctx."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        crow: Tensor | None,
        col: Tensor | None,
        form: AttentionForm,
    ) -> tuple[Tensor, Tensor]:
        """The operator, and what the gradients will need."""
        # What torch's kernels hand over is no view to autograd.
        with BelowAutograd():
            out, lse = _attention_below_autograd(q, k, v, crow, col, form)
        ctx.form = form._replace(variant=None)  # gradients choose their own
        ctx.save_for_backward(q, k, v, out, lse, crow, col)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        """The gradients of q, k and v, by the backward operator."""
        q, k, v, out, lse, crow, col = ctx.saved_tensors
        nothing = (None,) * 3
        block = ctx.form[:2]
        if grad_out is None and grad_lse is None:
            return (None, None, None, *nothing)
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        gradients = direct.attention_gradients(
            q, k, v, crow, col, ctx.form, grad_out, grad_lse, out, lse
        )
        if gradients is not None:
            return (*gradients, *nothing)
        ccol = row = None
        if crow is not None:
            ccol, row = mask_columns(crow, col, -(-k.shape[2] // block[1]))
        saved = (q, k, v, out, lse, crow, col, ccol, row)
        arguments = (grad_out, grad_lse, *saved, *block)
        # Where no derivative of these can be asked for nobody looks for it, 30 us of Python.
        is_last = not torch.is_grad_enabled() and is_plainly_eager()
        with BelowAutograd() if is_last else nullcontext():
            gradients = attention_backward_op(*arguments, **ctx.form.switches())
        return (*gradients, *nothing)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        """There is none."""
        raise RuntimeError(
            "attention has no forward-mode derivative, but q, k or v carries a tangent: " + INSTEAD
        )


INSTEAD = "use torch.nn.functional.scaled_dot_product_attention with mask.to_dense()"


class Gradients(torch.autograd.Function):
    """The backward operator, which has no derivative."""

    @staticmethod
    def forward(ctx: Any, switches: dict[str, Any], *arguments: Any) -> tuple[Tensor, ...]:
        """The operator."""
        with BelowAutograd():
            result: tuple[Tensor, ...] = attention_backward_op(*arguments, **switches)
        return result

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """There is none."""
        raise RuntimeError(f"attention has no second derivative: {INSTEAD}")

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        """There is none."""
        raise RuntimeError(f"attention's gradients have no forward-mode derivative: {INSTEAD}")


@never_traced
def _through_dispatcher(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    crow: Tensor | None = None,
    col: Tensor | None = None,
    block_m: int = 0,
    block_n: int = 0,
    **switches: Any,
) -> tuple[Tensor, Tensor]:
    form = AttentionForm(block_m, block_n, **switches)
    if has_tangent(q, k, v) or differentiable(q, k, v):
        result: tuple[Tensor, Tensor] = apply_at_this_level(Attention, q, k, v, crow, col, form)
        return result
    return _attention_below_autograd(q, k, v, crow, col, form)


@never_traced
def _gradients_through_dispatcher(*arguments: Any, **switches: Any) -> tuple[Tensor, ...]:
    tensors = [t for t in arguments if isinstance(t, Tensor) and t.dtype.is_floating_point]
    if has_tangent(*tensors) or differentiable(*tensors):
        result: tuple[Tensor, ...] = apply_at_this_level(Gradients, switches, *arguments)
        return result
    with BelowAutograd():
        return attention_backward_op(*arguments, **switches)


_apply_attention = apply_of(Attention)
_autograd = torch.library.Library("sparse_autotune", "IMPL")
_autograd.impl("attention", _through_dispatcher, "Autograd")
_autograd.impl("attention_backward", _gradients_through_dispatcher, "Autograd")


torch.library.register_vmap("sparse_autotune::attention", one_by_one(attention_op))
torch.library.register_vmap(
    "sparse_autotune::attention_backward", one_by_one(attention_backward_op)
)

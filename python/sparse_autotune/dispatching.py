"""The operators' derivatives, for whoever meets them in the dispatcher.

That is anyone who calls the operators themselves, and compilers, tracers, ``torch.func`` and
forward-mode derivatives, which `autograd` sends here. Without these kernels a compiled gradient
would be missing and a tangent silently zero.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as _transforms_active
from torch._C import _AutoDispatchBelowAutograd as _BelowAutograd
from torch._C import _len_torch_dispatch_stack
from torch._guards import TracingContext
from torch.autograd import forward_ad

from .autograd import (
    ACTIVATION_FUNCTIONS,
    Product,
    Sampled,
    differentiable,
    is_transformed,
)
from .compiling import never_traced
from .forms import (
    NONE,
    RELU,
    Form,
    SampleForm,
    call_operator,
    product_below_autograd,
    sampled_below_autograd,
)
from .ops import bsr_matmul_out

_is_grad_enabled = torch.is_grad_enabled


def _has_tangent(*tensors: Tensor | None) -> bool:
    """Whether a tensor carries a forward-mode derivative, which only a Function passes on.

    A graph enters a level of these without telling `forward_ad`, so all are asked, but for what a
    tracer meets that is no compiler's: it would record the question. A compiler's must not.
    """
    compiler_traces = TracingContext.try_get() is not None
    if not (compiler_traces or _len_torch_dispatch_stack() == 0 or is_transformed()):
        return False
    with _unrecorded() if compiler_traces else nullcontext():
        return any(
            tensor is not None and forward_ad.unpack_dual(tensor, level=0).tangent is not None
            for tensor in tensors
        )


def _unrecorded() -> AbstractContextManager[Any]:
    # Not imported above: it brings much of torch.fx with it.
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    return disable_proxy_modes_tracing()


@functools.cache
def _single_level(function: type[torch.autograd.Function]) -> Any:
    """The same Function for one of ``torch.func``'s levels, the one that called the dispatcher.

    ``Function.apply`` itself would start again from the outermost level, as it must for a user.
    """

    def for_levels_below(method: Callable[..., Any]) -> Any:
        def wrapped(ctx: Any, *arguments: Any) -> Any:
            # Off inside of a Function's methods, and wanted by the levels below; not by this one.
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), _BelowAutograd():
                return method(ctx, *arguments)

        return staticmethod(wrapped)

    methods = {
        "forward": for_levels_below(function.forward),
        "jvp": for_levels_below(function.jvp),
        "backward": staticmethod(function.backward),
    }
    return type(function.__name__, (torch.autograd.function._SingleLevelFunction,), methods)


def _at_this_level(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    if not _transforms_active():
        return function.apply(*arguments)
    # Not imported above: it brings much of torch._functorch with it.
    from torch._functorch.utils import enable_single_level_autograd_function

    with enable_single_level_autograd_function():
        return _single_level(function).apply(*arguments)


@never_traced
def _product_through_dispatcher(
    crow: Tensor,
    col: Tensor,
    values: Tensor,
    rows: int,
    cols: int,
    dense: Tensor,
    bias: Tensor | None = None,
    *,
    sparse_right: bool = False,
    transpose: bool = False,
    activation: int = NONE,
    frozen: bool = False,
    allow_tf32: bool = False,
    deterministic: bool = False,
    variant: str | None = None,
) -> Tensor:
    form = Form(
        rows,
        cols,
        sparse_right,
        transpose,
        frozen,
        allow_tf32,
        deterministic,
        activation,
        variant,
    )
    carries = _has_tangent(values, dense, bias)
    if carries and activation > RELU:
        plain = form._replace(activation=NONE)
        return ACTIVATION_FUNCTIONS[activation](
            call_operator(crow, col, values, dense, bias, plain)
        )
    if carries or differentiable(values, dense, bias):
        return _at_this_level(Product, crow, col, values, dense, bias, form, None)
    return product_below_autograd(crow, col, values, dense, bias, form)


@never_traced
def _sampled_through_dispatcher(
    crow: Tensor,
    col: Tensor,
    rows: int,
    cols: int,
    block_m: int,
    block_k: int,
    x: Tensor,
    y: Tensor,
    *,
    allow_tf32: bool = False,
    deterministic: bool = False,
    variant: str | None = None,
) -> Tensor:
    form = SampleForm(rows, cols, block_m, block_k, allow_tf32, deterministic, variant)
    if _has_tangent(x, y) or (_is_grad_enabled() and (x.requires_grad or y.requires_grad)):
        return _at_this_level(Sampled, crow, col, x, y, form)
    return sampled_below_autograd(crow, col, x, y, form)


@never_traced
def _out_through_dispatcher(*tensors: Any, out: Tensor, **keywords: Any) -> None:
    arguments = [t for t in (*tensors, out) if isinstance(t, Tensor)]
    if _is_grad_enabled() and any(t.requires_grad for t in arguments):
        raise RuntimeError("bsr_matmul_out writes into out, which has no derivative")
    if _has_tangent(*arguments):
        raise RuntimeError("bsr_matmul_out writes into out, which has no forward-mode derivative")
    with _BelowAutograd():
        bsr_matmul_out(*tensors, **keywords, out=out)


_library = torch.library.Library("sparse_autotune", "IMPL")
_library.impl("bsr_matmul", _product_through_dispatcher, "Autograd")
_library.impl("bsr_matmul_out", _out_through_dispatcher, "Autograd")
_library.impl("bsr_sampled_matmul", _sampled_through_dispatcher, "Autograd")

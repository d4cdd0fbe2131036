"""Who listens to operators besides autograd: torch.func, forward-mode derivatives, tracers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C import _AutoDispatchBelowAutograd as BelowAutograd
from torch._C import _is_any_autocast_enabled as is_any_autocast_enabled
from torch._C import _is_tracing as is_jit_tracing  # which Dynamo of torch 2.11 cannot trace
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import TransformType, is_functorch_wrapped_tensor, peek_interpreter_stack
from torch.autograd import forward_ad

from .compiling import constant_when_compiled, is_compiler_tracing, surrounding_level

__all__ = [
    "BelowAutograd",
    "is_any_autocast_enabled",
    "is_functorch_wrapped_tensor",
    "is_jit_tracing",
    "transforms_active",
]

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling


def has_forward_level() -> bool:
    """Whether a level of forward-mode derivatives was entered that Python knows of."""
    return forward_ad._current_level >= 0


def is_transformed() -> bool:
    """Whether what runs is compiled, under a transform of torch.func or in a level of forward AD.

    Compiled code enters such a level, and ``torch.func.jvp``, without telling `forward_ad`.
    """
    return torch.compiler.is_compiling() or transforms_active() or has_forward_level()


def is_plainly_eager() -> bool:
    """Whether nothing is compiled, transformed or traced: the cheapest question of all here."""
    return not (
        _is_dynamo_compiling()
        or transforms_active()
        or _len_torch_dispatch_stack()
        or is_jit_tracing()
        or forward_ad._current_level >= 0
    )


@constant_when_compiled
def differentiates() -> bool:
    """Whether the innermost transform of torch.func takes derivatives."""
    return transforms_active() and peek_interpreter_stack().key() in (
        TransformType.Grad,
        TransformType.Jvp,
    )


def would_drop_tangents() -> bool:
    """Whether a forward-mode level surrounds what Dynamo compiles, whose graph knows nothing of it.

    Dynamo guards the level that it reads here. Levels that the graph itself enters do no harm.
    """
    return _is_dynamo_compiling() and has_forward_level() and surrounding_level() >= 0


def has_tangent(*tensors: Tensor | None) -> bool:
    """Whether a tensor carries a forward-mode derivative, which only a Function passes on.

    A graph enters a level of these without telling `forward_ad`, so all are asked, but for what a
    tracer meets that is no compiler's: it would record the question. A compiler's must not.
    """
    compiler_traces = is_compiler_tracing()
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


def apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``Function.apply`` but for its own look for transforms, 5 us of Python.

    The engine then calls ``backward`` itself, not a method that looks for it, which takes 1 us.
    """
    function._backward_cls.apply = function.backward
    base: Any = super(torch.autograd.Function, function)
    apply: Callable[..., Any] = base.apply
    return apply


@functools.cache
def _single_level(function: type[torch.autograd.Function]) -> Any:
    """The same Function for one of ``torch.func``'s levels, the one that called the dispatcher.

    ``Function.apply`` itself would start again from the outermost level, as it must for a user.
    """

    def for_levels_below(method: Callable[..., Any]) -> Any:
        def wrapped(ctx: Any, *arguments: Any) -> Any:
            # Off inside of a Function's methods, and wanted by the levels below; not by this one.
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), BelowAutograd():
                return method(ctx, *arguments)

        return staticmethod(wrapped)

    methods = {
        "forward": for_levels_below(function.forward),
        "jvp": for_levels_below(function.jvp),
        "backward": staticmethod(function.backward),
    }
    return type(function.__name__, (torch.autograd.function._SingleLevelFunction,), methods)


def apply_at_this_level(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``Function.apply`` for a kernel that the dispatcher called for one level of torch.func."""
    if not transforms_active():
        return function.apply(*arguments)
    # Not imported above: it brings much of torch._functorch with it.
    from torch._functorch.utils import enable_single_level_autograd_function

    with enable_single_level_autograd_function():
        return _single_level(function).apply(*arguments)

"""Products without the dispatcher, for the second and later of one kind of plain eager calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as _transforms_active
from torch._C._dynamo import guards
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from ._tuner import Eager, Operands
from ._tuner import Launcher as ShortWay
from .compiling import never_traced
from .lifetimes import own_plan
from .matrix_checks import Components
from .precision import allow_tf32

if TYPE_CHECKING:
    from .bsr_tensor import BsrTensor

_deterministic = torch.are_deterministic_algorithms_enabled

# Transforms, tracers, profilers and modes must find the operator in the dispatcher.
LISTENERS: tuple[Callable[[], int], ...] = (
    torch._C._len_torch_dispatch_stack,
    torch._C._is_tracing,
    torch.autograd._profiler_enabled,
    _transforms_active,
)


def eager_with(listeners: tuple[Callable[[], int], ...]) -> Eager:
    """What tells whether a call is a plain one that none of these listens to."""
    return Eager(
        tensor=Tensor,
        parameter=torch.nn.Parameter,
        is_grad_enabled=torch.is_grad_enabled,
        listeners=listeners,
        forward_ad=forward_ad,
    )


_EAGER = eager_with(LISTENERS)


def _find_operands() -> Operands | None:
    exchange_api = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if exchange_api is None:
        return None  # an older torch than those that this was tried with
    return Operands(
        exchange_api=exchange_api,
        empty_on_cpu=getattr(guards, "_empty_strided_cpu", None),
        empty_on_gpu=getattr(guards, "_empty_strided_cuda", None),
    )


# How tensors are looked at without the dispatcher; None: not by this torch.
OPERANDS = _find_operands()


def is_plain_eager(*tensors: Tensor) -> bool:
    """Whether these are plain tensors and nobody but the caller sees what becomes of them."""
    return _EAGER.nobody_listens() and all(_EAGER.is_component(tensor) for tensor in tensors)


def launched(
    a: BsrTensor,
    dense: Any,
    bias: Any,
    activation: int,
    sparse_right: bool,
    linear: bool,
    out: Any = None,
) -> Tensor | None:
    """A product without gradients by its short way, where there is one; None: go the long one.

    It is for plain tensors in plain eager mode alone. What is wrong with others, and with those
    that do not fit together, the operator says. A pattern's first product has nothing to find: who
    multiplies by each pattern once does not pay for the way.
    """
    way = _way_of_later_products(a)
    if way is None:
        return None
    if a._frozen:
        a.check_frozen()
    values = a._values
    result = way.product(
        a._crow_indices,
        a._col_indices,
        values,
        dense,
        bias,
        out,
        sparse_right,
        a._transposed != linear,
        activation,
        a._frozen,
        values.is_cuda and allow_tf32(values),
        _deterministic(),
    )
    if result is None:
        if way.lost:
            a._short_way = None
    elif out is not None:  # written behind autograd's back: saved tensors must notice
        increment_version(out)
    return result


def sample_launched(x: Any, y: Any, pattern: BsrTensor) -> Tensor | None:
    """The values of a sampled product without gradients, likewise."""
    way = _way_of_later_products(pattern)
    if way is None:
        return None
    result = way.sample(
        pattern._crow_indices,
        pattern._col_indices,
        x,
        y,
        pattern._transposed,
        pattern._values.is_cuda and allow_tf32(pattern._values),
        _deterministic(),
    )
    if result is None and way.lost:
        pattern._short_way = None
    return result


def _way_of_later_products(a: BsrTensor) -> ShortWay | None:
    way = a._short_way
    if way is None and (a._plan_owner is None or not a._plan_owner.is_first_product()):
        way = short_way_of(a)
    return way


def short_way_of(a: BsrTensor) -> ShortWay | None:
    """The short way to the products of a matrix, found once; None where there is none."""
    way = a._short_way
    if way is None:
        if a._plan_owner is None:  # made by compiled code
            a._plan_owner = own_plan(a._crow_indices, a._col_indices)
        # In this order: torch.jit.trace would record the look at the shape.
        fits = _EAGER.nobody_listens() and tuple(a._values.shape[1:]) == a._block_size
        way = a._short_way = find_short_way(a._parts()) if fits else None
    return way


@never_traced
def find_short_way(parts: Components) -> ShortWay | None:
    """None for tensors without memory or a version counter to look at, and while one listens.

    Tracers give those that they meet no memory, be they constants of the program.
    """
    if OPERANDS is None:
        return None
    crow, col, values, rows, cols = parts[:5]
    if not is_plain_eager(crow, col, values):
        return None
    try:
        return ShortWay(OPERANDS, _EAGER, crow.detach(), col.detach(), values.detach(), rows, cols)
    except (TypeError, ValueError, RuntimeError, BufferError):
        return None  # the operator refuses them, and `checks` says why

"""Products without the dispatcher, for the second and later of one kind of plain eager calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as _transforms_active
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from . import _tuner
from .lifetimes import own_plan
from .matrix_checks import Components, check_components
from .precision import allow_tf32

if TYPE_CHECKING:
    from .bsr_tensor import BsrTensor

_is_grad_enabled = torch.is_grad_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_tracing = torch._C._is_tracing
_profiler_enabled = torch.autograd._profiler_enabled
_deterministic = torch.are_deterministic_algorithms_enabled
_LAUNCHED, _MOVED = _tuner.Launcher.LAUNCHED, _tuner.Launcher.MOVED


class ShortWay:
    """To the products of one block-sparse matrix, as it lies in memory.

    ``tensor.data = other`` gives a tensor other memory, of another dtype perhaps, and no counter
    shows it. The aliases keep the memory that the launcher knows: while the tensors still lie at
    its addresses, it is theirs.
    """

    __slots__ = ("_aliases", "_launcher", "lost", "on_cpu")

    def __init__(self, launcher: _tuner.Launcher, aliases: tuple[Tensor, ...]) -> None:
        self._launcher = launcher
        self._aliases = aliases
        self.on_cpu = aliases[2].device.type == "cpu"
        self.lost = False  # the matrix lies elsewhere now

    def product(
        self,
        crow: Tensor,
        col: Tensor,
        values: Tensor,
        dense: Tensor,
        bias: Tensor | None,
        outer: int,
        sparse_right: bool,
        transpose: bool,
        activation: int,
        frozen: bool,
        allow_tf32: bool,
        deterministic: bool,
        out: Tensor | None = None,
    ) -> Tensor | None:
        """The operator's result, of ``outer`` rows or columns; None: the operator's work.

        Nobody may be listening to the dispatcher, and the tensors must be plain.
        """
        shape = dense.shape
        if out is not None:
            result = out
        elif sparse_right or len(shape) == 1:
            result = dense.new_empty((*shape[:-1], outer))
        elif len(shape) == 2:
            result = dense.new_empty((outer, shape[1]))
        else:
            return None
        outcome = self._launcher.launch(
            crow,
            col,
            values,
            dense,
            bias,
            result,
            sparse_right,
            transpose,
            activation,
            frozen,
            allow_tf32,
            deterministic,
        )
        if outcome == _LAUNCHED:
            if out is not None:  # written behind autograd's back: saved tensors must notice
                increment_version(out)
            return result
        if outcome == _MOVED:
            self.lost = True
        return None


def is_plain(tensor: Any) -> bool:
    """Whether memory and strides are all there is to a tensor."""
    return type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_neg()


def nobody_listens() -> bool:
    """Whether no one but autograd would meet the operator in the dispatcher.

    Transforms, tracers, profilers and modes must find it there.
    """
    return not (
        _dispatch_modes()
        or _is_tracing()
        or _profiler_enabled()
        or forward_ad._current_level >= 0
        or _transforms_active()
    )


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
    that do not fit together, the operator says.
    """
    way = a._short_way
    if way is None or way.lost:
        way = short_way_of(a)
        if way is None:
            return None
    values = a._values
    if (
        not is_plain(dense)
        or (out is not None and (not is_plain(out) or out.is_inference()))
        or (bias is not None and not is_plain(bias) and type(bias) is not torch.nn.Parameter)
        or (
            _is_grad_enabled()
            and (
                dense.requires_grad
                or values.requires_grad
                or (bias is not None and bias.requires_grad)
                or (out is not None and out.requires_grad)
            )
        )
        or not nobody_listens()
    ):
        return None
    transposed = a._transposed
    if a._frozen:
        a.check_frozen()
    return way.product(
        a._crow_indices,
        a._col_indices,
        values,
        dense,
        bias,
        a._cols if (transposed != linear) != sparse_right else a._rows,
        sparse_right,
        transposed != linear,
        activation,
        a._frozen,
        not way.on_cpu and allow_tf32(values),
        _deterministic(),
        out,
    )


def short_way_of(a: BsrTensor) -> ShortWay | None:
    """The short way to the products of a matrix, found once; None where there is none."""
    way = a._short_way
    if way is None or way.lost:
        if a._plan_owner is None:  # made by compiled code
            a._plan_owner = own_plan(a._crow_indices, a._col_indices)
        fits = tuple(a._values.shape[1:]) == a._block_size
        way = a._short_way = find_short_way(a._parts()) if fits else None
    return way


def find_short_way(parts: Components) -> ShortWay | None:
    """None for tensors without memory or a version counter to look at, and while one listens.

    Tracers give those that they meet no memory, be they constants of the program.
    """
    tensors = parts[:3]
    exchange_api = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if exchange_api is None:
        return None  # an older torch than those that this was tried with
    if any(type(t) not in (Tensor, torch.nn.Parameter) for t in tensors):
        return None
    if parts.values.device.type not in ("cpu", "cuda") or not nobody_listens():
        return None
    if any(t.is_inference() or not t.is_contiguous() or t.is_neg() for t in tensors):
        return None
    try:
        check_components(parts)
    except (TypeError, ValueError, RuntimeError):
        return None  # the operator refuses them, and `checks` says why
    aliases = crow, col, values = tuple(t.detach() for t in tensors)
    return ShortWay(
        _tuner.Launcher(exchange_api, crow, col, values, parts.rows, parts.cols), aliases
    )

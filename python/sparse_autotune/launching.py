"""``a @ b`` without the dispatcher, for the second and later of one kind of plain eager calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as _transforms_active
from torch.autograd import forward_ad

from . import _tuner
from .bsr_tensor import BsrTensor, Known
from .matrix_checks import check_components
from .precision import allow_tf32

_is_grad_enabled = torch.is_grad_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_tracing = torch._C._is_tracing
_profiler_enabled = torch.autograd._profiler_enabled
_deterministic = torch.are_deterministic_algorithms_enabled
_LAUNCHED, _MOVED = _tuner.Launcher.LAUNCHED, _tuner.Launcher.MOVED


def launched(a: BsrTensor, b: Any) -> Tensor | None:
    """``a @ b`` without the dispatcher, where a plan remembers how; None: the operator's work.

    Whoever listens to the dispatcher (autograd, transforms, compilers, tracers, profilers, modes)
    must find the operator there, so this is for plain tensors in plain eager mode alone.
    """
    known = a._launcher
    if known is None:
        known = a._launcher = _make_launcher(a)
        if known is None:
            return None
    values = a._values
    if (
        type(b) is not Tensor
        or b.layout is not torch.strided
        or b.is_neg()
        or (_is_grad_enabled() and (b.requires_grad or values.requires_grad))
        or _dispatch_modes()
        or _is_tracing()
        or _profiler_enabled()
        or forward_ad._current_level >= 0
    ):
        return None
    shape = b.shape
    if len(shape) != 2:
        return None
    if a._frozen:
        a.check_frozen()
    launcher, on_cpu, _ = known
    result = b.new_empty(a._rows, shape[1])
    outcome = launcher.launch(
        a._crow_indices,
        a._col_indices,
        values,
        b,
        result,
        a._frozen,
        not on_cpu and allow_tf32(values),
        _deterministic(),
    )
    if outcome == _LAUNCHED:
        return result
    if outcome == _MOVED:
        a._launcher = None
    return None


def _make_launcher(a: BsrTensor) -> Known | None:
    """What `launched` needs; None for tensors without memory or a version counter to look at.

    ``tensor.data = other`` gives a tensor other memory, of another dtype perhaps, and no counter
    shows it. The aliases keep the memory that the launcher knows: while the tensors still lie at
    its addresses, it is theirs.
    """
    if a._transposed or _transforms_active():
        return None  # it knows products of memory with the matrix as stored
    parts = a._parts()
    tensors = parts[:3]
    device = a._values.device
    if device.type not in ("cpu", "cuda") or any(
        t.is_inference() or type(t) not in (Tensor, torch.nn.Parameter) or not t.is_contiguous()
        for t in tensors
    ):
        return None
    try:
        check_components(parts)
    except (TypeError, ValueError, RuntimeError):
        return None  # the operator refuses them, and `checks` says why
    if tuple(a._values.shape[1:]) != a._block_size:
        return None
    exchange_api = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if exchange_api is None:
        return None  # an older torch than those that this was tried with
    crow, col, values = aliases = tuple(t.detach() for t in tensors)
    launcher = _tuner.Launcher(exchange_api, crow, col, values, a._rows, a._cols)
    return launcher, device.type == "cpu", aliases

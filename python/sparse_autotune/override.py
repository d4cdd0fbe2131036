"""`override_torch`: PyTorch's own products of native BSR tensors, computed by this package."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ._torch.function_modes import enter_lowest, leave
from .checks.matrix import BSR_LAYOUTS, VALUE_DTYPES, is_dense
from .operands import autocast_dtype, autocast_to
from .torch_functions import TORCH_FUNCTIONS


def _is_native(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout in BSR_LAYOUTS
        and value.dim() == 2
        and value.dtype in VALUE_DTYPES
    )


def _have_one_dtype(a: Tensor, b: Tensor) -> bool:
    """Under autocast, after its conversion."""
    if a.dtype == b.dtype:
        return True
    lower = autocast_dtype(a)
    return autocast_to(a.dtype, lower) == autocast_to(b.dtype, lower)


def _fits(a: Any, b: Any, dims: tuple[int, int] | None = None, out: Any = None) -> bool:
    """One native block-sparse matrix and one dense operand of its dtype, not a scalar.

    All else, and what torch would refuse, or resize ``out`` for, is torch's.
    """
    if not ((_is_native(b) and is_dense(a)) or (_is_native(a) and is_dense(b))):
        return False
    if a.dim() == 0 or b.dim() == 0 or not _have_one_dtype(a, b):
        return False
    if dims is not None and (a.dim(), b.dim()) != dims:
        return False
    return out is None or (is_dense(out) and tuple(out.shape) == _result_shape(a, b))


def _result_shape(a: Tensor, b: Tensor) -> tuple[int, ...]:
    if a.dim() == 1:
        return (b.shape[-1],)
    if b.dim() == 1:
        return tuple(a.shape[:-1])
    lead = b.shape[:-2] if _is_native(a) else a.shape[:-2]
    return (*lead, a.shape[-2], b.shape[-1])


def _addmm_fits(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> bool:
    return _fits(mat1, mat2, (2, 2)) and is_dense(input) and _have_one_dtype(input, mat1)


# By what computes a product here, whether it computes one with torch's arguments.
_CONDITIONS: dict[Any, Callable[..., bool]] = {
    TORCH_FUNCTIONS[torch.matmul]: lambda input, other, *, out=None: _fits(input, other, None, out),
    TORCH_FUNCTIONS[torch.mm]: lambda input, mat2, *, out=None: _fits(input, mat2, (2, 2), out),
    TORCH_FUNCTIONS[torch.mv]: lambda input, vec, *, out=None: _fits(input, vec, (2, 1), out),
    TORCH_FUNCTIONS[torch.addmm]: _addmm_fits,
    TORCH_FUNCTIONS[torch.nn.functional.linear]: (
        lambda input, weight, bias=None: _is_native(weight) and _fits(input, weight)
    ),
}


_switched = threading.local()


class override_torch(TorchFunctionMode, ContextDecorator):  # noqa: N801  used like torch.no_grad
    """Makes torch's products of native BSR tensors use this package, in eager mode.

    As a context manager, ``with override_torch(): ...``, for the body; as a decorator,
    ``@override_torch()``, for a function; as a switch, ``override_torch(True)``, until
    ``override_torch(False)``. All affect only the calling thread, and replace none of torch's
    kernels: afterwards torch behaves as before.

    ``@``, ``torch.matmul``, ``mm``, ``mv``, ``addmm``, ``torch.sparse.mm``, ``torch.sparse.addmm``
    and ``torch.nn.functional.linear``, as functions and as methods, are overridden if one operand
    is a ``torch.sparse_bsr`` matrix or its transpose (``torch.sparse_bsc``) and the other is dense
    and has the same dtype. ``alpha`` and ``beta`` of addmm are applied outside the kernel.
    Everything else goes to torch.

    Args:
        enabled: None for the context manager; True or False switches immediately.

    Raises:
        TypeError: ``enabled`` is neither None nor a bool.
    """

    def __init__(self, enabled: bool | None = None) -> None:
        if enabled is not None and not isinstance(enabled, bool):
            raise TypeError(f"enabled must be None, True or False, got {enabled!r}")
        super().__init__()
        if enabled is not None:
            leave(getattr(_switched, "mode", None))
            _switched.mode = override_torch() if enabled else None
            if enabled:
                enter_lowest(_switched.mode)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """What computes a function of torch's, called for each."""
        kwargs = kwargs or {}
        ours: Any = TORCH_FUNCTIONS.get(func)
        try:
            chosen = ours if ours in _CONDITIONS and _CONDITIONS[ours](*args, **kwargs) else func
        except TypeError:  # the function has no such arguments, which torch will say
            chosen = func
        return chosen(*args, **kwargs)

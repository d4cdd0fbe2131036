"""`override_torch`: PyTorch's own products of native BSR tensors, computed by this package."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import (
    TorchFunctionMode,
    _len_torch_function_stack,
    _pop_mode,
    _push_mode,
)
from torch.utils._device import DeviceContext

from .functional import linear, matmul
from .matrix_checks import VALUE_DTYPES, is_dense

_LAYOUTS = (torch.sparse_bsr, torch.sparse_bsc)


def _is_native(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout in _LAYOUTS
        and value.dim() == 2
        and value.dtype in VALUE_DTYPES
    )


def _is_ours(a: Any, b: Any) -> bool:
    """One native block-sparse matrix and one dense operand of its dtype, not a scalar."""
    return (
        ((_is_native(a) and is_dense(b)) or (is_dense(a) and _is_native(b)))
        and a.dtype == b.dtype
        and a.dim() > 0
        and b.dim() > 0
    )


# Each returns NotImplemented for what torch shall do, or refuse, itself.


def _matmul(input: Any, other: Any, out: Any = None) -> Any:
    if not _is_ours(input, other):
        return NotImplemented
    if out is not None and (not is_dense(out) or out.shape != _result_shape(input, other)):
        return NotImplemented  # torch resizes it
    return matmul(input, other, out=out)


def _result_shape(a: Tensor, b: Tensor) -> tuple[int, ...]:
    if a.dim() == 1:
        return (b.shape[-1],)
    if b.dim() == 1:
        return tuple(a.shape[:-1])
    lead = b.shape[:-2] if _is_native(a) else a.shape[:-2]
    return (*lead, a.shape[-2], b.shape[-1])


def _mm(input: Any, mat2: Any, out: Any = None) -> Any:
    if not _is_ours(input, mat2) or input.dim() != 2 or mat2.dim() != 2:
        return NotImplemented
    return _matmul(input, mat2, out)


def _mv(input: Any, vec: Any, out: Any = None) -> Any:
    if not _is_ours(input, vec) or input.dim() != 2 or vec.dim() != 1:
        return NotImplemented
    return _matmul(input, vec, out)


def _addmm(input: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    if not is_dense(input) or not _is_ours(mat1, mat2) or mat1.dim() != 2 or mat2.dim() != 2:
        return NotImplemented
    if input.dtype != mat1.dtype:
        return NotImplemented
    # A vector that the kernels add themselves: one value per column of dense @ BSR.
    if alpha == 1 and beta == 1 and _is_native(mat2) and input.shape == mat2.shape[1:]:
        return matmul(mat1, mat2, bias=input)
    product = matmul(mat1, mat2)
    if beta == 0:  # input is not read then, whatever it holds
        return product * alpha
    scaled = input if beta == 1 else input * beta
    return torch.add(scaled.expand_as(product), product, alpha=alpha)


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    if not is_dense(input) or not _is_native(weight) or not _is_ours(input, weight):
        return NotImplemented
    return linear(input, weight, bias)


# With the names of the positional arguments, and of those given by name alone.
_REPLACEMENTS: dict[Any, tuple[Callable[..., Any], tuple[str, ...], set[str]]] = {
    torch.matmul: (_matmul, ("input", "other"), {"out"}),
    Tensor.matmul: (_matmul, ("input", "other"), set()),
    Tensor.__matmul__: (_matmul, ("input", "other"), set()),
    torch.mm: (_mm, ("input", "mat2"), {"out"}),
    Tensor.mm: (_mm, ("input", "mat2"), set()),
    torch.mv: (_mv, ("input", "vec"), {"out"}),
    Tensor.mv: (_mv, ("input", "vec"), set()),
    torch.addmm: (_addmm, ("input", "mat1", "mat2"), {"alpha", "beta"}),
    Tensor.addmm: (_addmm, ("input", "mat1", "mat2"), {"alpha", "beta"}),
    torch.nn.functional.linear: (_linear, ("input", "weight", "bias"), set()),
}


class _Override(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _REPLACEMENTS:
            replacement, names, options = _REPLACEMENTS[func]
            given = dict(zip(names, args, strict=False)) | kwargs
            # Whoever passes anything else, or too little, means torch.
            required = set(names) - {"bias"}
            if len(args) <= len(names) and required <= set(given) <= {*names, *options}:
                result = replacement(**given)
                if result is not NotImplemented:
                    return result
        return func(*args, **kwargs)


_switched = threading.local()


def _switch(enabled: bool) -> None:
    """Puts a mode under those that others entered, who will leave by popping theirs, or removes it.

    Above torch's own for ``set_default_device``, which counts on being the lowest. That of ``with
    torch.device(…)``, of the same class, is popped like any other; it was entered without
    ``__enter__``, which remembers a device.
    """
    stack = [_pop_mode() for _ in range(_len_torch_function_stack())][::-1]
    mode = getattr(_switched, "mode", None)
    stack = [entered for entered in stack if entered is not mode]
    _switched.mode = _Override() if enabled else None
    if enabled:
        default = stack and isinstance(stack[0], DeviceContext) and hasattr(stack[0], "old_device")
        stack.insert(1 if default else 0, _switched.mode)
    for entered in stack:
        _push_mode(entered)


class override_torch:  # noqa: N801  used like torch.no_grad
    """Makes torch's products of native BSR tensors use this package, in eager mode.

    As a context manager, ``with override_torch(): ...``, for the body; as a switch,
    ``override_torch(True)``, until ``override_torch(False)``. Both affect only the calling thread,
    and replace none of torch's kernels: afterwards torch behaves as before.

    ``@``, ``torch.matmul``, ``mm``, ``mv``, ``addmm`` and ``torch.nn.functional.linear``, as
    functions and as methods, are overridden if one operand is a ``torch.sparse_bsr`` matrix or its
    transpose (``torch.sparse_bsc``) and the other is dense and has the same dtype. ``alpha`` and
    ``beta`` of addmm are applied outside the kernel. Everything else goes to torch.

    Args:
        enabled: None for the context manager; True or False switches immediately.

    Raises:
        TypeError: ``enabled`` is neither None nor a bool.
    """

    def __init__(self, enabled: bool | None = None) -> None:
        if enabled is not None and not isinstance(enabled, bool):
            raise TypeError(f"enabled must be None, True or False, got {enabled!r}")
        self._mode: _Override | None = None
        if enabled is not None:
            _switch(enabled)

    def __enter__(self) -> None:
        if self._mode is not None:
            raise RuntimeError("this override_torch() is entered already: make another")
        self._mode = _Override()
        self._mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        mode, self._mode = self._mode, None
        assert mode is not None
        mode.__exit__(*error)

"""Modes of torch functions that are entered and left in any order."""

from __future__ import annotations

from torch.overrides import (
    TorchFunctionMode,
    _len_torch_function_stack,
    _pop_mode,
    _push_mode,
)
from torch.utils._device import DeviceContext


def _popped() -> list[TorchFunctionMode]:
    return [_pop_mode() for _ in range(_len_torch_function_stack())][::-1]


def leave(mode: TorchFunctionMode | None) -> None:
    """Takes a mode of this thread off, wherever it stands."""
    for entered in _popped():
        if entered is not mode:
            _push_mode(entered)


def enter_lowest(mode: TorchFunctionMode) -> None:
    """Puts a mode under those that others entered, who will leave by popping theirs.

    Above torch's own for ``set_default_device``, which counts on being the lowest. That of ``with
    torch.device(…)``, of the same class, is popped like any other; it was entered without
    ``__enter__``, which remembers a device.
    """
    stack = _popped()
    default = stack and isinstance(stack[0], DeviceContext) and hasattr(stack[0], "old_device")
    stack.insert(1 if default else 0, mode)
    for entered in stack:
        _push_mode(entered)

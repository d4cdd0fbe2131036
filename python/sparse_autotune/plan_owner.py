"""The plan of a pattern goes when the last matrix on it goes."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _tuner
from ._torch.transforms import is_functorch_wrapped_tensor, is_plainly_eager


class PlanOwner:
    """Lives as long as any matrix that shares one pair of index tensors; then its plan goes.

    A method, as ``weakref.finalize`` takes 5 us of each new pattern.
    """

    __slots__ = ("__weakref__", "_pointers")

    def __init__(self, *pointers: int) -> None:
        self._pointers = pointers
        _tuner.own_indices(*pointers)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending():  # a process that ends needs no cleaning
            _tuner.disown_indices(*self._pointers)


def own_plan(crow_indices: Tensor, col_indices: Tensor) -> PlanOwner | None:
    """An owner for the plan of two index tensors; None for tensors that never have one.

    Compiled code makes none: its matrices are gone when it is, and Dynamo cannot guard what a
    finalizer holds on to. Their plans go when the cache wants room, as those of native tensors.
    """
    if not is_plainly_eager() and torch.compiler.is_compiling():
        return None
    if not (_has_plan(crow_indices) and _has_plan(col_indices)):
        return None
    return PlanOwner(crow_indices.data_ptr(), col_indices.data_ptr())


def _has_plan(indices: Any) -> bool:
    """Fake and meta tensors have no address, nor have those that torch.func wraps."""
    return (
        type(indices) is Tensor and not indices.is_meta and not is_functorch_wrapped_tensor(indices)
    )


def at_end_of(thing: Any, call: Callable[..., None], *args: int) -> weakref.finalize[..., Any]:
    """Calls ``call(*args)`` once: when ``thing`` ends, or when the result is called."""
    end = weakref.finalize(thing, call, *args)
    end.atexit = False  # a process that ends needs no cleaning
    return end

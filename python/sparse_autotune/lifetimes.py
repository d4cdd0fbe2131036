"""What the library keeps for a matrix goes when the matrix goes: plans and copies of its values."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from . import _tuner


class PlanOwner:
    """Lives as long as any BsrTensor that shares one pair of index tensors; then its plan goes."""

    __slots__ = ("__weakref__",)


def own_plan(crow_indices: Tensor, col_indices: Tensor) -> PlanOwner | None:
    """An owner for the plan of two index tensors; None for tensors that never have one."""
    # Fake and meta tensors have no address, and never a plan.
    if type(crow_indices) is not Tensor or type(col_indices) is not Tensor or crow_indices.is_meta:
        return None
    owner = PlanOwner()
    at_end_of(owner, _tuner.drop_plan, crow_indices.data_ptr(), col_indices.data_ptr())
    return owner


def at_end_of(thing: Any, call: Callable[..., None], *args: int) -> weakref.finalize[..., Any]:
    """Calls ``call(*args)`` once: when ``thing`` ends, or when the result is called."""
    end = weakref.finalize(thing, call, *args)
    end.atexit = False  # a process that ends needs no cleaning
    return end

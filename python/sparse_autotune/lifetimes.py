"""What the library keeps for a matrix goes when the matrix goes: plans and copies of its values."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from . import _tuner, checks
from .matrix_checks import Components, check_indices
from .ops import bsr_prepare

_Self = TypeVar("_Self", bound="Kept")


class PlanOwner:
    """Lives as long as any BsrTensor that shares one pair of index tensors; then its plan goes."""

    __slots__ = ("__weakref__", "_has_products")

    def __init__(self) -> None:
        self._has_products = False

    def is_first_product(self) -> bool:
        """Whether nobody has asked before: there is no plan for that one to find."""
        first = not self._has_products
        self._has_products = True
        return first


def own_plan(crow_indices: Tensor, col_indices: Tensor) -> PlanOwner | None:
    """An owner for the plan of two index tensors; None for tensors that never have one.

    Compiled code makes none: its matrices are gone when it is, and Dynamo cannot guard what a
    finalizer holds on to. Their plans go when the cache wants room, as those of native tensors.
    """
    if torch.compiler.is_compiling():
        return None
    # Fake and meta tensors have no address, and never a plan.
    if type(crow_indices) is not Tensor or type(col_indices) is not Tensor or crow_indices.is_meta:
        return None
    owner = PlanOwner()
    pointers = crow_indices.data_ptr(), col_indices.data_ptr()
    _tuner.own_indices(*pointers)
    at_end_of(owner, _tuner.disown_indices, *pointers)
    return owner


def at_end_of(thing: Any, call: Callable[..., None], *args: int) -> weakref.finalize[..., Any]:
    """Calls ``call(*args)`` once: when ``thing`` ends, or when the result is called."""
    end = weakref.finalize(thing, call, *args)
    end.atexit = False  # a process that ends needs no cleaning
    return end


class Kept:
    """A matrix for which the library keeps a plan and, while it is frozen, copies of its values."""

    __slots__ = ("__weakref__", "_drop_copies", "_frozen", "_frozen_version")

    _values: Tensor

    def _parts(self) -> Components:
        raise NotImplementedError

    def _pointers(self) -> tuple[int, int, int]:
        """Where crow_indices, col_indices and values lie."""
        crow_indices, col_indices, values = self._parts()[:3]
        return crow_indices.data_ptr(), col_indices.data_ptr(), values.data_ptr()

    def _start_thawed(self) -> None:
        self._frozen = False
        self._frozen_version: int | None = None
        self._drop_copies: weakref.finalize[..., Any] | None = None

    def prepare(self: _Self) -> _Self:
        """Checks the indices and builds the plan now instead of in the first product.

        Call it before capturing a CUDA graph. Returns self.

        Raises:
            ValueError: the indices are not those of a BSR matrix.
        """
        parts = self._parts()
        try:
            bsr_prepare(*parts[:2], *parts[3:5], *parts.values.shape[-2:])
        except RuntimeError:
            check_indices(parts)
            raise
        return self

    def invalidate(self: _Self) -> _Self:
        """Drops the plan and the converted copies of this matrix. Returns self.

        In-place edits of indices are detected automatically, except, on a GPU, edits of tensors
        created under ``torch.inference_mode`` and writes that bypass torch's version counters.
        """
        crow_indices, col_indices, values = self._pointers()
        _tuner.drop_frozen(crow_indices, col_indices, values)
        _tuner.drop_plan(crow_indices, col_indices)
        return self

    def freeze(self: _Self) -> _Self:
        """Promises, in place, that ``values`` will not change until `thaw`. Returns self.

        Variants may then keep a converted copy of them. A change that torch's version counter shows
        raises RuntimeError at the next product; changes through ``.data``, raw writes and changes
        of tensors created under ``torch.inference_mode`` go undetected.

        Raises:
            RuntimeError: the values require grad, or the matrix is a batch.
        """
        checks.check_freezable(self._values)
        if self._values.dim() == 4:
            raise RuntimeError("a batch cannot be frozen: freeze its matrices, from unbind()")
        version = None if self._values.is_inference() else self._values._version
        if self._frozen and (version is None or version != self._frozen_version):
            self.thaw()  # a new promise, about values that changed or may have
        if self._drop_copies is None:
            self._drop_copies = at_end_of(self, _tuner.drop_frozen, *self._pointers())
        self._frozen_version = version
        self._frozen = True
        return self

    def thaw(self: _Self) -> _Self:
        """Revokes `freeze` and drops the converted copies, in place. Returns self."""
        self._frozen = False
        self._frozen_version = None
        if self._drop_copies is not None:
            self._drop_copies()
            self._drop_copies = None
        return self

    def check_frozen(self) -> None:
        """Raises RuntimeError if the values changed since `freeze`."""
        if self._frozen_version is not None and self._values._version != self._frozen_version:
            raise checks.frozen_values_changed(self._frozen_version, self._values._version)

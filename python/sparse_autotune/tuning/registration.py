"""`register_variant`: kernels of others, as Python callables, that race like this package's."""

from __future__ import annotations

import _thread
import atexit
import itertools
import re
import threading
from collections.abc import Callable
from typing import Any, get_args

import torch

from .. import _tuner
from ..checks.variant_names import unknown
from ..choices import DeviceType
from .registered_calls import KINDS, Kind, Op

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_VERSION = re.compile(r"[a-z0-9_]{1,32}")
_LIBRARY = "sparse_autotune_variants"
# What the operator returns.
_DONE, _FAILED, _OUT_OF_MEMORY = 0, 1, 2

_SECONDS_TO_AN_INTERRUPT = 0.01

Supports = Callable[[Any], bool | str]

_serial = itertools.count()
_last = threading.local()  # the text of the thread's last failure
# Operators live as long as their library, and C++ calls them by name.
_libraries: list[torch.library.Library] = []


def _refusal(supports: Supports | None, kind: Kind) -> Callable[[str], str]:
    """Why the callable does not compute the problem of that text; empty where it does."""

    def refusal(problem: str) -> str:
        if supports is None:
            return ""
        try:
            answer = supports(kind.problem(dict(word.split("=") for word in problem.split())))
        except Exception as error:
            return f"its supports() raised {type(error).__name__}: {error}"
        if answer is True:
            return ""
        if isinstance(answer, str) and answer:
            return answer
        return f"its supports() returned {answer!r}, neither True nor a reason"

    return refusal


def _checked_call(call: Callable[..., None]) -> Callable[..., int]:
    """The operator's code: what it raises becomes a number, and its text is kept."""

    def run(*operands: Any) -> int:
        try:
            with torch.no_grad():
                call(*operands)
            return _DONE
        except torch.OutOfMemoryError as error:
            _last.text = f"{type(error).__name__}: {error}"
            return _OUT_OF_MEMORY
        except KeyboardInterrupt:
            # No exception passes through the product. Raised again once this function has ended, in
            # Python code of the user's or of the race's, which then stops.
            threading.Timer(_SECONDS_TO_AN_INTERRUPT, _thread.interrupt_main).start()
            _last.text = "interrupted"
            return _FAILED
        except BaseException as error:
            _last.text = f"{type(error).__name__}: {error}"
            return _FAILED

    return run


def _operator(fn: Callable[..., Any], kind: Kind) -> str:
    """A new operator that calls ``fn``, by its name."""
    name = f"v{next(_serial)}"
    library = torch.library.Library(_LIBRARY, "FRAGMENT")
    library.define(f"{name}({kind.parameters}) -> int")
    library.impl(name, _checked_call(kind.calls(fn)), "CompositeExplicitAutograd")
    _libraries.append(library)
    return f"{_LIBRARY}::{name}"


def _check_name(argument: str, value: object, rule: re.Pattern[str]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a string, got {type(value).__name__}")
    if not rule.fullmatch(value):
        raise ValueError(f"{argument} must match {rule.pattern}; got {value!r}")


def _check_callable(argument: str, value: object) -> None:
    if not callable(value):
        raise TypeError(f"{argument} must be callable, got {type(value).__name__}")


class RegisteredVariant:
    """A variant that `register_variant` made known.

    Attributes:
        name: its full name, "name/version".
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._known = True

    def unregister(self) -> None:
        """Ends it: later products choose among the others. Calling it again changes nothing."""
        if self._known:
            self._known = False
            _tuner.unregister_variant(self.name)
            atexit.unregister(self.unregister)

    def __repr__(self) -> str:
        return f"RegisteredVariant({self.name!r}{'' if self._known else ', unregistered'})"


def register_variant(
    name: str,
    fn: Callable[..., Any],
    *,
    version: str = "1",
    op: Op = "matmul",
    supports: Supports | None = None,
    deterministic: bool = True,
    multiplies_padding: bool = False,
    captures: bool = False,
    device: DeviceType = "cuda",
) -> RegisteredVariant:
    """Lets a Python callable take part in races, as a variant like this package's own.

    It is verified and timed with the others, can win, is remembered, reported and forced by its
    name. It has no cost model: it is never chosen without a measurement, unless nothing else can
    compute a product. On a GPU its kernels are timed alone, if a CUDA graph can hold them
    (``captures``), and Python's time for the call counts outside of graphs; else it is timed
    eagerly, as the report then says, and is not chosen inside of a capture. Under `torch.compile`
    it is part of the opaque product that chose it.

    For "matmul" the callable is called as ``fn(crow_indices, col_indices, values, b, *, out, bias,
    activation, transpose, positions)`` and writes ``activation(op(A) @ b + bias[:, None])`` into
    ``out``, all of it, in any manner that PyTorch's current stream orders:

    - ``crow_indices`` (block rows + 1,) and ``col_indices`` (nnzb,) are the pattern of op(A),
      which is A, or its transpose where ``transpose`` is true;
    - ``values`` (nnzb, block_m, block_k) are blocks of op(A), strided views where ``transpose`` is
      true; block i of the pattern is ``values[positions[i]]``, or ``values[i]`` where ``positions``
      is None, exactly where ``transpose`` is false;
    - ``b`` (k, n) and ``out`` (m, n) are row-major or column-major, of any leading dimension;
    - ``bias`` is (m,) or None, ``activation`` a name or None.

    For "sampled_matmul" it is called as ``fn(crow_indices, col_indices, x, y, *, out)``, with ``x``
    (m, n) and ``y`` (n, k), and writes the blocks of ``x @ y`` into ``out`` (nnzb, block_m,
    block_k).

    For "attention" it is called as ``fn(q, k, v, mask, *, out, lse, is_causal, scale)`` and writes
    all of ``out``, which lies in memory as `attention` returns it, and ``lse``, zeros and
    minus infinity where a query sees no key. ``mask`` is a `BlockMask` with leading dimensions
    (batch or 1, heads or 1) and ``mask.is_causal == is_causal``, or None. If a kernel needs another
    form, such as ``mask.to_flex_attention()``, the callable makes it, and is timed with it.

    For "attention_backward" it is called as ``fn(grad_out, q, k, v, out, lse, mask, *, grad_q,
    grad_k, grad_v, grad_lse, by_column, is_causal, scale)`` and writes the three gradients, which
    lie likewise; ``grad_lse`` may be None, ``out`` and ``lse`` are of whoever computed them, and
    ``by_column`` is what ``mask.by_column()`` gives, or None.

    Args:
        name: of the family: lower-case letters, digits and underscores.
        fn: the callable. What it raises is a failure to launch.
        version: of the kernel, of such characters too. Both are remembered with the races: under a
            new version it races again.
        op: what it computes: "matmul", "sampled_matmul", "attention" or "attention_backward".
        supports: called with a `VariantProblem`, or an `AttentionProblem` of attention; True, or
            why not, as a string. None: all.
        deterministic: whether equal calls give equal results.
        multiplies_padding: whether it multiplies blocks that are not stored.
        captures: whether a CUDA graph can hold what it does: kernels alone, on PyTorch's current
            stream, without waiting for the GPU. A race does not try, as CUDA refuses to synchronise
            the device in every thread while one of them captures.
        device: "cuda" or "cpu".

    Returns:
        Its handle, with `unregister`. It stays known until then.

    Raises:
        TypeError: ``fn`` or ``supports`` cannot be called, or a name is no string.
        ValueError: a name is unfit, or taken.
    """
    _check_name("name", name, _NAME)
    _check_name("version", version, _VERSION)
    _check_callable("fn", fn)
    if supports is not None:
        _check_callable("supports", supports)
    if op not in tuple(KINDS):
        raise unknown("op", op, KINDS)
    if device not in get_args(DeviceType):
        raise unknown("device", device, get_args(DeviceType))
    full = f"{name}/{version}"
    _tuner.register_variant(
        full,
        dispatched=_operator(fn, KINDS[op]),
        device=device,
        op=op,
        deterministic=bool(deterministic),
        multiplies_padding=bool(multiplies_padding),
        captures=bool(captures),
        refusal=_refusal(supports, KINDS[op]),
        failure=lambda: getattr(_last, "text", "it failed"),
    )
    handle = RegisteredVariant(full)
    atexit.register(handle.unregister)  # nothing calls Python when it has ended
    return handle

"""`set_process_group`: ranks of a job choose the same variant for the same signature.

They agree through the process group's store, not by collective calls, which would wait for every
rank. Of each signature the store holds what all go by: the text of a record or, where the cost
model is to choose, nothing but a mark. The first rank that has an entry puts it there. Where no
rank has, the first that would race does so, and the others wait for it, but not forever.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from numbers import Real
from typing import TYPE_CHECKING

from . import _tuner, cache
from ._torch.compiling import never_traced
from .settings import settings

if TYPE_CHECKING:
    import torch.distributed as dist

# In place of a record: there is none, and there will be none.
_NO_RECORD = b"-"
_SECONDS_BETWEEN_LOOKS = 0.01


class _Agreement:
    def __init__(self, store: dist.Store, rank: int, timeout_s: float) -> None:
        self._store = store
        self._rank = rank
        self._timeout_s = timeout_s
        self._mine: set[str] = set()  # signatures that this rank races for all
        self._is_lost = False

    def _lose(self, error: Exception) -> None:
        self._is_lost = True
        text = f"the store of the process group is gone ({error}); the cost model chooses variants"
        cache.warn_once("store of the process group", text)

    def _published(self, key: str) -> bytes | None:
        return (
            bytes(self._store.get(f"{key}/entry")) if self._store.check([f"{key}/entry"]) else None
        )

    def _publish(self, key: str, entry: bytes) -> bytes:
        """What all go by: that, or what was there before."""
        return bytes(self._store.compare_set(f"{key}/entry", "", entry.decode("ascii")))

    def load(self, device_class: str, signature: str) -> str | None:
        own = cache.read(device_class, signature)
        if self._is_lost:
            return None
        key = f"{device_class}/{signature}"
        try:
            agreed = self._published(key)
            if agreed is None and _is_entry(own, device_class, signature):
                agreed = self._publish(key, str(own).encode("ascii"))
            elif agreed is None and settings.mode != "on":
                agreed = self._publish(key, _NO_RECORD)
        except RuntimeError as error:
            self._lose(error)
            return None
        if agreed is None:
            return own
        if agreed == _NO_RECORD:
            return None
        text = agreed.decode("ascii")
        if text != own and settings.mode == "on":
            cache.write(device_class, signature, text)
        return text

    def may_race(self, device_class: str, signature: str) -> bool:
        if self._is_lost:
            return False
        key = f"{device_class}/{signature}"
        try:
            if self._store.add(f"{key}/claims", 1) == 1:
                self._mine.add(key)
                return True
            if not self._is_done(key):
                self._end(key)
            if self._published(key) == _NO_RECORD:
                text = (
                    f"no rank's race of {signature} came to a winner within {self._timeout_s:g} s; "
                    f"the cost model chose on rank {self._rank}"
                )
                cache.warn_once(f"waiting for {signature}", text)
        except RuntimeError as error:
            self._lose(error)
        return False

    def _is_done(self, key: str) -> bool:
        end = time.monotonic() + self._timeout_s
        while not self._store.check([f"{key}/done"]):
            if time.monotonic() > end:
                return False
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return True

    def _end(self, key: str) -> None:
        """There is no winner, unless there is one by now."""
        self._publish(key, _NO_RECORD)
        self._store.set(f"{key}/done", "1")

    def save(self, device_class: str, signature: str, text: str) -> None:
        key = f"{device_class}/{signature}"
        try:
            agreed = self._published(key)
            if agreed is None or (key in self._mine and agreed != _NO_RECORD):
                self._store.set(f"{key}/entry", text)
            elif agreed.decode("ascii") != text:
                _tuner.forget()  # what was measured too late, or by `tune`: the others' stays
            self._store.set(f"{key}/done", "1")
        except RuntimeError as error:
            self._lose(error)
        self._mine.discard(key)

    def has_no_winner(self, device_class: str, signature: str) -> None:
        key = f"{device_class}/{signature}"
        if key in self._mine and not self._is_lost:
            self._mine.discard(key)
            try:
                self._end(key)
            except RuntimeError as error:
                self._lose(error)


def _is_entry(text: str | None, device_class: str, signature: str) -> bool:
    """Whether it is one that the core would take."""
    if text is None:
        return False
    try:
        record = _tuner.parse_record(text)
    except ValueError:
        return False
    return bool(record["winner"]) and (
        (record["device_class"], record["signature"]) == (device_class, signature)
    )


_current: _Agreement | None = None
# How often each group was set: its ranks do so equally often.
_times: Counter[tuple[int, ...]] = Counter()


@never_traced
def load(device_class: str, signature: str) -> str | None:
    """The record that this process goes by; None where there is none."""
    if _current is not None:
        return _current.load(device_class, signature)
    return cache.read(device_class, signature)


@never_traced
def may_race(device_class: str, signature: str) -> bool:
    """Whether this process races; if not, waits for the rank that does."""
    return _current is None or _current.may_race(device_class, signature)


def saved(device_class: str, signature: str, text: str) -> None:
    """Tells the other ranks of a race."""
    if _current is not None:
        _current.save(device_class, signature, text)


def has_no_winner(device_class: str, signature: str) -> None:
    """Tells the other ranks that a race has led to nothing."""
    if _current is not None:
        _current.has_no_winner(device_class, signature)


def set_process_group(group: dist.ProcessGroup | None, *, timeout_s: float = 60.0) -> None:
    """Lets all ranks of a group choose the same variant for the same kind of product.

    A kind is decided by the rank that first meets it: by its entry if it has one, else by its race,
    for which ranks that meet the kind meanwhile wait. No rank waits for ranks that do not come, and
    none waits longer than ``timeout_s``: then the cost model chooses, after a warning, on all of
    them. What was agreed is written to each rank's cache. `tune` changes entries for later jobs,
    not what is agreed. Ranks agree for devices of one kind; `cache.digest` is equal on ranks that
    met the same kinds and agree. Neither variants nor this function synchronise ranks.

    Args:
        group: a group of `torch.distributed` that this process belongs to; all its ranks set it,
            equally often. None: each process chooses for itself again.
        timeout_s: seconds to wait for another rank's race.

    Raises:
        TypeError: ``group`` is no process group.
        ValueError: this process is not in the group, or ``timeout_s`` is not a positive number.
    """
    global _current
    if not isinstance(timeout_s, Real) or not 0 < timeout_s < math.inf:
        raise ValueError(
            f"timeout_s must be a positive, finite number of seconds; got {timeout_s!r}"
        )
    _current = None if group is None else _agreement(group, float(timeout_s))
    _tuner.forget()


def _agreement(group: dist.ProcessGroup, timeout_s: float) -> _Agreement:
    import torch.distributed as dist

    from ._torch.distributed import store_of_all_ranks

    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group must be a process group or None, got {type(group).__name__}")
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError("group must be one that this process belongs to")
    ranks = tuple(dist.get_process_group_ranks(group))
    _times[ranks] += 1
    name = "-".join(map(str, ranks))
    prefix = f"sparse_autotune/{name}/{_times[ranks]}"
    return _Agreement(store_of_all_ranks(prefix), rank, timeout_s)

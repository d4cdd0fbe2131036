"""What a tuning tells its user: log lines, a progress bar, and the cache it saves to.

The compiled core calls `save`, `report` and `reclaim`, as it calls `ranks.load` and
`ranks.may_race`, from any thread, holding none of the locks that these might wait for.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, TypeVar

import torch

from .. import _tuner, cache, missed_products, ranks
from .._torch.compiling import never_traced
from ..settings import settings
from .report import significant, what_failed

logger = logging.getLogger("sparse_autotune")
# Below this a bar would only flicker.
_SECONDS_BEFORE_BAR = 2.0
T = TypeVar("T")
_BAR = "sparse_autotune: {percentage:3.0f}%|{bar}| {desc}"
_BAR_OF_MANY = "sparse_autotune: {n_fmt}/{total_fmt}|{bar}| {desc}"
# Families that multiply the zeros too.
DENSE = ("dense", "cublas_dense")


class _Stderr(logging.StreamHandler):
    """Writes to what sys.stderr is now (Jupyter replaces it), unless the root logger writes."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


class _Local(threading.local):
    silent = False
    barless = False
    started = 0.0
    saved: str | None = None
    bar: Any = None


_local = _Local()


@contextmanager
def silenced(bar: bool = True) -> Iterator[None]:
    """No log lines for races of this thread, whose caller shows the result itself.

    Nor a bar for each race, if the caller has one for all.
    """
    before = _local.silent, _local.barless
    _local.silent, _local.barless = True, not bar
    try:
        yield
    finally:
        _local.silent, _local.barless = before
        _close_bar()


def _say(text: str) -> None:
    if settings.verbosity > 0 and not _local.silent:
        logger.info(text)


def _watched() -> bool:
    return sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)


def _bar(*steps: Iterable[Any], **options: Any) -> Any:
    """One of tqdm's; None without tqdm, and where nobody watches."""
    if settings.verbosity == 0 or not _watched():
        return None
    try:
        with warnings.catch_warnings():  # its advice to a notebook without widgets
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
    except ImportError:
        return None
    # By itself tqdm would wait for steps as large as the first, half of the bar.
    return tqdm(*steps, miniters=1, **options)


def with_progress(steps: list[T], **options: Any) -> Iterable[T]:
    """The steps, with a progress bar while they are walked through."""
    bar = _bar(steps, **options)
    return steps if bar is None else bar


@contextmanager
def bar_of(total: int, wanted: bool) -> Iterator[Callable[[str], None]]:
    """A bar for many races, where somebody watches; call what it yields before each of them."""
    bar = _bar(total=total, leave=False, bar_format=_BAR_OF_MANY) if wanted else None

    def begin(what: str) -> None:
        if bar is not None:
            bar.update(0 if bar.desc == "" else 1)
            bar.set_description_str(what)

    try:
        with silenced(bar=False):
            yield begin
    finally:
        if bar is not None:
            bar.close()


def _progress(fraction: float, variant: str) -> None:
    if _local.bar is None:
        if _local.barless or time.monotonic() - _local.started < _SECONDS_BEFORE_BAR:
            return
        _local.bar = _bar(total=100, leave=False, bar_format=_BAR)
        if _local.bar is None:
            return
    _local.bar.set_description_str(variant, refresh=False)
    _local.bar.update(int(100 * fraction) - _local.bar.n)


def _close_bar() -> None:
    if _local.bar is not None:
        _local.bar.close()
        _local.bar = None


def _family_line(family: str, entrants: list[dict[str, Any]], nnz_flops: float) -> str:
    timed = [e for e in entrants if e["median_us"] > 0 and not what_failed(e)]
    failed = [e for e in entrants if what_failed(e)]
    said = []
    if timed:
        us = timed[0]["median_us"]  # they come fastest first
        rate = significant(nnz_flops / us / 1e6, 3)
        said.append(f"{significant(us, 4):>8} µs  {rate:>5} TFLOP/s (nnz)")
    if failed:
        count = f"{len(failed)} of {len(entrants)} failed, " if len(entrants) > 1 else ""
        said.append(f"{count}{failed[0]['name']}: {what_failed(failed[0])}")
    if not said:
        said.append(f"{entrants[0]['status']}: {entrants[0]['reason']}")
    return f"  {family:20} {'; '.join(said)}"


def _winner_line(race: dict[str, Any], saved: str | None) -> str:
    winner = race["winner"]
    if not winner:
        return f"  no winner: {race['failure'] or 'every variant failed'}"
    line = f"  winner: {winner}"
    if winner.split("/")[0] in DENSE:
        us = {e["name"]: e["median_us"] for e in race["entrants"] if e["median_us"] > 0}
        sparse = next((name for name in us if name.split("/")[0] not in DENSE), None)
        line += f" (dense wins: {significant(us[winner], 4)} µs"
        if sparse is not None:
            line += f", the best sparse variant, {sparse}, {significant(us[sparse], 4)} µs"
        line += ")"
    return f"{line}, {saved}" if saved else line


def race_lines(race: dict[str, Any], saved: str | None) -> list[str]:
    """A race as text: the best of each family, who failed, then the winner."""
    families: dict[str, list[dict[str, Any]]] = {}
    for entrant in race["entrants"]:
        families.setdefault(entrant["name"].split("/")[0], []).append(entrant)
    lines = [_family_line(*family, race["nnz_flops"]) for family in families.items()]
    return [*lines, _winner_line(race, saved)]


@never_traced
def save(device_class: str, signature: str, text: str) -> None:
    """The core hands over a race to remember."""
    file = cache.write(device_class, signature, text)
    _local.saved = "kept in memory only" if file is None else f"saved to {file}"
    ranks.saved(device_class, signature, text)


@never_traced
def report(event: dict[str, Any]) -> None:
    """The core tells of a race, a miss or a problem."""
    kind = event["kind"]
    if kind == "start":
        _close_bar()
        _local.started, _local.saved = time.monotonic(), None
        _say(f"sparse_autotune: tuning {event['description']} on {event['device']}")
    elif kind == "progress":
        _progress(event["fraction"], event["variant"])
    elif kind == "finish":
        _close_bar()
        race = _tuner.parse_record(event["record"])
        if not race["winner"]:
            ranks.has_no_winner(race["device_class"], race["signature"])
        for line in race_lines(race, _local.saved):
            _say(line)
    elif kind == "missed":
        _say(f"sparse_autotune: not tuned: {event['description']} ({event['signature']})")
        missed_products.append(event)
    elif kind == "warning":
        # What comes before " of " is the topic, what follows the instance.
        cache.warn_once(event["text"].partition(" of ")[0], event["text"])


@never_traced
def reclaim(ordinal: int) -> None:
    """The core finds no memory on a GPU, of which torch keeps what was used and may be again."""
    with suppress(RuntimeError):  # of a torch that does not while another thread captures a graph
        torch.cuda.empty_cache()


def _hear_out_torch() -> None:
    """Lets torch's beta warning, given once a process, pass unseen: a race uses sparse BSR tensors.

    Its user may never have done so, and with the filter "error" a product would fail for it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        indices = torch.zeros(1, dtype=torch.int64, device="cpu")
        values = torch.zeros(0, 1, 1, device="cpu")
        torch.sparse_bsr_tensor(indices, indices[:0], values, (0, 1), device="cpu")


def install() -> None:
    """Connects the core to this module, until the interpreter ends."""
    _hear_out_torch()
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.handlers:
        logger.addHandler(_Stderr())
    _tuner.install_host(ranks.load, save, report, reclaim, ranks.may_race)
    atexit.register(_tuner.remove_host)

"""What a tuning tells its user: log lines, a progress bar, and the cache it saves to.

The compiled core calls `load`, `save` and `report`, from any thread, holding none of its locks.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from . import _tuner, cache
from .settings import settings

logger = logging.getLogger("sparse_autotune")
# Below this a bar would only flicker.
_SECONDS_BEFORE_BAR = 2.0
# Families that multiply the zeros too.
_DENSE = ("dense", "cublas_dense")


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to whatever sys.stderr is now (Jupyter replaces it), unless the root logger is set up."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


class _Local(threading.local):
    silent = False
    started = 0.0
    saved: str | None = None
    bar: Any = None


_local = _Local()


@contextmanager
def silenced() -> Iterator[None]:
    """No log lines for races of this thread, whose caller shows the result itself."""
    before = _local.silent
    _local.silent = True
    try:
        yield
    finally:
        _local.silent = before


def _say(text: str) -> None:
    if settings.verbosity > 0 and not _local.silent:
        logger.info(text)


def _watched() -> bool:
    return sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)


def _progress(fraction: float, variant: str) -> None:
    if settings.verbosity == 0 or not _watched():
        return
    if _local.bar is None:
        if time.monotonic() - _local.started < _SECONDS_BEFORE_BAR:
            return
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return
        _local.bar = tqdm(total=100, desc="sparse_autotune", leave=False, bar_format="{l_bar}{bar}")
    _local.bar.set_postfix_str(variant, refresh=False)
    _local.bar.update(int(100 * fraction) - _local.bar.n)


def race_lines(record: dict[str, Any]) -> list[str]:
    """A race as text: the best of each family, then the winner."""
    best: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    for entrant in record["entrants"]:
        family = entrant["name"].split("/")[0]
        if entrant["median_us"] > 0 and entrant["status"] in ("ok", "eliminated"):
            best.setdefault(family, entrant)  # they come fastest first
        else:
            failed.setdefault(family, f"{entrant['status']}: {entrant['reason']}")
    lines = []
    for family, entrant in best.items():
        rate = record["nnz_flops"] / entrant["median_us"] / 1e6
        lines.append(f"  {family:20} {entrant['median_us']:10.4g} µs  {rate:.3g} TFLOP/s (nnz)")
    lines += [f"  {name:20} {why}" for name, why in failed.items() if name not in best]
    winner = record["winner"]
    if not winner:
        return [*lines, f"  no winner: {record['failure'] or 'every variant failed'}"]
    if winner.split("/")[0] in _DENSE:
        sparse = [e for family, e in best.items() if family not in _DENSE]
        if sparse:
            dense_us, other = best[winner.split("/")[0]]["median_us"], sparse[0]
            lines.append(
                f"  dense wins here: {winner} {dense_us:.4g} µs, the best sparse variant "
                f"{other['name']} {other['median_us']:.4g} µs"
            )
    return lines


def load(device_class: str, signature: str) -> str | None:
    """The core asks for a remembered race."""
    return cache.read(device_class, signature)


def save(device_class: str, signature: str, text: str) -> None:
    """The core hands over a race to remember."""
    file = cache.write(device_class, signature, text)
    _local.saved = str(file) if file is not None else "memory only"


def report(event: dict[str, Any]) -> None:
    """The core tells of a race, a miss or a problem."""
    kind = event["kind"]
    if kind == "start":
        _local.started, _local.saved = time.monotonic(), None
        _say(f"sparse_autotune: tuning {event['description']} on {event['device']}")
    elif kind == "progress":
        _progress(event["fraction"], event["variant"])
    elif kind == "finish":
        if _local.bar is not None:
            _local.bar.close()
            _local.bar = None
        record = _tuner.parse_record(event["record"])
        for line in race_lines(record):
            _say(line)
        if record["winner"]:
            where = f", saved to {_local.saved}" if _local.saved else ""
            _say(f"  winner: {record['winner']}{where}")
    elif kind == "missed":
        _say(f"sparse_autotune: not tuned: {event['description']} ({event['signature']})")
    elif kind == "warning":
        cache.warn_once(event["text"].split(" of ")[0], event["text"])


def install() -> None:
    """Connects the core to this module, until the interpreter ends."""
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.handlers:
        logger.addHandler(_Stderr())
    _tuner.install_host(load, save, report)
    atexit.register(_tuner.remove_host)

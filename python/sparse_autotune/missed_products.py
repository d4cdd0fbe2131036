"""What mode "record" writes: one JSON object a line, for each kind of product that it missed.

Many processes append to one file. Each looks for a kind under a lock before it writes, so that a
kind appears once; where there is no lock to be had, twice at worst, which does no harm.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from . import cache, private_files
from .choices import Buckets, DeviceType, Timing
from .settings import settings

_VERSION = 1
_MAX_BYTES = 64 << 20  # of the file
_MAX_LINE = 1 << 16
_LOCK_SECONDS = 1.0  # that a product may wait for other processes
_TEXTS = ("device_class", "signature", "device", "description", "selector", "timing", "buckets")


@dataclass(frozen=True)
class MissedProduct:
    """One line.

    Attributes:
        device_class: the kind of device.
        signature: the kind of problem, the name of its cache entry.
        device: the device's name.
        description: the problem in readable form.
        selector: the family that the product was limited to; empty: none.
        timing: ``settings.timing`` then.
        buckets: ``settings.buckets`` then.
        problem: the problem's fields, as the core names them.
    """

    device_class: str
    signature: str
    device: str
    description: str
    selector: str
    timing: Timing
    buckets: Buckets
    problem: dict[str, int | str]

    @property
    def device_type(self) -> DeviceType:
        """Where it runs."""
        return "cpu" if self.problem["device"] == "cpu" else "cuda"

    def problem_text(self) -> str:
        """The problem as the core reads it."""
        return " ".join(f"{key}={value}" for key, value in self.problem.items())


def path() -> Path:
    """The file that mode "record" appends to, which may not exist yet."""
    if settings.record_path is not None:
        return Path(settings.record_path)
    return cache.path() / "missed.jsonl"


def _number(text: str) -> int | str:
    return int(text) if text.removeprefix("-").isdecimal() else text


def _line_of(event: dict[str, Any]) -> tuple[bytes, bytes]:
    """The line for what the core tells of a miss, and what begins every line of that kind."""
    words = (word.split("=", 1) for word in event["problem"].split())
    problem = {key: _number(value) for key, value in words}
    facts = {name: event[name] for name in ("device_class", "signature")}
    head = json.dumps(facts)[:-1] + ", "
    facts = {name: event[name] for name in ("device", "description", "selector")}
    facts |= {"timing": settings.timing, "buckets": settings.buckets}
    facts |= {"version": _VERSION, "problem": problem}
    return (head + json.dumps(facts)[1:] + "\n").encode(), head.encode()


def append(event: dict[str, Any]) -> None:
    """Writes what the core tells of a miss, if no line says so yet. Never raises: one warning."""
    line, head = _line_of(event)
    file = path()
    try:
        with private_files.directory(file.parent, create=True) as directory:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            opened = os.open(file.name, flags | os.O_NONBLOCK, 0o600, dir_fd=directory)
            with os.fdopen(opened, "r+b", buffering=0):
                if not stat.S_ISREG(os.fstat(opened).st_mode):
                    raise OSError(errno.EINVAL, "not a regular file", str(file))
                _append(opened, line, head)
    except OSError as error:
        text = f"the record {file} of what was missed cannot be written ({error})"
        cache.warn_once("record of missed products", text)


def _append(file: int, line: bytes, head: bytes) -> None:
    _lock(file)
    size = os.fstat(file).st_size
    if size + len(line) > _MAX_BYTES:
        raise OSError(errno.EFBIG, f"it may have {_MAX_BYTES} bytes")
    content = b"\n" + os.pread(file, size, 0)
    if b"\n" + head in content:
        return
    # Behind the half line that a full disk or a killed process left.
    line = line if content.endswith(b"\n") else b"\n" + line
    if os.write(file, line) < len(line):
        raise OSError(errno.ENOSPC, "there is no room for a whole line")


def _lock(file: int) -> None:
    """Until the file is closed; goes without where others keep it, or there are no locks."""
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return None
            time.sleep(0.005)
        except OSError:
            return None


def _parsed(line: bytes) -> MissedProduct:
    if len(line) > _MAX_LINE:
        raise ValueError(f"it has more than {_MAX_LINE} bytes")
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(facts, dict) or facts.get("version") != _VERSION:
        raise ValueError(f"it is not an object of version {_VERSION}")
    problem = facts.get("problem")
    if not isinstance(problem, dict) or not all(type(facts.get(name)) is str for name in _TEXTS):
        raise ValueError(f"it must hold {', '.join(_TEXTS)} and problem")
    for name, known in (("timing", get_args(Timing)), ("buckets", get_args(Buckets))):
        if facts[name] not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}")
    plain = all(type(value) in (int, str) for value in problem.values())
    if not plain or problem.get("device") not in get_args(DeviceType):
        raise ValueError("its problem is none")
    return MissedProduct(**{name: facts[name] for name in _TEXTS}, problem=problem)


def read(file: str | os.PathLike[str]) -> tuple[list[MissedProduct], list[tuple[int, str]]]:
    """Each kind of product once, and the lines that are none: number and reason.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is too large, or no line of it is one of these.
    """
    with open(file, "rb") as stream:
        content = stream.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"path: {os.fspath(file)} has more than {_MAX_BYTES} bytes")
    found: dict[tuple[str, str], MissedProduct] = {}
    wrong = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            product = _parsed(line)
        except ValueError as error:
            wrong.append((number, str(error)))
        else:
            found.setdefault((product.device_class, product.signature), product)
    if wrong and not found:
        number, why = wrong[0]
        raise ValueError(
            f"path: {os.fspath(file)} is not a record of missed products: line {number}: {why}"
        )
    return list(found.values()), wrong

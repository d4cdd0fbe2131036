"""Which files of the cache go when it exceeds its bound: those of other environments first."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# What a process that was killed left behind; a write takes far less.
_SECONDS_OF_A_WRITE = 3600.0
Directories = Callable[[], Iterator[tuple[Path, int]]]


class _File(NamedTuple):
    directory: Path
    name: str
    bytes: int
    changed: float


def is_entry(name: str) -> bool:
    """Whether a file is one of ours, finished."""
    return name.endswith(".txt")


def is_temporary(name: str) -> bool:
    """Whether a file is one of ours that is being written, or never was to its end."""
    return name.startswith(".") and name.endswith(".tmp")


def _files(directories: Directories) -> Iterator[_File]:
    for directory, descriptor in directories():
        for name in filter(
            lambda name: is_entry(name) or is_temporary(name), os.listdir(descriptor)
        ):
            with suppress(OSError):  # it may go while we look
                state = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                yield _File(directory, name, state.st_size, state.st_mtime)


def prune(directories: Directories, is_ours: Callable[[Path], bool], most: int) -> tuple[int, int]:
    """Brings the files to ``most`` bytes. Returns how many entries went, and the bytes that stay.

    ``directories`` gives the directories of entries, each with a descriptor.
    """
    now = time.time()
    total, victims = 0, set()
    # What goes together: another environment, which is as old as its newest file, or an entry.
    groups: dict[Path | _File, list[_File]] = {}
    for file in _files(directories):
        if is_temporary(file.name) and abs(now - file.changed) > _SECONDS_OF_A_WRITE:
            victims.add((file.directory, file.name))
            continue
        total += file.bytes
        if is_entry(file.name):
            whole = file if is_ours(file.directory) else file.directory
            groups.setdefault(whole, []).append(file)

    def age(group: list[_File]) -> tuple[bool, float]:
        return is_ours(group[0].directory), max(file.changed for file in group)

    for group in sorted(groups.values(), key=age):
        if total <= most:
            break
        victims |= {(file.directory, file.name) for file in group}
        total -= sum(file.bytes for file in group)
    removed = 0
    for directory, descriptor in directories() if victims else ():
        for name in [name for of, name in victims if of == directory]:
            with suppress(OSError):
                os.unlink(name, dir_fd=descriptor)
                removed += is_entry(name)
    return removed, total

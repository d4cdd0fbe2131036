"""Which files of the cache go when it exceeds its bound: those of other environments first."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

# What a process that was killed left behind; a write takes far less.
_SECONDS_OF_A_WRITE = 3600.0
Directories = Callable[[], Iterator[tuple[str, int]]]


class _File(NamedTuple):
    directory: str
    name: str
    bytes: int
    changed: float


def is_entry(name: str) -> bool:
    """Whether a file is one of ours, finished."""
    return name.endswith(".txt")


def is_temporary(name: str) -> bool:
    """Whether a file is one of ours that is being written, or never was to its end."""
    return name.startswith(".") and name.endswith(".tmp")


def _files(directories: Directories) -> list[_File]:
    found = []
    for directory, descriptor in directories():
        for name in os.listdir(descriptor):
            if not (is_entry(name) or is_temporary(name)):
                continue
            with suppress(OSError):  # it may go while we look
                state = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                found.append(_File(directory, name, state.st_size, state.st_mtime))
    return found


def _in_order(files: Iterable[_File], is_ours: Callable[[str], bool]) -> list[list[_File]]:
    """What goes together, in the order in which it goes: other environments whole, then entries.

    An environment is as old as its newest file.
    """
    by_directory = {
        directory: list(group)
        for directory, group in groupby(sorted(files), key=lambda file: file.directory)
    }
    others = [group for directory, group in by_directory.items() if not is_ours(directory)]
    ours = [
        file for directory, group in by_directory.items() if is_ours(directory) for file in group
    ]
    return sorted(others, key=lambda group: max(file.changed for file in group)) + [
        [file] for file in sorted(ours, key=lambda file: file.changed)
    ]


def _remove(victims: set[tuple[str, str]], directories: Directories) -> int:
    removed = 0
    for directory, descriptor in directories():
        for name in [name for of, name in victims if of == directory]:
            with suppress(OSError):
                os.unlink(name, dir_fd=descriptor)
                removed += is_entry(name)
    return removed


def prune(directories: Directories, is_ours: Callable[[str], bool], most: int) -> tuple[int, int]:
    """Brings the files to ``most`` bytes. Returns how many entries went, and the bytes that stay.

    ``directories`` gives names and descriptors of the directories of entries.
    """
    files = _files(directories)
    now = time.time()
    left_behind = {
        (f.directory, f.name)
        for f in files
        if is_temporary(f.name) and abs(now - f.changed) > _SECONDS_OF_A_WRITE
    }
    victims = set(left_behind)
    stay = [f for f in files if (f.directory, f.name) not in left_behind]
    total = sum(file.bytes for file in stay)
    for group in _in_order((f for f in stay if is_entry(f.name)), is_ours):
        if total <= most:
            break
        victims |= {(file.directory, file.name) for file in group}
        total -= sum(file.bytes for file in group)
    return (_remove(victims, directories) if victims else 0), total

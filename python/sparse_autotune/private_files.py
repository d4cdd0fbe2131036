"""Files for their owner alone, reached through no link that another user could have planted.

The core has the rules (csrc/autotune/private_files.h).
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import _tuner

_serial = itertools.count()


@contextmanager
def directory(path: Path, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the directory; what ``create`` makes is private.

    Raises:
        OSError: it is not there or no directory, or a link of another user lies on the way.
    """
    opened = _tuner.open_directory(os.fsencode(path), create)
    if opened < 0:
        foreign = -opened == errno.EPERM
        why = "a link of another user lies on the way" if foreign else os.strerror(-opened)
        raise OSError(-opened, why, str(path))
    try:
        yield opened
    finally:
        os.close(opened)


@contextmanager
def below(parent: int, name: str, *, create: bool = False) -> Iterator[int]:
    """A descriptor of a directory in another, which is no link."""
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(name, flags, dir_fd=parent)
    try:
        yield opened
    finally:
        os.close(opened)


def read(parent: int, name: str, limit: int) -> bytes:
    """The content of a regular file, at most ``limit`` bytes of it."""
    # Without O_NONBLOCK a pipe of that name would wait for somebody to write.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=parent), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        return stream.read(limit)


def replace(parent: int, name: str, content: bytes, mode: int = 0o600) -> None:
    """All of the content or nothing, whatever kills the process."""
    unique = f"{os.getpid()}.{threading.get_ident()}.{next(_serial)}"
    temporary = f".{unique}.{os.urandom(4).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, mode, dir_fd=parent), "wb") as stream:
            stream.write(content)
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise

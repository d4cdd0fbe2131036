"""Files for their owner alone, reached through no link that another user could have planted.

A cache may lie where others can write, in /tmp for instance. So every directory on the way is
opened relative to the one before it: a link is followed only if it belongs to this user or to root,
and below the cache directory none is followed at all.
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

# Of links to follow and directories to make on the way to one directory.
_MOST_STEPS = 200
_FILE_MODE, _DIRECTORY_MODE = 0o600, 0o700
_serial = itertools.count()


def _error(number: int, text: str, path: object) -> OSError:
    return OSError(number, text, str(path))


def _target(link: int, path: Path) -> str:
    """Where a link leads that may be followed."""
    if os.fstat(link).st_uid not in (0, os.geteuid()):
        raise _error(errno.EPERM, "a link of another user lies on the way", path)
    return os.readlink("", dir_fd=link)


def _walk(path: Path, create: bool) -> int:
    here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    ahead = list(reversed(path.parts[1:]))
    try:
        for _ in range(_MOST_STEPS):
            if not ahead:
                found, here = here, -1
                return found
            try:
                there = os.open(ahead[-1], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            except FileNotFoundError:
                if not create:
                    raise
                with suppress(FileExistsError):
                    os.mkdir(ahead[-1], _DIRECTORY_MODE, dir_fd=here)
                continue
            ahead.pop()
            mode = os.fstat(there).st_mode
            if stat.S_ISLNK(mode):
                try:
                    target = _target(there, path)
                finally:
                    os.close(there)
                ahead += reversed([part for part in target.split("/") if part])
                if not target.startswith("/"):
                    continue
                there = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            os.close(here)
            here = there
        raise _error(errno.ELOOP, os.strerror(errno.ELOOP), path)
    except OSError as error:
        raise _error(error.errno or errno.EIO, error.strerror or "", path) from None
    finally:
        if here >= 0:
            os.close(here)


@contextmanager
def directory(path: Path, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the directory; what ``create`` makes is private.

    Raises:
        OSError: it is not there or no directory, or a link of another user lies on the way.
    """
    found = _walk(path, create)
    try:
        opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=found)
    except OSError as error:
        raise _error(error.errno or errno.EIO, error.strerror or "", path) from None
    finally:
        os.close(found)
    try:
        yield opened
    finally:
        os.close(opened)


@contextmanager
def below(parent: int, name: str, *, create: bool = False) -> Iterator[int]:
    """A descriptor of a directory in another, which is no link."""
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, _DIRECTORY_MODE, dir_fd=parent)
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
            raise _error(errno.EINVAL, "not a regular file", name)
        return stream.read(limit)


def replace(parent: int, name: str, content: bytes, mode: int = _FILE_MODE) -> None:
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

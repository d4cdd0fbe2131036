"""The winners on disk: one file per entry, written atomically, read without locks.

An entry is stored at ``<path()>/<device class>-<environment>/<signature>.txt``. The environment is
a hash of the versions that timings depend on: package, kernels, torch, CUDA runtime, driver and
cuSPARSE. An entry that cannot be read counts as a miss, and the next race replaces it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import _tuner
from .settings import settings
from .user_warnings import warn

__all__ = ["CacheEntry", "clear", "entries", "export", "load", "path"]

_MAX_BYTES = 1 << 20  # of one record, as the core bounds it
_MAX_BUNDLE_BYTES = 64 << 20  # as the core bounds it for SPARSE_AUTOTUNE_BUNDLE
_RECORD = re.compile(r"sparse_autotune_race .*?^end \d+\n", re.DOTALL | re.MULTILINE)
# What signature and device class may be made of: they become names in the cache directory.
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_OUR_DIRECTORY = re.compile(r".+-[0-9a-f]{12}")

# What an unwritable directory could not take, by the file it would be.
_in_memory: dict[Path, str] = {}
_serial = itertools.count()
_warned: dict[str, object] = {}


class CacheEntry(NamedTuple):
    """One remembered race.

    Attributes:
        signature: the kind of problem, and the stem of the entry's file.
        device: the device's name.
        problem: the raced problem in readable form, "4096x4096x4096 bs64 density 0.125 bf16"
            (m x k x n).
        winner: "family/config".
        median_us: the winner's median time, microseconds.
        when: the start of the race, UTC.
        path: the entry's file; None if it is in memory only.
    """

    signature: str
    device: str
    problem: str
    winner: str
    median_us: float
    when: str
    path: Path | None


def path() -> Path:
    """The cache directory in use, which may not exist yet."""
    if settings.cache_dir is not None:
        return Path(settings.cache_dir)
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification ignores relative paths. Without any home "~" stays as it is: `write`
    # refuses that.
    root = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / ".cache"
    return root / "sparse_autotune"


@functools.cache
def environment() -> str:
    """The versions that every entry of this process depends on, as a short hash."""
    versions = [_tuner.build_info()["version"], torch.__version__]
    lines = _tuner.environment(0 if torch.cuda.is_available() else -1).splitlines()
    versions += [line for line in lines if not line.startswith("device ")]
    versions += [f"{library['name']} {library['version']}" for library in _tuner.libraries()]
    return hashlib.sha256("\n".join(versions).encode()).hexdigest()[:12]


def file_of(device_class: str, signature: str) -> Path:
    """Where that entry is, or would be."""
    return path() / f"{device_class}-{environment()}" / f"{signature}.txt"


def read(device_class: str, signature: str) -> str | None:
    """The text of an entry, unchecked; None when there is none. Never raises."""
    file = file_of(device_class, signature)
    try:
        return _start_of(file).decode("ascii", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        _warn_of_directory(f"cannot be read ({error})")
    return _in_memory.get(file)


def _start_of(file: Path) -> bytes:
    """All of a record; of a longer file enough to be refused."""
    with file.open("rb") as stream:
        return stream.read(_MAX_BYTES + 1)


def write(device_class: str, signature: str, text: str) -> Path | None:
    """Saves an entry; None, after one warning, when the directory cannot take it. Never raises."""
    file = file_of(device_class, signature)
    try:
        if not file.is_absolute():
            raise FileNotFoundError("there is no home directory: set SPARSE_AUTOTUNE_CACHE_DIR")
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            replace_file(file, text)
        except FileNotFoundError:  # clear() took it away while it was being written
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, text)
    except OSError as error:
        _in_memory[file] = text
        _warn_of_directory(f"cannot be written ({error})")
        return None
    _in_memory.pop(file, None)
    return file


def warn_once(topic: str, text: str) -> None:
    """A Python warning at the user's line, once per process and topic. Never raises."""
    mine = object()
    if _warned.setdefault(topic, mine) is not mine:
        return
    try:
        warn(f"sparse_autotune: {text}", RuntimeWarning)
    except RuntimeWarning:  # the filter "error": a product that is right must not fail for it
        logging.getLogger("sparse_autotune").warning("sparse_autotune: %s", text)


def _warn_of_directory(why: str) -> None:
    text = f"the cache directory {path()} {why}; what it lacks is raced, and kept in memory only"
    warn_once("cache directory", text)


def replace_file(file: Path, text: str) -> None:
    """All of the text or nothing, whatever kills the process; as readable as umask allows."""
    unique = f"{os.getpid()}.{threading.get_ident()}.{next(_serial)}"
    temporary = file.with_name(f".{unique}.{os.urandom(4).hex()}.tmp")
    try:
        with temporary.open("x", encoding="ascii") as stream:
            stream.write(text)
        os.replace(temporary, file)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):  # about the file that was asked for
            raise OSError(error.errno, error.strerror, str(file)) from None
        raise


def _directories() -> list[Path]:
    """The directories of entries, of all devices and environments."""
    try:
        return [d for d in sorted(path().iterdir()) if _OUR_DIRECTORY.fullmatch(d.name)]
    except OSError:
        return []


def _found() -> list[tuple[str, dict[str, Any], Path | None]]:
    """Text, content and file of the entries that this environment would use."""
    texts: list[tuple[str, Path | None]] = []
    ours = [d for d in _directories() if d.name.endswith(f"-{environment()}")]
    for file in itertools.chain(*(sorted(directory.glob("*.txt")) for directory in ours)):
        with contextlib.suppress(OSError, UnicodeDecodeError):  # a miss, as it is for a product
            texts.append((_start_of(file).decode("ascii"), file))
    texts += [(text, None) for file, text in list(_in_memory.items()) if path() in file.parents]
    found = []
    for text, source in texts:
        try:
            record = _tuner.parse_record(text)
        except ValueError:
            continue
        if source in (None, file_of(record["device_class"], record["signature"])):
            found.append((text, record, source))
    return found


def entries() -> list[CacheEntry]:
    """The cached races that are valid in this environment."""
    listed = []
    for _, record, file in _found():
        times = {entrant["name"]: entrant["median_us"] for entrant in record["entrants"]}
        listed.append(
            CacheEntry(
                record["signature"],
                record["device"],
                record["description"],
                record["winner"],
                times.get(record["winner"], 0.0),
                record["when"],
                file,
            )
        )
    return listed


def clear() -> int:
    """Removes the entries of all environments, on disk and in memory.

    Returns the number of files removed.

    Raises:
        OSError: a file could not be removed.
    """
    removed = 0
    for directory in _directories():
        for file in directory.glob("*.txt"):
            file.unlink(missing_ok=True)
            removed += 1
        for left_behind in directory.glob(".*.tmp"):  # by a killed process
            left_behind.unlink(missing_ok=True)
    _in_memory.clear()
    _tuner.forget()
    return removed


def export(path: str | os.PathLike[str]) -> int:
    """Writes this environment's entries to one file, a bundle. Returns the number of entries.

    A program without Python reads the bundle that ``SPARSE_AUTOTUNE_BUNDLE`` names.

    Raises:
        OSError: the file cannot be written.
        ValueError: the entries exceed the limit of a bundle, 64 MiB.
    """
    texts = [text for text, _, _ in _found()]
    total = sum(map(len, texts))
    if total > _MAX_BUNDLE_BYTES:
        raise ValueError(f"a bundle may have {_MAX_BUNDLE_BYTES} bytes; the entries have {total}")
    replace_file(Path(path), "".join(texts))
    return len(texts)


def _split_bundle(content: bytes) -> list[tuple[str, str, str]]:
    """Device class and signature, both fit to be names of files, and text of its records."""
    if len(content) > _MAX_BUNDLE_BYTES:
        raise ValueError(f"it has more than {_MAX_BUNDLE_BYTES} bytes")
    text = content.decode("ascii", errors="replace")
    texts: list[str] = _RECORD.findall(text)
    if "".join(texts) != text:
        raise ValueError("there is something beside complete records")
    found = []
    for number, one in enumerate(texts, 1):
        try:
            record = _tuner.parse_record(one)
        except ValueError as error:
            raise ValueError(f"record {number}: {error}") from None
        place = (record["device_class"], record["signature"])
        if not all(map(_NAME.fullmatch, place)):
            raise ValueError(f"record {number}: {place!r} cannot be the names of an entry")
        found.append((*place, one))
    return found


def load(path: str | os.PathLike[str]) -> int:
    """Adds the entries of a bundle, replacing equal signatures. Returns the number of entries.

    They are treated as measured in this environment, and apply to devices of the class they name.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a bundle; then nothing is added.
    """
    with open(path, "rb") as stream:
        content = stream.read(_MAX_BUNDLE_BYTES + 1)
    try:
        found = _split_bundle(content)
    except ValueError as error:
        raise ValueError(f"path: {os.fspath(path)} is not a bundle: {error}") from None
    for entry in found:
        write(*entry)
    _tuner.forget()
    return len(found)

"""The winners on disk: one file per entry, written atomically, read without locks.

An entry lies at ``<path()>/<device class>-<environment>/<signature>.txt``. The environment is a
hash over the versions that decide whether a time still means anything: package, kernels, torch,
driver and CUDA runtime. Any entry that cannot be read is a miss and is replaced by the next race.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import torch

from . import _tuner
from .settings import settings

_MAX_BYTES = 1 << 20  # of one record, as the core bounds it
_RECORD = re.compile(r"sparse_autotune_race .*?^end \d+\n", re.DOTALL | re.MULTILINE)

_warned: set[str] = set()
# What an unwritable directory could not take.
_in_memory: dict[tuple[str, str], str] = {}


class CacheEntry(NamedTuple):
    """One remembered race."""

    signature: str
    device: str
    problem: str
    winner: str
    median_us: float
    when: str
    path: Path | None  # None: in memory only


def path() -> Path:
    """The directory in use; it need not exist yet."""
    if settings.cache_dir is not None:
        return Path(settings.cache_dir)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sparse_autotune"


@functools.cache
def _environment() -> str:
    """The versions that every entry of this process depends on, as a short hash."""
    versions = [_tuner.build_info()["version"], torch.__version__]
    lines = _tuner.environment(0 if torch.cuda.is_available() else -1).splitlines()
    versions += [line for line in lines if not line.startswith("device ")]
    return hashlib.sha256("\n".join(versions).encode()).hexdigest()[:12]


def file_of(device_class: str, signature: str) -> Path:
    """Where that entry is, or would be."""
    return path() / f"{device_class}-{_environment()}" / f"{signature}.txt"


def warn_once(topic: str, text: str) -> None:
    """A Python warning, once per process and topic."""
    if topic not in _warned:
        _warned.add(topic)
        warnings.warn(f"sparse_autotune: {text}", RuntimeWarning, stacklevel=2)


def read(device_class: str, signature: str) -> str | None:
    """The text of an entry, unchecked; None when there is none. Never raises."""
    file = file_of(device_class, signature)
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return _in_memory.get((device_class, signature))
    except OSError as error:
        warn_once("unreadable", f"the cache entry {file} cannot be read ({error}); racing again")
        return None
    return content.decode("ascii", errors="replace")


def write(device_class: str, signature: str, text: str) -> Path | None:
    """Saves an entry; None, after one warning, when the directory cannot take it. Never raises."""
    file = file_of(device_class, signature)
    temporary = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=file.parent)
        with os.fdopen(handle, "w", encoding="ascii") as stream:
            stream.write(text)
        os.replace(temporary, file)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        warn_once(
            "unwritable",
            f"the cache directory {path()} cannot be written ({error}); "
            "winners are kept in memory only",
        )
        _in_memory[device_class, signature] = text
        return None
    return file


def _texts() -> list[tuple[str, Path | None]]:
    """Readable entries of this environment, on disk and in memory."""
    found: list[tuple[str, Path | None]] = [(text, None) for text in _in_memory.values()]
    for file in sorted(path().glob(f"*-{_environment()}/*.txt")):
        try:
            found.append((file.read_bytes()[: _MAX_BYTES + 1].decode("ascii"), file))
        except (OSError, UnicodeDecodeError):
            continue  # a miss, as it would be for a product
    return found


def entries() -> list[CacheEntry]:
    """The remembered races that this environment would use."""
    found = []
    for text, file in _texts():
        try:
            record = _tuner.parse_record(text)
        except ValueError:
            continue
        times = {entrant["name"]: entrant["median_us"] for entrant in record["entrants"]}
        winner = record["winner"]
        found.append(
            CacheEntry(
                record["signature"],
                record["device"],
                record["description"],
                winner,
                times.get(winner, 0.0),
                record["when"],
                file,
            )
        )
    return found


def clear() -> int:
    """Removes every entry, of all environments, and forgets them; returns how many files went.

    Raises:
        OSError: a file could not be removed.
    """
    removed = 0
    for file in path().glob("*/*.txt"):
        file.unlink(missing_ok=True)
        removed += 1
    _in_memory.clear()
    _tuner.forget()
    return removed


def export(path: str | os.PathLike[str]) -> int:
    """Writes this environment's entries to one file, a bundle; returns how many.

    ``SPARSE_AUTOTUNE_BUNDLE`` lets a program without Python use a bundle.

    Raises:
        OSError: the file cannot be written.
    """
    texts = []
    for text, _ in _texts():
        try:
            _tuner.parse_record(text)
        except ValueError:
            continue
        texts.append(text)
    Path(path).write_text("".join(texts), encoding="ascii")
    return len(texts)


def load(path: str | os.PathLike[str]) -> int:
    """Adds the entries of a bundle, replacing those of equal signature; returns how many.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a bundle; nothing has been added then.
    """
    text = Path(path).read_bytes().decode("ascii", errors="replace")
    texts = _RECORD.findall(text)
    if "".join(texts) != text:
        raise ValueError(f"path: {os.fspath(path)} is not a bundle of sparse_autotune records")
    try:
        records = [_tuner.parse_record(one) for one in texts]
    except ValueError as error:
        raise ValueError(f"path: {os.fspath(path)}: {error}") from None
    for record, one in zip(records, texts, strict=True):
        write(record["device_class"], record["signature"], one)
    _tuner.forget()
    return len(texts)

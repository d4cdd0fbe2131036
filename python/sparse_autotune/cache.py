"""The winners on disk: one file per entry, written atomically, read without locks.

An entry is stored at ``<path()>/<device class>-<environment>/<signature>.txt``. The environment is
a hash of the versions that timings depend on: package, kernels, torch, CUDA runtime, driver and
cuSPARSE. An entry that cannot be read counts as a miss, and the next race replaces it. What is
written is for its owner alone, and a link of another user is never followed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from . import _tuner, bundles, private_files, pruning
from .bundles import Difference, MergeReport, Record
from .settings import settings
from .user_warnings import warn

__all__ = [
    "CacheEntry",
    "clear",
    "diff",
    "digest",
    "entries",
    "export",
    "load",
    "merge",
    "missed",
    "path",
    "prune",
]

_MAX_BYTES = 1 << 20  # of one record, as the core bounds it: of a longer file enough to be refused
_OUR_DIRECTORY = re.compile(r".+-[0-9a-f]{12}")

# What an unwritable directory could not take, by the file it would be.
_in_memory: dict[Path, str] = {}
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
    on_gpu = torch.cuda.is_available()
    lines = _tuner.environment(0 if on_gpu else -1).splitlines()
    versions += [line for line in lines if not line.startswith("device ")]
    if on_gpu:  # libraries race on GPUs alone: with and without CUDA a CPU's entries are the same
        versions += [f"{library['name']} {library['version']}" for library in _tuner.libraries()]
    return hashlib.sha256("\n".join(versions).encode()).hexdigest()[:12]


def file_of(device_class: str, signature: str, versions: str | None = None) -> Path:
    """Where that entry is, or would be, in an environment; this process's by default."""
    return path() / f"{device_class}-{versions or environment()}" / f"{signature}.txt"


def read(device_class: str, signature: str) -> str | None:
    """The text of an entry, unchecked; None when there is none. Never raises."""
    file = file_of(device_class, signature)
    try:
        with _directory_of(file) as directory:
            return private_files.read(directory, file.name, _MAX_BYTES + 1).decode(
                "ascii", "replace"
            )
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        _warn_of_directory(f"cannot be read ({error})")
    return _in_memory.get(file)


@contextlib.contextmanager
def _directory_of(file: Path, *, create: bool = False) -> Iterator[int]:
    with (
        private_files.directory(file.parent.parent, create=create) as root,
        private_files.below(root, file.parent.name, create=create) as ours,
    ):
        yield ours


def write(device_class: str, signature: str, text: str, versions: str | None = None) -> Path | None:
    """Saves an entry; None, after one warning, when the directory cannot take it. Never raises."""
    file = file_of(device_class, signature, versions)
    if "\nenvironment " not in text:  # as bundles name it
        named = rf"\g<0>environment {versions or environment()}\n"
        text = re.sub(r"^device_class .*\n", named, text, count=1, flags=re.MULTILINE)
    try:
        if not file.is_absolute():
            raise FileNotFoundError("there is no home directory: set SPARSE_AUTOTUNE_CACHE_DIR")
        try:
            _put(file, text)
        except FileNotFoundError:  # clear() took it away while it was being written
            _put(file, text)
    except OSError as error:
        _in_memory[file] = text
        _warn_of_directory(f"cannot be written ({error})")
        return None
    _in_memory.pop(file, None)
    _growth.add(len(text))
    return file


class _Growth:
    """Looks at the size of the whole cache now and then, not with every entry."""

    _WRITES = 64  # that others may do, as many as this process, before it looks again

    def __init__(self) -> None:
        self._place: Path | None = None
        self._bytes = self._writes = 0

    def add(self, count: int) -> None:
        """Counts what was written, and prunes. Never raises."""
        self._writes += 1
        self._bytes += count
        most = settings.cache_bytes
        moved = self._place != path()
        if moved or self._bytes > most or self._writes >= self._WRITES:
            with contextlib.suppress(OSError):
                self._bytes = pruning.prune(_directories, _is_ours, most)[1]
            self._place, self._writes = path(), 0


_growth = _Growth()


def _put(file: Path, text: str) -> None:
    with _directory_of(file, create=True) as directory:
        private_files.replace(directory, file.name, text.encode("ascii"))


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


def _directories() -> Iterator[tuple[Path, int]]:
    """The directories of entries, of all devices and environments, each while it is looked at."""
    with contextlib.suppress(OSError), private_files.directory(path()) as root:
        for name in sorted(filter(_OUR_DIRECTORY.fullmatch, os.listdir(root))):
            with contextlib.suppress(OSError), private_files.below(root, name) as directory:
                yield path() / name, directory


def _is_ours(directory: Path) -> bool:
    return directory.name.endswith(f"-{environment()}")


def _found() -> Iterator[tuple[Record, Path | None]]:
    """The entries that this environment would use, and their files."""
    texts: list[tuple[str, Path | None]] = []
    for directory, descriptor in _directories():
        names = filter(pruning.is_entry, os.listdir(descriptor)) if _is_ours(directory) else ()
        for name in sorted(names):
            with contextlib.suppress(OSError, UnicodeDecodeError):  # a miss, as for a product
                content = private_files.read(descriptor, name, _MAX_BYTES + 1)
                texts.append((content.decode("ascii"), directory / name))
    in_memory = [(file, text) for file, text in list(_in_memory.items()) if _is_ours(file.parent)]
    texts += [(text, None) for file, text in in_memory if path() in file.parents]
    for text, file in texts:
        with contextlib.suppress(ValueError):
            record = bundles.record_of(text)
            if file in (None, file_of(record.place.device_class, record.place.signature)):
                yield record, file


def entries() -> list[CacheEntry]:
    """The cached races that are valid in this environment."""
    listed = []
    for record, file in _found():
        signature, device, problem, winner, when = (
            record.facts[name] for name in ("signature", "device", "description", "winner", "when")
        )
        listed.append(CacheEntry(signature, device, problem, winner, record.winner_us, when, file))
    return listed


def clear() -> int:
    """Removes the entries of all environments, on disk and in memory.

    Returns the number of files removed.

    Raises:
        OSError: a file could not be removed.
    """
    removed = 0
    for _, directory in _directories():
        for name in os.listdir(directory):
            # What killed processes left behind goes too.
            if pruning.is_entry(name) or pruning.is_temporary(name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)
                    removed += pruning.is_entry(name)
    _in_memory.clear()
    _tuner.forget()
    return removed


def prune(max_bytes: int | None = None) -> int:
    """Brings the cache directory to that many bytes; by default ``settings.cache_bytes``.

    Environments other than this one go first, the one that was longest without a new entry before
    the others; then the oldest entries of this one. Products that were decided stay so. Writing
    entries does the same by itself: within ``settings.cache_bytes`` for what one process writes.

    Returns:
        The number of entries removed.

    Raises:
        ValueError: ``max_bytes`` is no whole number of bytes.
    """
    if max_bytes is None:
        max_bytes = settings.cache_bytes
    if type(max_bytes) is not int or max_bytes < 0:
        raise ValueError(
            f"max_bytes must be a whole number of bytes, at least 0; got {max_bytes!r}"
        )
    return pruning.prune(_directories, _is_ours, max_bytes)[0]


def export(path: str | os.PathLike[str]) -> int:
    """Writes this environment's entries to one file, a bundle. Returns the number of entries.

    It has all the times of each race. A program without Python reads the bundle that
    ``SPARSE_AUTOTUNE_BUNDLE`` names.

    Raises:
        OSError: the file cannot be written.
        ValueError: the entries exceed the limit of a bundle, 64 MiB.
    """
    texts = [record.text for record, _ in _found()]
    replace_file(path, bundles.joined(texts))
    return len(texts)


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """All of it or nothing; as readable as umask allows, because it is made to be shared."""
    file = Path(path).absolute()
    try:
        with private_files.directory(file.parent) as directory:
            private_files.replace(directory, file.name, content, mode=0o666)
    except OSError as error:  # about the file that was asked for
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def load(path: str | os.PathLike[str]) -> int:
    """Adds the entries of a bundle, replacing equal signatures. Returns the number of entries.

    They apply to devices of the class, and to versions of the environment, in which they were
    raced: elsewhere they are misses.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a bundle; then nothing is added.
    """
    found = bundles.read(path)
    for (versions, device_class, signature), text, _ in found:
        write(device_class, signature, text, versions or None)
    _tuner.forget()
    return len(found)


def merge(*paths: str | os.PathLike[str], into: str | os.PathLike[str]) -> MergeReport:
    """Writes the entries of several bundles into one; ``into`` may be one of them.

    Of an entry that several have in one environment the newest race is kept, with all its times.

    Returns:
        The number of entries, and those on whose winner the bundles did not agree.

    Raises:
        TypeError: there is no path.
        OSError: a file cannot be read or written.
        ValueError: a file is not a bundle, or together they exceed its limit, 64 MiB; then nothing
            is written.
    """
    if not paths:
        raise TypeError("merge needs the path of a bundle at least")
    texts, conflicts = bundles.merged(map(bundles.read, paths))
    replace_file(into, bundles.joined(texts))
    return MergeReport(len(texts), conflicts)


def diff(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Difference:
    """How the bundle ``b`` differs from the bundle ``a``: entries, and winners.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is not a bundle.
    """
    return bundles.difference(bundles.read(a), bundles.read(b))


def digest() -> str:
    """A hash of the winners that this process goes by: of the kinds of products that it has met.

    Ranks that met the same kinds and agree on them have the same.
    """
    records = (_tuner.parse_record(text) for _, text in _tuner.known())
    places = ("device_class", "signature", "winner", "captured_winner")
    winners = sorted(tuple(record[place] for place in places) for record in records)
    return hashlib.sha256(repr(winners).encode()).hexdigest()


def missed() -> list[str]:
    """The signatures that products of this process met without an entry and without a race.

    The modes "readonly" and "record" count them; `clear` and `load` start anew.
    """
    return _tuner.missed()

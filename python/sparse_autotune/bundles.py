"""Bundles, files of many entries: their parts, merging several, comparing two."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from . import _tuner

MAX_BYTES = 64 << 20  # as the core bounds it for SPARSE_AUTOTUNE_BUNDLE
# What signature and device class may be made of: they become names in the cache directory.
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_ENVIRONMENT = re.compile(r"([0-9a-f]{12})?")


class Place(NamedTuple):
    """Which entry a record is; the environment is empty where the record names none."""

    environment: str
    device_class: str
    signature: str


class Record(NamedTuple):
    """A record of a bundle: its place, its text, and what the core reads there."""

    place: Place
    text: str
    facts: dict[str, Any]

    @property
    def winner_us(self) -> float:
        """The winner's median time, microseconds."""
        times = {entrant["name"]: entrant["median_us"] for entrant in self.facts["entrants"]}
        return float(times.get(self.facts["winner"], 0.0))


def record_of(text: str) -> Record:
    """What that text is.

    Raises:
        ValueError: no record.
    """
    facts = _tuner.parse_record(text)
    return Record(Place(*(facts[name] for name in Place._fields)), text, facts)


def _texts(bundle: str) -> Iterator[str]:
    """What ends like a record, and at last what does not; in time proportional to its length."""
    begin = 0
    while begin < len(bundle):
        last_line = bundle.find("\nend ", begin)
        end = bundle.find("\n", last_line + 1) + 1 if last_line >= 0 else 0
        yield bundle[begin : end or None]
        begin = end or len(bundle)


def split(content: bytes) -> list[Record]:
    """The records of a bundle.

    Raises:
        ValueError: it is not a bundle.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    found = []
    for number, one in enumerate(_texts(content.decode("ascii", errors="replace")), 1):
        try:
            record = record_of(one)
        except ValueError as error:
            raise ValueError(f"record {number}: {error}") from None
        versions, *names = record.place
        if not all(map(_NAME.fullmatch, names)) or not _ENVIRONMENT.fullmatch(versions):
            place = tuple(record.place)
            raise ValueError(f"record {number}: {place!r} cannot be the names of an entry")
        found.append(record)
    return found


def read(path: str | os.PathLike[str]) -> list[Record]:
    """The records of the bundle at ``path``.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a bundle.
    """
    with open(path, "rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    try:
        return split(content)
    except ValueError as error:
        raise ValueError(f"path: {os.fspath(path)} is not a bundle: {error}") from None


def joined(texts: Iterable[str]) -> bytes:
    """A bundle of these records.

    Raises:
        ValueError: they exceed the limit of a bundle.
    """
    content = "".join(texts).encode("ascii")
    if len(content) > MAX_BYTES:
        raise ValueError(f"a bundle may have {MAX_BYTES} bytes; the entries have {len(content)}")
    return content


@dataclass(frozen=True)
class Conflict:
    """An entry of which merged bundles have different winners.

    Attributes:
        environment: the versions under which it was raced, a hash.
        device_class: the kind of device.
        signature: the kind of problem.
        kept: the winner of the newest race, which is kept.
        dropped: the other winners.
    """

    environment: str
    device_class: str
    signature: str
    kept: str
    dropped: list[str]


@dataclass(frozen=True)
class MergeReport:
    """What `cache.merge` did.

    Attributes:
        entries: the number of entries written.
        conflicts: those of which the bundles had different winners.
    """

    entries: int
    conflicts: list[Conflict] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python objects."""
        return asdict(self)


def merged(bundles: Iterable[list[Record]]) -> tuple[list[str], list[Conflict]]:
    """Of each entry the newest race, of equally old ones the first; and where winners differ."""
    found: dict[Place, list[Record]] = {}
    for record in (record for bundle in bundles for record in bundle):
        found.setdefault(record.place, []).append(record)
    texts, conflicts = [], []
    for place, records in sorted(found.items()):
        newest = max(records, key=lambda record: str(record.facts["when"]))
        texts.append(newest.text)
        kept = newest.facts["winner"]
        others = dict.fromkeys(r.facts["winner"] for r in records if r.facts["winner"] != kept)
        if others:
            conflicts.append(Conflict(*place, kept, list(others)))
    return texts, conflicts


@dataclass(frozen=True)
class Change:
    """An entry whose winner differs between two bundles.

    Attributes:
        environment: the versions under which it was raced, a hash.
        device_class: the kind of device.
        signature: the kind of problem.
        winner_a: the winner in the first bundle.
        winner_b: the winner in the second bundle.
        us_a: the median time of ``winner_a`` in its race, microseconds.
        us_b: the same of ``winner_b``.
    """

    environment: str
    device_class: str
    signature: str
    winner_a: str
    winner_b: str
    us_a: float
    us_b: float


@dataclass(frozen=True)
class Difference:
    """How two bundles differ; prints as one line for each difference.

    Attributes:
        only_a: the entries, (environment, device class, signature), that only the first one has.
        only_b: those that only the second one has.
        changed: those with different winners.
        alike: the number of entries with equal winners.
    """

    only_a: list[Place]
    only_b: list[Place]
    changed: list[Change]
    alike: int

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python objects."""
        only = {n: [place._asdict() for place in getattr(self, n)] for n in ("only_a", "only_b")}
        return {**only, "changed": [asdict(c) for c in self.changed], "alike": self.alike}

    def __str__(self) -> str:
        lines = [f"- {place.signature}" for place in self.only_a]
        lines += [f"+ {place.signature}" for place in self.only_b]
        lines += [
            f"~ {c.signature}: {c.winner_a} {c.us_a:.4g} µs, now {c.winner_b} {c.us_b:.4g} µs"
            for c in self.changed
        ]
        return "\n".join([*lines, f"{self.alike} alike"])


def difference(a: list[Record], b: list[Record]) -> Difference:
    """How the bundles ``a`` and ``b`` differ; of an entry that one has twice the last counts."""
    in_a, in_b = ({record.place: record for record in bundle} for bundle in (a, b))
    both = sorted(in_a.keys() & in_b.keys())
    pairs = [(in_a[place], in_b[place]) for place in both]
    changed = [
        Change(*old.place, old.facts["winner"], new.facts["winner"], old.winner_us, new.winner_us)
        for old, new in pairs
        if old.facts["winner"] != new.facts["winner"]
    ]
    only_a, only_b = sorted(in_a.keys() - in_b.keys()), sorted(in_b.keys() - in_a.keys())
    return Difference(only_a, only_b, changed, len(both) - len(changed))

"""Evidence as it is kept: races of every variant, one a line, names of variants by number."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

# Of times and rates: no race repeats to more digits.
_DIGITS = 4


def family_of(variant: str) -> str:
    """The part of "family/config" before the slash."""
    return variant.partition("/")[0]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


@dataclass(frozen=True)
class Race:
    """Every legal variant on one cell.

    Attributes:
        suite: where the cell is from.
        cell: its fields.
        timing: "warm" or "cold", as it was asked for.
        winner: the variant that the tuner chose; empty if it chose none.
        flops: floating-point operations on stored blocks.
        bytes: what any variant must move.
        expected: of those that were timed, and of the legal variant for which it is the lowest,
            the cost model's estimate, microseconds.
        median: of each variant that was timed its time, microseconds.
        failure: why there was no race; empty if there was one.
    """

    suite: str
    cell: dict[str, Any]
    timing: str
    winner: str = ""
    flops: float = 0.0
    bytes: float = 0.0
    expected: dict[str, float] = field(default_factory=dict)
    median: dict[str, float] = field(default_factory=dict)
    failure: str = ""

    @property
    def key(self) -> str:
        """What tells it from all other races."""
        return json.dumps([self.suite, self.cell, self.timing], sort_keys=True)

    @property
    def shape(self) -> tuple:
        """What two cells must differ in, or in their suites, to count as two."""
        return (self.suite, *(self.cell[name] for name in ("m", "n", "k", "block")))

    def families(self, without: Collection[str] = ()) -> dict[str, float]:
        """The time of each family's fastest variant, fastest family first."""
        found: dict[str, float] = {}
        for name, median in self.median.items():
            family = family_of(name)
            if family not in without:
                found[family] = min(median, found.get(family, median))
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def among(self, families: Collection[str]) -> Race:
        """The same race as if only these families existed."""
        expected = {n: time for n, time in self.expected.items() if family_of(n) in families}
        median = {n: time for n, time in self.median.items() if family_of(n) in families}
        winner = self.winner
        if winner not in median:
            winner = min(median, key=lambda name: median[name], default="")
        return replace(self, winner=winner, expected=expected, median=median)

    def choice(self, without: Collection[str] = ()) -> str:
        """The family that is chosen among those but `without`; empty: nothing was timed."""
        family = family_of(self.winner)
        if family and family not in without:
            return family
        return next(iter(self.families(without)), "")


@dataclass
class Evidence:
    """A run of races, or what there is of it so far."""

    environment: dict[str, Any] = field(default_factory=dict)
    started: str = ""
    complete: bool = False
    races: list[Race] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Replaces the file at once: whoever stops the run finds the old or the new one."""
        names = sorted({name for race in self.races for name in race.expected})
        number = {name: i for i, name in enumerate(names)}
        lines = []
        for race in self.races:
            variants = [
                [number[name], _rounded(expected), _rounded(race.median.get(name))]
                for name, expected in race.expected.items()
            ]
            saved = {
                "suite": race.suite,
                "cell": race.cell,
                "timing": race.timing,
                "winner": race.winner,
                "flops": _rounded(race.flops),
                "bytes": _rounded(race.bytes),
                **({"failure": race.failure} if race.failure else {}),
                "variants": variants,
            }
            lines.append(json.dumps(saved, separators=(",", ":"), allow_nan=False))
        head = {
            "suite": "evidence",
            "complete": self.complete,
            "started": self.started,
            "environment": self.environment,
            "variants": names,
        }
        text = json.dumps(head, indent=1)[: -len("\n}")] + ',\n "races": [\n'
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".part")
        beside.write_text(text + ",\n".join(lines) + "\n ]\n}\n")
        beside.replace(path)

    @staticmethod
    def load(path: Path) -> Evidence:
        """What `save` wrote.

        Raises:
            ValueError: the file holds something else.
        """
        saved = json.loads(path.read_text())
        if saved.get("suite") != "evidence" or "variants" not in saved:
            raise ValueError(f"{path} was not saved by `python -m benchmarks.evidence`")
        names = saved["variants"]
        found = Evidence(saved["environment"], saved["started"], saved["complete"])
        for race in saved["races"]:
            variants = race.pop("variants")
            found.races.append(
                Race(
                    **race,
                    expected={names[i]: expected for i, expected, _ in variants},
                    median={names[i]: time for i, _, time in variants if time is not None},
                )
            )
        return found

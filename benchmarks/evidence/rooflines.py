"""Rooflines in place of cost models: `python -m benchmarks.evidence.rooflines`.

Prints how well families would be ordered, by the time of each one's fastest variant, by today's
estimates and by rooflines: a launch time and one or two rates for each family and type, fitted to
the races of all suites but the one that is judged. Seconds, without a GPU.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.markdown import lines

from .judgement import Order, orders, quality
from .page import SAVED, saved
from .saved import Race, family_of

# Candidates for a rate are those that single races reached, at these quantiles.
_QUANTILES = 6
_LAUNCH_US = (1.5, 3.0, 8.0)

Key = tuple[str, str]  # family, type


@dataclass(frozen=True)
class Roofline:
    """The longer of arithmetic and memory traffic at constant rates, after a launch."""

    launch_us: float
    flops_per_us: float
    bytes_per_us: float

    def us(self, race: Race) -> float:
        """The expected time."""
        return self.launch_us + max(race.flops / self.flops_per_us, race.bytes / self.bytes_per_us)


def _candidates(amounts: Iterable[float], times: Iterable[float]) -> list[float]:
    rates = sorted(amount / time for amount, time in zip(amounts, times, strict=True))
    if len(rates) < 2:
        return rates
    return [*statistics.quantiles(rates, n=_QUANTILES), rates[-1]]


def fit(points: list[tuple[Race, float]], rates: int) -> Roofline:
    """The roofline with the least mean error of the logarithm.

    One rate is that of memory or of arithmetic, whichever fits better.
    """
    races, times = [race for race, _ in points], [time for _, time in points]
    flops = _candidates([race.flops for race in races], times)
    moved = _candidates([race.bytes for race in races], times)
    both = [(f, b) for f in flops for b in moved]
    single = [*((f, math.inf) for f in flops), *((math.inf, b) for b in moved)]

    def error(model: Roofline) -> float:
        return sum(abs(math.log(model.us(race) / time)) for race, time in points)

    models = [
        Roofline(launch, f, b) for launch in _LAUNCH_US for f, b in (both if rates == 2 else single)
    ]
    return min(models, key=error)


def _by_family(race: Race) -> Race:
    """Families in place of variants: the fastest one's time, the lowest estimate."""
    expected: dict[str, float] = {}
    for name, us in race.expected.items():
        family = family_of(name)
        expected[family] = min(us, expected.get(family, us))
    return Race(
        race.suite,
        race.cell,
        race.timing,
        winner=race.choice(),
        flops=race.flops,
        bytes=race.bytes,
        expected=expected,
        median=race.families(),
    )


def _fitted(races: list[Race], rates: int) -> dict[Key, Roofline]:
    points: dict[Key, list[tuple[Race, float]]] = {}
    for race in races:
        for family, time in race.median.items():
            points.setdefault((family, race.cell["dtype"]), []).append((race, time))
    return {key: fit(found, rates) for key, found in points.items()}


def _ordered_by_rooflines(races: list[Race], rates: int) -> list[Order]:
    """Each suite's races by the rates of all other suites; a family without one keeps its estimate.

    Warm and cold are fitted apart.
    """
    found = []
    for suite in sorted({race.suite for race in races}):
        for timing in ("warm", "cold"):
            of = [race for race in races if race.timing == timing]
            models = _fitted([race for race in of if race.suite != suite], rates)
            judged = []
            for race in of:
                if race.suite != suite:
                    continue
                expected = {
                    name: models[name, race.cell["dtype"]].us(race)
                    if (name, race.cell["dtype"]) in models
                    else us
                    for name, us in race.expected.items()
                }
                judged.append(
                    Race(
                        suite, race.cell, timing, race.winner, expected=expected, median=race.median
                    )
                )
            found += orders(judged)
    return found


def compare(races: list[Race]) -> dict[str, list[Order]]:
    """How families are ordered by today's estimates and by rooflines."""
    families = [_by_family(race) for race in races if race.winner]
    return {
        "today": orders(families),
        "one rate": _ordered_by_rooflines(families, 1),
        "two rates": _ordered_by_rooflines(families, 2),
    }


def table(found: dict[str, list[Order]]) -> str:
    """For all, and by the family that is the choice.

    The share of races with it among the first three, and the time of the first over the choice's.
    """
    rows = []
    for family in ["all", *sorted({order.family for order in found["today"]})]:
        row = {"family": family}
        for name, of in found.items():
            one = quality([order for order in of if family in ("all", order.family)])
            row["races"] = str(one.races)
            row[f"among three, {name}"] = f"{100 * one.among_three:.0f}%"
            row[f"guess / choice, {name}"] = f"{one.loss:.2f}"
        rows.append(row)
    return lines(rows)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence.rooflines")
    parser.add_argument("--evidence", type=Path, default=SAVED)
    judged = saved(parser.parse_args().evidence)
    if not judged.races:
        parser.error("there are no races: python -m benchmarks.evidence saves some")
    print(table(compare(judged.races)))


if __name__ == "__main__":
    main()

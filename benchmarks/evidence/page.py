"""The page: `python -m benchmarks.evidence.page` writes docs/kernels/families.md.

It needs no GPU and no build: the saved races and the sources are all that it reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.markdown import lines

from . import judgement
from .judgement import Quality, Worth
from .saved import Evidence, family_of
from .sources import Sources

ROOT = Path(__file__).parents[2]
SAVED = sorted(ROOT.glob("benchmarks/results/evidence_*.json"))
PATTERNS = ROOT / "benchmarks/results/patterns.json"
PAGE = ROOT / "docs/kernels/families.md"
_TIMINGS = ("warm", "cold")


class Judged:
    """One GPU's saved races, of families that exist, beside the sources."""

    def __init__(self, gpu: str, evidence: Evidence, sources: Sources) -> None:
        self.gpu = gpu
        self.evidence = evidence
        self.sources = sources
        self.ours = set(sources.files)
        known = self.ours | sources.vendors
        self.races = [race.among(known) for race in evidence.races if not race.failure]
        self.raced = {family_of(name) for race in self.races for name in race.expected}
        self.wins = judgement.wins(self.races)
        hopper = {family for family in self.ours if not judgement.is_portable(family)}
        self.portable_wins = judgement.wins(self.races, without=hopper)

    def worth(self, family: str) -> Worth:
        """Among all families."""
        return judgement.worth(self.wins, family)

    def portable_worth(self, family: str) -> Worth:
        """Among those that are not for Hopper alone."""
        return judgement.worth(self.portable_wins, family)

    def earns_its_place(self, family: str) -> bool:
        """Whether the rule keeps a family of ours."""
        worths = [self.worth(family)]
        if judgement.is_portable(family):
            worths.append(self.portable_worth(family))
        return judgement.earns_its_place(family, *worths)


def without_a_place(all_judged: list[Judged]) -> list[str]:
    """The families of ours that the rule keeps on no GPU."""
    ours = set().union(*(judged.ours for judged in all_judged))
    return sorted(
        family for family in ours if not any(one.earns_its_place(family) for one in all_judged)
    )


def _factor(value: float) -> str:
    if math.isnan(value):
        return "–"
    return "no other" if math.isinf(value) else f"{value:.2f}"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.0f}%"


def _pair(values: dict[str, str]) -> str:
    return " / ".join(values[timing] for timing in _TIMINGS)


def _gains(worth: Worth) -> dict[str, str]:
    medians = {timing: _factor(value) for timing, value in worth.median.items()}
    largest = {timing: _factor(value) for timing, value in worth.largest.items()}
    return {
        "cells": _pair({timing: str(count) for timing, count in worth.cells.items()}),
        "median": _pair(medians),
        "largest": _pair(largest),
        "≥ 10%": str(worth.counting),
    }


def _table(
    judged: list[Judged],
    names: Iterable[str],
    worth: Callable[[Judged, str], Worth] = Judged.worth,
    before: Callable[[str], dict[str, str]] = lambda _: {},
) -> str:
    """A line a family, most often the choice first; GPUs side by side."""
    worths = {name: [worth(one, name) for one in judged] for name in names}

    def cells(family: str) -> int:
        return sum(sum(found.cells.values()) for found in worths[family])

    rows = []
    for family in sorted(worths, key=lambda name: (-cells(name), name)):
        row = {"family": f"`{family}`", **before(family)}
        for one, found in zip(judged, worths[family], strict=True):
            row |= {f"{one.gpu}: {name}": text for name, text in _gains(found).items()}
        rows.append(row)
    return lines(rows)


def _families(judged: list[Judged]) -> str:
    def own(family: str) -> dict[str, str]:
        # In tens: not every change of a kernel is to change this page.
        return {"lines": str(round(judged[0].sources.own_lines(family), -1))}

    return _table(judged, judged[0].ours, before=own)


def _portable(judged: list[Judged]) -> str:
    names = [name for name in judged[0].ours if judgement.is_portable(name)]
    return _table(judged, names, Judged.portable_worth)


def _vendors(judged: list[Judged]) -> str:
    names = judged[0].sources.vendors & set().union(*(one.raced for one in judged))
    return _table(judged, names)


def _quality(quality: Quality, guessed: Quality) -> dict[str, str]:
    return {
        "races": str(quality.races),
        "first": _share(quality.first),
        "among three": _share(quality.among_three),
        "guess / choice": _factor(quality.loss),
        "guessed": str(guessed.races),
        "its loss": _factor(guessed.loss),
    }


def _models(judged: list[Judged]) -> str:
    orders = [judgement.orders(one.races) for one in judged]
    families = {name for of in orders for order in of for name in (order.family, order.guess)}
    rows = []
    for family in ["all", *sorted(families)]:
        row = {"family": family if family == "all" else f"`{family}`"}
        for one, of in zip(judged, orders, strict=True):
            every = family == "all"
            won = judgement.quality([order for order in of if every or order.family == family])
            guessed = judgement.quality([order for order in of if every or order.guess == family])
            found = _quality(won, guessed)
            row |= {f"{one.gpu}: {name}": text for name, text in found.items()}
        rows.append(row)
    return lines(rows)


def _kept() -> str:
    rows = [{"family": f"`{name}`", "why": why} for name, why in judgement.KEPT.items()]
    return lines(rows)


def _named(families: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in families) or "none"


def _summary(judged: list[Judged]) -> list[str]:
    """A few lines, as the other pages here begin with."""
    ours = judged[0].ours
    if not any(one.races for one in judged):
        return [
            "Nothing has been measured yet: `python -m benchmarks.evidence` does that on a GPU.",
            f"{len(ours)} families of kernels of ours wait for it.",
            "A family stays if it makes the choice at least 10% faster in two suites or shapes.",
            "Kernels to read first, and portable fallbacks, stay without that.",
            "The same races say how well cost models order variants.",
        ]

    def each(say: Callable[[Judged], str]) -> str:
        return "; ".join(f"{one.gpu}: {say(one)}" for one in judged)

    def races(one: Judged) -> str:
        name = one.evidence.environment.get("gpu", {}).get("name", "an unknown GPU")
        part = "" if one.evidence.complete else ", cut off before its end"
        failed = len(one.evidence.races) - len(one.races)
        return (
            f"{len(one.races)} on {name}, begun {one.evidence.started[:10]}{part}, {failed} failed"
        )

    quality = {one.gpu: judgement.quality(judgement.orders(one.races)) for one in judged}
    won = [name for name in ours if any(any(one.worth(name).cells.values()) for one in judged)]
    return [
        f"Races of every variant. {each(races)}.",
        f"{len(ours)} families of kernels of ours, of which {len(won)} are the choice somewhere.",
        f"The rule below does not keep: {_named(without_a_place(judged))}.",
        "A cost model has the winner first, and among its first three. "
        + each(
            lambda one: f"{_share(quality[one.gpu].first)}, {_share(quality[one.gpu].among_three)}"
        )
        + ".",
        "Without a race, by cost models alone (`off`), products take so many times as long "
        f"(geometric mean). {each(lambda one: _factor(quality[one.gpu].loss))}.",
    ]


_TEXT = """\
# What each family is worth

{summary}

`make families` writes this page from saved races, with the estimates of today's cost models, which
compute without a GPU where the build has CUDA's variants. Tests compare page, estimates and races.
`python -m benchmarks.evidence --save benchmarks/results/evidence_h200.json` renews a GPU's races;
the file's name says which. They cover every GPU suite's cells, and gradients of layers, warm and
cold.

## The rule

A family of ours stays if it makes the choice at least 10% faster, in cells of at least two suites
or shapes (m, n, k and block side), than the best of all other families; a family for more than
Hopper may do so among the families of its kind. One GPU is enough. Vendors' variants stay: they are
the peers. So do:

{kept}

## Families of ours

In how many cells a family is the choice, and how much faster than the best of all others it is
there: median and largest, each warm / cold. "≥ 10%" is the number of suites and shapes that count
for the rule. "Lines" are those of kernel code that nothing else uses, by the includes, in tens.

{families}

## Portable families

The same among the families that other GPUs can run: those whose names end in `_sm90` are left out.

{portable}

## Vendors' routines

The same for cuSPARSE and cuBLAS, among all families.

{vendors}

## Cost models

A cost model's estimate orders a race, and chooses alone where races are off. "First" is the share
of races whose winner has the lowest estimate of all variants that were timed, "among three" that
in which it is among the three lowest; by the winner's family. "Guess / choice" is the time of the
variant of the lowest estimate over the winner's, a geometric mean. "Guessed" counts the races in
which the family's estimate is the lowest, and "its loss" is that ratio in them.

{models}
"""


def text(judged: list[Judged]) -> str:
    """The page."""
    summary = "\n".join(f"- {line}" for line in _summary(judged))
    tables = (_families, _portable, _vendors, _models)
    raced = any(one.races for one in judged)
    families, portable, vendors, models = (
        table(judged) if raced else "Nothing has been measured yet." for table in tables
    )
    return _TEXT.format(
        summary=summary,
        kept=_kept(),
        families=families,
        portable=portable,
        vendors=vendors,
        models=models,
    )


def saved() -> list[Judged]:
    """Each GPU's saved races beside today's sources; evidence_h200.json is the H200's."""
    sources = Sources(ROOT / "csrc")
    return [
        Judged(path.stem.partition("_")[2].upper(), Evidence.load(path), sources) for path in SAVED
    ]


def main() -> None:
    """Writes the page and prints whom the rule does not keep."""
    judged = saved()
    PAGE.write_text(text(judged))
    print(f"{PAGE}: {sum(len(one.races) for one in judged)} races")
    print(f"not kept by the rule: {', '.join(without_a_place(judged)) or 'none'}")


if __name__ == "__main__":
    main()

"""The page: `python -m benchmarks.evidence.page` writes docs/kernels/families.md.

It needs no GPU and no build: the saved races and the sources are all that it reads.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from benchmarks.markdown import lines

from . import judgement
from .judgement import Quality, Worth
from .saved import Evidence, family_of
from .sources import Sources

ROOT = Path(__file__).parents[2]
SAVED = ROOT / "benchmarks/results/evidence_h200.json"
PAGE = ROOT / "docs/kernels/families.md"
_TIMINGS = ("warm", "cold")


class Judged:
    """The saved races, of families that exist, beside the sources."""

    def __init__(self, evidence: Evidence, sources: Sources) -> None:
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

    def without_a_place(self) -> list[str]:
        """The families of ours that the rule does not keep."""
        return sorted(family for family in self.ours if not self.earns_its_place(family))


def _factor(value: float) -> str:
    if math.isnan(value):
        return "–"
    return "no other" if math.isinf(value) else f"{value:.2f}"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.0f}%"


def _gains(worth: Worth) -> dict[str, str]:
    found = {}
    for timing in _TIMINGS:
        found[timing] = str(worth.cells[timing])
        found[f"median, {timing}"] = _factor(worth.median[timing])
        found[f"largest, {timing}"] = _factor(worth.largest[timing])
    return found | {"≥ 10%": str(worth.counting)}


def _most_often_first(worths: dict[str, Worth]) -> list[str]:
    return sorted(worths, key=lambda name: (-sum(worths[name].cells.values()), name))


def _families(judged: Judged) -> str:
    rows = []
    for family in _most_often_first({name: judged.worth(name) for name in judged.ours}):
        rows.append(
            {
                "family": f"`{family}`",
                # In tens: not every change of a kernel is to change this page.
                "lines": str(round(judged.sources.own_lines(family), -1)),
                **_gains(judged.worth(family)),
            }
        )
    return lines(rows)


def _portable(judged: Judged) -> str:
    found = {
        name: judged.portable_worth(name) for name in judged.ours if judgement.is_portable(name)
    }
    order = _most_often_first(found)
    return lines([{"family": f"`{name}`", **_gains(found[name])} for name in order])


def _vendors(judged: Judged) -> str:
    found = sorted(judged.sources.vendors & judged.raced)
    return lines([{"family": f"`{name}`", **_gains(judged.worth(name))} for name in found])


def _quality(quality: Quality) -> dict[str, str]:
    return {
        "races": str(quality.races),
        "first": _share(quality.first),
        "among three": _share(quality.among_three),
        "guess / choice": _factor(quality.loss),
    }


def _models(judged: Judged) -> str:
    orders = judgement.orders(judged.races)
    none = {"guessed": "", "its loss": ""}
    rows = [{"family": "all", **_quality(judgement.quality(orders)), **none}]
    for family in sorted({order.family for order in orders} | {order.guess for order in orders}):
        guessed = [order for order in orders if order.guess == family]
        rows.append(
            {
                "family": f"`{family}`",
                **_quality(judgement.quality([o for o in orders if o.family == family])),
                "guessed": str(len(guessed)),
                "its loss": _factor(judgement.quality(guessed).loss),
            }
        )
    return lines(rows)


def _kept() -> str:
    rows = [{"family": f"`{name}`", "why": why} for name, why in judgement.KEPT.items()]
    return lines(rows)


def _named(families: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in families) or "none"


def _summary(judged: Judged) -> list[str]:
    """Five lines, as the other pages here begin with."""
    evidence, races = judged.evidence, judged.races
    if not races:
        return [
            "Nothing has been measured yet: `python -m benchmarks.evidence` does that on a GPU.",
            f"{len(judged.ours)} families of kernels of ours wait for it.",
            "A family stays if it makes the choice at least 10% faster in two suites or shapes.",
            "Kernels to read first, and portable fallbacks, stay without that.",
            "The same races say how well cost models order variants.",
        ]
    gpu = evidence.environment.get("gpu", {}).get("name", "an unknown GPU")
    part = "" if evidence.complete else ", cut off before its end"
    won = [family for family in judged.ours if any(judged.worth(family).cells.values())]
    overall = judgement.quality(judgement.orders(races))
    return [
        f"{len(races)} races of every variant on {gpu}, begun {evidence.started[:10]}{part}; "
        f"{len(evidence.races) - len(races)} more failed.",
        f"{len(judged.ours)} families of kernels of ours, of which {len(won)} are the choice "
        "somewhere.",
        f"The rule below does not keep: {_named(judged.without_a_place())}.",
        f"A cost model has the winner first in {_share(overall.first)} of the races and among its "
        f"first three in {_share(overall.among_three)}.",
        "Without a race, by cost models alone (`off`), products take "
        f"{_factor(overall.loss)} times as long (geometric mean).",
    ]


_TEXT = """\
# What each family is worth

{summary}

`make families` writes this page from saved races, and a test compares the two.
`python -m benchmarks.evidence --save benchmarks/results/evidence_h200.json` renews the races. They
cover every GPU suite's cells, and gradients of layers, warm and cold.

## The rule

A family of ours stays if it makes the choice at least 10% faster, in cells of at least two suites
or shapes (m, n, k and block side), than the best of all other families; a family for more than
Hopper may do so among the families of its kind. Vendors' variants stay: they are the peers. So do:

{kept}

## Families of ours

In how many cells a family is the choice, and how much faster than the best of all others it is
there: median and largest, warm and cold. "≥ 10%" is the number of suites and shapes that count for
the rule. "Lines" are those of kernel code that nothing else uses, by the includes, in tens.

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


def text(judged: Judged) -> str:
    """The page."""
    summary = "\n".join(f"- {line}" for line in _summary(judged))
    tables = (_families, _portable, _vendors, _models)
    families, portable, vendors, models = (
        table(judged) if judged.races else "Nothing has been measured yet." for table in tables
    )
    return _TEXT.format(
        summary=summary,
        kept=_kept(),
        families=families,
        portable=portable,
        vendors=vendors,
        models=models,
    )


def saved(path: Path = SAVED) -> Judged:
    """The saved races, or none where there is no file, beside today's sources."""
    evidence = Evidence.load(path) if path.exists() else Evidence()
    return Judged(evidence, Sources(ROOT / "csrc"))


def main() -> None:
    """Writes the page and prints whom the rule does not keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence.page")
    parser.add_argument("--evidence", type=Path, default=SAVED)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    judged = saved(options.evidence)
    options.page.write_text(text(judged))
    print(f"{options.page}: {len(judged.races)} races")
    if judged.races:
        print(f"not kept by the rule: {', '.join(judged.without_a_place()) or 'none'}")


if __name__ == "__main__":
    main()

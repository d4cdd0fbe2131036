"""What saved races say: who is worth what, who earns a place, and how good the cost models are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .saved import Race, family_of

# By how much a family must make the choice faster for a cell to count, and in how many.
WORTHWHILE = 1.10
CELLS = 2

# Families that stay whatever their times are, and why.
KEPT = {
    "simt": "the readable product, the kernel to read first; computes everything",
    "sampled_simt": "the readable sampled product; computes everything",
    "mma_sm80": "the portable fallback of fp16, bf16 and TF32 products",
    "mma_eights_sm80": "the only one with tensor cores for half types in blocks of 8, of which the "
    "suites have a single cell",
    "small_n_sm80": "the portable fallback of products with few columns",
    "dmma_sm80": "the portable fallback of fp64 products",
    "sampled_sm80": "the portable fallback of sampled products",
}


def is_portable(family: str) -> bool:
    """Whether it runs on other GPUs than Hopper's, too."""
    return not family.endswith("_sm90")


@dataclass(frozen=True)
class Win:
    """A race in which a family is the choice: how much faster than the best of all others.

    The gain is infinite where no other family could be timed.
    """

    race: Race
    family: str
    gain: float


def wins(races: Iterable[Race], without: Collection[str] = ()) -> list[Win]:
    """Of each race the choice among the families but `without`."""
    found = []
    for race in races:
        times = race.families(without)
        family = race.choice(without)
        if family not in times:
            continue
        others = [time for name, time in times.items() if name != family]
        found.append(Win(race, family, min(others, default=math.inf) / times[family]))
    return found


@dataclass(frozen=True)
class Worth:
    """A family's wins.

    Attributes:
        cells: in how many cells it is the choice, by timing.
        median: its median gain there, by timing; NaN where it has none.
        largest: its largest gain there.
        counting: in how many suites and shapes it makes the choice worthwhile faster.
    """

    cells: dict[str, int]
    median: dict[str, float]
    largest: dict[str, float]
    counting: int


def worth(won: Iterable[Win], family: str) -> Worth:
    """A family's share of these wins."""
    of = [win for win in won if win.family == family]
    gains = {
        timing: [win.gain for win in of if win.race.timing == timing] for timing in ("warm", "cold")
    }
    return Worth(
        cells={timing: len(found) for timing, found in gains.items()},
        median={t: statistics.median(found) if found else math.nan for t, found in gains.items()},
        largest={timing: max(found, default=math.nan) for timing, found in gains.items()},
        counting=len({win.race.shape for win in of if win.gain >= WORTHWHILE}),
    )


def earns_its_place(family: str, *worths: Worth) -> bool:
    """Whether the rule keeps it, by its worth among all families or among portable ones."""
    return family in KEPT or any(one.counting >= CELLS for one in worths)


@dataclass(frozen=True)
class Order:
    """How cost models ordered one race.

    Attributes:
        family: the choice.
        rank: the place of the winner among the estimates of all that were timed, from 1 on.
        guess: the family that the estimates alone choose, as `mode="off"` does.
        loss: the time of that guess over the winner's; None if it was not timed.
    """

    family: str
    rank: int
    guess: str
    loss: float | None


def orders(races: Iterable[Race]) -> list[Order]:
    """Of each race with a winner, how well its estimates order."""
    found = []
    for race in races:
        if race.winner not in race.median:
            continue
        expected = race.expected
        before = [n for n in race.median if expected[n] < expected[race.winner]]
        guess = min(expected, key=lambda name: expected[name])
        time = race.median.get(guess)
        loss = None if time is None else time / race.median[race.winner]
        found.append(Order(family_of(race.winner), len(before) + 1, family_of(guess), loss))
    return found


@dataclass(frozen=True)
class Quality:
    """How good cost models are, over some races.

    Attributes:
        races: how many.
        first: the share in which the winner has the lowest estimate.
        among_three: the share in which it is among the three lowest.
        loss: the geometric mean of the guess's time over the winner's; NaN where there is none.
    """

    races: int
    first: float
    among_three: float
    loss: float


def quality(of: Collection[Order]) -> Quality:
    """Over these races."""
    count = len(of)
    losses = [order.loss for order in of if order.loss is not None]
    return Quality(
        races=count,
        first=sum(order.rank == 1 for order in of) / count if count else math.nan,
        among_three=sum(order.rank <= 3 for order in of) / count if count else math.nan,
        loss=statistics.geometric_mean(losses) if losses else math.nan,
    )

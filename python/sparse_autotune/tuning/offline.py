"""`tune_file`: racing what mode "record" wrote, on operands made like those that were missed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import _tuner, missed_products
from ..missed_products import MissedProduct
from ..settings import settings
from .announcements import bar_of
from .races import check_budget
from .recorded_attention import race_of_attention
from .recorded_products import race_of_product
from .report import BenchmarkReport, report_of, significant

# By operator: the text of the race's record, empty where the winner is known, as a tensor.
_RACES: dict[str, Callable[[MissedProduct, torch.device], Tensor]] = {
    "matmul": race_of_product,
    "sampled_matmul": race_of_product,
    "attention": race_of_attention,
    "attention_backward": race_of_attention,
}


@dataclass(frozen=True)
class Skipped:
    """A line of the file that was not raced, and why."""

    signature: str
    reason: str


@dataclass(frozen=True)
class TuneFileReport:
    """What `tune_file` did; prints as a line for each race.

    Attributes:
        races: the races, one for each kind of product that had no entry.
        known: the kinds that had one already.
        skipped: those that could not be raced here, and lines that are none.
        left: the kinds that the budget did not reach.
        seconds: the duration.
    """

    races: list[BenchmarkReport] = field(default_factory=list)
    known: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    left: int = 0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python objects."""
        return asdict(self)

    def __str__(self) -> str:
        lines = []
        for race in self.races:
            best = race.best
            if best is None:
                lines.append(f"{race.problem}: no winner, {race.failure or 'every variant failed'}")
            else:
                lines.append(f"{race.problem}: {best.name}, {significant(best.median_us, 4)} µs")
        lines += [f"{skipped.signature}: skipped, {skipped.reason}" for skipped in self.skipped]
        counts = {"raced": len(self.races), "known": self.known, "skipped": len(self.skipped)}
        counts["left"] = self.left
        return "\n".join([*lines, ", ".join(f"{n} {name}" for name, n in counts.items())])


def _device_of(product: MissedProduct) -> torch.device:
    """Where it can be raced.

    Raises:
        ValueError: nowhere here.
    """
    if product.device_type == "cpu":
        here = [torch.device("cpu")]
        classes = [_tuner.device_info(-1, torch.get_num_threads())["device_class"]]
    else:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        here = [torch.device("cuda", ordinal) for ordinal in range(count)]
        classes = [_tuner.device_info(ordinal)["device_class"] for ordinal in range(count)]
    if product.device_class not in classes:
        found = ", ".join(classes) or "no GPU"
        raise ValueError(f"it is of a device {product.device_class}, here is {found}")
    return here[classes.index(product.device_class)]


def _race(product: MissedProduct) -> BenchmarkReport | None:
    """None where an entry serves already.

    Raises:
        ValueError: it cannot be raced here.
    """
    device = _device_of(product)
    operator = str(product.problem.get("op"))
    if operator not in _RACES:
        raise ValueError(f"no operator {operator!r} is raced from a file")
    _tuner.check_problem(product.problem_text())
    with settings.override(timing=product.timing, buckets=product.buckets):
        text = _RACES[operator](product, device)
    if text.numel() == 0:
        return None
    race = _tuner.parse_record(bytes(text.tolist()).decode())
    return report_of(race, product.device_type, {}, product.timing)


def tune_file(
    path: str | os.PathLike[str], *, budget_s: float | None = None, progress: bool = True
) -> TuneFileReport:
    """Races what mode "record" missed, in every mode, and fills the cache.

    Each kind of product or attention in the file that has no entry is raced, on operands of its
    own: of the same shapes, layouts and alignments, with random values, and on a random pattern
    with as many blocks and, of a product, an equally long longest row. A second call races nothing.

    Args:
        path: the file, ``settings.record_path`` of the processes that missed.
        budget_s: seconds to spend, after which no further race begins; None: no bound. Each race
            has ``settings.budget_s``.
        progress: show a bar, on a terminal.

    Returns:
        The races, and what was not raced and why.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file has lines, but none of a missed product, or ``budget_s`` is out of
            range.
    """
    check_budget(budget_s)
    start = time.monotonic()
    products, wrong = missed_products.read(path)
    races: list[BenchmarkReport] = []
    skipped = [Skipped(f"line {number}", why) for number, why in wrong]
    known = done = 0
    with bar_of(len(products), progress) as begin:
        for product in products:
            if budget_s is not None and time.monotonic() - start >= budget_s:
                break
            done += 1
            begin(product.description)
            try:
                race = _race(product)
            except (RuntimeError, ValueError) as error:
                skipped.append(Skipped(product.signature, str(error).splitlines()[0]))
                continue
            if race is None:
                known += 1
            else:
                races.append(race)
    seconds = time.monotonic() - start
    return TuneFileReport(races, known, skipped, len(products) - done, seconds)

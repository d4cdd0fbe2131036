"""Measures: `python -m benchmarks.evidence --save benchmarks/results/evidence_h200.json`.

Races every variant on the cells of all GPU suites, and on the gradients of layers, warm and cold,
and saves what each variant took and what its cost model had expected. Minutes on an H200. A run
that was cut off, or ended at `--seconds`, goes on where it was when it is started again.
"""

from __future__ import annotations

import argparse
import datetime
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import environment
from benchmarks.cell import Cell

from . import races
from .saved import Evidence, Race

_SAVE_EVERY_S = 15
# What may not change within a file.
_SAME = ("kernels", "torch")


def begun(path: Path, now: dict) -> Evidence:
    """The file to go on with, or a new one.

    Raises:
        ValueError: the file is of another build or GPU.
    """
    if not path.exists():
        today = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        return Evidence(now, today)
    found = Evidence.load(path)
    before = found.environment
    differs = [name for name in _SAME if before.get(name) != now.get(name)]
    if before.get("gpu", {}).get("name") != now.get("gpu", {}).get("name"):
        differs.append("gpu")
    if differs:
        raise ValueError(f"{path} is of another {', '.join(differs)}: save elsewhere, or remove it")
    return found


def run(
    evidence: Evidence,
    path: Path,
    listed: list[tuple[str, Cell]],
    seconds: float,
    measure: Callable[[str, Cell, races.Timing], Race],
) -> None:
    """Adds the races that are missing, saving now and then; none begins after `seconds`.

    Whatever stops it, the races so far are saved.
    """
    begin = last_saved = time.monotonic()
    known = {race.key for race in evidence.races}
    evidence.complete = False
    try:
        for suite, cell in listed:
            for timing in races.TIMINGS:
                if Race(suite, cell.to_dict(), timing).key in known:
                    continue
                if time.monotonic() - begin > seconds:
                    return
                evidence.races.append(measure(suite, cell, timing))
                if time.monotonic() - last_saved > _SAVE_EVERY_S:
                    evidence.save(path)
                    last_saved = time.monotonic()
                    print(f"{len(evidence.races)} races, {last_saved - begin:.0f} s", flush=True)
        evidence.complete = True
    finally:
        evidence.save(path)


def main() -> None:
    """Races all cells that the file lacks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence")
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=0.25, help="seconds a race")
    parser.add_argument("--seconds", type=float, default=540, help="no race begins later")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*Sparse BSR tensor support is in beta.*")

    def measure(suite: str, cell: Cell, timing: races.Timing) -> Race:
        torch.cuda.synchronize()  # raises where the race before, which is noted, broke the context
        torch.cuda.empty_cache()
        return races.race(suite, cell, timing, options.budget)

    evidence = begun(options.save, environment.describe("cuda"))
    listed = races.in_order(races.cells())
    with environment.own_cache():
        run(evidence, options.save, listed, options.seconds, measure)
    of = len(listed) * len(races.TIMINGS)
    failed = [race for race in evidence.races if race.failure]
    print(f"{len(evidence.races)} of {of} races in {options.save}; {len(failed)} failed")
    for race in failed:
        print(f"  {race.suite} {race.cell} {race.timing}: {race.failure}")
    if not evidence.complete:
        print("not complete: start it again to go on")


if __name__ == "__main__":
    main()

"""Today's estimates for saved races: `python -m benchmarks.evidence.estimates` (`make families`).

Cost models compute on any machine; the variants that they belong to have to be in the build, which
one without CUDA does not have: `SPARSE_AUTOTUNE_CUDA=1 make build`, with nvcc and without a GPU.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.cell import Cell
from sparse_autotune import _tuner

from .page import PATTERNS, SAVED
from .problems import Patterns, text_of
from .saved import Evidence, Race


def renewed(race: Race, gpu: dict, patterns: Patterns, known: set[str]) -> Race:
    """The race with the estimates of today's cost models, of variants that were timed and exist."""
    if race.failure:
        return race
    cell = Cell(**race.cell)
    facts = patterns.facts(cell)
    timed = [name for name in race.median if name in known]
    expected = _tuner.estimates(text_of(cell, facts), facts, gpu, timed)
    return replace(race, expected=expected, median={name: race.median[name] for name in timed})


def renew(evidence: Evidence, patterns: Patterns) -> list[Race]:
    """All races with today's estimates."""
    gpu = dict(evidence.environment["gpu"])
    major, minor = gpu["compute_capability"].split(".")
    gpu["compute_capability"] = 10 * int(major) + int(minor)
    known = {variant["name"] for variant in _tuner.variants()}
    return [renewed(race, gpu, patterns, known) for race in evidence.races]


def main() -> None:
    """Replaces the estimates in the saved files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence.estimates")
    parser.add_argument("--evidence", type=Path, nargs="*", default=SAVED)
    options = parser.parse_args()
    if not _tuner.build_info()["cuda"]:
        print("this build has no CUDA: estimates stay as they were saved")
        return
    patterns = Patterns(PATTERNS)
    for path in options.evidence:
        evidence = Evidence.load(path)
        evidence.races = renew(evidence, patterns)
        evidence.save(path)
        print(f"{path}: {len(evidence.races)} races")
    patterns.save()


if __name__ == "__main__":
    main()

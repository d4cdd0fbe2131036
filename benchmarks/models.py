"""What the suites of whole models share: a run, printed and saved."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from . import environment


def run(
    suite: str,
    options: argparse.Namespace,
    device: str,
    measure: Callable[[], dict[str, Any]],
    line_of: Callable[[dict[str, Any]], str],
    what: str,
) -> int:
    """Prints the times; returns the exit status, 1 where results differ too much.

    Args:
        suite: its name.
        options: those of `benchmarks/run.py`.
        device: "cuda" or "cpu".
        measure: returns what is saved, "steps" and "error", in tolerances, among it.
        line_of: of a step, what is printed.
        what: whose error that is.
    """
    record = environment.Record(suite, device, options.save, options.command)
    print(json.dumps(record.environment, indent=None if options.brief else 1))
    measured = measure()
    record.save(complete=True, **measured)
    for step in measured["steps"]:
        print(line_of(step))
    if options.save is not None:
        print(f"saved in {options.save}")
    if not measured["error"] <= 1:
        print(f"FAILED: {what} are off by {measured['error']:.3g} tolerances", file=sys.stderr)
        return 1
    return 0

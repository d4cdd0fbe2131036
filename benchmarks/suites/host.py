"""The host time of every way to a tuned product, against its limit: on a GPU, or on a CPU."""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks import environment, host_time

# What it takes, roughly.
SECONDS = 15.0


def run(options: argparse.Namespace, device: str) -> int:
    """Prints the table; a limit that is exceeded is shown, never an error."""
    parts = [part.strip() for part in options.only.split(",")]
    names = [name for name in host_time.LIMITS if all(part in name for part in parts)]
    if not names:
        print(f"suite host has no row named like {options.only!r}", file=sys.stderr)
        return 2
    record = environment.Record("host", device, options.save, options.command)
    print(json.dumps(record.environment, indent=None if options.brief else 1))
    rows = host_time.measure(device, names, options.rounds or host_time.ROUNDS)
    record.save(complete=True, host_times=[row.to_dict() for row in rows])
    print(host_time.table(rows))
    if options.save is not None:
        print(f"saved in {options.save}")
    return 0

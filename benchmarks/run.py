"""The benchmarks' one entry: `python -m benchmarks.run --suite cpu --save build/cpu.json`.

Ends with the worst and the geometric mean of every ratio, and exits non-zero when one of our own
variants failed or was wrong. A slow one is reported, never an error: speed is no test.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import math
import os
import pkgutil
import sys
import tempfile
from pathlib import Path

import torch


def _arguments() -> argparse.Namespace:
    from . import suites

    names = sorted(module.name for module in pkgutil.iter_modules(suites.__path__))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run")
    parser.add_argument("--suite", choices=["auto", *names], default="auto")
    parser.add_argument("--save", type=Path, help="write the results and the environment as JSON")
    parser.add_argument("--rounds", type=int, help="interleaved rounds a cell")
    parser.add_argument("--only", help="only cells whose printed name contains this")
    parser.add_argument(
        "--renew-peers", action="store_true", help="sweep the peers' stored knobs anew"
    )
    return parser.parse_args()


def _summary(results: list) -> list[str]:
    by_label: dict[str, list[tuple[float, str]]] = {}
    for result in results:
        for label, value in result.ratios().items():
            by_label.setdefault(label, []).append((value, str(result.cell)))
    lines = [f"{'ratio':38}{'geo. mean':>10}{'least':>8}{'most':>8}  cell of the worse end"]
    for label, found in by_label.items():
        values = [value for value, _ in found]
        mean = math.exp(sum(map(math.log, values)) / len(values))
        # Of times the largest is the worst, of speeds and rates the smallest.
        worst = max(found) if label.startswith("time") else min(found)
        lines.append(f"{label:38}{mean:10.3f}{min(values):8.3f}{max(values):8.3f}  {worst[1]}")
    return lines


def _broken(results: list) -> list[str]:
    return [
        f"{result.cell}: {row.name} {row.status}: {row.reason}"
        for result in results
        for row in result.rows
        if row.kind != "peer" and row.status in ("failed", "wrong")
    ]


def main() -> int:
    """Runs a suite; returns the exit status."""
    options = _arguments()
    # A cache of its own: every run tunes anew and tells nothing to the user's programs.
    with tempfile.TemporaryDirectory(prefix="sparse_autotune_bench_") as cache:
        os.environ["SPARSE_AUTOTUNE_CACHE_DIR"] = cache
        os.environ.setdefault("SPARSE_AUTOTUNE_VERBOSE", "0")
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    from . import comparison, environment, host_time
    from .peers import triton_tuned

    triton_tuned.RENEW = options.renew_peers
    name = options.suite
    if name == "auto":
        name = "gpu_short" if torch.cuda.is_available() else "cpu"
    suite = importlib.import_module(f"benchmarks.suites.{name}")
    if suite.DEVICE == "cuda" and not torch.cuda.is_available():
        print(f"suite {name} needs a GPU, and torch sees none", file=sys.stderr)
        return 2
    started = datetime.datetime.now(datetime.timezone.utc)
    described = environment.describe(suite.DEVICE)
    print(json.dumps(described, indent=1))
    results = []
    for cell in suite.CELLS:
        if options.only and options.only not in str(cell):
            continue
        results.append(comparison.measure(cell, suite.DEVICE, options.rounds or suite.ROUNDS))
        print(comparison.show(results[-1]), "\n", flush=True)
    host = host_time.measure(suite.DEVICE)
    print(*_summary(results), host_time.show(host), sep="\n")
    if options.save is not None:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        saved = {
            "suite": name,
            "started": started.isoformat(timespec="seconds"),
            "environment": described,
            "cells": [result.to_dict() for result in results],
            "host_time": host,
        }
        options.save.write_text(json.dumps(saved, indent=1) + "\n")
        print(f"saved in {options.save}")
    broken = _broken(results)
    for line in broken:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

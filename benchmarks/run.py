"""The benchmarks' one entry: `python benchmarks/run.py --suite cpu --save build/cpu.json`.

Ends with a table of every cell and the worst and the geometric mean of each ratio, and exits
non-zero when one of our own variants failed or was wrong. A slow one is reported, never an error:
speed is no test.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import json
import math
import pkgutil
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):  # run as a file: its own folder is on the path instead of the tree's
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import comparison, environment, host_time, suites, tables
from benchmarks.cell import Cell
from benchmarks.peers import triton_sm80, triton_tuned
from benchmarks.result import Result
from benchmarks.suite import Suite
from sparse_autotune.configuration import why_no_gpu

# What a suite's first cell is expected to take, and how many cells tell what the next one will.
_FIRST_S = 5.0
_RECENT = 3


def _arguments() -> argparse.Namespace:
    names = sorted(module.name for module in pkgutil.iter_modules(suites.__path__))
    parser = argparse.ArgumentParser(prog="benchmarks/run.py")
    parser.add_argument("--suite", choices=["auto", *names], default="auto")
    parser.add_argument("--save", type=Path, help="write the results and the environment as JSON")
    parser.add_argument("--rounds", type=int, help="interleaved rounds a cell")
    parser.add_argument(
        "--only", default="", help="only cells whose printed name contains all of these, by comma"
    )
    parser.add_argument("--brief", action="store_true", help="print the final tables alone")
    parser.add_argument(
        "--renew-peers", action="store_true", help="sweep the peers' stored knobs anew"
    )
    options = parser.parse_args()
    options.command = environment.command("python benchmarks/run.py")
    return options


def main() -> int:
    """Runs a suite; returns the exit status."""
    options = _arguments()
    silence()
    with environment.own_cache():
        return _run(options)


def silence() -> None:
    """Leaves out what peers say about themselves in every run."""
    warnings.filterwarnings("ignore", message=".*Sparse BSR tensor support is in beta.*")
    warnings.filterwarnings("ignore", message=".*bsr_dense_addmm uses non-optimal.*")


def compile_peers(cells: Sequence[Cell], suite: Suite, renew: bool) -> None:
    """Compiles in many processes what a swept peer of the suite will need, on a GPU."""
    if suite.has_swept_peer:
        arch = triton_sm80.ARCH if suite.portable else ""
        triton_tuned.compile_ahead(cells, renew=renew, arch=arch)


def measure_cells(
    cells: Sequence[Cell],
    suite: Suite,
    record: environment.Record,
    *,
    brief: bool,
    deadline: float = math.inf,
) -> list[Result]:
    """Measures cell after cell and keeps what is measured, whatever becomes of the rest.

    No cell is begun of which the recent ones say that it would end after `deadline`, a time of
    `time.monotonic`.
    """
    results: list[Result] = []
    for cell in cells:
        begin = time.monotonic()
        recent = [result.seconds for result in results[-_RECENT:]]
        if begin + max(recent, default=_FIRST_S) > deadline:
            break
        results.append((suite.measure or comparison.measure)(cell, suite))
        if suite.device == "cuda":  # graphs have memory of their own: the next cell wants it
            gc.collect()
            torch.cuda.empty_cache()
        results[-1].seconds = time.monotonic() - begin
        text = str(cell) if brief else tables.of_cell(results[-1])
        print(f"{text}\n  in {results[-1].seconds:.1f} s\n", flush=True)
        record.save(complete=False, **to_save(results, suite))
    return results


def to_save(results: list[Result], suite: Suite) -> dict[str, Any]:
    """What a saved run has of its cells, and the knobs that a peer ran with or swept."""
    saved: dict[str, Any] = {"cells": [result.to_dict() for result in results]}
    if suite.device == "cuda" and suite.measure is None:
        cells = [result.cell for result in results]
        found = triton_tuned.stored(cells, triton_sm80.ARCH if suite.portable else "")
        saved["knobs"] = {key: value for knobs in found.values() for key, value in knobs.items()}
    return saved


def _run(options: argparse.Namespace) -> int:
    name = options.suite
    if name == "auto":
        name = "cpu" if why_no_gpu() else "gpu"
    module = importlib.import_module(f"benchmarks.suites.{name}")
    if hasattr(module, "run"):  # what it measures are no cells
        return module.run(options, "cpu" if why_no_gpu() else "cuda")
    suite = module.SUITE
    if options.rounds is not None:
        suite = dataclasses.replace(suite, rounds=options.rounds)
    if suite.device == "cuda" and (why := why_no_gpu()):
        print(f"suite {name} needs a GPU: {why}", file=sys.stderr)
        return 2
    cells = suite.cells_named(options.only)
    if not cells:
        print(f"suite {name} has no cell named like {options.only!r}", file=sys.stderr)
        return 2
    record = environment.Record(name, suite.device, options.save, options.command)
    print(json.dumps(record.environment, indent=None if options.brief else 1))
    compile_peers(cells, suite, renew=options.renew_peers)
    results = measure_cells(cells, suite, record, brief=options.brief)
    host = host_time.measure_short(suite.device)
    complete = not options.only
    record.save(complete=complete, host_time=host.to_dict(), **to_save(results, suite))
    if options.save is not None:
        print(f"saved in {options.save}")
    shown = host_time.show(host, suite.device)
    print(tables.of_results(results), shown, tables.headline(results), sep="\n")
    failures = broken(results)
    for line in failures:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if failures else 0


def broken(results: list[Result]) -> list[str]:
    """Our own variants that failed or were wrong."""
    return [
        f"{result.cell}: {row.name} {row.status}: {row.reason}"
        for result in results
        for row in result.rows
        if row.kind != "peer" and row.status in ("failed", "wrong")
    ]


if __name__ == "__main__":
    sys.exit(main())

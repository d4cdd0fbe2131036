"""Several suites in one process, within a budget of time: a file each, for `benchmarks.keep`.

`python -m benchmarks.collect --out build/collected --budget-s 400`, then, where the repository is,
`python -m benchmarks.keep build/collected/*.json` and `make figures`.

Suites run in the order in which they are named, the most important first. What does not fit the
budget is left out, and the file says that it is incomplete. Rounds and races are shorter than
`benchmarks/run.py` makes them, and eager calls are not timed. Triton's swept kernel takes part
where its knobs are stored for this GPU, or with `--sweep`, which takes some 8 s a cell; a suite's
file has the knobs that were found, and `benchmarks.keep` adds them to the stored ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import pkgutil
import sys
import time
import traceback
from collections.abc import Container
from pathlib import Path

import torch

from . import environment, run, suites, tables
from .cell import Cell
from .peers import triton_sm80, triton_tuned
from .suite import Suite
from .training import __main__ as training

GPU = (
    *("gpu_large_blocks", "training", "llama", "gpu_losses", "gpu_small_n", "gpu_small_blocks"),
    *("host", "gpu_sweeps", "gpu_science"),
)
CPU = ("cpu_short", "llama", "host")
_ROUNDS = 5
_RACE_S = 0.5


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collect")
    parser.add_argument("--out", type=Path, required=True, help="a folder; one JSON file a suite")
    parser.add_argument("--suites", help="by comma, the most important first")
    parser.add_argument("--budget-s", type=float, default=400.0, help="seconds for all of them")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="at most, interleaved, a cell")
    parser.add_argument(
        "--sweep",
        nargs="?",
        const="unknown",
        choices=["unknown", "all"],
        help="sweep Triton's knobs where they are unknown, or everywhere",
    )
    options = parser.parse_args()
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    defaults = GPU if options.device == "cuda" else CPU
    options.suites = options.suites.split(",") if options.suites else list(defaults)
    known = {"training", *(module.name for module in pkgutil.iter_modules(suites.__path__))}
    for name in options.suites:
        if name not in known:
            parser.error(f"there is no suite {name!r}; there are {', '.join(sorted(known))}")
    return options


def shortened(suite: Suite, rounds: int) -> Suite:
    """A suite with fewer rounds and shorter races, without eager calls."""
    return dataclasses.replace(
        suite,
        rounds=min(suite.rounds, rounds),
        budget_s=min(suite.budget_s, _RACE_S),
        modes=tuple(mode for mode in suite.modes if mode != "eager"),
    )


def _without(cell: Cell, with_triton: Container[Cell]) -> tuple[str, ...]:
    """The peers that are left out in a cell; all swept ones but for the cells `with_triton`."""
    return () if cell in with_triton else ("triton_tuned", "triton_sm80")


def _cells(suite: Suite, record: environment.Record, options: argparse.Namespace) -> list[str]:
    """Measures a suite's cells as far as the time goes; returns what was wrong of ours."""
    suite = shortened(suite, options.rounds)
    if suite.has_swept_peer:
        arch = triton_sm80.ARCH if suite.portable else ""
        known = list(suite.cells if options.sweep else triton_tuned.stored(suite.cells, arch))
        run.compile_peers(known, suite, renew=options.sweep == "all")
        suite = dataclasses.replace(suite, without_in=lambda cell: _without(cell, known))
    results = run.measure_cells(suite.cells, suite, record, brief=True, deadline=options.deadline)
    if not results:
        return []  # and no file, which would stand for an earlier one
    complete = len(results) == len(suite.cells)
    record.save(complete=complete, **run.to_save(results, suite))
    print(tables.headline(results))
    return run.broken(results)


def _collect(name: str, options: argparse.Namespace) -> list[str]:
    path = options.out / f"{name}.json"
    if name == "training":
        record = environment.Record(
            name, options.device, path, "python -m benchmarks.training --eager"
        )
        what = training.arguments(["--eager", "--rounds", str(options.rounds)])
        what.budget = _RACE_S
        return training.measure(what, record, options.deadline)
    command = f"python -m benchmarks.collect --suites {name}"
    if options.rounds != _ROUNDS:
        command += f" --rounds {options.rounds}"
    module = importlib.import_module(f"benchmarks.suites.{name}")
    if hasattr(module, "SUITE"):
        record = environment.Record(name, options.device, path, command)
        return _cells(module.SUITE, record, options)
    if time.monotonic() + module.SECONDS > options.deadline:
        return []
    one = argparse.Namespace(save=path, command=command, only="", rounds=None, brief=True)
    return [f"suite {name}"] if module.run(one, options.device) else []


def main() -> int:
    """Runs the suites; returns the exit status, 1 when something of ours was wrong."""
    options = _arguments()
    options.deadline = time.monotonic() + options.budget_s
    run.silence()
    failures: list[str] = []
    with environment.own_cache():
        for name in options.suites:
            print(f"==> {name}, {options.deadline - time.monotonic():.0f} s left", flush=True)
            try:
                failures += _collect(name, options)
            except (Exception, SystemExit):  # the other suites are worth their time
                traceback.print_exc()
                failures.append(f"suite {name} ended early")
    for line in failures:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

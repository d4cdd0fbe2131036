"""The benchmarks' one entry: `python benchmarks/run.py --suite cpu --save build/cpu.json`.

Ends with a table of every cell and the worst and the geometric mean of each ratio, and exits
non-zero when one of our own variants failed or was wrong. A slow one is reported, never an error:
speed is no test.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pkgutil
import sys
import time
import warnings
from pathlib import Path

if __package__ in (None, ""):  # run as a file: its own folder is on the path instead of the tree's
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import comparison, environment, host_time, suites, tables
from benchmarks.peers import triton_tuned
from benchmarks.result import Result
from sparse_autotune.configuration import why_no_gpu


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
    return parser.parse_args()


def main() -> int:
    """Runs a suite; returns the exit status."""
    options = _arguments()
    warnings.filterwarnings("ignore", message=".*Sparse BSR tensor support is in beta.*")
    warnings.filterwarnings("ignore", message=".*bsr_dense_addmm uses non-optimal.*")
    with environment.own_cache():
        return _run(options)


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
    record = environment.Record(name, suite.device, options.save)
    print(json.dumps(record.environment, indent=None if options.brief else 1))
    if suite.device == "cuda" and suite.peers and "triton_tuned" not in suite.without:
        triton_tuned.compile_ahead(cells, renew=options.renew_peers)
    results: list[Result] = []

    def save(host: host_time.Row | None) -> None:
        record.save(
            complete=host is not None,
            cells=[result.to_dict() for result in results],
            host_time=host and host.to_dict(),
        )

    for cell in cells:
        begin = time.monotonic()
        results.append(comparison.measure(cell, suite))
        took = time.monotonic() - begin
        text = str(cell) if options.brief else tables.of_cell(results[-1])
        print(f"{text}\n  in {took:.1f} s\n", flush=True)
        save(None)  # what is measured is kept, whatever becomes of the rest
    host = host_time.measure_short(suite.device)
    save(host)
    if options.save is not None:
        print(f"saved in {options.save}")
    shown = host_time.show(host, suite.device)
    print(tables.of_results(results), shown, tables.headline(results), sep="\n")
    broken = _broken(results)
    for line in broken:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if broken else 0


def _broken(results: list[Result]) -> list[str]:
    return [
        f"{result.cell}: {row.name} {row.status}: {row.reason}"
        for result in results
        for row in result.rows
        if row.kind != "peer" and row.status in ("failed", "wrong")
    ]


if __name__ == "__main__":
    sys.exit(main())

"""The entry: `python -m benchmarks.attention --suite cpu_attention --save build/attention.json`.

For each cell: the choice's time, nnz TFLOP/s (4 D for each pair of a stored block forward, 10 D
backward) and its ratio to each peer, medians of interleaved rounds. Results are compared with each
other within what rounding explains. Exits non-zero when our result differs from all others. A
slow one is reported, never an error.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks import environment
from benchmarks.timing import cpu_sampler, interleave, kernel_sampler

from .cells import SUITES, AttentionCell, AttentionOperands
from .contestants import calls


def measure(cell: AttentionCell, device: str, rounds: int, families: bool) -> dict[str, Any]:
    """Times of all contestants of a cell in microseconds, and how far our result is from theirs."""
    operands = AttentionOperands(cell, device)
    flops = operands.flops
    found = calls(operands, families)
    ours = found["choice"]().double()
    # Four roundings of the dtype, and the sums of as many products in fp32 as a row has columns.
    unit = 4 * torch.finfo(getattr(torch, cell.dtype)).eps
    unit += 2**-24 * (8 + 4 * math.sqrt(cell.length))
    distances = {}
    for name in [name for name in found if name != "choice"]:
        try:
            off = (found[name]().double() - ours).abs() / (ours.abs() + 1)
            distances[name] = float(off.max()) / unit
        except torch.OutOfMemoryError:
            print(f"  {name} is left out: no memory beside the others")
            del found[name]
    samplers = {
        name: cpu_sampler(call) if device == "cpu" else kernel_sampler([call])[0]
        for name, call in found.items()
    }
    times = interleave(samplers, rounds, keep=found)
    return {
        "cell": cell.to_dict(),
        "name": str(cell),
        "tflops": flops / times["choice"].median_us / 1e6,
        "us": {name: timing.median_us for name, timing in times.items()},
        "distances": distances,
    }


def line_of(result: dict[str, Any]) -> str:
    """A line for people."""
    times = result["us"]
    own = times["choice"]
    others = ", ".join(f"{name} {us / own:.2f}x" for name, us in times.items() if name != "choice")
    return f"{result['name']}: {own:.0f} us, {result['tflops']:.3g} TFLOP/s; {others}"


def main() -> int:
    """Runs a suite; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention")
    parser.add_argument("--suite", choices=sorted(SUITES), default="cpu_attention")
    parser.add_argument("--only", default="", help="only cells whose name contains this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--families", action="store_true", help="our families, too")
    parser.add_argument("--save", type=Path, help="write results and environment as JSON")
    options = parser.parse_args()
    device, cells = SUITES[options.suite]
    if device == "cuda" and not torch.cuda.is_available():
        print(f"{options.suite} needs a GPU", file=sys.stderr)
        return 2
    command = environment.command("python -m benchmarks.attention")
    record = environment.Record(options.suite, device, options.save, command)
    print(json.dumps(record.environment))
    results: list[dict[str, Any]] = []
    with environment.own_cache():
        for cell in cells:
            if options.only in str(cell):
                results.append(measure(cell, device, options.rounds, options.families))
                print(line_of(results[-1]), flush=True)
                record.save(complete=False, results=results)
    record.save(complete=True, results=results)
    for backward in (False, True):
        ratios = [
            min(us for name, us in r["us"].items() if name in ("torch_sdpa", "flex_attention"))
            / r["us"]["choice"]
            for r in results
            if r["cell"]["backward"] == backward
        ]
        if ratios:
            way = "backward" if backward else "forward"
            print(f"{way}: {statistics.geometric_mean(ratios):.2f}x the best peer, geometric mean"
                  f" of {len(ratios)} cells; at least {min(ratios):.2f}x")  # fmt: skip
    wrong = [r["name"] for r in results if r["distances"] and min(r["distances"].values()) > 1]
    for name in wrong:
        print(f"FAILED: {name}: our result is unlike all others", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

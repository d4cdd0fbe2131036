"""What it costs that numbers of columns share races: `python -m benchmarks.buckets`.

A fixed weight meets numbers of tokens from 1 to 8192, as a serving loop does. Each is tuned twice,
in buckets, as by default, and exactly; then the calls of both are timed in turns. The claim: at
most 32 races, and in total at most 1.05 times the time of exact tuning.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import sparse_autotune as sa
from sparse_autotune.choices import Buckets

from . import environment, timing
from .cell import Cell, Operands

MOST_RACES = 32
MOST_TIME = 1.05
LARGEST = 8192
BOTH: tuple[Buckets, ...] = ("geometric", "exact")


def numbers(count: int) -> list[int]:
    """At most so many numbers of columns, evenly spaced in their logarithms, with both ends."""
    return sorted({round(LARGEST ** (i / (count - 1))) for i in range(count)})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.buckets", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default the GPU, if any")
    parser.add_argument("--size", type=int, help="of the square weight")
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--density", type=float, default=0.125)
    parser.add_argument("--matmul", action="store_true", help="time a @ b, not linear(x, a)")
    parser.add_argument("--count", type=int, default=90, help="numbers of columns, before rounding")
    parser.add_argument("--race-s", type=float, default=0.2, help="the budget of a race")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved, for each number")
    parser.add_argument("--save", type=Path, help="a JSON file for what is measured")
    options = parser.parse_args()
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    options.size = options.size or (4096 if options.device == "cuda" else 1024)
    return options


def _sampler(call: Callable[[], torch.Tensor], buckets: Buckets, device: str) -> timing.Sampler:
    """Of the call as those buckets decide it; a graph holds what they have decided."""
    sa.settings.buckets = buckets
    call()
    if device == "cuda":
        return timing.kernel_sampler([call])[0]
    sampler = timing.cpu_sampler(call)

    def sample() -> float:
        sa.settings.buckets = buckets
        call()  # what was decided is looked up again
        return sampler()

    return sample


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Races, and medians for each number of columns."""
    dtype = "bfloat16" if options.device == "cuda" else "float32"
    cell = Cell(options.size, 1, options.size, options.block, options.density, dtype)
    a = Operands(cell, options.device).a

    def product(n: int) -> Callable[[], torch.Tensor]:
        shape = (options.size, n) if options.matmul else (n, options.size)
        b = torch.randn(shape, device=options.device, dtype=a.dtype)
        return (lambda: sa.matmul(a, b)) if options.matmul else (lambda: sa.linear(b, a))

    ns = numbers(options.count)
    races = {}
    for buckets in BOTH:
        sa.settings.buckets = buckets
        before = sa.tuning_count()
        for n in ns:
            product(n)()
        races[buckets] = sa.tuning_count() - before
    columns: list[dict[str, Any]] = []
    for n in ns:
        call = product(n)
        samplers: dict[str, timing.Sampler] = {
            buckets: _sampler(call, buckets, options.device) for buckets in BOTH
        }
        taken = timing.interleave(samplers, options.rounds, keep=BOTH)
        columns.append({"n": n, "us": {name: t.median_us for name, t in taken.items()}})
    total = {name: sum(column["us"][name] for column in columns) for name in BOTH}
    each = [column["us"]["geometric"] / column["us"]["exact"] for column in columns]
    return {
        "races": races,
        "total_us": total,
        "time_over_exact": total["geometric"] / total["exact"],
        "median_over_exact": statistics.median(each),
        "worst_over_exact": max(each),
        "columns": columns,
    }


def main() -> int:
    """Measures, prints and saves; 1 where the claim does not hold."""
    options = _arguments()
    begin = time.monotonic()
    command = environment.command("python -m benchmarks.buckets")
    with (
        environment.own_cache(),
        sa.settings.override(budget_s=options.race_s, timing="warm", buckets="geometric"),
    ):
        record = environment.Record("buckets", options.device, options.save, command)
        print(json.dumps(record.environment))
        found = measure(options)
        record.save(complete=True, **found)
    for column in found["columns"]:
        us = column["us"]
        ratio = us["geometric"] / us["exact"]
        print(
            f"n {column['n']:5}: {us['geometric']:9.2f} µs, exact {us['exact']:9.2f} ({ratio:.3f})"
        )
    print(
        f"{len(found['columns'])} numbers of columns: {found['races']['geometric']} races "
        f"(exact {found['races']['exact']}); the time over that of exact tuning: "
        f"{found['time_over_exact']:.3f} in total, {found['median_over_exact']:.3f} median, "
        f"{found['worst_over_exact']:.3f} worst; {time.monotonic() - begin:.0f} s"
    )
    holds = found["races"]["geometric"] <= MOST_RACES and found["time_over_exact"] <= MOST_TIME
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

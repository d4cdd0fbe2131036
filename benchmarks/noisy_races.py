"""Whether races choose well beside a noisy neighbour: `python -m benchmarks.noisy_races`.

One product is raced again and again, each time without an entry, while random kernels run beside
it for random times: on a second stream of this process (on a CPU in a thread), then in another
process. Before, between and after, with the neighbour at rest, every variant is timed. The claim:
at least 95 of 100 choices are within 3% of the variant that is the fastest at rest, and none is a
variant that failed verification. One that computes nothing takes part: it would win every race.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import sparse_autotune as sa

from . import environment
from .cell import Cell, Operands

WITHIN = 1.03
SHARE = 0.95
_PLANTED = "planted"
_SIZES = (256, 512, 1024, 2048)
_MOST_PAUSE_S = 0.004


def _disturb(device: str, started: Any, stop: Any, seed: int) -> None:
    """Random products of dense matrices, with random pauses, until `stop` is set."""
    draw = random.Random(seed)
    cuda = device == "cuda"
    stream = torch.cuda.stream(torch.cuda.Stream()) if cuda else contextlib.nullcontext()
    with stream:
        x = {size: torch.randn(size, size, device=device) for size in _SIZES[: 4 if cuda else 2]}
        results = {size: torch.empty_like(matrix) for size, matrix in x.items()}
        while not stop.is_set():
            size = draw.choice(list(x))
            for _ in range(draw.randrange(1, 20 if cuda else 4)):
                torch.mm(x[size], x[size], out=results[size])
            if cuda:
                torch.cuda.current_stream().synchronize()
            started.set()
            time.sleep(draw.random() * _MOST_PAUSE_S)


@contextlib.contextmanager
def _neighbour(kind: str, device: str) -> Iterator[None]:
    started: Any
    stop: Any
    worker: Any
    if kind == "stream":
        started, stop = threading.Event(), threading.Event()
        worker = threading.Thread(target=_disturb, args=(device, started, stop, 1))
    else:
        context = multiprocessing.get_context("spawn")
        started, stop = context.Event(), context.Event()
        worker = context.Process(target=_disturb, args=(device, started, stop, 2), daemon=True)
    worker.start()
    try:
        while not started.wait(0.1):
            if not worker.is_alive():
                raise RuntimeError(f"the neighbour ({kind}) ended")
        yield
    finally:
        stop.set()
        worker.join(30)


def _nothing(*_: Any, **__: Any) -> None:
    """Leaves the output as it is."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noisy_races", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default the GPU, if any")
    parser.add_argument("--size", type=int, help="of the square matrix")
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("-n", type=int, default=512, help="columns")
    parser.add_argument("--races", type=int, default=100, help="half beside each neighbour")
    parser.add_argument("--race-s", type=float, default=0.25, help="the budget of a race")
    parser.add_argument("--rest-s", type=float, default=2.0, help="of each look at rest")
    parser.add_argument("--save", type=Path, help="a JSON file for what is measured")
    options = parser.parse_args()
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    options.size = options.size or (2048 if options.device == "cuda" else 1024)
    return options


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The choices beside each neighbour, and all variants' times at rest."""
    dtype = "bfloat16" if options.device == "cuda" else "float32"
    cell = Cell(options.size, options.n, options.size, options.block, 0.125, dtype)
    operands = Operands(cell, options.device)
    a, b = operands.a, operands.b
    at_rest: dict[str, list[float]] = {}

    def look() -> None:
        for record in sa.benchmark(a, b, budget_s=options.rest_s).records:
            if record.median_us is not None:
                at_rest.setdefault(record.name, []).append(record.median_us)

    planted = sa.register_variant(_PLANTED, _nothing, device=options.device)
    look()
    choices: dict[str, list[str]] = {}
    tried: Counter[str] = Counter()
    unverified = []
    for kind in ("stream", "process"):
        with _neighbour(kind, options.device):
            for _ in range(options.races // 2):
                sa.cache.clear()  # the winner of before would count as incumbent
                report = sa.tune(a, b)
                assert report.best is not None, report.failure
                choices.setdefault(kind, []).append(report.winner)
                (seen,) = (r for r in report.records if r.family == _PLANTED)
                tried[kind] += seen.status == "failed"
                if (
                    report.best.error is None
                    or report.best.error > 1
                    or report.best.family == _PLANTED
                ):
                    unverified.append(report.winner)
        look()
    planted.unregister()
    us = {name: statistics.median(taken) for name, taken in at_rest.items()}
    best = min(us.values())
    neighbours = {}
    for kind, names in choices.items():
        ratios = [us[name] / best for name in names]
        neighbours[kind] = {
            "races": len(names),
            "within": sum(ratio <= WITHIN for ratio in ratios),
            "worst": max(ratios),
            "wrong_one_tried": tried[kind],
            "chosen": {name: [n, us[name] / best] for name, n in Counter(names).most_common()},
        }
    return {"best_us": best, "at_rest_us": at_rest, "unverified": unverified, "beside": neighbours}


def main() -> int:
    """Measures, prints and saves; 1 where the claim does not hold."""
    options = _arguments()
    begin = time.monotonic()
    command = environment.command("python -m benchmarks.noisy_races")
    with environment.own_cache(), sa.settings.override(budget_s=options.race_s):
        record = environment.Record("noisy_races", options.device, options.save, command)
        print(json.dumps(record.environment))
        found = measure(options)
        record.save(complete=True, **found)
    print(f"fastest at rest: {found['best_us']:.2f} µs")
    for kind, beside in found["beside"].items():
        print(
            f"beside a {kind}: {beside['within']} of {beside['races']} choices within "
            f"{WITHIN - 1:.0%} of it, the worst {beside['worst']:.3f}; the wrong variant was tried "
            f"and found out {beside['wrong_one_tried']} times"
        )
        for name, (count, ratio) in beside["chosen"].items():
            print(f"  {name:40}{count:4} times, {ratio:.3f} of the fastest's time at rest")
    races = sum(beside["races"] for beside in found["beside"].values())
    within = sum(beside["within"] for beside in found["beside"].values())
    print(
        f"{within} of {races} within {WITHIN - 1:.0%}, {len(found['unverified'])} unverified; "
        f"{time.monotonic() - begin:.0f} s"
    )
    return 0 if within >= SHARE * races and not found["unverified"] else 1


if __name__ == "__main__":
    sys.exit(main())

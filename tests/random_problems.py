"""Random products against fp64 references, as many as the time allows; `make random-problems`.

    python tests/random_problems.py --seconds 480 --jobs 4 --resume build/random_problems.json
    python tests/random_problems.py --seed 1 --start 4711 --count 1 --variant simt/rows4

Every problem runs with "auto" (the heuristic) and with one legal variant at random, or with each of
them (`--every-variant`). What is wrong is printed as a line that runs it again, by itself. With
`--resume` what is done is noted in a file and not done twice. Exits non-zero if anything was wrong.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures.process
import dataclasses
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from random_cases import Case, NotLegalError, draw

import sparse_autotune
from sparse_autotune import _tuner

# Problems that are one piece of work: of a process, and of what `--resume` remembers.
CHUNK = 100
# Verdicts are left on the device until there are so many: each look at them waits for it.
_UNREAD = 64
_MOST_FAILURES = 20


def reproducer(seed: int, index: int, variant: str, device: str) -> str:
    """A command that runs one problem again."""
    return (
        f"python tests/random_problems.py --seed {seed} --start {index} --count 1 "
        f"--device {device} --variant {variant}"
    )


@dataclasses.dataclass
class Tally:
    """What was run: `products` by variant, `refused` of them for their `out`."""

    problems: int = 0
    products: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    refused: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Takes in another's."""
        self.problems += other.problems
        self.products += other.products
        self.refused += other.refused
        self.failures += other.failures

    def to_dict(self) -> dict:
        """For JSON."""
        return {**dataclasses.asdict(self), "products": dict(sorted(self.products.items()))}

    @staticmethod
    def of(saved: dict) -> Tally:
        """The inverse of `to_dict`."""
        return Tally(**{**saved, "products": collections.Counter(saved["products"])})


@dataclasses.dataclass(frozen=True)
class Plan:
    """How problems are run."""

    seed: int
    device: str
    variant: str | None = None  # this alone
    every_variant: bool = False
    one_by_one: bool = False  # look at each verdict before the next product


def _variants(plan: Plan, case: Case, index: int) -> list[str]:
    if plan.variant is not None:
        return [plan.variant]
    legal = case.legal()
    if plan.every_variant or not legal:
        return ["auto", *legal]
    # Not the generator that drew the problem: which variants are legal depends on the device.
    return ["auto", legal[np.random.default_rng((plan.seed, index, 2)).integers(len(legal))]]


class _Run:
    """One process's run over some problems."""

    def __init__(self, plan: Plan):
        self.plan, self.tally = plan, Tally()
        self._unread: list[tuple[int, str, torch.Tensor]] = []

    def problem(self, index: int) -> None:
        """Draws and runs one."""
        case = Case(draw(self.plan.seed, index), self.plan.device)
        for variant in _variants(self.plan, case, index):
            self.tally.products[variant] += 1
            try:
                self._unread.append((index, variant, case.wrong(variant)))
            except NotLegalError:
                self.tally.refused += 1
            except Exception as error:
                self._fail(index, variant, f"{type(error).__name__}: {error}".split("\n")[0])
                self._stop_if_the_device_is_gone()
            if len(self._unread) >= (1 if self.plan.one_by_one else _UNREAD):
                self.read()
        self.tally.problems += 1

    def read(self) -> None:
        """Waits for the verdicts and notes the bad ones."""
        unread, self._unread = self._unread, []
        if not unread:
            return
        try:
            verdicts = torch.stack([wrong for _, _, wrong in unread]).tolist()
        except RuntimeError as error:
            first, last = unread[0][0], unread[-1][0]
            self.tally.failures.append(
                f"the device failed in problems {first} to {last} of seed {self.plan.seed}: {error}"
                f"\n  python tests/random_problems.py --seed {self.plan.seed} --start {first} "
                f"--count {last - first + 1} --device {self.plan.device} --one-by-one"
            )
            raise _DeviceGoneError from None
        for (index, variant, _), wrong in zip(unread, verdicts, strict=True):
            if wrong:
                again = Case(draw(self.plan.seed, index), self.plan.device)
                self._fail(index, variant, again.explain(variant))

    def _fail(self, index: int, variant: str, what: str) -> None:
        problem = draw(self.plan.seed, index)
        line = reproducer(self.plan.seed, index, variant, self.plan.device)
        self.tally.failures.append(f"{line}\n  {what}\n  {dataclasses.asdict(problem)}")

    def _stop_if_the_device_is_gone(self) -> None:
        if self.plan.device == "cpu":
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            raise _DeviceGoneError from None


class _DeviceGoneError(Exception):
    """After an illegal access nothing more runs in this process."""


def run(plan: Plan, start: int, count: int) -> tuple[Tally, bool]:
    """Runs problems `start` to `start + count`; also whether the process can go on."""
    going = _Run(plan)
    before = sparse_autotune.settings.mode
    sparse_autotune.settings.mode = "off"
    # What the tolerance assumes; by default cuBLAS may add partial sums in the half type.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    try:
        for index in range(start, start + count):
            going.problem(index)
        going.read()
    except _DeviceGoneError:
        return going.tally, False
    finally:
        sparse_autotune.settings.mode = before
    return going.tally, True


class State:
    """Which chunks of a seed's problems are done, and what came of them; perhaps in a file."""

    def __init__(self, path: pathlib.Path | None, seed: int, device: str):
        kernels = _tuner.build_info()["kernel_hash"]
        self._path = path
        self._of = {"seed": seed, "device": device, "chunk": CHUNK, "kernels": kernels}
        self.tally, self.done = Tally(), set()
        if path is not None and path.is_file():
            saved = json.loads(path.read_text())
            if saved["of"] != self._of:
                raise SystemExit(
                    f"{path} is of {saved['of']}, this one of {self._of}: remove it to begin anew"
                )
            self.tally, self.done = Tally.of(saved["tally"]), set(saved["done"])

    def finish(self, chunk: int, tally: Tally) -> None:
        """Notes a finished chunk."""
        self.done.add(chunk)
        self.tally.add(tally)
        if self._path is not None:
            saved = {"of": self._of, "done": sorted(self.done), "tally": self.tally.to_dict()}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.with_suffix(".part").write_text(json.dumps(saved))
            self._path.with_suffix(".part").replace(self._path)


def _chunks(options: argparse.Namespace, state: State) -> Iterator[tuple[int, int, int]]:
    """(chunk, start, count) of what is still to do."""
    end = sys.maxsize if options.count is None else options.start + options.count
    begin = options.start
    while begin < end:
        chunk = begin // CHUNK
        stop = min(end, (chunk + 1) * CHUNK)
        whole = stop - begin == CHUNK
        if not (whole and chunk in state.done):
            yield (chunk if whole else -1), begin, stop - begin
        begin = stop


def _died(plan: Plan, running: Iterable[tuple[int, int, int]]) -> str:
    commands = [
        f"  python tests/random_problems.py --seed {plan.seed} --start {start} --count {count} "
        f"--device {plan.device} --one-by-one"
        for _, start, count in running
    ]
    return "\n".join(["a process died in one of these:", *commands])


def _run_all(plan: Plan, options: argparse.Namespace, state: State) -> None:
    begin = last_said = time.monotonic()
    waiting: dict[concurrent.futures.Future, tuple[int, int, int]] = {}
    chunks = _chunks(options, state)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.jobs, mp_context=spawn) as pool:
        more = True
        while more or waiting:
            late = time.monotonic() - begin > options.seconds
            more = more and not late and len(state.tally.failures) < _MOST_FAILURES
            while more and len(waiting) < options.jobs + 1:
                following = next(chunks, None)
                more = following is not None
                if following is not None:
                    waiting[pool.submit(run, plan, *following[1:])] = following
            finished, _ = concurrent.futures.wait(
                waiting, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in finished:
                try:
                    tally, alive = future.result()
                except concurrent.futures.process.BrokenProcessPool:
                    state.tally.failures.append(_died(plan, waiting.values()))
                    return
                state.finish(waiting.pop(future)[0], tally)
                more = more and alive
            if time.monotonic() - last_said > 20:
                last_said = time.monotonic()
                print(f"  {_summary(state.tally)}", flush=True)


def _summary(tally: Tally) -> str:
    return (
        f"{tally.problems} problems, {tally.products.total()} products "
        f"({tally.refused} refused their out), {len(tally.failures)} wrong"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="number of the first problem")
    parser.add_argument("--count", type=int, help="how many; without it until the time is over")
    parser.add_argument("--seconds", type=float, default=480.0, help="begin no more after these")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--resume", type=pathlib.Path, help="a file that notes what is done")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--variant", help='this alone: a full name, a family, or "auto"')
    parser.add_argument("--every-variant", action="store_true", help="all legal ones, not one")
    parser.add_argument("--one-by-one", action="store_true", help="wait for each product")
    options = parser.parse_args()
    if options.resume is not None and (options.start % CHUNK or (options.count or 0) % CHUNK):
        parser.error(f"--resume counts in hundreds: --start and --count in multiples of {CHUNK}")
    return options


def main() -> int:
    """Runs what the command line asks for; returns the exit status."""
    options = _arguments()
    one_by_one = options.one_by_one or options.count == 1
    plan = Plan(options.seed, options.device, options.variant, options.every_variant, one_by_one)
    state = State(options.resume, options.seed, options.device)
    begin, before = time.monotonic(), state.tally.problems
    if options.count is not None and options.count <= CHUNK and options.resume is None:
        state.tally, _ = run(plan, options.start, options.count)
    else:
        _run_all(plan, options, state)
    tally, seconds = state.tally, time.monotonic() - begin
    for variant, count in sorted(tally.products.items()):
        print(f"  {variant:32}{count:9}")
    for failure in tally.failures:
        print(f"WRONG: {failure}")
    rate = (tally.problems - before) / seconds
    print(f"{_summary(tally)}; {seconds:.0f} s, {rate:.0f} problems/s")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="sparse_autotune_random_") as cache:
        os.environ["SPARSE_AUTOTUNE_CACHE_DIR"] = cache
        sys.exit(main())

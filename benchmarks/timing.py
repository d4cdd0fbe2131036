"""Interleaved timing: medians of rounds in which every contestant runs once.

Clocks, temperature and neighbours change from second to second, so contestants are never timed one
after the other but in turns, and only ratios within one run mean anything.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import torch

from .cell import Call

Sampler = Callable[[], float]

# A contestant this far behind the fastest in three rounds is not going to win.
_HOPELESS = 3.0
_HOPELESS_AFTER = 3
# One round is enough where calls are so long that no hiccup explains it, and the distance greater.
_LONG_US = 1e5
_LONG_HOPELESS = 10.0
# One sample lasts at least this long, so that clocks and timers resolve it.
_SAMPLE_US = 2000.0
# torch.cuda._sleep counts cycles; no clock of these GPUs is faster than this.
_CYCLES_PER_US = 2000


@dataclass(frozen=True)
class Timing:
    """Samples of one contestant in microseconds a call, summarised."""

    median_us: float
    low_us: float  # first quartile
    high_us: float  # third quartile
    rounds: int

    @staticmethod
    def of(samples: Sequence[float]) -> Timing:
        """Summarises at least one sample."""
        if len(samples) == 1:
            return Timing(samples[0], samples[0], samples[0], 1)
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return Timing(median, low, high, len(samples))


def interleave(
    samplers: Mapping[str, Sampler], rounds: int, keep: Container[str] = (), pause_s: float = 0.0
) -> dict[str, Timing]:
    """Runs every sampler once a round, in an order shuffled each round.

    Who took more than three times the fastest's median in each of three rounds leaves, and so does
    after the first who took more than ten times as long and 0.1 s a call; except those to `keep`.
    Their `rounds` shows it. A pause before each sample lets a GPU that is at its power limit cool
    down.
    """
    order = random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    racing = list(samplers)
    for done in range(1, rounds + 1):
        order.shuffle(racing)
        for name in racing:
            time.sleep(pause_s)
            samples[name].append(samplers[name]())
        if done in (1, _HOPELESS_AFTER):
            best = min(statistics.median(samples[name]) for name in racing)
            limit = max(_LONG_HOPELESS * best, _LONG_US) if done == 1 else _HOPELESS * best
            racing = [name for name in racing if min(samples[name]) <= limit or name in keep]
    return {name: Timing.of(taken) for name, taken in samples.items()}


def cpu_sampler(call: Call, first_us: float = 0.0) -> Sampler:
    """Wall time of a call on the CPU, with operands as warm as its own previous call left them.

    How many calls make a sample is learnt from one, unless the first, which took `first_us`, was
    long already.
    """
    once = first_us
    if once < _LONG_US:
        begin = time.perf_counter()
        call()
        once = (time.perf_counter() - begin) * 1e6
    calls = max(1, round(_SAMPLE_US / max(once, 0.1)))

    def sample() -> float:
        if calls > 1:
            call()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begin) * 1e6 / calls

    return sample


def _run(calls: Sequence[Call], repeats: int) -> None:
    for _ in range(repeats):
        # Held until every copy has had its turn: like the operands, results rotate.
        results = [call() for call in calls]
        del results


def _capture(calls: Sequence[Call], repeats: int) -> Sampler:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _run(calls, repeats)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def sample() -> float:
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / (repeats * len(calls))

    return sample


def _burst(calls: Sequence[Call], repeats: int) -> Sampler:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    host_begin = time.perf_counter()
    _run(calls, repeats)
    host_us = (time.perf_counter() - host_begin) * 1e6
    torch.cuda.synchronize()

    def sample() -> float:
        # The device spins until the host has queued the whole burst.
        torch.cuda._sleep(int((2 * host_us + 200) * _CYCLES_PER_US))
        begin.record()
        _run(calls, repeats)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / (repeats * len(calls))

    return sample


def once_us(calls: Sequence[Call]) -> float:
    """Device time of a call, from running each of `calls` once behind a spinning kernel."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(1000 * _CYCLES_PER_US)
    begin.record()
    _run(calls, 1)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / len(calls)


def kernel_sampler(calls: Sequence[Call]) -> tuple[Sampler, str]:
    """Device time of a call, host time excluded, and how it was taken ("graph" or "burst").

    `calls` are the same product on different copies of the operands; they run in turn, so several
    copies larger than the L2 cache together make every call a cold one. A CUDA graph is replayed;
    what cannot be captured is queued behind a spinning kernel instead.
    """
    _run(calls, 1)
    torch.cuda.synchronize()
    once = once_us(calls)
    repeats = max(1, min(100, round(_SAMPLE_US / max(once * len(calls), 1.0))))
    try:
        return _capture(calls, repeats), "graph"
    except RuntimeError:
        torch.cuda.synchronize()
        return _burst(calls, repeats), "burst"


def eager_sampler(call: Call, flush: torch.Tensor) -> Sampler:
    """Time of one call on an idle GPU with a cold L2, host time included.

    `flush` is a tensor several times as large as the L2 cache. It is only read: that evicts the
    operands and writes back what earlier kernels left dirty, and so leaves the cache full of clean
    lines. After a flush by writing, the call would pay for writing `flush` itself to memory.
    """
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    total = flush.new_empty(())

    def sample() -> float:
        torch.sum(flush, 0, out=total)
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    return sample


def wait_of(device: str) -> Call:
    """What returns when the device has done all that it was given."""
    return torch.cuda.synchronize if device == "cuda" else lambda: None


def whole_sampler(call: Call, calls: int, wait: Call) -> Sampler:
    """Time of a call, of so many issued one after the other, until the device is done."""

    def several() -> None:
        for _ in range(calls):
            call()
        wait()

    sample = host_sampler(several, 1, wait)
    return lambda: sample() / calls


def host_sampler(call: Call, calls: int, synchronize: Call) -> Sampler:
    """Host time of a call when `calls` of them are issued without waiting for any."""

    def sample() -> float:
        synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        taken = (time.perf_counter() - begin) * 1e6 / calls
        synchronize()
        return taken

    return sample

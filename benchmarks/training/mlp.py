"""Forward and backward of an MLP: sparsified, eager and compiled, and the dense one beside it."""

from __future__ import annotations

import copy
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

import sparse_autotune
from benchmarks import timing
from benchmarks.cell import Call

from . import layer
from .layer import DENSE, OURS

# Steps of one sample last this long together, so that what the first waits for hardly shows.
_SAMPLE_S = 0.1
# The ways to run compiled steps that are measured: torch.compile's mode, and whether autograd hands
# a GPU's backward to a thread of its own, as it does unless told otherwise. On a CPU, the first.
COMPILED = {
    "compiled": ("default", True),
    "compiled, backward in the calling thread": ("default", False),
    "compiled, CUDA graphs": ("reduce-overhead", True),
}
# Steps until a CUDA graph of one is replayed.
_WARM_STEPS = 3
# What torch.compile may change: it fuses the activation and so rounds elsewhere.
_COMPILED_DIFFERENCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}


@dataclass(frozen=True)
class CompiledSteps:
    """Compiled steps, in turns with eager ones and none of the dense model's.

    Attributes:
        timing: of one step.
        issued_us: until its last call has returned, the median. Where that is as long as the step,
            the GPU waited for the host.
        over_eager: the time as parts of the eager step's of the same round: first quartile, median
            and third quartile. A GPU at its power limit changes its clock from sample to sample,
            which medians of each by itself would take for a difference.
    """

    timing: timing.Timing
    issued_us: float
    over_eager: tuple[float, float, float]


@dataclass
class MlpResult:
    """An MLP's measurements, by "sparse_autotune" and "dense", and of the former compiled.

    Attributes:
        width: features in and out.
        hidden: features between the two layers.
        timings: of one step, host time included where the device waits for the host.
        compiled: the steps of each way to compile the model.
        error: the largest of our six products, in tolerances.
        compiled_difference: of the compiled models' results and gradients from the eager one's,
            the largest, as a part of their norm.
        resident_bytes: what the model keeps on a GPU between steps: parameters, indices, plans.
        step_bytes: what a step allocates on top of that, at its peak. Both are empty on a CPU.
    """

    width: int
    hidden: int
    tokens: int
    dtype: str
    block: int
    density: float
    timings: dict[str, timing.Timing]
    compiled: dict[str, CompiledSteps]
    error: float
    compiled_difference: float
    resident_bytes: dict[str, int]
    step_bytes: dict[str, int]

    @property
    def speedup(self) -> float:
        """Of a step over the dense MLP's."""
        return self.timings[DENSE].median_us / self.timings[OURS].median_us

    @property
    def wrong(self) -> str:
        """What is wrong with our results, empty if nothing is."""
        if not self.error <= 1:
            return f"off by {self.error:.3g} tolerances"
        if not self.compiled_difference <= _COMPILED_DIFFERENCE[self.dtype]:
            return f"compiled, off by {self.compiled_difference:.3g} of the norm"
        return ""

    @property
    def dense_weight_bytes(self) -> int:
        """Bytes of one layer's dense weight."""
        return self.width * self.hidden * getattr(torch, self.dtype).itemsize

    def to_dict(self) -> dict:
        """For JSON."""
        extra = {"speedup": self.speedup, "dense_weight_bytes": self.dense_weight_bytes}
        return {**asdict(self), **extra}


def _forget(leaves: Sequence[torch.Tensor]) -> None:
    """One by one: what ``zero_grad`` takes to find them is no part of a forward and backward."""
    for leaf in leaves:
        leaf.grad = None


def _step(
    forward: Callable[[torch.Tensor], torch.Tensor],
    leaves: Sequence[torch.Tensor],
    upstream: torch.Tensor,
) -> torch.Tensor:
    """``leaves``: the input, then the model's parameters."""
    _forget(leaves)
    y = forward(leaves[0])
    y.backward(upstream)
    return y


def _error(model: torch.nn.Sequential, x: torch.Tensor, upstream: torch.Tensor) -> float:
    """The largest error of the six products, each on the operands that it got."""
    first, last = (part for part in model if isinstance(part, sparse_autotune.SparseLinear))
    before = first(x)
    hidden = model[1](before)
    y = last(hidden)
    d_before, d_hidden, d_x, d_first, d_last = torch.autograd.grad(
        y, (before, hidden, x, first.values, last.values), upstream
    )
    found: list[float] = []
    for sparse, given, dy, results in (
        (first, x, d_before, layer.Results(before.detach(), d_x, d_first)),
        (last, hidden, upstream, layer.Results(y.detach(), d_hidden, d_last)),
    ):
        weight = sparse.weight.detach()
        of_layer = layer.errors(weight.to_dense(), given.detach(), dy, results, weight)
        found += of_layer.values()
    return max(found)


def _compiled_difference(eager: Call, compiled: Call, leaves: list[torch.Tensor]) -> float:
    """The largest over a step's result and its leaves' gradients; NaN if there is one."""
    for _ in range(_WARM_STEPS):
        compiled()
    kept = [[step().detach(), *(leaf.grad for leaf in leaves)] for step in (eager, compiled)]
    parts = [
        (mine.double() - other.double()).norm() / other.double().norm()
        for other, mine in zip(*kept, strict=True)
    ]
    return torch.stack(parts).max().item()


def _steps_a_sample(step: Call, device: str) -> int:
    """By the time of several: the first of a row lasts until the host has issued it."""
    wait, several = timing.wait_of(device), 8
    step()
    wait()
    begin = time.perf_counter()
    for _ in range(several):
        step()
    wait()
    return max(2, round(_SAMPLE_S * several / (time.perf_counter() - begin)))


class _StepSampler:
    """Time of one of several steps that are issued one after the other, as training does.

    Without `threads` autograd runs the backward in the thread that asks for it.
    """

    def __init__(self, step: Call, steps: int, device: str, threads: bool = True) -> None:
        self._step, self._steps, self._threads = step, steps, threads
        self._wait = timing.wait_of(device)
        self.taken_us: list[float] = []
        self.issued_us: list[float] = []

    def __call__(self) -> float:
        with torch.autograd.set_multithreading_enabled(self._threads):
            # The clock of a GPU at its power limit is at first what the contestant before left.
            for _ in range(self._steps // 2):
                self._step()
            self._wait()
            begin = time.perf_counter()
            for _ in range(self._steps):
                self._step()
            issued = time.perf_counter()
            self._wait()
            taken = time.perf_counter()
        self.issued_us.append((issued - begin) * 1e6 / self._steps)
        self.taken_us.append((taken - begin) * 1e6 / self._steps)
        return self.taken_us[-1]


def _measure_compiled(
    eager: Call, ways: dict[str, tuple[Call, bool]], device: str, rounds: int
) -> dict[str, CompiledSteps]:
    """Each way a step and whether autograd may use threads of its own."""
    steps = _steps_a_sample(eager, device)  # as many of each: every sample begins on an idle GPU
    samplers = {
        way: _StepSampler(step, steps, device, threads) for way, (step, threads) in ways.items()
    }
    samplers[OURS] = _StepSampler(eager, steps, device)
    taken = timing.interleave(samplers, rounds, keep=samplers)
    found = {}
    for way in ways:
        pairs = zip(samplers[way].taken_us, samplers[OURS].taken_us, strict=True)
        ratios = [mine / eagers for mine, eagers in pairs]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        issued = statistics.median(samplers[way].issued_us)
        found[way] = CompiledSteps(taken[way], issued, (low, middle, high))
    return found


def _compile(
    model: torch.nn.Module,
    leaves: list[torch.Tensor],
    upstream: torch.Tensor,
    eager: Call,
    device: str,
) -> tuple[dict[str, tuple[Call, bool]], float]:
    """What `_measure_compiled` takes, and how far the worst of the compiled models is off."""
    compiled: dict[str, Call] = {}
    ways: dict[str, tuple[Call, bool]] = {}
    differences = []
    for way, (mode, threads) in COMPILED.items():
        if device != "cuda" and way != "compiled":
            continue
        if mode not in compiled:
            forward = torch.compile(model, fullgraph=True, mode=mode)
            compiled[mode] = functools.partial(_step, forward, leaves, upstream)
            differences.append(_compiled_difference(eager, compiled[mode], leaves))
        ways[way] = compiled[mode], threads
    return ways, torch.tensor(differences).max().item()  # which passes NaN on


def measure(
    width: int,
    hidden: int,
    tokens: int,
    dtype: str,
    block: int,
    density: float,
    device: str,
    rounds: int,
    budget_s: float,
    compiled: bool = True,
) -> MlpResult:
    """No bias and no optimizer; the input requires grad; gradients are None before every step."""
    torch.manual_seed(0)
    options = {"device": device, "dtype": getattr(torch, dtype)}
    x = torch.randn(tokens, width, requires_grad=True, **options)
    upstream = torch.randn(tokens, width, **options)
    template = torch.nn.Sequential(
        torch.nn.Linear(width, hidden, bias=False),
        torch.nn.GELU(approximate="tanh"),
        torch.nn.Linear(hidden, width, bias=False),
    ).to("cpu", options["dtype"])
    upstream @ upstream.mT  # cuBLAS's workspace is no one's
    steps: dict[str, Call] = {}
    resident, step_bytes, error = {}, {}, 0.0
    for name in (DENSE, OURS):
        before = _allocated(device)
        model = copy.deepcopy(template).to(device)
        if name == OURS:
            sparse_autotune.sparsify_(model, block, density)
        leaves = [x, *model.parameters()]
        step = functools.partial(_step, model, leaves, upstream)
        if name == OURS:
            with sparse_autotune.settings.override(budget_s=budget_s):
                step()  # races on its first products
            _forget(leaves)
            layer.poison(device, 2 * tokens * (hidden + width))
            error = _error(model, x, upstream)
        step()
        _forget(leaves)
        layer.release(device)
        if device == "cuda":
            resident[name] = _allocated(device) - before
            step_bytes[name] = _peak(step)
            _forget(leaves)
        steps[name] = step
    samplers = {
        name: _StepSampler(step, _steps_a_sample(step, device), device)
        for name, step in steps.items()
    }
    taken = timing.interleave(samplers, rounds, keep=samplers)
    beside_eager, difference = {}, 0.0
    if compiled:
        ways, difference = _compile(model, leaves, upstream, steps[OURS], device)
        beside_eager = _measure_compiled(steps[OURS], ways, device, 2 * rounds)
    shape = (width, hidden, tokens, dtype, block, density)
    return MlpResult(*shape, taken, beside_eager, error, difference, resident, step_bytes)


def _allocated(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def _peak(step: Call) -> int:
    """Bytes that a step allocates on the GPU at its peak, beyond what there is."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before

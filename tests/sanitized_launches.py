"""Every CUDA variant on small ragged problems: which problem shows what of which variant.

A variant runs with each dtype, operation, layout of its dense operands and kind of epilogue that
it supports, and with every two of them together. Operands are made on the CPU and copied, so that
no kernel but this package's writes what its kernels read.
"""

import collections
import dataclasses
import functools
import itertools
import os
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

# Exact allocations: inside a caching allocator's larger ones an overrun meets no guard.
os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
# Many processes at once: with threads for each of them they would wait for one another.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from attention_launches import AttentionOnGpu, cases
from problems import CASES, TF32_CASES
from reference import assert_close, make
from sampled_problems import SAMPLED_CASES, SAMPLED_TF32_CASES, make_sampled

import sparse_autotune
from sparse_autotune import _tuner

ON_GPU = [v for v in _tuner.variants() if v["device"] == "cuda"]
# All our kernels live in the namespace sparse_autotune, which their mangled names hold.
OURS = "sparse_autotune"


def settle():
    """What every process sets for the products that it runs."""
    sparse_autotune.settings.mode = "off"
    # What the tolerance assumes; by default cuBLAS may add partial sums in the half type.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def _cases():
    """Problems whose operands can be copied as they are, ragged ones first, batches last."""
    plain = [
        case
        for case in (*CASES, *TF32_CASES)
        if {case.b_layout, case.out_layout} <= {"row", "column"}
        and not (case.native or case.n is None or case.pattern == "empty")
    ]
    return sorted(plain, key=lambda case: (bool(case.batch), case.n % 64 == 0))


def _on_gpu(case):
    operands = make(case)
    bias = None if operands.bias is None else operands.bias.to("cuda")
    a, b = operands.a.to("cuda"), operands.b.to("cuda")
    return dataclasses.replace(operands, a=a, b=b, bias=bias)


def _sampled_cases():
    """The like of `_cases` for sampled products."""
    plain = [
        case
        for case in (*SAMPLED_CASES, *SAMPLED_TF32_CASES)
        if {case.x_layout, case.y_layout} <= {"row", "column"}
        and not (case.native or case.pattern == "empty")
    ]
    return sorted(plain, key=lambda case: case.n % 64 == 0)


def _sampled_on_gpu(case):
    operands = make_sampled(case)
    x, y, pattern = (t.to("cuda") for t in (operands.x, operands.b, operands.a))
    return dataclasses.replace(operands, x=x, b=y, a=pattern)


class _Products:
    """A product's operands, or a sampled one's."""

    def __init__(self, on_gpu, case):
        torch.backends.cuda.matmul.allow_tf32 = case.tf32
        self.operands = on_gpu(case)
        self.legality = self.operands.legality

    def check(self, name):
        assert_close(self.operands.call(name), self.operands)


class Kind(NamedTuple):
    """A kind of operation: its operators, its problems, one's operands (which say what is legal,
    and check a variant), and what a kernel may do otherwise for, every two of which meet in some
    launch."""

    ops: frozenset
    cases: Callable
    operands: Callable
    features: Callable


KINDS = {
    "product": Kind(
        frozenset({"matmul"}),
        functools.cache(_cases),
        functools.partial(_Products, _on_gpu),
        lambda c: (c.dtype, c.op, c.b_layout, bool(c.bias or c.activation), c.tf32),
    ),
    "sampled": Kind(
        frozenset({"sampled_matmul"}),
        functools.cache(_sampled_cases),
        functools.partial(_Products, _sampled_on_gpu),
        lambda c: (c.dtype, c.x_layout, c.y_layout, bool(c.batch), c.tf32),
    ),
    "attention": Kind(
        frozenset({"attention", "attention_backward"}),
        functools.cache(cases),
        AttentionOnGpu,
        lambda c: c.features,
    ),
}


class Launch(NamedTuple):
    """A variant forced on one of the problems."""

    kind: str
    case: int  # its index in `KINDS[kind].cases()`
    name: str

    @property
    def family(self):
        return self.name.split("/")[0]


def legal_variants(kind, case):
    """Names of the variants that may compute this problem of a kind."""
    answers = KINDS[kind].operands(KINDS[kind].cases()[case]).legality()
    return [name for name, reason in answers.items() if reason is None]


def launches_of(families, pool):
    """Each variant on the problems that show a new pair of features of those it supports."""
    ops = {v["op"] for v in ON_GPU if v["family"] in families}
    asked = [
        (kind, case)
        for kind, of_kind in KINDS.items()
        if ops & of_kind.ops
        for case in range(len(of_kind.cases()))
    ]
    launches, met = [], collections.defaultdict(set)
    legal = pool.map(legal_variants, *zip(*asked, strict=True), chunksize=4)
    for (kind, case), names in zip(asked, legal, strict=True):
        features = KINDS[kind].features(KINDS[kind].cases()[case])
        pairs = set(itertools.combinations(enumerate(features), 2))
        for name in names:
            launch = Launch(kind, case, name)
            if launch.family in families and not pairs <= met[name]:
                met[name] |= pairs
                launches.append(launch)
    return launches


def _with_operands(launches):
    """Each launch with its problem and that problem's operands, which are made once."""
    for (kind, index), group in itertools.groupby(sorted(launches), key=lambda launch: launch[:2]):
        case = KINDS[kind].cases()[index]
        operands = KINDS[kind].operands(case)
        for launch in group:
            yield launch, case, operands


def launch_these(launches):
    """Forces variants on problems, as told; each is named before it runs, in case it never ends."""
    for launch, case, operands in _with_operands(launches):
        begin = time.monotonic()
        print(f"{launch.name} on {case}", end=" ", flush=True)
        operands.check(launch.name)
        print(f"{time.monotonic() - begin:.2f} s")


def launched(launches):
    """Forces variants on problems; names of our kernels that ran, and what was wrong."""
    faults = []
    # It says at every start that it forgets earlier cycles: there is one.
    warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for launch, case, operands in _with_operands(launches):
            try:
                operands.check(launch.name)
            except Exception as error:
                faults.append(f"{launch.name} on {case}: {error}")
    return {event.key for event in profile.key_averages() if OURS in event.key}, faults

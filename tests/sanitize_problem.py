"""Every CUDA variant on small ragged problems, for compute-sanitizer.

    python tests/sanitize_problem.py               launch everything, check every result
    python tests/sanitize_problem.py --all-tools   first that, then under each of the four tools

With `--families simt,mma_sm80` of those families alone, with `--tools racecheck` under it alone.

A variant runs with each dtype, operation, layout of its dense operands and kind of epilogue that
it supports, and with every two of them together. Which problem serves for which is found before the
tools are there: they slow every call down, and so look at nothing but the launches that count, in
several processes.
Operands are made on the CPU and copied, so that no kernel but this package's writes what its
kernels read; the tools look at those alone (vendor libraries' kernels are not ours to mend).
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

# Exact allocations: inside a caching allocator's larger ones an overrun meets no guard.
os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch
from attention_launches import AttentionOnGpu, cases
from problems import CASES, TF32_CASES
from reference import assert_close, make
from sampled_problems import SAMPLED_CASES, SAMPLED_TF32_CASES, make_sampled

import sparse_autotune
from sparse_autotune import _tuner
from sparse_autotune.errors import legality

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# All our kernels live in the namespace sparse_autotune, which their mangled names hold.
OURS = "sparse_autotune"
VENDOR_FAMILIES = {
    *("cublas_dense", "cusparse_bsr", "cusparse_blocked_ell"),
    *("sampled_cublas_dense", "sampled_cusparse"),
    *("torch_sdpa", "torch_sdpa_backward"),
}
VARIANTS = [v["name"] for v in _tuner.variants() if v["device"] == "cuda"]


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


def _left_out(tool, launch):
    """What a tool cannot look at.

    It sees what a vendor's kernels do to ours, and nothing of them.
    Under racecheck cuBLAS's kernels fail (of ours in those families densify_lines alone uses shared
    memory), and to initcheck what a vendor's product wrote is unwritten memory when our epilogue
    reads it.
    """
    if launch.family not in VENDOR_FAMILIES:
        return False
    if launch.kind == "attention":  # by torch's kernels alone
        return True
    if tool == "initcheck":  # to gather the blocks of a vendor's product is to read it, too
        case = KINDS[launch.kind].cases()[launch.case]
        return launch.kind == "sampled" or bool(case.bias or case.activation)
    return tool == "racecheck"


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
    x, y, pattern = (t.to("cuda") for t in (operands.x, operands.b, operands.pattern))
    return dataclasses.replace(operands, x=x, b=y, pattern=pattern)


class _Products:
    """A product's operands, or a sampled one's."""

    def __init__(self, operands, legality):
        self.operands, self.legality = operands, legality

    def check(self, name):
        result = self.operands.call(name)
        sampled = isinstance(result, sparse_autotune.BsrTensor)
        assert_close(result.values if sampled else result, self.operands)


def _product(case):
    torch.backends.cuda.matmul.allow_tf32 = case.tf32
    operands = _on_gpu(case)
    return _Products(operands, operands.legality)


def _sampled(case):
    torch.backends.cuda.matmul.allow_tf32 = case.tf32
    operands = _sampled_on_gpu(case)
    asked = functools.partial(legality, operands.x, operands.b, pattern=operands.pattern)
    return _Products(operands, asked)


class Kind(NamedTuple):
    """A kind of operation: its problems, one's operands (which say what is legal, and check a
    variant), and what a kernel may do otherwise for, every two of which meet in some launch."""

    cases: Callable
    operands: Callable
    features: Callable


KINDS = {
    "product": Kind(
        functools.cache(_cases),
        _product,
        lambda c: (c.dtype, c.op, c.b_layout, bool(c.bias or c.activation), c.tf32),
    ),
    "sampled": Kind(
        functools.cache(_sampled_cases),
        _sampled,
        lambda c: (c.dtype, c.x_layout, c.y_layout, bool(c.batch), c.tf32),
    ),
    "attention": Kind(functools.cache(cases), AttentionOnGpu, lambda c: c.features),
}


class Launch(NamedTuple):
    """A variant forced on one of the problems."""

    kind: str
    case: int  # its index in `KINDS[kind].cases()`
    name: str

    @property
    def family(self):
        return self.name.split("/")[0]


def launch_all(families):
    """Forces each variant on the problems that show a new pair of features of those it supports."""
    launched, met = [], collections.defaultdict(set)
    for kind, of_kind in KINDS.items():
        for index, case in enumerate(of_kind.cases()):
            operands = of_kind.operands(case)
            features = set(itertools.combinations(enumerate(of_kind.features(case)), 2))
            for name, reason in operands.legality().items():
                launch = Launch(kind, index, name)
                if reason is None and launch.family in families and not features <= met[name]:
                    met[name] |= features
                    launched.append(launch)
                    operands.check(name)
    return launched


def launch_these(launches):
    """Forces variants on problems, as told; each is named before it runs, in case it never ends."""
    of_case = itertools.groupby(sorted(launches), key=lambda launch: launch[:2])
    for (kind, index), group in of_case:
        case = KINDS[kind].cases()[index]
        operands = KINDS[kind].operands(case)
        for launch in group:
            begin = time.monotonic()
            print(f"{launch.name} on {case}", end=" ", flush=True)
            operands.check(launch.name)
            print(f"{time.monotonic() - begin:.2f} s")


def _kernels_launched(families):
    """Launches everything; returns the launches and the names of our kernels among them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        launched = launch_all(families)
    return launched, sorted({e.key for e in profile.key_averages() if OURS in e.key})


def _sanitizer():
    found = shutil.which("compute-sanitizer")
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = found or shutil.which("compute-sanitizer", path=f"{home}/bin")
    if found is None:
        raise SystemExit("compute-sanitizer is neither on PATH nor in CUDA_HOME/bin")
    return found


def _start(tool, port, launches, log):
    """A tool over these launches; the process writes what it prints into the file `log`."""
    command = [_sanitizer(), "--tool", tool, "--error-exitcode", "99", "--port", str(port)]
    command += ["--kernel-name", f"kns={OURS}"]
    if tool == "memcheck":
        # Calls that may fail, and whose failure is handled, are not what is looked for here.
        command += ["--report-api-errors", "no"]
    if tool == "initcheck":
        # What a vendor's kernel wrote counts as never written, as the filter passes over them.
        command += ["--check-api-memory-access", "no"]
    if tool == "synccheck":
        # It counts the barriers that a kernel initialises, not how many lanes do so at once, and
        # takes those beyond its count for uninitialised. Ours have at most 128 a thread block.
        command += ["--num-cuda-barriers", "128"]
    told = log.with_suffix(".json")
    told.write_text(json.dumps(launches))
    command += [sys.executable, __file__, "--launches", str(told)]
    # Many of these at once: with threads for each of them they would wait for one another.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("w") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )


def _fault(code, text):
    """What is wrong with a process's end by the tool's own count; None where it is clean."""
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) ", text)
    count = sum(map(int, found)) if found else None
    if code == 0 and count == 0:
        return None
    return f"exit {code}, {'no summary' if count is None else f'{count} reported'}"


def _reports(text):
    """What a process's output says of its faults: in which launches, the first ones, kinds, end."""
    told, launch, of_launch = [], "", collections.Counter()
    for line in text.splitlines():
        if " on " in line and "/" in line.split(" on ")[0]:
            launch, line = line.split(" =========")[0], line[line.find("=========") :]
        if line.startswith("========="):
            told.append(line)
            of_launch[launch] += "Host Frame" not in line
    # A thread's number is not what tells one report from another, nor is a frame of the host.
    kinds = collections.Counter(re.sub(r"\(\d+,\d+,\d+\)|0x[0-9a-f]+", "*", line) for line in told)
    counted = [f"{n:7} x {kind}" for kind, n in kinds.most_common() if "Host Frame" not in kind]
    launches = [f"{n:7} lines in {launch}" for launch, n in of_launch.most_common()]
    return [*launches[:25], "...", *told[:25], "...", *counted[:25], "...", text[-1500:]]


def _under(tool, port, launches, seconds, folder):
    """Runs a tool over the launches, in shares; True where every share came to a clean end."""
    # Neighbours in the list share a problem or a family: dealt out in turn, shares are even.
    count = min(len(launches), max(1, (os.cpu_count() or 1) // 4))
    shares = {folder / f"{tool}_{i}.log": launches[i::count] for i in range(count)}
    begin = time.monotonic()
    processes = {log: _start(tool, port + 20 * i, shares[log], log) for i, log in enumerate(shares)}
    clean = True
    for log, process in processes.items():
        try:
            code = process.wait(max(1.0, begin + seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the tool, and what it looks at
            code = f"not ended after {seconds} s"
        text = log.read_text(errors="replace")
        if fault := _fault(code, text):
            clean = False
            print(f"{tool}: {fault}", *_reports(text), sep="\n", flush=True)
    took = f"{len(launches)} launches, {time.monotonic() - begin:.0f} s"
    print(f"  {tool:10} {'clean' if clean else 'FAILED'}, {took}", flush=True)
    return clean


def _all_tools(families, tools, seconds):
    begin = time.monotonic()
    launched, kernels = _kernels_launched(families)
    names = {launch.name for launch in launched}
    own_families = {launch.family for launch in launched} - VENDOR_FAMILIES
    took = f"{time.monotonic() - begin:.0f} s"
    print(
        f"{len(names)} variants in {took}; of {len(own_families)} families of our own, the kernels"
    )
    print("  " + "\n  ".join(kernels), flush=True)
    missed = {name for name in VARIANTS if name.split("/")[0] in families} - names
    if missed:
        raise SystemExit(f"legal for no problem here, hence not checked: {sorted(missed)}")
    if not own_families or len(kernels) < len(own_families):
        # The tools' filter would pass over kernels with other names in silence.
        raise SystemExit(f"fewer kernels named {OURS} than families: {sorted(own_families)}")
    print("==> compute-sanitizer", flush=True)
    # Side by side: each is slow, and none fills the GPU.
    with (
        tempfile.TemporaryDirectory(prefix="sanitize_") as folder,
        concurrent.futures.ThreadPoolExecutor(len(tools)) as pool,
    ):
        ended = [
            pool.submit(
                _under,
                tool,
                49152 + 100 * i,
                [launch for launch in launched if not _left_out(tool, launch)],
                seconds,
                pathlib.Path(folder),
            )
            for i, tool in enumerate(tools)
        ]
        clean = [run.result() for run in ended]
        return 0 if all(clean) else 1


def _some_of(known, text):
    asked_for = set(text.split(",")) if text else known
    if unknown := asked_for - known:
        raise SystemExit(f"none of {sorted(known)}: {sorted(unknown)}")
    return asked_for


def main():
    """The entry."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--all-tools", action="store_true", help="run under each tool")
    parser.add_argument("--families", help="only these, by comma")
    parser.add_argument("--tools", help="only these, by comma")
    parser.add_argument("--seconds", type=int, default=900, help="that a tool may take")
    parser.add_argument("--launches", type=pathlib.Path, help="(what a tool's process is told)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("compute-sanitizer needs a GPU, and torch sees none")
    sparse_autotune.settings.mode = "off"
    # What the tolerance assumes; by default cuBLAS may add partial sums in the half type.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    if options.launches:
        launch_these([Launch(*told) for told in json.loads(options.launches.read_text())])
        return 0
    families = _some_of({name.split("/")[0] for name in VARIANTS}, options.families)
    if options.all_tools or options.tools:
        tools = sorted(_some_of(set(TOOLS), options.tools))
        return _all_tools(families, tools, options.seconds)
    names = {launch.name for launch in launch_all(families)}
    print(f"{len(names)} variants launched, all results right")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Every CUDA variant on small ragged problems, for compute-sanitizer.

    python tests/sanitize_problem.py [TOOL]        launch everything, check every result
    python tests/sanitize_problem.py --all-tools   first that, then under each of the four tools

With `--families simt,mma_sm80` of those families alone.

A variant runs once for each dtype, operation, layout of its dense operands and kind of epilogue
that it supports.
Operands are made on the CPU and copied, so that no kernel but this package's writes what its
kernels read; the tools look at those alone (vendor libraries' kernels are not ours to mend).
"""

import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

# Exact allocations: inside a caching allocator's larger ones an overrun meets no guard.
os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch
from problems import CASES, TF32_CASES
from reference import assert_close, make
from sampled_problems import SAMPLED_CASES, SAMPLED_TF32_CASES, make_sampled

import sparse_autotune
from sparse_autotune import _tuner
from sparse_autotune.checks import legality

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# All our kernels live in the namespace sparse_autotune, which their mangled names hold.
OURS = "sparse_autotune"
VENDOR_FAMILIES = {
    *("cublas_dense", "cusparse_bsr", "cusparse_blocked_ell"),
    *("sampled_cublas_dense", "sampled_cusparse"),
}
VARIANTS = [v["name"] for v in _tuner.variants() if v["device"] == "cuda"]
_asked_for = {name.split("/")[0] for name in VARIANTS}


def _cases():
    """Problems whose operands can be copied as they are, ragged ones first."""
    plain = [
        case
        for case in (*CASES, *TF32_CASES)
        if {case.b_layout, case.out_layout} <= {"row", "column"}
        and not (case.native or case.batch or case.n is None or case.pattern == "empty")
    ]
    return sorted(plain, key=lambda case: case.n % 64 == 0)


def _on_gpu(case):
    operands = make(case)
    bias = None if operands.bias is None else operands.bias.to("cuda")
    a, b = operands.a.to("cuda"), operands.b.to("cuda")
    return dataclasses.replace(operands, a=a, b=b, bias=bias)


def _left_out(tool, family, case):
    """Families not asked for, and what a tool cannot look at.

    It sees what a vendor's kernels do to ours, and nothing of them.
    Under racecheck cuBLAS's kernels fail (our part of those families uses no shared memory), and
    to initcheck what a vendor's product wrote is unwritten memory when our epilogue reads it.
    """
    if family not in _asked_for:
        return True
    if family not in VENDOR_FAMILIES:
        return False
    if tool == "initcheck":  # to gather the blocks of a vendor's product is to read it, too
        return family.startswith("sampled_") or bool(case.bias or case.activation)
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


def _launch_sampled(tool, done):
    for case in _sampled_cases():
        torch.backends.cuda.matmul.allow_tf32 = case.tf32
        kind = ("sampled", case.dtype, case.x_layout, case.y_layout, bool(case.batch), case.tf32)
        operands = _sampled_on_gpu(case)
        for name, reason in legality(operands.x, operands.b, pattern=operands.pattern).items():
            left_out = _left_out(tool, name.split("/")[0], case)
            if reason is None and (name, kind) not in done and not left_out:
                done.add((name, kind))
                assert_close(operands.call(name).values, operands)


def launch_all(tool=None):
    """Forces each variant on the first problem of each kind that it supports; returns the names."""
    sparse_autotune.settings.mode = "off"
    # What the tolerance assumes; by default cuBLAS may add partial sums in the half type.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    done = set()
    for case in _cases():
        torch.backends.cuda.matmul.allow_tf32 = case.tf32
        kind = (case.dtype, case.op, case.b_layout, bool(case.bias or case.activation), case.tf32)
        operands = _on_gpu(case)
        legal = operands.legality()
        for name, reason in legal.items():
            family = name.split("/")[0]
            if reason is None and (name, kind) not in done and not _left_out(tool, family, case):
                done.add((name, kind))
                assert_close(operands.call(name), operands)
    _launch_sampled(tool, done)
    return {name for name, _ in done}


def _kernels_launched():
    """Launches everything; returns the variants and the names of our kernels among the launched."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        launched = launch_all()
    return launched, sorted({e.key for e in profile.key_averages() if OURS in e.key})


def _sanitizer():
    found = shutil.which("compute-sanitizer")
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = found or shutil.which("compute-sanitizer", path=f"{home}/bin")
    if found is None:
        raise SystemExit("compute-sanitizer is neither on PATH nor in CUDA_HOME/bin")
    return found


def _start(tool, port, log):
    command = [_sanitizer(), "--tool", tool, "--error-exitcode", "99", "--port", str(port)]
    command += ["--kernel-name", f"kns={OURS}"]
    if tool == "memcheck":
        # Calls that may fail, and whose failure is handled, are not what is looked for here.
        command += ["--report-api-errors", "no"]
    if tool == "initcheck":
        # What a vendor's kernel wrote counts as never written, as the filter passes over them.
        command += ["--check-api-memory-access", "no"]
    command += [sys.executable, __file__, tool, "--families", ",".join(_asked_for)]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def _reports(text):
    """What a tool reported by its own count; None where it never came to its summary."""
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) ", text)
    return sum(map(int, found)) if found else None


def _all_tools():
    launched, kernels = _kernels_launched()
    own_families = {name.split("/")[0] for name in launched} - VENDOR_FAMILIES
    print(f"{len(launched)} variants; of {len(own_families)} families of our own, the kernels")
    print("  " + "\n  ".join(kernels))
    missed = {name for name in VARIANTS if name.split("/")[0] in _asked_for} - launched
    if missed:
        raise SystemExit(f"legal for no problem here, hence not checked: {sorted(missed)}")
    if not own_families or len(kernels) < len(own_families):
        # The tools' filter would pass over kernels with other names in silence.
        raise SystemExit(f"fewer kernels named {OURS} than families: {sorted(own_families)}")
    with tempfile.TemporaryDirectory(prefix="sanitize_") as folder:
        logs = {tool: pathlib.Path(folder, tool) for tool in TOOLS}
        begin = time.monotonic()
        running = {}
        for i, tool in enumerate(TOOLS):  # side by side: each is slow, and none fills the GPU
            with logs[tool].open("w") as log:
                running[tool] = _start(tool, 49152 + 100 * i, log)
        lines = []
        for tool, process in running.items():
            code = process.wait()
            text = logs[tool].read_text(errors="replace")
            print(f"==> {tool}, {time.monotonic() - begin:.0f} s\n{text[-6000:]}", flush=True)
            count = _reports(text)
            clean = code == 0 and count == 0
            said = "no summary" if count is None else f"{count} reported"
            lines.append(f"  {tool:10} {'clean' if clean else f'FAILED (exit {code}, {said})'}")
    print("==> compute-sanitizer", *lines, sep="\n")
    return 0 if all(line.endswith("clean") for line in lines) else 1


if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit("compute-sanitizer needs a GPU, and torch sees none")
    parser = argparse.ArgumentParser()
    parser.add_argument("tool", nargs="?", help="under which this runs")
    parser.add_argument("--all-tools", action="store_true", help="run under each tool")
    parser.add_argument("--families", help="only these, by comma")
    options = parser.parse_args()
    if options.families:
        unknown = set(options.families.split(",")) - _asked_for
        if unknown:
            raise SystemExit(f"no such families: {sorted(unknown)}")
        _asked_for = set(options.families.split(","))
    if options.all_tools:
        sys.exit(_all_tools())
    print(f"{len(launch_all(options.tool))} variants launched, all results right")

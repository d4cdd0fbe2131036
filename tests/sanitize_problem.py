"""Every CUDA variant on small ragged problems, for compute-sanitizer.

    python tests/sanitize_problem.py               launch everything, check every result
    python tests/sanitize_problem.py --all-tools   first that, then under each of the four tools

With `--families simt,mma_sm80` of those families alone, with `--tools racecheck` under it alone.

Which problem serves for which variant is found before the tools are there: they slow every call
down, and so look at nothing but the launches that count. All of it is done by processes side by
side, of one thread each, on all GPUs that are visible. The tools look at this package's kernels
alone (vendor libraries' are not ours to mend).
"""

import argparse
import collections
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import torch
from sanitized_launches import (
    KINDS,
    ON_GPU,
    OURS,
    Launch,
    launch_these,
    launched,
    launches_of,
    settle,
)

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
VENDOR_FAMILIES = {
    *("cublas_dense", "cusparse_bsr", "cusparse_blocked_ell"),
    *("sampled_cublas_dense", "sampled_cusparse"),
    *("torch_sdpa", "torch_sdpa_masked", "torch_sdpa_backward"),
}
# The library with the kernels that racecheck looks at, which `make sanitize` builds: see
# device/mbarrier.cuh.
BY_LANES = (
    pathlib.Path(__file__).parents[1] / "build/by_lanes/sparse_autotune/libsparse_autotune_core.so"
)


def _start_worker(devices):
    settle()
    torch.cuda.set_device(devices.get())


def launch_all(families):
    """The launches for these families, and what was wrong with one; prints the kernels that ran."""
    begin = time.monotonic()
    gpus = torch.cuda.device_count()
    count = min(os.cpu_count() or 1, 8 * gpus)
    spawn = multiprocessing.get_context("spawn")
    devices = spawn.SimpleQueue()
    for i in range(count):
        devices.put(i % gpus)
    with ProcessPoolExecutor(count, spawn, _start_worker, (devices,)) as pool:
        launches = launches_of(families, pool)
        found = time.monotonic()
        ended = list(pool.map(launched, _shares(launches, count)))
    kernels = set().union(*(of_share for of_share, _ in ended))
    faults = [fault for _, of_share in ended for fault in of_share]
    names = {launch.name for launch in launches}
    own = {launch.family for launch in launches} - VENDOR_FAMILIES
    print(
        f"{len(names)} variants, {len(launches)} launches: found in {found - begin:.0f} s, run in "
        f"{time.monotonic() - found:.0f} s; of {len(own)} families of our own, the kernels"
    )
    print("", *sorted(kernels), sep="\n  ", flush=True)
    if missed := {v["name"] for v in ON_GPU if v["family"] in families} - names:
        faults.append(f"legal for no problem here, hence not checked: {sorted(missed)}")
    if len(kernels) < len(own):
        # The tools' filter would pass over kernels with other names in silence.
        faults.append(f"fewer kernels named {OURS} than families: {sorted(own)}")
    return launches, faults


def _shares(launches, count):
    # Neighbours in the list share a problem or a family: dealt out in turn, shares are even.
    return [launches[i::count] for i in range(min(count, len(launches)))]


def _left_out(tool, launch):
    """What a tool cannot look at.

    It sees what a vendor's kernels do to ours, and nothing of them.
    Under racecheck cuBLAS's kernels fail (of ours in those families densify_lines alone uses shared
    memory), and to initcheck what a vendor's product wrote is unwritten memory when our epilogue
    reads it.
    """
    if launch.family not in VENDOR_FAMILIES:
        return False
    if launch.kind == "attention":  # the others are torch's kernels alone
        return tool == "racecheck" or launch.family != "torch_sdpa_masked"
    if tool == "initcheck":  # to gather the blocks of a vendor's product is to read it, too
        case = KINDS[launch.kind].cases()[launch.case]
        return launch.kind == "sampled" or bool(case.bias or case.activation)
    return tool == "racecheck"


def _sanitizer():
    found = shutil.which("compute-sanitizer")
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = found or shutil.which("compute-sanitizer", path=f"{home}/bin")
    if found is None:
        raise SystemExit("compute-sanitizer is neither on PATH nor in CUDA_HOME/bin")
    return found


def _start(tool, port, gpu, launches, log):
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
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
    if tool == "racecheck":
        # Alone in its folder: the other libraries beside it would be loaded a second time.
        alone = log.parent / "by_lanes"
        alone.mkdir(exist_ok=True)
        if not (alone / BY_LANES.name).exists():
            (alone / BY_LANES.name).symlink_to(BY_LANES)
        environment["LD_LIBRARY_PATH"] = f"{alone}:{os.environ.get('LD_LIBRARY_PATH', '')}"
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
    # Of an exception that ended the process a long list of frames follows what it says.
    thrown = re.findall(r"what\(\): .*|\w+Error: .*", text)
    return [
        *(*launches[:25], "...", *told[:25], "...", *counted[:25], "...", *thrown[:5], "..."),
        text[-1500:],
    ]


def _under(tool, launches, seconds, folder):
    """Runs a tool over the launches, in shares; True where every share came to a clean end."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    count = max(1, min((os.cpu_count() or 1) // 4, 4 * len(gpus)))
    begin = time.monotonic()
    processes = {}
    for i, share in enumerate(_shares(launches, count)):
        nth = TOOLS.index(tool) * count + i
        log = folder / f"{tool}_{i}.log"
        processes[log] = _start(tool, 49152 + 20 * nth, gpus[nth % len(gpus)], share, log)
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


def under_tools(launches, tools, seconds):
    """Runs each tool over what it can look at of the launches; True where all are clean."""
    print("==> compute-sanitizer", flush=True)

    def under(tool):
        seen = [launch for launch in launches if not _left_out(tool, launch)]
        return _under(tool, seen, seconds, pathlib.Path(folder))

    # Side by side: each is slow, and none fills a GPU.
    with (
        tempfile.TemporaryDirectory(prefix="sanitize_") as folder,
        ThreadPoolExecutor(len(tools)) as pool,
    ):
        return all(list(pool.map(under, tools)))


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
    if options.launches:
        settle()
        launch_these([Launch(*told) for told in json.loads(options.launches.read_text())])
        return 0
    families = _some_of({v["family"] for v in ON_GPU}, options.families)
    tools = ()
    if options.all_tools or options.tools:
        tools = sorted(_some_of(set(TOOLS), options.tools))
    if "racecheck" in tools and not BY_LANES.is_file():
        raise SystemExit("`make sanitize` builds the library that racecheck looks at")
    launches, faults = launch_all(families)
    clean = not tools or under_tools(launches, tools, options.seconds)
    print(*faults[:25], "all results right" if not faults else f"{len(faults)} faults", sep="\n")
    return 0 if clean and not faults else 1


if __name__ == "__main__":
    sys.exit(main())

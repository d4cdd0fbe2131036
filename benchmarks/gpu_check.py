"""`make gpu-check`: build, GPU tests and the short benchmark in one go, then a table of the three.

The tests run in as many processes as there are cores, at most 16 a GPU (`--jobs`), which share all
GPUs that are visible. Every step runs even where an earlier one failed, unless it was the build.
Exits non-zero when any step failed, at once without a GPU. `--save PATH` says where the benchmark's
results go.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

# Leaving CUDA out would make the rest pass in silence: 1 makes the build fail instead.
_ENVIRONMENT = {**os.environ, "SPARSE_AUTOTUNE_CUDA": "1"}
# Where the output of the tests' processes goes.
_LOGS = Path("build/gpu_tests")

Step = Callable[[], tuple[int, str]]  # exit status, and a line that says how it went


def _steps(save: str, jobs: int) -> dict[str, Step]:
    return {
        "build": _printed("setup.py", "--quiet", "build_ext", "--inplace"),
        "configuration": _printed("-c", "import sparse_autotune; sparse_autotune.show_config()"),
        "GPU tests": lambda: _tests(jobs),
        "short benchmark": _printed(
            "benchmarks/run.py", "--suite", "gpu_short", "--brief", "--save", save
        ),
    }


def _printed(*arguments: str) -> Step:
    """A step that prints as it goes; its last line says how it went."""

    def step() -> tuple[int, str]:
        last = ""
        with subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_ENVIRONMENT,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                last = line.strip() or last
        return process.returncode, last

    return step


def _tests(jobs: int) -> tuple[int, str]:
    """All GPU tests, in processes side by side; prints the whole output of those that failed."""
    _LOGS.mkdir(parents=True, exist_ok=True)
    logs = [_LOGS / f"{part}.txt" for part in range(jobs)]
    threads = max((os.cpu_count() or 1) // jobs, 1)
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if gpus == [""]:
        gpus = [str(index) for index in range(torch.cuda.device_count())]

    def run(part: int) -> int:
        # Every process sees all GPUs, each in an order of its own: torch takes the first.
        first = part % len(gpus)
        visible = ",".join(gpus[first:] + gpus[:first])
        environment = {
            **_ENVIRONMENT,
            "OMP_NUM_THREADS": str(threads),
            "CUDA_VISIBLE_DEVICES": visible,
        }
        options = ("-m", "gpu", "--require-gpu", "--durations=5", "--part", f"{part}/{jobs}")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
        with logs[part].open("w") as log:
            return subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False
            ).returncode

    with ThreadPoolExecutor(jobs) as pool:
        statuses = list(pool.map(run, range(jobs)))
    counts: dict[str, int] = {}
    for log, status in zip(logs, statuses, strict=True):
        text = log.read_text()
        last = text.strip().rpartition("\n")[2]
        print(text if status else f"{log}: {last}", flush=True)
        for count, what in re.findall(r"(\d+) (passed|failed|errors?|skipped)", last):
            counts[what] = counts.get(what, 0) + int(count)
    told = ", ".join(f"{count} {what}" for what, count in counts.items()) or "no test ran"
    return max(map(abs, statuses)), f"{told} in {jobs} processes, see {_LOGS}"


def main() -> int:
    """Runs the steps; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check")
    parser.add_argument("--save", default="build/gpu_check.json")
    parser.add_argument(
        "--jobs", type=int, help="processes that run tests; default: a core each, 16 a GPU at most"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu-check needs a GPU, and torch sees none", file=sys.stderr)
        return 1
    jobs = options.jobs or min(os.cpu_count() or 1, 16 * torch.cuda.device_count())
    steps = _steps(options.save, jobs)
    done: dict[str, tuple[int, float, str]] = {}
    for name, step in steps.items():
        print(f"==> {name}", flush=True)
        begin = time.monotonic()
        status, line = step()
        done[name] = status, time.monotonic() - begin, line
        if name == "build" and status != 0:
            break
    print("\n==> gpu-check")
    for name in steps:
        if name not in done:
            print(f"  {name:16} not run")
            continue
        status, seconds, line = done[name]
        print(f"  {name:16} {'ok' if status == 0 else 'FAILED':7}{seconds:6.0f} s  {line[:100]}")
    return 0 if len(done) == len(steps) and not any(s for s, _, _ in done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

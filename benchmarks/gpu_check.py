"""`make gpu-check`: build, GPU tests and the short benchmark in one go, then a table of the three.

Every step runs even where an earlier one failed, unless it was the build. Exits non-zero when any
step failed. `--save PATH` says where the benchmark's results go.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

# Leaving CUDA out would make the rest pass in silence: 1 makes the build fail instead.
_ENVIRONMENT = {**os.environ, "SPARSE_AUTOTUNE_CUDA": "1"}


def _steps(save: str) -> dict[str, list[str]]:
    return {
        "build": ["setup.py", "--quiet", "build_ext", "--inplace"],
        "configuration": ["-c", "import sparse_autotune; sparse_autotune.show_config()"],
        "GPU tests": ["-m", "pytest", "-m", "gpu", "--require-gpu", "--durations=5"],
        "short benchmark": [
            *("benchmarks/run.py", "--suite", "gpu_short", "--brief", "--save", save),
        ],
    }


def _run(arguments: list[str]) -> tuple[int, float, str]:
    """Exit status, seconds and the last line of what the step printed; prints all of it."""
    begin = time.monotonic()
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
    return process.returncode, time.monotonic() - begin, last


def main() -> int:
    """Runs the steps; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check")
    parser.add_argument("--save", default="build/gpu_check.json")
    steps = _steps(parser.parse_args().save)
    done: dict[str, tuple[int, float, str]] = {}
    for step, arguments in steps.items():
        print(f"==> {step}", flush=True)
        done[step] = _run(arguments)
        if step == "build" and done[step][0] != 0:
            break
    print("\n==> gpu-check")
    for step in steps:
        if step not in done:
            print(f"  {step:16} not run")
            continue
        status, seconds, last = done[step]
        print(f"  {step:16} {'ok' if status == 0 else 'FAILED':7}{seconds:6.0f} s  {last[:100]}")
    return 0 if len(done) == len(steps) and not any(s for s, _, _ in done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

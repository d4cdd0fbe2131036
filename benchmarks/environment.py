"""What a figure depends on besides the code, saved beside every result."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import sparse_autotune
from sparse_autotune import _tuner


@contextlib.contextmanager
def own_cache() -> Iterator[None]:
    """A cache of this run's own: it tunes anew and tells nothing to the user's programs.

    Races are silent, unless the environment asks for them.
    """
    quiet: dict[str, Any] = {} if "SPARSE_AUTOTUNE_VERBOSE" in os.environ else {"verbosity": 0}
    with (
        tempfile.TemporaryDirectory(prefix="sparse_autotune_bench_") as folder,
        sparse_autotune.settings.override(cache_dir=folder, **quiet),
    ):
        yield


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_name() -> str:
    """A virtual machine's "AMD EPYC" may be any: where it can be told, with the generation."""
    told: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        told.setdefault(key.strip(), value.strip())
    name = told.get("model name", platform.processor())
    zen = zen_generation(int(told.get("cpu family", 0)), int(told.get("model", 0)))
    return f"{name} (Zen {zen})" if zen and told.get("vendor_id") == "AuthenticAMD" else name


def zen_generation(family: int, model: int) -> int | None:
    """AMD's generation, from what CPUID says; None of those that are not known here."""
    if family == 25:  # Zen 3 and 4 share it
        return 4 if 0x10 <= model < 0x20 or model >= 0x60 else 3
    return {26: 5}.get(family)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# What cost models know of a GPU, besides its compute capability.
_GPU_FACTS = (
    "multiprocessors",
    "l2_bytes",
    "shared_memory_per_block",
    "memory_bytes",
    "memory_gbps",
    "l2_gbps",
)


def describe(device: str) -> dict:
    """Versions, processor, threads, git revision and, for "cuda", the GPU and its driver."""
    root = Path(__file__).parent.parent
    found = {
        "revision": _output("git", "-C", str(root), "describe", "--always", "--dirty"),
        "kernels": _tuner.build_info()["kernel_hash"],
        "settings": repr(sparse_autotune.settings),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "scipy": _version("scipy"),
        "triton": _version("triton"),
        "flash-attn-4": _version("flash-attn-4"),
        "nvidia-cudnn-frontend": _version("nvidia-cudnn-frontend"),
        "cpu": _cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        "platform": platform.platform(),
    }
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        seen = _tuner.device_info(0)
        found["gpu"] = {
            "name": gpu.name,
            "compute_capability": f"{gpu.major}.{gpu.minor}",
            **{name: seen[name] for name in _GPU_FACTS},
            "torch_cuda": torch.version.cuda,
            "state": _output(
                "nvidia-smi",
                "--query-gpu=driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu",
                "--format=csv,noheader",
            ),
        }
    return found


def command(program: str) -> str:
    """What was typed to run a program, without where its results go: a path of one machine."""
    words, rest = [], iter(sys.argv[1:])
    for word in rest:
        if word == "--save":
            next(rest, None)
        elif not word.startswith("--save="):
            words.append(word)
    return f"{program} {shlex.join(words)}".strip()


class Record:
    """A run as it is saved: which suite, by what command, when, in what environment, and what.

    `command` reproduces the run; "" is that of `benchmarks/run.py` for the suite.
    """

    def __init__(self, suite: str, device: str, path: Path | None, command: str = "") -> None:
        self._started = datetime.datetime.now(datetime.timezone.utc)
        self.suite = suite
        self.command = command or f"python benchmarks/run.py --suite {suite}"
        self.path = path
        self.environment = describe(device)

    def save(self, *, complete: bool, **measured: Any) -> dict[str, Any]:
        """All of it, written to the path if there is one."""
        seconds = (datetime.datetime.now(datetime.timezone.utc) - self._started).total_seconds()
        saved = {
            "suite": self.suite,
            "command": self.command,
            "complete": complete,
            "started": self._started.isoformat(timespec="seconds"),
            "seconds": seconds,
            "environment": self.environment,
            **measured,
        }
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(saved, indent=1) + "\n")
        return saved

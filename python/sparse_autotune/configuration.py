"""`show_config`, what one pastes into a bug report, and whether there is a GPU for products."""

from __future__ import annotations

import platform
import sys

import torch

from . import _tuner, cache
from .settings import settings


def _cpu_lines() -> list[str]:
    cpu = _tuner.device_info(-1, threads=torch.get_num_threads())
    lines = [f"cpu            {cpu['name']}, {cpu['isa']}, {cpu['threads']} threads"]
    if cpu["amx_refused"]:
        lines.append(f"amx            off: {cpu['amx_refused']}")
    return lines


def _driver() -> str:
    """The CUDA version of the driver."""
    lines = _tuner.environment(0).splitlines()
    version = next((int(line.split()[1]) for line in lines if line.startswith("driver ")), 0)
    return f"driver for CUDA {version // 1000}.{version % 1000 // 10}" if version else "no driver"


def why_no_gpu() -> str | None:
    """Why no product runs on a GPU here; None where they do."""
    if not torch.cuda.is_available():
        return "torch sees no usable GPU"
    return _tuner.device_info(0)["unavailable"] or None


def _gpu_lines() -> list[str]:
    """The GPUs, or why products on them are off."""
    build = _tuner.build_info()
    if not build["cuda"]:
        return [f"cuda           off, left out of this build: {build['cuda_reason']}"]
    lines = [f"cuda           {build['cuda_version']}, built for {build['architectures']}"]
    if torch.version.cuda is None:
        kind = "a ROCm" if torch.version.hip is not None else "a CPU-only"
        return [*lines, f"gpu            off: this torch is {kind} build, without CUDA tensors"]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for ordinal in range(max(count, 1)):
        gpu = _tuner.device_info(ordinal)
        if gpu["unavailable"]:
            lines.append(f"gpu {ordinal}          off: {gpu['unavailable']}")
            continue
        lines.append(
            f"gpu {ordinal}          {gpu['name']}, sm_{gpu['compute_capability']}, "
            f"{gpu['multiprocessors']} SMs, {gpu['memory_bytes'] >> 30} GiB, {_driver()}"
        )
    for library in _tuner.libraries():
        state = f"off: {library['unavailable']}" if library["unavailable"] else library["version"]
        lines.append(f"{library['name']:14} {state}")
    return lines


def _variant_lines() -> list[str]:
    lines = []
    for device in ("cpu", "cuda"):
        families = {v["family"] for v in _tuner.variants() if v["device"] == device}
        if families:
            lines.append(f"{f'{device} variants':14} {', '.join(sorted(families))}")
    return lines


def show_config() -> None:
    """Prints versions, devices, settings, and what is disabled and why, for a bug report."""
    build, cuda, rocm = _tuner.build_info(), torch.version.cuda, torch.version.hip
    runtime = f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else "no CUDA"
    lines = [
        f"sparse_autotune {build['version']}, kernels {build['kernel_hash']}",
        f"built with     torch {build['built_with_torch']}, {build['compiler']}",
        f"python         {sys.version.split()[0]} on {platform.platform()}",
        f"torch          {torch.__version__}, {runtime}",
        *_cpu_lines(),
        *_gpu_lines(),
        *_variant_lines(),
        f"cache          {cache.path()}",
        f"{settings!r}",
    ]
    # A path may hold bytes that are no text.
    print("\n".join(lines).encode(errors="backslashreplace").decode())

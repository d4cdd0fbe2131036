"""`show_config`: what one pastes into a bug report."""

from __future__ import annotations

import platform
import sys

import torch

from . import _tuner, cache
from .settings import settings


def _devices() -> list[str]:
    cpu = _tuner.device_info(-1, threads=torch.get_num_threads())
    lines = [f"cpu            {cpu['name']}, {cpu['isa']}, {cpu['threads']} threads"]
    build = _tuner.build_info()
    if not build["cuda"]:
        return [*lines, f"cuda           left out of this build: {build['cuda_reason']}"]
    lines.append(f"cuda           {build['cuda_version']}, built for {build['architectures']}")
    if torch.version.cuda is None:
        kind = "ROCm" if torch.version.hip else "CPU-only"
        return [*lines, f"               off: this torch is a {kind} build"]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for ordinal in range(max(count, 1)):
        gpu = _tuner.device_info(ordinal)
        if gpu["unavailable"]:
            lines.append(f"gpu {ordinal}          off: {gpu['unavailable']}")
            continue
        capability = gpu["compute_capability"]
        lines.append(
            f"gpu {ordinal}          {gpu['name']}, sm_{capability}, {gpu['multiprocessors']} SMs, "
            f"{gpu['memory_bytes'] >> 30} GiB"
        )
    for library in _tuner.libraries():
        state = library["unavailable"] or library["version"]
        lines.append(f"{library['name']:15}{'off: ' if library['unavailable'] else ''}{state}")
    return lines


def show_config() -> None:
    """Prints versions, devices, and what is disabled and why."""
    build = _tuner.build_info()
    lines = [
        f"sparse_autotune {build['version']}, kernels {build['kernel_hash']}",
        f"built with     torch {build['built_with_torch']}, {build['compiler']}",
        f"python         {sys.version.split()[0]} on {platform.platform()}",
        f"torch          {torch.__version__}, CUDA {torch.version.cuda or 'none'}",
        *_devices(),
        f"variants       {', '.join(sorted({v['family'] for v in _tuner.variants()}))}",
        f"cache          {cache.path()}",
        f"{settings!r}",
    ]
    print("\n".join(lines))

"""Which GPUs this machine can use, asked of NVIDIA's driver alone: torch may not be there yet.

python build_gpu.py    says so, and exits with 1 where there is none
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass

DRIVER = "libcuda.so.1"
# CUdevice_attribute
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76


@dataclass(frozen=True)
class Gpus:
    """`capabilities` is empty exactly when there is a `reason` why no GPU can be used."""

    capabilities: tuple[tuple[int, int], ...] = ()
    driver_cuda: tuple[int, int] = (0, 0)  # the newest CUDA that the driver knows
    reason: str = ""


def find_gpus() -> Gpus:
    """Those that CUDA_VISIBLE_DEVICES shows, each compute capability once."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return Gpus(reason=f"NVIDIA's driver ({DRIVER}) is not installed")

    def ask(function: str, *arguments: int) -> int:
        """What the function writes into its first argument."""
        answer = ctypes.c_int()
        status = getattr(driver, function)(ctypes.byref(answer), *arguments)
        if status != 0:
            raise OSError(f"the driver's {function} failed with error {status}")
        return answer.value

    try:
        version = ask("cuDriverGetVersion")
        status = driver.cuInit(0)
        if status != 0:
            return Gpus(reason=f"NVIDIA's driver finds no usable GPU (cuInit: error {status})")
        found = set()
        for ordinal in range(ask("cuDeviceGetCount")):
            device = ask("cuDeviceGet", ordinal)
            found.add(
                (
                    ask("cuDeviceGetAttribute", COMPUTE_CAPABILITY_MAJOR, device),
                    ask("cuDeviceGetAttribute", COMPUTE_CAPABILITY_MINOR, device),
                )
            )
    except (AttributeError, OSError) as error:
        return Gpus(reason=f"NVIDIA's driver does not answer: {error}")
    if not found:
        return Gpus(reason="NVIDIA's driver shows no GPU")
    return Gpus(tuple(sorted(found)), (version // 1000, version % 1000 // 10))


if __name__ == "__main__":
    gpus = find_gpus()
    found = ", ".join(f"{major}.{minor}" for major, minor in gpus.capabilities)
    print(gpus.reason or f"a GPU of compute capability {found}")
    sys.exit(1 if gpus.reason else 0)

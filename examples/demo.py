"""A demonstration: typical problems, the printed races, the cache, a comparison with the peers.

    make demo        or        python examples/demo.py [--device cpu|cuda]

Runs on the GPU where there is one, on the CPU otherwise, in under two minutes.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import sparse_autotune as sa
from sparse_autotune.configuration import why_no_gpu

ROUNDS = 7
ENOUGH_MS = 1000  # of one product in the comparison: the slowest peers take fewer rounds


def problems(device):
    """(name, a, b) of each product, in patterns that pruned and structured models have."""
    size, n, dtype = (2048, 512, torch.float32) if device == "cpu" else (4096, 4096, torch.bfloat16)
    generator = torch.Generator(device=device).manual_seed(0)
    b = torch.randn(size, n, device=device, generator=generator).to(dtype)
    for name, block, density, pattern in (
        ("uniform", 64, 0.125, "uniform"),
        ("uniform, small blocks", 16, 0.125, "uniform"),
        ("half dense", 64, 0.5, "uniform"),
        ("banded", 32, 0.1, "banded"),
        ("power-law rows", 32, 0.1, "power_law"),
        ("causal", 128, None, "causal"),
    ):
        a = sa.random_bsr(
            *(size, size, block),
            density=density,
            pattern=pattern,
            dtype=dtype,
            device=device,
            generator=generator,
        )
        yield f"{name}, b={block}", a, b


def seconds(call, device):
    """Wall time of one call, until its result is ready."""
    begin = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def check(c, a, b):
    """Raises unless c is a @ b, element-wise, within what the dtype's rounding allows."""
    dense, b = a.to_dense().double(), b.double()
    expected, magnitude = dense @ b, dense.abs() @ b.abs()
    accumulation = torch.finfo(torch.float32).eps * a.shape[1]
    bound = torch.finfo(c.dtype).eps * expected.abs() + accumulation * magnitude
    if not bool(((c.double() - expected).abs() <= bound).all()):
        raise SystemExit("wrong result")


def peers(a, b, device):
    """The products one would write without this package, by name; conversions are done here."""
    dense, bsr = a.to_dense(), a.to_torch()
    found = {"torch dense": lambda: dense @ b, "torch BSR": lambda: bsr @ b}
    if device == "cuda":
        found["cuSPARSE BSR"] = lambda: sa.matmul(a, b, variant="cusparse_bsr")
        return found
    try:
        matrix, array = a.to_scipy(), b.numpy()
    except ImportError:
        print("SciPy is not installed: left out of the comparison")
    else:
        found["SciPy BSR"] = lambda: matrix @ array
    return found


def compare(a, b, device):
    """Median milliseconds of ours and of each peer, in interleaved rounds."""
    calls = {"ours": lambda: sa.matmul(a, b), **peers(a, b, device)}
    taken = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            if sum(taken[name]) < ENOUGH_MS:
                taken[name].append(seconds(call, device) * 1e3)
    return {name: statistics.median(times) for name, times in taken.items()}


def main():
    """Runs the demo; exits non-zero on a wrong result or a cache that does not work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--second-process", metavar="CACHE", help="only the calls, on that cache")
    options = parser.parse_args()
    device = options.device or ("cpu" if why_no_gpu() else "cuda")
    torch.set_grad_enabled(False)
    if options.second_process:
        sa.settings.cache_dir = options.second_process
        print(f"tunings in the second process: {tunings_of_calls(list(problems(device)))}")
        return
    # A fresh cache, so that the races are shown each time.
    with tempfile.TemporaryDirectory(prefix="sparse_autotune_demo_") as cache:
        sa.settings.cache_dir = cache
        demonstrate(device, cache)


def tunings_of_calls(products):
    """Multiplies each problem once; returns how many races that took."""
    before = sa.tuning_count()
    for _, a, b in products:
        sa.matmul(a, b)
    return sa.tuning_count() - before


def demonstrate(device, cache):
    """The three parts of the demo."""
    print(f"1. The first call of each kind of problem races what is legal for it ({device})")
    products = list(problems(device))
    for name, a, b in products:
        print(f"\n{name}: {a!r} @ {tuple(b.shape)}", flush=True)
        check(sa.matmul(a, b), a, b)

    print("\n2. The second call goes straight to the winner, and so does the next process")
    print(f"tunings so far: {sa.tuning_count()}")
    again = tunings_of_calls(products)
    print(f"tunings by calling each again: {again}", flush=True)
    command = [sys.executable, __file__, "--device", device, "--second-process", cache]
    other = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    print(other, end="")
    if again != 0 or not other.endswith(": 0\n"):
        raise SystemExit("the cache was not used")

    print(f"\n3. Against the peers: ms a call, medians of up to {ROUNDS} interleaved rounds")
    rows = [(name, a.density, compare(a, b, device)) for name, a, b in products]
    columns = list(dict.fromkeys(column for _, _, times in rows for column in times))
    print(f"{'':30}{'density':>8}" + "".join(f"{c:>14}" for c in columns) + f"{'speed-up':>10}")
    for name, density, times in rows:
        best = min(time for peer, time in times.items() if peer != "ours")
        cells = "".join(f"{times[c]:14.3f}" for c in columns)
        print(f"{name:30}{density:8.1%}{cells}{best / times['ours']:9.2f}x")
    print("speed-up: the best peer's time over ours; peers are not charged for conversions")


if __name__ == "__main__":
    main()

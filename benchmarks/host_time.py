"""Host time of a hit: what `matmul` costs the caller once a product is tuned."""

from __future__ import annotations

import torch

import sparse_autotune

from . import timing

CALLS = 1000
ROUNDS = 15


def measure(device: str) -> dict:
    """Microseconds a call of `matmul(BsrTensor, b)` and of torch.mm, tiny operands, grad off.

    A thousand calls are issued without waiting for any, in interleaved rounds. On a CPU the tiny
    product itself is part of both.
    """
    pattern = torch.Generator(device).manual_seed(0)
    a = sparse_autotune.random_bsr(32, 32, 16, density=0.5, device=device, generator=pattern)
    dense, b = a.to_dense(), torch.randn(32, 8, device=device)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    calls = {
        "matmul": lambda: sparse_autotune.matmul(a, b),
        "torch.mm": lambda: torch.mm(dense, b),
    }
    with torch.no_grad():
        for call in calls.values():
            call()
        samplers = {n: timing.host_sampler(call, CALLS, wait) for n, call in calls.items()}
        # Both stay in every round: the slower one is no loser here but the subject.
        taken = timing.interleave(samplers, ROUNDS, keep=samplers)
    ours, mm = taken["matmul"].median_us, taken["torch.mm"].median_us
    return {
        "device": device,
        "calls": CALLS,
        "matmul_us": ours,
        "torch_mm_us": mm,
        "ratio": ours / mm,
        "difference_us": ours - mm,
    }


def show(found: dict) -> str:
    """One line."""
    return (
        f"host time of a hit on {found['device']}: matmul {found['matmul_us']:.2f} µs, torch.mm "
        f"{found['torch_mm_us']:.2f} µs (x{found['ratio']:.2f}, {found['difference_us']:+.2f} µs)"
    )

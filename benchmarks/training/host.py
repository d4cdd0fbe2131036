"""Host time of a linear layer's forward and backward, once its products are tuned."""

from __future__ import annotations

from typing import Any

import torch

import sparse_autotune
from benchmarks import timing
from benchmarks.cell import Call

from .layer import DENSE, OURS

ROUNDS = 15
_SIZE, _BLOCK, _TOKENS = 512, 16, 16


def step_of(layer: torch.nn.Module, x: torch.Tensor, upstream: torch.Tensor) -> Call:
    """Forward and backward of a layer, into fresh gradients."""

    def step() -> None:
        x.grad = None
        layer.zero_grad(set_to_none=True)
        layer(x).backward(upstream)

    return step


def measure(device: str) -> dict:
    """Microseconds a step of `SparseLinear` and of torch.nn.Linear, both small, with bias.

    Steps are issued without waiting for any, in interleaved rounds. On a CPU the small products
    themselves are part of both.
    """
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    options: dict[str, Any] = {"device": device, "dtype": dtype}
    torch.manual_seed(0)
    layers = {
        OURS: sparse_autotune.SparseLinear(_SIZE, _SIZE, _BLOCK, 0.25, **options),
        DENSE: torch.nn.Linear(_SIZE, _SIZE, **options),
    }
    x = torch.randn(_TOKENS, _SIZE, requires_grad=True, **options)
    upstream = torch.randn(_TOKENS, _SIZE, **options)
    calls = 300 if device == "cuda" else 30
    wait = timing.wait_of(device)

    steps = {name: step_of(layer, x, upstream) for name, layer in layers.items()}
    for step in steps.values():
        step()  # races on its first products
    samplers = {name: timing.host_sampler(step, calls, wait) for name, step in steps.items()}
    taken = timing.interleave(samplers, ROUNDS, keep=samplers)
    found = {name: timed.median_us for name, timed in taken.items()}
    return {"device": device, "us": found, "ratio": found[OURS] / found[DENSE]}


def show(found: dict) -> str:
    """One line."""
    ours, dense = (found["us"][name] for name in (OURS, DENSE))
    return (
        f"host time of forward and backward on {found['device']}: SparseLinear {ours:.1f} µs, "
        f"torch.nn.Linear {dense:.1f} µs (x{found['ratio']:.2f})"
    )

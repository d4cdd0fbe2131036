"""A transformer block with 32k tokens under a sliding window and sinks; on a CPU a small one.

Beside our attention that of FlexAttention with the same mask, and torch's own, causal over all
tokens: what the block costs without a mask of blocks. On a CPU the latter has the mask, dense.
"""

from __future__ import annotations

import argparse
import dataclasses
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

import sparse_autotune as sa
from benchmarks import models, timing
from benchmarks.attention.block import ON_A_CPU, ON_A_GPU, Attention, BlockSize, TransformerBlock
from benchmarks.cell import Call
from benchmarks.training.layer import OURS

ROUNDS = 7
# What it takes, roughly.
SECONDS = 60.0
_FORWARD, _BOTH = "forward", "forward and backward"
# Of outputs against torch's with the same mask, relative to their norm.
_DIFFERENCE = {"float32": 1e-4, "bfloat16": 3e-2}


def _attentions(size: BlockSize, device: str) -> dict[str, Attention]:
    mask = sa.BlockMask.sliding_window(
        size.tokens, block_size=size.block, window=size.window, sinks=size.sinks, device=device
    )
    mask.nnzb  # noqa: B018  counted once: races then know the density
    found: dict[str, Attention] = {OURS: lambda q, k, v: sa.attention(q, k, v, mask)}
    if device == "cpu":
        dense = mask.to_dense()
        found["torch_attention"] = partial(
            scaled_dot_product_attention, attn_mask=dense, enable_gqa=True
        )
        return found
    from torch.nn.attention.flex_attention import flex_attention

    flex = torch.compile(flex_attention)
    found["flex_attention"] = partial(flex, block_mask=mask.to_flex_attention(), enable_gqa=True)
    found["torch_attention"] = partial(
        scaled_dot_product_attention, is_causal=True, enable_gqa=True
    )
    return found


def _step(block: TransformerBlock, x: torch.Tensor, attention: Attention) -> Call:
    """Forward and backward into fresh gradients."""

    def step() -> None:
        block.zero_grad(set_to_none=True)
        x.grad = None
        block(x, attention).sum().backward()

    return step


def _forward(block: TransformerBlock, x: torch.Tensor, attention: Attention) -> Call:
    """Without gradients."""

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return block(x, attention)

    return forward


def measure(device: str, rounds: int, size: BlockSize | None = None) -> dict:
    """Microseconds of both steps with each attention, and how far outputs of one mask differ."""
    size = size or (ON_A_GPU if device == "cuda" else ON_A_CPU)
    torch.manual_seed(0)
    block = TransformerBlock(size, device)
    dtype = getattr(torch, size.dtype)
    x = torch.randn(size.tokens, size.hidden, device=device, dtype=dtype, requires_grad=True)
    attentions = _attentions(size, device)
    other = "flex_attention" if device == "cuda" else "torch_attention"
    ours, expected = (_forward(block, x, attentions[name])().double() for name in (OURS, other))
    error = float((ours - expected).norm() / expected.norm()) / _DIFFERENCE[size.dtype]
    del ours, expected
    wait = timing.wait_of(device)
    steps = []
    for what, make in ((_FORWARD, _forward), (_BOTH, _step)):
        calls = {name: make(block, x, attention) for name, attention in attentions.items()}
        for call in calls.values():
            call()  # races
        samplers = {name: timing.whole_sampler(call, 1, wait) for name, call in calls.items()}
        taken = timing.interleave(samplers, rounds, keep=samplers)
        timings = {name: dataclasses.asdict(timed) for name, timed in taken.items()}
        steps.append({"name": f"{what}, {size.tokens} tokens", "timings": timings})
    return {"model": dataclasses.asdict(size), "error": error, "steps": steps}


def _line(step: dict) -> str:
    us = {name: taken["median_us"] for name, taken in step["timings"].items()}
    others = ", ".join(
        f"{name} {taken:.0f} µs, {taken / us[OURS]:.2f}x"
        for name, taken in us.items()
        if name != OURS
    )
    return f"{step['name']}: {us[OURS]:.0f} µs; {others}"


def run(options: argparse.Namespace, device: str) -> int:
    """As `models.run`."""
    measured = partial(measure, device, options.rounds or ROUNDS)
    return models.run("attention_block", options, device, measured, _line, "outputs")

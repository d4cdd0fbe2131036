"""Who computes a cell: our choice, our families, and what PyTorch has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import sparse_autotune as sa
from benchmarks.cell import Call
from benchmarks.result import CHOICE, COVER_ATTENTION, DENSE_ATTENTION, Row

from .cells import FLEX_BLOCK, AttentionOperands
from .libraries import installed

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask as FlexBlockMask

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

_BACKENDS = {
    "torch_cudnn": SDPBackend.CUDNN_ATTENTION,
    "torch_flash": SDPBackend.FLASH_ATTENTION,
    "torch_efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def _ours(operands: AttentionOperands, variant: str) -> Attention:
    causal = operands.is_causal
    return lambda q, k, v: sa.attention(q, k, v, operands.mask, is_causal=causal, variant=variant)


def _sdpa(operands: AttentionOperands) -> Attention:
    mask, causal = operands.dense_mask, operands.is_causal
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


def _backend(operands: AttentionOperands, backend: SDPBackend) -> Attention:
    causal = operands.is_causal

    def way(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return way


def _flex_with(mask: FlexBlockMask | None) -> Attention:
    import torch._functorch.config
    from torch.nn.attention.flex_attention import flex_attention

    torch._functorch.config.donated_buffer = False  # the same graph's gradients again and again
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def _flex(operands: AttentionOperands) -> Attention:
    """Of small blocks each element is looked up, in the blocks of 128 around them."""
    if operands.mask is None:
        return _flex_with(None)
    if operands.cell.block % FLEX_BLOCK == 0:
        return _flex_with(operands.mask.to_flex_attention())
    from torch.nn.attention.flex_attention import BlockMask as FlexBlockMask

    grid, block, cover = operands.mask.blocks(), operands.cell.block, operands.cover
    columns, counts = cover.index_lists()

    def seen(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return grid[h, q_idx // block, kv_idx // block]

    return _flex_with(
        FlexBlockMask.from_kv_blocks(
            counts[None], columns[None], BLOCK_SIZE=FLEX_BLOCK, mask_mod=seen
        )
    )


def _cover(operands: AttentionOperands) -> Attention:
    """The mask's blocks of 128 whole: another attention, and the best that blocks of 128 allow."""
    return _flex_with(operands.cover.to_flex_attention())


def _dense(operands: AttentionOperands) -> Attention:
    """Every block, by cuDNN where it takes part: another attention, but what can be reached."""
    backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]

    def way(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backends, set_priority=True):
            return scaled_dot_product_attention(q, k, v)

    return way


def _families(report: sa.BenchmarkReport) -> Iterator[tuple[str, str]]:
    """Each family that raced and its best variant, but the readable ones, which take seconds."""
    timed = sorted((r.median_us, r.family, r.name) for r in report.records if r.median_us)
    best = {family: name for _, family, name in reversed(timed)}
    yield from ((family, best[family]) for family in sorted(best) if "naive" not in family)


def contestants(
    operands: AttentionOperands, report: sa.BenchmarkReport
) -> list[tuple[Row, Callable[[], Call]]]:
    """A row for everybody, our choice in front, and what makes its call, which gives tensors.

    Where a cell has no mask, torch's backends take part one by one.

    The race of a forward pass tells which of our families take part; gradients choose their own
    variants, so that a backward pass has our choice alone.
    """
    cell = operands.cell
    ways: list[tuple[Row, Callable[[AttentionOperands], Attention]]] = [
        (Row(CHOICE, "choice"), partial(_ours, variant="auto"))
    ]
    if not cell.backward:
        ways += [
            (Row(family, "family", detail=name), partial(_ours, variant=name))
            for family, name in _families(report)
        ]
    if not cell.has_mask:
        ways += [
            (Row(name, "peer"), partial(_backend, backend=backend))
            for name, backend in _BACKENDS.items()
        ]
    else:
        ways.append((Row("torch_attention", "peer"), _sdpa))
        small = cell.mask == "random" and cell.block < FLEX_BLOCK and operands.q.is_cuda
        if cell.block % FLEX_BLOCK == 0 or small:
            ways.append((Row("flex_attention", "peer"), _flex))
        if small:
            ways.append((Row(COVER_ATTENTION, "rate"), _cover))
        ways.append((Row(DENSE_ATTENTION, "rate"), _dense))
    if operands.q.is_cuda:
        ways += [(Row(name, "peer"), way) for name, way in installed(cell).items()]
    make = _backward if cell.backward else _forward
    return [(row, partial(_call_of, make, operands, way)) for row, way in ways]


def _call_of(
    make: Callable[[AttentionOperands, Attention], Call],
    operands: AttentionOperands,
    way: Callable[[AttentionOperands], Attention],
) -> Call:
    return make(operands, way(operands))


def _forward(operands: AttentionOperands, way: Attention) -> Call:
    def call() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (way(operands.q, operands.k, operands.v),)

    return call


def _backward(operands: AttentionOperands, way: Attention) -> Call:
    """The gradients alone, of a graph that is kept."""
    leaves = [x.detach().requires_grad_() for x in (operands.q, operands.k, operands.v)]
    kept: list[Tensor] = []

    def call() -> tuple[Tensor, ...]:
        if not kept:
            kept.append(way(*leaves))
        return torch.autograd.grad(kept[0], leaves, operands.grad, retain_graph=True)

    return call

"""Who computes a cell: our choice, our families, and what PyTorch has."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

import sparse_autotune as sa

from .cells import AttentionOperands

Call = Callable[[], torch.Tensor]
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _ours(operands: AttentionOperands, variant: str) -> Attention:
    causal = operands.cell.mask == "causal"
    return lambda q, k, v: sa.attention(q, k, v, operands.mask, is_causal=causal, variant=variant)


def _sdpa(operands: AttentionOperands) -> Attention:
    mask, causal = operands.dense_mask, operands.cell.mask == "causal"
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


def _flex(operands: AttentionOperands) -> Attention:
    import torch._functorch.config
    from torch.nn.attention.flex_attention import flex_attention

    torch._functorch.config.donated_buffer = False  # the same graph's gradients again and again
    compiled = torch.compile(flex_attention)
    mask = None if operands.mask is None else operands.mask.to_flex_attention()
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def calls(operands: AttentionOperands, families: bool) -> dict[str, Call]:
    """By name: "choice" is ours. Those that fail at once are left out, with a line on why."""
    cell = operands.cell
    ways: dict[str, Attention] = {
        "choice": _ours(operands, "auto"),
        "torch_sdpa": _sdpa(operands),
    }
    if cell.block % 128 == 0 or cell.mask == "none":
        ways["flex_attention"] = _flex(operands)
    if families and not cell.backward:
        names = sa.variants(operands.q, operands.k, v=operands.v, mask=operands.mask,
                            is_causal=cell.mask == "causal")  # fmt: skip
        # The readable ones take seconds.
        ways |= {
            family: _ours(operands, family)
            for family in dict.fromkeys(name.split("/")[0] for name in names)
            if "naive" not in family
        }
    found: dict[str, Call] = {}
    for name, way in ways.items():
        call = _backward(operands, way) if cell.backward else _forward(operands, way)
        try:
            call()
        except Exception as error:
            if name == "choice":
                raise
            print(f"  {name} is left out: {str(error).splitlines()[0][:90]}")
            continue
        found[name] = call
    return found


def _forward(operands: AttentionOperands, way: Attention) -> Call:
    def call() -> torch.Tensor:
        with torch.no_grad():
            return way(operands.q, operands.k, operands.v)

    return call


def _backward(operands: AttentionOperands, way: Attention) -> Call:
    """The gradients alone, of a graph that is kept."""
    leaves = [x.detach().requires_grad_() for x in (operands.q, operands.k, operands.v)]
    kept: list[torch.Tensor] = []

    def call() -> torch.Tensor:
        if not kept:
            kept.append(way(*leaves))
        gradients = torch.autograd.grad(kept[0], leaves, operands.grad, retain_graph=True)
        return torch.cat([gradient.flatten() for gradient in gradients])

    return call

"""A transformer block whose attention is exchanged: everything around it is torch's, dense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class BlockSize:
    """A block like Llama 3 8B's, and what its queries see: a causal window and the first tokens."""

    tokens: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int  # of the MLP
    window: int
    sinks: int
    block: int
    dtype: str

    @property
    def dim(self) -> int:
        """Numbers of a head."""
        return self.hidden // self.heads


ON_A_GPU = BlockSize(32768, 4096, 32, 8, 14336, 4096, 128, 128, "bfloat16")
ON_A_CPU = BlockSize(2048, 512, 8, 2, 1792, 256, 64, 64, "float32")


class TransformerBlock(nn.Module):
    """Attention with rotary positions and a gated MLP, each behind a norm and beside a skip."""

    qkv: nn.Parameter
    out: nn.Parameter
    gate_up: nn.Parameter
    down: nn.Parameter
    cos: Tensor
    sin: Tensor

    def __init__(self, size: BlockSize, device: str) -> None:
        super().__init__()
        self.size = size
        keys = size.kv_heads * size.dim
        shapes = {
            "qkv": (size.hidden + 2 * keys, size.hidden),
            "out": (size.hidden, size.hidden),
            "gate_up": (2 * size.inner, size.hidden),
            "down": (size.hidden, size.inner),
        }
        dtype = getattr(torch, size.dtype)
        for name, shape in shapes.items():
            weight = torch.randn(shape, device=device, dtype=dtype) * shape[1] ** -0.5
            self.register_parameter(name, nn.Parameter(weight))
        turns = torch.arange(size.tokens, device=device)[:, None] * (
            1e4 ** -torch.linspace(0, 1, size.dim // 2, device=device)
        )
        self.register_buffer("cos", turns.cos().to(dtype))
        self.register_buffer("sin", turns.sin().to(dtype))

    def forward(self, x: Tensor, attention: Attention) -> Tensor:
        """(tokens, hidden) to the same."""
        size = self.size
        normed = rms_norm(x, (size.hidden,))
        heads = linear(normed, self.qkv).view(1, size.tokens, -1, size.dim).transpose(1, 2)
        q, k, v = heads.split((size.heads, size.kv_heads, size.kv_heads), 1)
        seen = attention(self._turned(q), self._turned(k), v)
        x = x + linear(seen.transpose(1, 2).reshape(size.tokens, size.hidden), self.out)
        gate, up = linear(rms_norm(x, (size.hidden,)), self.gate_up).chunk(2, -1)
        return x + linear(silu(gate) * up, self.down)

    def _turned(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        turned = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        return torch.cat(turned, -1)

"""Random attention for the soak: masks, shapes and dtypes, forward and backward, all checked."""

import torch
from attention_reference import expected_attention, expected_gradients

import sparse_autotune as sa

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Few, so that most calls are hits, and what torch keeps for each shape is soon complete.
LENGTHS = ((64, 64), (130, 96), (1, 64))
DIMS = (24, 64)
BLOCKS = ((16, 16), (64, 64), (128, 128), (5, 24))


class Attention:
    """Operands, on the device and in host memory."""

    def __init__(self, draw, device):
        self.draw, self.device = draw, device
        self.generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
        heads, dim = 4, draw.choice(DIMS)
        kv_heads = draw.choice((1, heads))
        self.dtype = draw.choice(DTYPES)
        self.lengths = draw.choice(LENGTHS)
        self.is_causal = draw.random() < 0.3
        self.scale = draw.choice((None, 0.2, -0.2))
        shapes = [(2, self.lengths[i], h, dim) for i, h in ((0, heads), (1, kv_heads))]
        self.host = [self._randn(shapes[i]).transpose(1, 2) for i in (0, 1, 1)]
        self.mask = self._mask(heads)
        # As a projection gives them: not contiguous.
        self.operands = [x.transpose(1, 2).to(device).transpose(1, 2) for x in self.host]

    def _randn(self, shape):
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def _mask(self, heads):
        form = self.draw.choice(("none", "blocks", "blocks", "lists", "window", "causal"))
        block = self.draw.choice(BLOCKS)
        if form == "none":
            return None
        if form == "window":
            return sa.BlockMask.sliding_window(
                *self.lengths, block_size=block, window=self.draw.choice((1, 40)), sinks=3,
                device=self.device,
            )  # fmt: skip
        if form == "causal":
            return sa.BlockMask.causal(*self.lengths, block_size=block, device=self.device)
        grid = [-(-n // side) for n, side in zip(self.lengths, block, strict=True)]
        lead = self.draw.choice(((), (heads,), (2, 1), (2, heads)))
        blocks = torch.rand(*lead, *grid, generator=self.generator) < self.draw.choice((0.3, 0.8))
        mask = sa.BlockMask.from_blocks(blocks.to(self.device), block, self.lengths)
        if form == "lists":
            mask = sa.BlockMask.from_index_lists(*mask.index_lists(), block, self.lengths)
        return mask

    def forward(self, *operands, **keywords):
        """Out and lse of `operands`."""
        return sa.attention(*operands, self.mask, is_causal=self.is_causal, scale=self.scale,
                            return_lse=True, **keywords)  # fmt: skip

    def check_forward(self):
        """Yields what is wrong."""
        found = self.forward(*self.operands)
        expected = expected_attention(*self.host, *self._seen())
        yield from self._compared(("out", "lse"), found, expected)

    def check_gradients(self):
        """Likewise, of gradients of out and of lse."""
        leaves = [x.detach().requires_grad_() for x in self.operands]
        out, lse = self.forward(*leaves)
        grad, grad_lse = self._randn(out.shape), None
        outputs, upstream = [out], [grad]
        if self.draw.random() < 0.5:
            grad_lse = torch.randn(lse.shape, generator=self.generator).to(lse.dtype)
            outputs.append(lse)
            upstream.append(grad_lse)
        torch.autograd.backward(outputs, [x.to(self.device) for x in upstream])
        left = [x.detach().cpu() for x in (out, lse)]
        expected = expected_gradients(*self.host, *left, grad, grad_lse, *self._seen())
        yield from self._compared(("dq", "dk", "dv"), [x.grad for x in leaves], expected)

    def _seen(self):
        mask = None if self.mask is None else self.mask.to("cpu")
        return mask, self.is_causal, self.scale

    def _compared(self, names, found, expected):
        for name, got, (value, allowed) in zip(names, found, expected, strict=True):
            got = got.detach().cpu().double()
            wrong = (got != value) & ~((got - value).abs() <= allowed)  # infinities are equal
            if got.shape != value.shape or bool(wrong.any()):
                yield f"{name}: {int(wrong.sum())} of {wrong.numel()} are wrong in {self}"

    def __repr__(self):
        q, k, _ = self.host
        return f"{self.dtype} {tuple(q.shape)} x {tuple(k.shape)}, {self.mask}, {self.is_causal}"

"""Small ragged attentions for every CUDA variant, and each one's result against fp64."""

import dataclasses

import torch
from attention_reference import expected_attention, expected_gradients
from test_attention import check

from sparse_autotune import BlockMask, attention, errors
from sparse_autotune.tuning.questions import about_attention

_BF16, _FP16, _FP32, _FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@dataclasses.dataclass(frozen=True)
class AttentionCase:
    """One attention of two heads of q; with a mask its blocks differ from head to head."""

    dtype: torch.dtype
    lengths: tuple
    dim: int
    block: tuple | None
    is_causal: bool = False
    kv_heads: int = 2
    backward: bool = False
    with_lse: bool = False  # the backward pass has a gradient of it

    @property
    def features(self):
        """What a kernel may do otherwise for."""
        shared = self.kv_heads == 1
        return self.dtype, self.dim, self.block, self.is_causal, shared, self.with_lse


def _forward_cases():
    # Blocks that each family takes; last tiles are cut off in both directions. There are columns
    # enough for each stage of a ring in shared memory to be filled twice, and for items to be
    # split.
    blocks = {128: (300, 2490), 64: (150, 2030), 32: (90, 2010), 16: (75, 1990)}
    cases = [
        AttentionCase(dtype, lengths, dim, (side, side), is_causal, kv_heads)
        for side, lengths in blocks.items()
        for dtype, dim, is_causal, kv_heads in (
            (_BF16, 128, False, 1), (_FP16, 64, True, 2), (_BF16, 64, False, 2),
            (_FP16, 128, True, 1),
        )
    ]  # fmt: skip
    cases += [
        AttentionCase(dtype, (170, length), dim, None, is_causal)
        for dtype, dim, length, is_causal in (
            (_BF16, 128, 170, True), (_FP16, 64, 1850, False), (_FP32, 64, 130, False),
            (_FP64, 40, 60, True),
        )
    ]  # fmt: skip
    odd = (AttentionCase(dtype, (37, 29), 7, (5, 7), True, 1) for dtype in (_BF16, _FP32, _FP64))
    return [*cases, *odd]


def cases():
    """Forward, then backward, with and without a gradient of lse."""
    forward = _forward_cases()
    return forward + [
        dataclasses.replace(case, backward=True, with_lse=i % 2 == 1)
        for i, case in enumerate(forward + forward[:1])
    ]


class AttentionOnGpu:
    """A case's operands, made on the CPU; the mask's lists are made by this package's kernels."""

    def __init__(self, case):
        self.case = case
        draw = torch.Generator().manual_seed(0)
        queries, keys = case.lengths

        def randn(heads, length):
            x = torch.randn(1, length, heads, case.dim, generator=draw)
            return x.to(case.dtype).transpose(1, 2)

        self.host = [randn(2, queries), *(randn(case.kv_heads, keys) for _ in range(2))]
        self.q, self.k, self.v = (self._moved(x) for x in self.host)
        self.mask = self.device_mask = None
        if case.block is not None:
            grid = [-(-n // side) for n, side in zip(case.lengths, case.block, strict=True)]
            blocks = torch.rand(2, *grid, generator=draw) < 0.5
            blocks[:, 1 % grid[0], :] = False  # rows that see nothing
            blocks[:, 0, 0] = True
            self.mask = BlockMask.from_blocks(blocks, case.block, case.lengths)
            self.device_mask = BlockMask.from_blocks(blocks.cuda(), case.block, case.lengths)
        if case.backward:
            self._run_forward(draw)

    @staticmethod
    def _moved(x):
        return x.transpose(1, 2).cuda().transpose(1, 2)

    def _run_forward(self, draw):
        """What a backward pass gets, from the readable kernel on the CPU."""
        case = self.case
        self.left = attention(*self.host, self.mask, is_causal=case.is_causal, return_lse=True,
                              variant="cpu_attention_naive")  # fmt: skip
        out, lse = self.left
        self.grad = torch.randn(out.shape, generator=draw).to(case.dtype)
        self.grad_lse = None
        if case.with_lse:
            self.grad_lse = torch.randn(lse.shape, generator=draw).to(lse.dtype)

    def legality(self):
        """Why a variant is not legal; None where it is."""
        case = self.case
        if not case.backward:
            operands = (self.q, self.k, self.v, self.device_mask, case.is_causal, False)
            return about_attention(*operands).legality()
        answer = torch.ops.sparse_autotune.attention_backward_race(
            *self._backward_arguments(), is_causal=case.is_causal, dry_run=True
        )
        return errors.reasons_of(bytes(answer.tolist()).decode())

    def check(self, name):
        """Runs a variant; its results have to be right."""
        if self.case.backward:
            self._check_gradients(name)
            return
        causal = self.case.is_causal
        found = attention(self.q, self.k, self.v, self.device_mask, is_causal=causal,
                          return_lse=True, variant=name)  # fmt: skip
        expected = expected_attention(*self.host, self.mask, causal)
        for what, got, right in zip(("out", "lse"), found, expected, strict=True):
            check(got.cpu(), right, what)

    def _backward_arguments(self):
        lists, block = (None,) * 4, (0, 0)
        if (mask := self.device_mask) is not None:
            lists = (mask.crow_indices, mask.col_indices, *mask.by_column())
            block = mask.block_size
        grad_lse = None if self.grad_lse is None else self.grad_lse.cuda()
        left = (x.cuda() for x in self.left)
        return self.grad.cuda(), grad_lse, self.q, self.k, self.v, *left, *lists, *block

    def _check_gradients(self, name):
        found = torch.ops.sparse_autotune.attention_backward(
            *self._backward_arguments(), is_causal=self.case.is_causal, variant=name
        )
        expected = expected_gradients(
            *self.host, *self.left, self.grad, self.grad_lse, self.mask, self.case.is_causal
        )
        for what, got, right in zip("qkv", found, expected, strict=True):
            check(got.cpu(), right, f"d{what}")

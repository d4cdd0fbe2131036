"""Attention in fp64 from dense tensors, and how far a right result may be from it.

A score is a sum of D products in the accumulator's precision; its absolute error is the relative
error of its probability. Probabilities may be rounded to the operands' dtype before they are
multiplied, with errors of random sign: their sum grows as the root of the sum of squares, of which
four times unit roundoff is seven standard deviations. Below the dtype's smallest normal number they
are off by half of its smallest one. Exponentials of half types may be off by a quarter of that
rounding, which shows in lse. Sums have the error of any sum (Higham, Accuracy and Stability of
Numerical Algorithms, chapter 4).
"""

import math

import torch

UNIT = {torch.float64: 2**-53, torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}
SMALLEST = {torch.float64: 2**-1022, torch.float32: 2**-126, torch.bfloat16: 2**-126,
            torch.float16: 2**-24}  # fmt: skip


class Dense:
    """Operands in fp64 with a head of k and v for each of q, what is seen, and scores."""

    def __init__(self, q, k, v, mask, is_causal, scale):
        self.dtype = q.dtype
        self.group = q.shape[1] // k.shape[1]
        self.scale = q.shape[-1] ** -0.5 if scale is None else scale
        self.q = q.double()
        self.k, self.v = (x.double().repeat_interleave(self.group, 1) for x in (k, v))
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        if mask is not None:
            seen = mask.to_dense()
            seen = seen.view(*[1] * (4 - seen.dim()), *seen.shape)
        self.seen = (seen.tril() if is_causal else seen).expand(*q.shape[:3], k.shape[2])
        self.accumulator = 2**-53 if q.dtype == torch.float64 else 2**-24
        self.rounded = UNIT[q.dtype] if UNIT[q.dtype] > 2**-24 else self.accumulator
        scores = self.scale * (self.q @ self.k.mT)
        sizes = abs(self.scale) * (self.q.abs() @ self.k.abs().mT)
        self.error = sizes * self.sum(q.shape[-1]) + 4 * self.accumulator * scores.abs()
        self.scores = scores.masked_fill(~self.seen, -math.inf)

    def sum(self, length):
        """Relative to the sum of absolute values of so many terms."""
        return self.accumulator * (8 + 4 * torch.as_tensor(length).double().sqrt())

    def finish(self, value, allowed):
        return value, allowed + value.abs() * UNIT[self.dtype] + SMALLEST[self.dtype]

    def for_kv(self, x):
        """The sum over the heads that share one of k."""
        return x.unflatten(1, (-1, self.group)).sum(2)


def expected_attention(q, k, v, mask, is_causal, scale=None):
    """(out, allowed) and (lse, allowed)."""
    d = Dense(q, k, v, mask, is_causal, scale)
    lse = torch.logsumexp(d.scores, -1)
    p = torch.exp(d.scores - lse.masked_fill(lse == -math.inf, 0)[..., None])
    out = p @ d.v
    count = d.seen.sum(-1, keepdim=True)
    error = d.error.masked_fill(~d.seen, 0).amax(-1, keepdim=True) if k.shape[2] else 0
    relative = error + d.sum(count)
    size = p @ d.v.abs() + out.abs()
    squares = (p.square() @ d.v.square()).sqrt() + out.abs() * p.square().sum(-1, True).sqrt()
    seen = d.seen.double()
    lost = (seen @ d.v.square()).sqrt() + out.abs() * count.sqrt()
    finite = lse.masked_fill(lse == -math.inf, 0)
    # Probabilities are rounded relative to the greatest, in units of which this is their sum.
    total = torch.exp(finite - d.scores.amax(-1).clamp(min=-1e300))[..., None] if k.shape[2] else 1
    allowed = size * relative + 4 * d.rounded * squares + 2 * SMALLEST[q.dtype] * lost / total
    finite = finite.abs()
    exponential = UNIT[q.dtype] / 4 if UNIT[q.dtype] > 2**-24 else 0
    lse_allowed = relative[..., 0] + exponential + 2 * finite * d.accumulator + 2**-126
    return d.finish(out, allowed), (lse, lse_allowed)


def expected_gradients(q, k, v, out, lse, grad, grad_lse, mask, is_causal, scale=None):
    """(value, allowed) of the gradients of q, k and v, from what the forward pass left."""
    d = Dense(q, k, v, mask, is_causal, scale)
    out, grad, lse = out.double(), grad.double(), lse.double()
    finite = lse.masked_fill(lse == -math.inf, 0)[..., None]
    p = torch.exp(d.scores - finite)
    delta = (grad * out).sum(-1, keepdim=True)
    delta_error = (grad * out).abs().sum(-1, keepdim=True) * d.sum(q.shape[-1])
    if grad_lse is not None:
        delta = delta - grad_lse.double()[..., None]
        delta_error = delta_error + grad_lse.double().abs()[..., None] * d.accumulator
    dp = grad @ d.v.mT
    dp_error = (grad.abs() @ d.v.abs().mT) * d.sum(q.shape[-1])
    ds = p * (dp - delta)
    sizes = d.scores.masked_fill(~d.seen, 0).abs()
    relative = d.error + d.accumulator * (8 + 4 * finite.abs() + 4 * sizes)
    p_error = p * relative
    ds_error = p * (relative * (dp.abs() + delta.abs()) + dp_error + delta_error)

    def weighted(weights, errors, lost, rows, factor, length, fold):
        value = fold(weights @ rows)
        allowed = fold(errors @ rows.abs()) + fold(weights.abs() @ rows.abs()) * d.sum(length)
        rounding = d.rounded * weights.abs() + lost
        allowed = allowed + 4 * fold(rounding.square() @ rows.square()).sqrt()
        return d.finish(factor * value, abs(factor) * allowed)

    def same(x):
        return x

    group_rows = q.shape[2] * d.group
    lost = SMALLEST[q.dtype] / 2 * d.seen
    ds_lost = lost * (1 + (dp - delta).abs())
    return (
        weighted(ds, ds_error, ds_lost, d.k, d.scale, k.shape[2], same),
        weighted(ds.mT, ds_error.mT, ds_lost.mT, d.q, d.scale, group_rows, d.for_kv),
        weighted(p.mT, p_error.mT, lost.mT, grad, 1.0, group_rows, d.for_kv),
    )


def lies_as_result_of(operand, result):
    """Dense, with heads and rows in the operand's order."""
    rows_first = operand.stride(1) < operand.stride(2) and operand.stride(3) == 1
    return (result.transpose(1, 2) if rows_first else result).is_contiguous()

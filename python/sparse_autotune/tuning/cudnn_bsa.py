"""`register_cudnn_bsa`: cuDNN's block-sparse attention as a candidate of `attention`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..masks.block_mask import BlockMask
from .installed_kernels import register_both
from .registration import RegisteredVariant
from .variant_problems import AttentionProblem


def register_cudnn_bsa(
    *, version: str | None = None
) -> tuple[RegisteredVariant, RegisteredVariant]:
    """Lets ``BSA`` of ``nvidia-cudnn-frontend`` take part in races of `attention` on Hopper GPUs.

    As "cudnn_bsa" it computes results, which it copies, as "cudnn_bsa_backward" gradients, which
    are not repeatable. They race like this package's own kernels, under the same verification. The
    lists that they want of a mask are made in every call, and timed with it. Each is compiled where
    it first runs with a new dtype, head size or block size, which takes seconds.

    Args:
        version: as of `register_variant`; None: that of the installed ``nvidia-cudnn-frontend``.

    Returns:
        The handles of both, with `unregister`.

    Raises:
        ImportError: ``nvidia-cudnn-frontend``, or a package that it needs, is not installed.
        ValueError: the version is unfit, or registered already.
    """
    return register_both(
        "cudnn_bsa",
        _forward,
        _backward,
        supports,
        distribution="nvidia-cudnn-frontend",
        # What loads its kernels, and with them all that they need.
        module="cudnn.block_sparse_attention._interface",
        version=version,
    )


def supports(problem: AttentionProblem) -> bool | str:
    """True, or why it does not compute a problem of a half type on a Hopper GPU."""
    if problem.block_size not in ((64, 64), (128, 128)):
        return "needs a mask with blocks of 64 or of 128"
    if problem.is_causal:
        return "whole blocks only"
    if problem.block_size == (64, 64) and problem.queries % 64:
        return "with blocks of 64 their multiples as queries only"
    if problem.op == "attention_backward":
        if problem.dtype != torch.bfloat16 or problem.dim != 128:
            return "gradients in bfloat16 and of heads of 128 numbers only"
        if problem.heads != problem.kv_heads:
            return "gradients without heads that share keys only"
        return "no gradients of lse" if problem.grad_lse else True
    return problem.dim in (64, 96, 128) or "heads of 64, 96 or 128 numbers only"


def lists_of(mask: BlockMask, q: Tensor) -> dict[str, Tensor | int | None]:
    """Of each entry and head a list of blocks and their count; of a last, cut block its keys."""
    columns, counts = mask.index_lists()
    lead = q.shape[:2]
    columns, counts = (
        x.view(*[1] * (missing - x.dim()), *x.shape).expand(*lead, *x.shape[x.dim() - tail :])
        for x, missing, tail in ((columns, 4, 2), (counts, 3, 1))
    )
    side, keys = mask.block_size[1], mask.lengths[1]
    sizes = None
    if keys % side:
        first = torch.arange(0, keys, side, dtype=torch.int32, device=q.device)
        sizes = (keys - first).clamp(max=side)
    return {
        "q2k_block_index": columns.contiguous(),
        "q2k_block_nums": counts.contiguous(),
        "block_sizes": sizes,
        "sparse_block_size": side,
    }


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: BlockMask,
    *,
    out: Tensor,
    lse: Tensor,
    is_causal: bool,
    scale: float,
) -> None:
    from cudnn.block_sparse_attention import block_sparse_attention_forward

    made = block_sparse_attention_forward(
        q, k, v, softmax_scale=scale, allow_empty_block_nums=True, **lists_of(mask, q)
    )
    out.copy_(made["o_tensor"])
    lse.copy_(made["lse_tensor"])


def _backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: BlockMask,
    *,
    grad_q: Tensor,
    grad_k: Tensor,
    grad_v: Tensor,
    grad_lse: Tensor | None,
    by_column: tuple[Tensor, Tensor] | None,
    is_causal: bool,
    scale: float,
) -> None:
    from cudnn.block_sparse_attention import block_sparse_attention_backward

    written = {"dq_tensor": grad_q, "dk_tensor": grad_k, "dv_tensor": grad_v}
    block_sparse_attention_backward(
        grad_out, q, k, v, out, lse, softmax_scale=scale, **written, **lists_of(mask, q)
    )

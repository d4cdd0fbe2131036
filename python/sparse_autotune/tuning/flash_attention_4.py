"""`register_flash_attention_4`: FlashAttention 4's kernels as candidates of `attention`."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from ..masks.block_mask import BlockMask
from .installed_kernels import register_both
from .registration import RegisteredVariant
from .variant_problems import AttentionProblem

# By the greatest head size: keys of a tile of the forward pass, which a block has at most, and of
# the backward pass, which a block has exactly.
_TILE_KEYS = {128: (128, 128), 192: (112, 96), 256: (80, 64)}
# With 40 numbers some of its gradients are wrong (4.0.0b36); these were tried.
_DIMS_OF_GRADIENTS = (64, 96, 128, 192, 256)


def register_flash_attention_4(
    *, version: str | None = None
) -> tuple[RegisteredVariant, RegisteredVariant]:
    """Lets FlashAttention 4 (``flash_attn.cute``) take part in races of `attention` on Hopper GPUs.

    As "flash_attention_4" it computes results, as "flash_attention_4_backward" gradients, which
    are not repeatable. They race like this package's own kernels, under the same verification. The
    form of the mask that they want is made in every call, and timed with it. Each is compiled where
    it first runs with a new dtype, head size, block size or kind of mask, which takes seconds.

    Args:
        version: as of `register_variant`; None: that of the installed ``flash-attn-4``.

    Returns:
        The handles of both, with `unregister`.

    Raises:
        ImportError: ``flash-attn-4``, or a package that it needs, is not installed.
        ValueError: the version is unfit, or registered already.
    """
    return register_both(
        "flash_attention_4",
        _forward,
        _backward,
        supports,
        distribution="flash-attn-4",
        module="flash_attn.cute.interface",
        version=version,
    )


def supports(problem: AttentionProblem) -> bool | str:
    """True, or why it does not compute a problem of a half type on a Hopper GPU."""
    if problem.dim % 8:
        return "needs heads of multiples of 8 numbers"
    backward = problem.op == "attention_backward"
    if backward and problem.dim not in _DIMS_OF_GRADIENTS:
        return "gradients of heads of 64, 96, 128, 192 or 256 numbers only"
    if problem.block_size is None:
        if problem.is_causal and problem.queries != problem.keys:
            return "without a mask its causal rule is another where lengths differ"
        return True
    queries, keys = problem.block_size
    most, exactly = next(tile for dim, tile in _TILE_KEYS.items() if problem.dim <= dim)
    if backward:
        rows = 128 if problem.dim <= 64 else 64
        if queries % rows or keys != exactly:
            return f"gradients need blocks of multiples of {rows} queries, and {exactly} keys"
    elif queries % 64 or keys % 16 or keys > most:
        return f"needs blocks of multiples of 64 queries, and of 16 up to {most} keys"
    return True


@functools.cache
def causal_rule() -> Any:
    """The causal rule of blocks on the diagonal, as FlashAttention 4's compiler takes it."""
    import cutlass.cute as cute

    @cute.jit
    def seen(batch: Any, head: Any, query: Any, key: Any, lengths: Any, tensors: Any) -> Any:
        return key <= query

    return seen


def mask_options(mask: BlockMask | None, is_causal: bool, *, gradients: bool) -> dict[str, Any]:
    """What its functions are told of a mask, in the forward pass or for gradients."""
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

    if mask is None:
        return {"causal": is_causal}
    lists = BlockSparseTensorsTorch(**mask.to_fa4(gradients=gradients))
    return {"block_sparse_tensors": lists, "mask_mod": causal_rule() if is_causal else None}


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: BlockMask | None,
    *,
    out: Tensor,
    lse: Tensor,
    is_causal: bool,
    scale: float,
) -> None:
    from flash_attn.cute.interface import _flash_attn_fwd

    of_mask = mask_options(mask, is_causal, gradients=False)
    q, k, v, out = (x.transpose(1, 2) for x in (q, k, v, out))
    _flash_attn_fwd(q, k, v, softmax_scale=scale, out=out, lse=lse, **of_mask)


def _backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: BlockMask | None,
    *,
    grad_q: Tensor,
    grad_k: Tensor,
    grad_v: Tensor,
    grad_lse: Tensor | None,
    by_column: tuple[Tensor, Tensor] | None,
    is_causal: bool,
    scale: float,
) -> None:
    from flash_attn.cute.interface import _flash_attn_bwd

    of_mask = mask_options(mask, is_causal, gradients=True)
    operands = (x.transpose(1, 2) for x in (q, k, v, out, grad_out))
    grads = {"dq": grad_q, "dk": grad_k, "dv": grad_v}
    written = {name: grad.transpose(1, 2) for name, grad in grads.items()}
    _flash_attn_bwd(*operands, lse, softmax_scale=scale, dlse=grad_lse, **written, **of_mask)

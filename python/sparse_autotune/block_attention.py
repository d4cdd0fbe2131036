"""`attention`: from its arguments to its operator, and the reason where it refuses them."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal, overload

import torch
from torch import Tensor

from ._torch import direct
from ._torch.compiling import is_deterministic
from ._torch.transforms import is_any_autocast_enabled
from .checks.matrix import check_dense, check_value_dtype, kind
from .errors import (
    REFUSALS,
    check_device,
    check_devices,
    check_dtypes,
    check_variant,
    reasons_of,
)
from .masks.block_mask import BlockMask
from .operands import autocast_dtype, autocast_to
from .operators.attention import AttentionForm, attention_race_op, call_attention
from .operators.precision import allow_tf32, deterministic

_is_compiling = torch.compiler.is_dynamo_compiling


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: BlockMask | None = ...,
    *,
    is_causal: bool = ...,
    scale: float | None = ...,
    return_lse: Literal[False] = ...,
    variant: str = ...,
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: BlockMask | None = ...,
    *,
    is_causal: bool = ...,
    scale: float | None = ...,
    return_lse: Literal[True],
    variant: str = ...,
) -> tuple[Tensor, Tensor]: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: BlockMask | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    variant: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention at the blocks that a mask stores, ``softmax(scale * q @ k^T) @ v``.

    The softmax of a query is over the keys that it sees; a query that sees none gives zeros. The
    first call with a new kind of problem races every variant that is legal for it and remembers
    the winner (see ``settings``); so does the first backward pass. Half types compute their softmax
    in float32. Differentiable once, in ``q``, ``k`` and ``v``. Under autocast the operands are
    converted first, as for ``torch.nn.functional.scaled_dot_product_attention``.

    Args:
        q: (batch, heads, S, D), strided; float16, bfloat16, float32 or float64, D up to 256. Read
            where it lies if its last dimension is contiguous, as in what ``transpose(1, 2)`` gives
            of (batch, S, heads, D).
        k: (batch, kv_heads, T, D), the dtype and device of ``q``; ``heads`` is a multiple of
            ``kv_heads``, and neighbouring heads of ``q`` share one of ``k``.
        v: as ``k``.
        mask: which blocks are seen, of ``(S, T)`` and on the device of ``q``; None: all.
        is_causal: query i sees key j only where ``j <= i``; also if the mask says so.
        scale: of the scores; None: ``1 / sqrt(D)``.
        return_lse: also return the logarithms of the sums of exponentials.
        variant: "auto", a family, or one variant. Does not apply to gradients, which choose their
            own.

    Returns:
        (batch, heads, S, D), the dtype of ``q``, dense, with heads and S in the order that ``q``
        has in memory: contiguous, or contiguous after ``transpose(1, 2)``; so are gradients, each
        like its operand. With ``return_lse`` also lse, (batch, heads, S), the natural logarithm of
        the sum of ``exp(scale * q . k)`` over the keys that a query sees, minus infinity where it
        sees none; float32, of float64 operands float64; it is differentiable, too.

    Raises:
        TypeError: an argument has a wrong type or dtype.
        ValueError: shapes disagree, or the variant is unknown or not legal here.
        RuntimeError: devices differ, or a derivative is asked for that there is none of.
    """
    if not _is_compiling():
        result = _directly(q, k, v, mask, is_causal, scale, variant)
        if result is not None:
            return result if return_lse else result[0]
    try:
        operands = attention_operands(q, k, v, mask, is_causal, scale, variant)
        out, lse = call_attention(*operands)
    except REFUSALS:
        if not _is_compiling():
            explain_attention(q, k, v, mask, is_causal, scale, variant)
        raise
    return (out, lse) if return_lse else out


def _directly(
    q: Any, k: Any, v: Any, mask: Any, is_causal: Any, scale: Any, variant: Any
) -> tuple[Tensor, Tensor] | None:
    """A plain eager attention without gradients that was decided before; None: go the long way.

    What is wrong with others the long way says.
    """
    if type(q) is not Tensor or is_any_autocast_enabled():
        return None
    crow = col = lengths = None
    block_m = block_n = 0
    nnzb = -1
    if type(mask) is BlockMask:
        lengths = mask._lengths
        is_causal = is_causal or mask._is_causal
        if not mask._hides_only_later:
            crow, col = mask._crow_indices, mask._col_indices
            block_m, block_n = mask._block_size
            nnzb = mask._counted
    elif mask is not None:
        return None
    form = (
        block_m,
        block_n,
        is_causal,
        scale,
        nnzb,
        q.is_cuda and allow_tf32(q),
        is_deterministic(),
        None if variant == "auto" else variant,
    )
    result: tuple[Tensor, Tensor] | None = direct.attention(q, k, v, crow, col, form, lengths)
    return result


# What `operators.attention.call_attention` takes.
AttentionOperands = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, AttentionForm]


def attention_operands(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: BlockMask | None,
    is_causal: bool,
    scale: float | None,
    variant: str | None = "auto",
) -> AttentionOperands:
    """The operator's operands, with autocast applied."""
    compiling = _is_compiling()
    if compiling or is_any_autocast_enabled():
        lower = autocast_dtype(q)
        q, k, v = (t if lower is None else t.to(autocast_to(t.dtype, lower)) for t in (q, k, v))
    crow = col = None
    block, nnzb = (0, 0), -1
    if mask is not None:
        if mask.lengths != (q.shape[2], k.shape[2]):
            raise ValueError("the mask has other lengths")
        is_causal = is_causal or mask.is_causal
        if not mask._hides_only_later:
            crow, col, block = mask.crow_indices, mask.col_indices, mask.block_size
            nnzb = -1 if compiling else mask._counted
    form = AttentionForm(
        *block,
        is_causal,
        scale,
        nnzb,
        allow_tf32(q),
        deterministic() if compiling else is_deterministic(),
        None if variant == "auto" else variant,
    )
    return q, k, v, crow, col, form


def explain_attention(
    q: Any, k: Any, v: Any, mask: Any, is_causal: Any, scale: Any, variant: Any = "auto"
) -> None:
    """Raises the reason why ``attention`` refuses these arguments; returns when it knows none."""
    _check_tensors({"q": q, "k": k, "v": v})
    batch, heads, _, dim = q.shape
    if dim > 256 or dim == 0:
        raise ValueError(f"the last dimension of q must be 1 to 256, got {tuple(q.shape)}")
    if v.shape != k.shape:
        raise ValueError(f"v must have the shape of k: k has {tuple(k.shape)}, v {tuple(v.shape)}")
    if (k.shape[0], k.shape[3]) != (batch, dim):
        raise ValueError(
            "k must have the batch and the last dimension of q: q has shape "
            f"{tuple(q.shape)}, k {tuple(k.shape)}"
        )
    if k.shape[1] == 0 or heads % k.shape[1]:
        raise ValueError(
            f"the heads of q must be a multiple of those of k, got {heads} and {k.shape[1]}"
        )
    if not isinstance(is_causal, bool):
        raise TypeError(f"is_causal must be True or False, got {is_causal!r}")
    if scale is not None and (
        not isinstance(scale, Real) or isinstance(scale, bool) or not math.isfinite(scale)
    ):
        raise TypeError(f"scale must be None or a finite number, got {scale!r}")
    if mask is not None:
        _check_mask(mask, q, k)
    check_variant(
        variant,
        "attention",
        q.device,
        lambda: attention_legality(q, k, v, mask, is_causal, scale),
        "attention",
    )


def _check_tensors(tensors: dict[str, Any]) -> None:
    q = tensors["q"]
    check_dense(q, "q")
    check_devices(tensors, q, "q")
    for name, tensor in tensors.items():
        if tensor.dim() != 4:
            raise ValueError(
                f"{name} must have shape (batch, heads, length, D), got {tuple(tensor.shape)}"
            )
    check_value_dtype(q.dtype, "q")
    check_dtypes(tensors, q, "q")
    check_device(q, "q", "variants")


def _check_mask(mask: Any, q: Tensor, k: Tensor) -> None:
    if not isinstance(mask, BlockMask):
        advice = ": make it with BlockMask.from_blocks" if isinstance(mask, Tensor) else ""
        raise TypeError(f"mask must be a BlockMask or None, got {kind(mask)}{advice}")
    if mask.lengths != (q.shape[2], k.shape[2]):
        raise ValueError(f"mask must be of (S, T) = {(q.shape[2], k.shape[2])}, got {mask.lengths}")
    lead = (1,) * (4 - len(mask.shape)) + tuple(mask.shape[:-2])
    if any(size not in (1, wanted) for size, wanted in zip(lead, q.shape[:2], strict=True)):
        raise ValueError(
            "mask must be one for all, or one for each head of q or batch entry, shape "
            f"{(*q.shape[:2], '...')}; got {tuple(mask.shape)}"
        )
    if mask.device != q.device:
        raise RuntimeError(
            f"mask must be on the device of q: q is on {q.device}, mask on {mask.device}"
        )


def ask_attention(*arguments: Any, **options: Any) -> str:
    """What the operator answers that races attention; arguments as of `attention_operands`."""
    *tensors, form = attention_operands(*arguments)
    answer = attention_race_op(*tensors, *form[:2], **form.switches(), **options)
    return bytes(answer.tolist()).decode()


def attention_legality(*arguments: Any) -> dict[str, str | None]:
    """Why each variant of the operands' device may not run this attention; None: it may."""
    return reasons_of(ask_attention(*arguments, dry_run=True))

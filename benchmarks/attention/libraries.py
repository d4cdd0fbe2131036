"""FlashAttention 4 and cuDNN's block-sparse attention as peers, where they are installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from torch import Tensor
from torch.autograd import Function

from sparse_autotune.tuning import cudnn_bsa, flash_attention_4

from .cells import AttentionCell, AttentionOperands

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def installed(cell: AttentionCell) -> dict[str, Callable[[AttentionOperands], Attention]]:
    """By name those that take a cell's blocks as they are, if their packages are here."""
    found: dict[str, Callable[[AttentionOperands], Attention]] = {}
    is_large = not cell.has_mask or cell.block == 128
    fits = is_large or (cell.block == 64 and not cell.backward)
    if fits and _is_here("flash_attn", "flash_attn.cute"):
        found["flash_attention_4"] = _flash_attention_4
    # It knows no causal rule, which a window has as well.
    fits = cell.block in (64, 128) and cell.mask == "random"
    if fits and _is_here("cudnn", "cudnn.block_sparse_attention"):
        found["cudnn_bsa"] = _cudnn_bsa
    return found


def _is_here(*modules: str) -> bool:
    """Each of them is looked for in the one before."""
    return all(find_spec(module) is not None for module in modules)


def _flash_attention_4(operands: AttentionOperands) -> Attention:
    """Both passes' lists are made before."""
    from flash_attn.cute import flash_attn_func

    mask = operands.mask
    is_causal = operands.is_causal if mask is None else mask.is_causal
    options = flash_attention_4.mask_options(mask, is_causal, gradients=False)
    if mask is not None:
        columns = flash_attention_4.mask_options(mask, is_causal, gradients=True)
        options["block_sparse_tensors_bwd"] = columns["block_sparse_tensors"]

    def way(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, _ = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), **options)
        return out.transpose(1, 2)

    return way


class _CudnnBsa(Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, rows: dict[str, Any], lists: dict[str, Any]
    ) -> Tensor:
        from cudnn.block_sparse_attention import block_sparse_attention_forward

        made = block_sparse_attention_forward(q, k, v, **rows)
        ctx.save_for_backward(q, k, v, made["o_tensor"], made["lse_tensor"])
        ctx.lists = lists
        return made["o_tensor"]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from cudnn.block_sparse_attention import block_sparse_attention_backward

        made = block_sparse_attention_backward(grad, *ctx.saved_tensors, **ctx.lists)
        return made["dq_tensor"], made["dk_tensor"], made["dv_tensor"], None, None


def _cudnn_bsa(operands: AttentionOperands) -> Attention:
    """Its lists are made before; of each block column it makes them in every backward pass."""
    assert operands.mask is not None
    lists: dict[str, Any] = cudnn_bsa.lists_of(operands.mask, operands.q)
    # Each row has equally many, for which it has another kernel.
    count = int(lists["q2k_block_nums"].max())
    columns = lists["q2k_block_index"][..., :count].contiguous()
    rows = lists | {"q2k_block_index": columns, "block_sparse_num": count, "q2k_block_nums": None}
    return lambda q, k, v: _CudnnBsa.apply(q, k, v, rows, lists)

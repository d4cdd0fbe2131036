"""Other libraries' forms of block masks: FlexAttention's, FlashAttention 4's, FlashInfer's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import mask_forms as forms
from ..checks.matrix import kind
from ..operators.mask_lists import mask_rows
from .checks import grid_shape

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask as FlexBlockMask

# Elements of partial blocks that mask_mod is asked about at a time.
_MOST_ELEMENTS = 1 << 24


def grids_of_flex(mask: Any) -> tuple[Tensor, Tensor, tuple[int, int], tuple[int, int]]:
    """Grids of the partial and of the full blocks, block size and lengths."""
    names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "BLOCK_SIZE", "seq_lengths")
    if not all(hasattr(mask, name) for name in names):
        raise TypeError(
            f"block_mask must be a BlockMask of torch.nn.attention.flex_attention, got {kind(mask)}"
        )
    if mask.kv_num_blocks.dim() > 3:
        raise TypeError(
            "block_mask must have at most (batch, heads) before the block rows, got "
            f"{tuple(mask.kv_num_blocks.shape)}"
        )
    block, lengths = tuple(mask.BLOCK_SIZE), tuple(mask.seq_lengths)
    cols = grid_shape(block, lengths)[1]
    partial = forms.grid_of_lists(mask.kv_num_blocks, mask.kv_indices, cols)
    if mask.full_kv_num_blocks is None:
        full = torch.zeros_like(partial)
    else:
        full = forms.grid_of_lists(mask.full_kv_num_blocks, mask.full_kv_indices, cols)
    return partial, full, block, lengths


def is_causal_rule(mask: Any, partial: Tensor, full: Tensor, *, check: bool) -> bool:
    """Whether partial blocks are those of a causal rule; they may also all be seen whole.

    Raises:
        TypeError: neither is so.
    """
    from torch.nn.attention.flex_attention import noop_mask

    if mask.mask_mod is noop_mask:
        return False
    if not check:
        return True
    places = partial.nonzero()
    if places.shape[0] == 0:
        return False
    block, lengths = tuple(mask.BLOCK_SIZE), tuple(mask.seq_lengths)
    whole, causal = True, True
    for some in places.split(max(_MOST_ELEMENTS // (block[0] * block[1]), 1)):
        seen, below, inside = _elements(mask.mask_mod, some, block, lengths)
        whole = whole and bool((seen | ~inside).all())
        causal = causal and bool(((seen == below) | ~inside).all())
        if not (whole or causal):
            break
    if whole:
        return False
    if causal and not (full & ~_below_diagonal(block, lengths, full.device)).any():
        return True
    name = getattr(mask.mask_mod, "__name__", repr(mask.mask_mod))
    raise TypeError(
        f"block_mask has partial blocks, whose mask_mod ({name}) is neither the causal rule q_idx "
        ">= kv_idx nor true everywhere: attention computes whole blocks, and the causal rule in "
        "them. Use BlockMask.sliding_window or BlockMask.documents, whose rules end at blocks, or "
        "flex_attention itself"
    )


def _elements(
    mask_mod: Any, places: Tensor, block: tuple[int, int], lengths: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each element of blocks: what mask_mod says, the causal rule, whether it exists."""
    lead = [places[:, i, None, None] for i in range(places.shape[1] - 2)]
    batch, head = [torch.zeros_like(places[:, :1, None])] * (2 - len(lead)) + lead
    rows = torch.arange(block[0], device=places.device)[None, :, None]
    cols = torch.arange(block[1], device=places.device)[None, None, :]
    query, key = places[:, -2, None, None] * block[0] + rows, places[:, -1, None, None] * block[1]
    indices = torch.broadcast_tensors(batch, head, query, key + cols)
    inside = (indices[2] < lengths[0]) & (indices[3] < lengths[1])
    # What lies outside is asked as if it were the last token.
    query, key = indices[2].clamp(max=lengths[0] - 1), indices[3].clamp(max=lengths[1] - 1)
    # As torch does: mask_mod may index tensors with scalars alone.
    asked = torch.vmap(mask_mod)(*(i.flatten() for i in (*indices[:2], query, key)))
    return asked.view(inside.shape), query >= key, inside


def _sides(length: int, side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """First and last token of each block."""
    first = torch.arange(0, length, side, device=device)
    return first, (first + side).clamp(max=length) - 1


def _below_diagonal(
    block: tuple[int, int], lengths: tuple[int, int], device: torch.device
) -> Tensor:
    """The grid of blocks whose elements the causal rule shows all."""
    first_query, _ = _sides(lengths[0], block[0], device)
    _, last_key = _sides(lengths[1], block[1], device)
    return last_key <= first_query[:, None]


def _split(
    blocks: Tensor,
    block: tuple[int, int],
    lengths: tuple[int, int],
    is_causal: bool,
    by_column: bool = False,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Lists of the blocks that the causal rule cuts, and of those seen whole; (batch, heads, …)."""
    grid = blocks.view(*[1] * (4 - blocks.dim()), *blocks.shape)
    cut = torch.zeros_like(grid)
    if is_causal:
        whole = _below_diagonal(block, lengths, grid.device)
        _, last_query = _sides(lengths[0], block[0], grid.device)
        first_key, _ = _sides(lengths[1], block[1], grid.device)
        cut = grid & ~whole & (first_key <= last_query[:, None])
        grid = grid & whole
    parts = (part.mT.contiguous() if by_column else part for part in (cut, grid))
    return tuple(forms.lists_of_rows(*mask_rows(part), part.shape[-1]) for part in parts)  # type: ignore[return-value]


def to_flex(
    blocks: Tensor,
    block: tuple[int, int],
    lengths: tuple[int, int],
    is_causal: bool,
    gradients: bool,
) -> FlexBlockMask:
    """FlexAttention's mask; its ``mask_mod`` knows the blocks too, which eager mode goes by."""
    from torch.nn.attention.flex_attention import BlockMask as FlexBlockMask

    (cut_counts, cut), (full_counts, full) = _split(blocks, block, lengths, is_causal)
    grid = blocks.view(*[1] * (4 - blocks.dim()), *blocks.shape)
    batches, heads = grid.shape[:2]

    def seen(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        stored = grid[b % batches, h % heads, q_idx // block[0], kv_idx // block[1]]
        return stored & (q_idx >= kv_idx) if is_causal else stored

    return FlexBlockMask.from_kv_blocks(
        cut_counts,
        cut,
        full_counts,
        full,
        BLOCK_SIZE=block,
        mask_mod=seen,
        seq_lengths=lengths,
        compute_q_blocks=gradients,
    )


def to_fa4(
    blocks: Tensor,
    block: tuple[int, int],
    lengths: tuple[int, int],
    is_causal: bool,
    gradients: bool,
) -> dict[str, Any]:
    """The fields of FlashAttention 4's ``BlockSparseTensorsTorch``."""
    split = _split(blocks, block, lengths, is_causal, by_column=gradients)
    (cut_counts, cut), (full_counts, full) = split
    return {
        "mask_block_cnt": cut_counts,
        "mask_block_idx": cut,
        "full_block_cnt": full_counts,
        "full_block_idx": full,
        "block_size": block,
    }


def to_flashinfer(
    crow: Tensor, col: Tensor, block: tuple[int, int], lengths: tuple[int, int]
) -> dict[str, Any]:
    """The arguments of FlashInfer's two wrappers' ``plan``, of a mask that is not causal."""
    (queries, keys), (block_m, block_n) = lengths, block
    lead = crow.shape[:-1]
    if len(lead) == 0:
        if queries % block_m or keys % block_n:
            raise ValueError(f"the block size must divide the lengths, got {block} and {lengths}")
        return {
            "indptr": crow,
            "indices": col,
            "M": queries,
            "N": keys,
            "R": block_m,
            "C": block_n,
        }
    if len(lead) == 2 and lead[0] != 1:
        raise ValueError(
            f"the mask must be one for all batch entries, got {lead[0]} of them: FlashInfer's "
            "wrappers take one sequence"
        )
    grid = forms.grid_of_rows(crow, col, grid_shape(block, lengths)[1])
    grid = grid.view(-1, *grid.shape[-2:])
    sizes = []
    for length, side in zip(lengths, block, strict=True):
        first, last = _sides(length, side, crow.device)
        sizes.append((last - first + 1).int().expand(grid.shape[0], -1).contiguous())
    return {"block_mask_map": grid, "block_row_sz": sizes[0], "block_col_sz": sizes[1]}

"""`BlockMask`: which blocks of an attention matrix are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from .. import mask_forms as forms
from .._torch.transforms import is_plainly_eager
from ..bsr_tensor import BsrTensor
from ..checks.matrix import block_shape, kind
from ..operands import bsr_components, is_sparse_operand
from ..operators.mask_lists import mask_columns, mask_of_lists, mask_rows
from . import exchange
from .checks import (
    check_bool_blocks,
    check_counts,
    check_mask,
    check_rows,
    flag,
    grid_shape,
    lengths_of,
    part_of,
)
from .patterns import CommonPatterns

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask as FlexBlockMask


@final
class BlockMask(CommonPatterns):
    """The blocks of attention that are computed: a block-sparse pattern of queries by keys.

    Query i sees key j where block ``(i // block_m, j // block_n)`` is stored and, if ``is_causal``,
    ``j <= i``, as in torch's ``scaled_dot_product_attention``. All of a stored block is seen
    otherwise. Lengths need not be multiples of the block: last blocks are then cut off.

    There is one pattern for all (no leading dimension), one for each query head (``(heads,)``), or
    one for each batch entry and query head (``(batch, heads)``, where either may be 1).

    The constructor takes the compressed rows; ``from_blocks``, ``from_bsr``, ``from_index_lists``
    and ``from_flex_attention`` take other forms, and ``causal``, ``sliding_window``, ``strided``
    and ``documents`` make common patterns. But for what is said there, none of them waits for a
    GPU: the number of blocks stays on the device, and ``col_indices`` has room for all that there
    might be.

    Args:
        crow_indices: (..., block rows + 1), int32: where the blocks of each block row begin in
            ``col_indices``. It is the same ``col_indices`` for all patterns, and there may be room
            between one pattern's end and the next one's begin.
        col_indices: (capacity,), int32: the block column of each stored block, distinct within a
            block row.
        block_size: an int or ``(block_m, block_n)``: queries and keys of a block.
        lengths: ``(S, T)``: numbers of queries and of keys.
        is_causal: key ``j`` is seen by query ``i`` only where ``j <= i``.
        check: look at the contents of the indices, which waits for a GPU. Without it wrong
            contents make kernels read memory that is not theirs.

    Raises:
        TypeError: an argument is not a strided int32 tensor, or of another wrong type.
        ValueError: shapes do not fit together or, with ``check``, the indices are out of range.
        RuntimeError: the tensors are on different devices.
    """

    __slots__ = ()

    def __init__(
        self,
        crow_indices: Tensor,
        col_indices: Tensor,
        block_size: int | Sequence[int],
        lengths: Sequence[int],
        *,
        is_causal: bool = False,
        check: bool = True,
    ) -> None:
        block, lengths = block_shape(block_size), lengths_of(lengths)
        check_mask(crow_indices, col_indices, block, lengths)
        if check:
            check_rows(crow_indices, col_indices, grid_shape(block, lengths)[1])
        crow, col = crow_indices.contiguous(), col_indices.contiguous()
        self._fill(crow, col, block, lengths, flag(is_causal, "is_causal"))
        if check:
            self._count()  # which waits no longer than the look at the contents did

    def _expect(self, density: float | None, in_each_row: int | None = None) -> BlockMask:
        """This mask, of which somebody said how much of it, or of each row, is stored."""
        if not is_plainly_eager():
            return self
        rows, cols = self._grid()
        patterns = forms.lead_count(self._crow_indices.shape[:-1])
        if density is not None:
            blocks = part_of(density, "density") * patterns * rows * cols
            self._count(round(blocks), about=True)
        elif in_each_row is not None:
            self._count(patterns * rows * min(in_each_row, cols), about=True)
        return self

    @staticmethod
    def _of_grid(
        grid: Tensor, block: tuple[int, int], lengths: tuple[int, int], is_causal: bool
    ) -> BlockMask:
        return BlockMask._made_of(*mask_rows(grid), block, lengths, is_causal)

    # From other forms

    @classmethod
    def from_blocks(
        cls,
        blocks: Tensor,
        block_size: int | Sequence[int],
        lengths: Sequence[int] | None = None,
        *,
        is_causal: bool = False,
        density: float | None = None,
    ) -> BlockMask:
        """The blocks that a bool tensor marks.

        Args:
            blocks: (..., block rows, block columns), bool; leading dimensions as of the patterns.
            block_size: an int or ``(block_m, block_n)``.
            lengths: ``(S, T)``; None: whole blocks.
            is_causal: as of `BlockMask`. Blocks above the diagonal then stay stored, and cost time.
            density: about which part of the blocks is stored, 0 to 1, if the caller knows. Nobody
                counts the blocks of a mask on a GPU: without it all densities share one race.

        Raises:
            TypeError: ``blocks`` is not a strided bool tensor, or another argument's type is wrong.
            ValueError: ``blocks`` does not have one element for each block, or ``density`` is out
                of range.
        """
        block = block_shape(block_size)
        check_bool_blocks(blocks)
        if lengths is None:
            rows, cols = blocks.shape[-2:]
            of_all = (rows * block[0], cols * block[1])
        else:
            of_all = lengths_of(lengths)
            check_bool_blocks(blocks, grid_shape(block, of_all))
        made = cls._of_grid(blocks, block, of_all, flag(is_causal, "is_causal"))
        return made if density is None else made._expect(density)

    @classmethod
    def from_bsr(cls, pattern: Tensor | BsrTensor, *, is_causal: bool = False) -> BlockMask:
        """The stored blocks of a block-sparse matrix of queries by keys; its values are not used.

        Args:
            pattern: (S, T) `BsrTensor` or ``torch.sparse_bsr`` tensor, or a transpose of one.
            is_causal: as of `BlockMask`.

        Raises:
            TypeError: ``pattern`` is no block-sparse matrix.
            ValueError: it is a batch.
        """
        if not is_sparse_operand(pattern):
            raise TypeError(
                "pattern must be a BsrTensor or a torch.sparse_bsr tensor, got "
                f"{kind(pattern)}: of a bool tensor use BlockMask.from_blocks"
            )
        crow, col, values, rows, cols, transposed = bsr_components(pattern, "pattern")
        if values.dim() != 3:
            raise ValueError(f"pattern must be one matrix, got a batch of {values.shape[0]}")
        block, lengths = (values.shape[-2], values.shape[-1]), (rows, cols)
        is_causal = flag(is_causal, "is_causal")
        if not transposed:
            crow, col = (indices.to(torch.int32).contiguous() for indices in (crow, col))
            made = cls._made_of(crow, col, block, lengths, is_causal)
        else:
            lists = mask_columns(crow, col, grid_shape(block, lengths)[1])
            made = cls._made_of(*lists, block[::-1], lengths[::-1], is_causal)
        made._count(col.shape[0])
        return made

    @classmethod
    def from_index_lists(
        cls,
        q2k_block_index: Tensor,
        counts: Tensor | None,
        block_size: int | Sequence[int],
        lengths: Sequence[int],
        *,
        is_causal: bool = False,
        density: float | None = None,
    ) -> BlockMask:
        """The block columns that are listed for each block row.

        Columns may be in any order and twice in a list. One out of range is an error, on a GPU of
        a kernel, which ends all work there.

        Args:
            q2k_block_index: (..., block rows, most), int32 or int64.
            counts: (..., block rows), int32 or int64: how many of each list count; None: all.
            block_size: an int or ``(block_m, block_n)``.
            lengths: ``(S, T)``.
            is_causal: as of `BlockMask`.
            density: as of `from_blocks`. Where all of the lists count, it is known without.

        Raises:
            TypeError: an argument's type or dtype is wrong.
            ValueError: shapes do not fit together, or ``density`` is out of range.
            RuntimeError: the tensors are on different devices.
        """
        block, lengths = block_shape(block_size), lengths_of(lengths)
        rows, cols = grid_shape(block, lengths)
        counts = check_counts(q2k_block_index, counts, rows)
        in_each_row = q2k_block_index.shape[-1] if counts is None else None
        lists = mask_of_lists(q2k_block_index, counts, cols)
        made = cls._made_of(*lists, block, lengths, flag(is_causal, "is_causal"))
        return made._expect(density, in_each_row)

    @classmethod
    def from_flex_attention(cls, block_mask: FlexBlockMask, *, check: bool = True) -> BlockMask:
        """The blocks of a mask of ``torch.nn.attention.flex_attention``.

        Its partial blocks must be those of a causal rule, ``q_idx >= kv_idx``, or be seen whole.
        Which it is, its ``mask_mod`` is asked for every element of a partial block; this waits for
        a GPU, the only way to know.

        Args:
            block_mask: of torch's ``BlockMask``, with (batch, heads) leading dimensions.
            check: False: trust that the causal rule cuts partial blocks and no full one, without a
                look.

        Raises:
            TypeError: not such a mask, or one with partial blocks of another rule.
        """
        partial, full, block, lengths = exchange.grids_of_flex(block_mask)
        is_causal = exchange.is_causal_rule(block_mask, partial, full, check=check)
        made = cls._of_grid(partial | full, block, lengths, is_causal)
        if check:
            made._count()
        return made

    # To other forms

    def blocks(self) -> Tensor:
        """The stored blocks as a bool tensor, (..., block rows, block columns)."""
        return forms.grid_of_rows(self._crow_indices, self._col_indices, self._grid()[1])

    def index_lists(self) -> tuple[Tensor, Tensor]:
        """``(q2k_block_index, counts)``, the form of VSA and of cuDNN's block-sparse attention.

        The first is (..., block rows, block columns), the second (..., block rows), both int32. The
        entries of a list behind its count are 0.
        """
        lists = forms.lists_of_rows(self._crow_indices, self._col_indices, self._grid()[1])
        return lists[1], lists[0]

    def by_column(self) -> tuple[Tensor, Tensor]:
        """``(ccol_indices, row_indices)``: the same blocks, listed for each block column."""
        return mask_columns(self._crow_indices, self._col_indices, self._grid()[1])

    def to_dense(self) -> Tensor:
        """What is seen, element by element: (..., S, T) bool, as the ``attn_mask`` of torch."""
        (queries, keys), (block_m, block_n) = self._lengths, self._block_size
        whole = self.blocks().repeat_interleave(block_m, -2).repeat_interleave(block_n, -1)
        seen = whole[..., :queries, :keys]
        return seen.tril() if self._is_causal else seen

    def to_flex_attention(self, *, gradients: bool = True) -> FlexBlockMask:
        """The mask for ``torch.nn.attention.flex_attention``, of the same block size.

        Args:
            gradients: whether it is for gradients, too. Without, a list by block columns is left
                out, which takes most of the time.
        """
        form = self._block_size, self._lengths, self._is_causal
        return exchange.to_flex(self.blocks(), *form, flag(gradients, "gradients"))

    def to_fa4(self, *, gradients: bool = False) -> dict[str, Any]:
        """The arguments of ``flash_attn.cute.block_sparsity.BlockSparseTensorsTorch``.

        With ``is_causal`` blocks on the diagonal are partial ones, ``mask_block_…``: they want the
        causal ``mask_mod`` in the call.

        Args:
            gradients: the lists of a backward pass, of each block column, which ``flash_attn_func``
                takes as ``block_sparse_tensors_bwd``.
        """
        form = self._block_size, self._lengths, self._is_causal
        return exchange.to_fa4(self.blocks(), *form, flag(gradients, "gradients"))

    def to_flashinfer(self) -> dict[str, Any]:
        """The arguments of FlashInfer's wrappers of block-sparse attention.

        Of one pattern those of ``BlockSparseAttentionWrapper.plan``: ``indptr``, ``indices``,
        ``M``, ``N``, ``R``, ``C``. Of a pattern for each head those of
        ``VariableBlockSparseAttentionWrapper.plan``: ``block_mask_map``, ``block_row_sz``,
        ``block_col_sz``.

        Raises:
            ValueError: the mask is causal, has a pattern for each batch entry, or one for all whose
                blocks do not divide the lengths: FlashInfer has no form for it.
        """
        if self._is_causal:
            raise ValueError(
                "the mask must not be causal: FlashInfer's wrappers see whole blocks. Make it with "
                "is_causal=False"
            )
        return exchange.to_flashinfer(
            self._crow_indices, self._col_indices, self._block_size, self._lengths
        )

    def to(self, device: torch.device | str | int) -> BlockMask:
        """The same mask on another device."""
        crow, col = self._crow_indices.to(device), self._col_indices.to(device)
        made = BlockMask._made_of(crow, col, self._block_size, self._lengths, self._is_causal)
        on_cpu = self._crow_indices.device.type == "cpu"
        if self._nnzb is None and on_cpu and is_plainly_eager():
            self._count()
        made._nnzb, made._counted = self._nnzb, self._counted
        made._hides_only_later = self._hides_only_later
        return made

    def __repr__(self) -> str:
        block_m, block_n = self._block_size
        shape = "x".join(map(str, self.shape))
        causal = ", causal" if self._is_causal else ""
        return f"BlockMask({shape}, block {block_m}x{block_n}{causal}, {self.device})"

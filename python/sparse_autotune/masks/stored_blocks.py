"""What a `BlockMask` holds, and what it tells of itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import mask_forms as forms
from .checks import grid_shape

if TYPE_CHECKING:
    from typing_extensions import Self


class StoredBlocks:
    """The indices of a `BlockMask`, and their number as far as somebody knows it."""

    __slots__ = (
        "__weakref__",
        "_block_size",
        "_col_indices",
        "_counted",
        "_crow_indices",
        "_hides_only_later",
        "_is_causal",
        "_lengths",
        "_nnzb",
    )

    _crow_indices: Tensor
    _col_indices: Tensor
    _block_size: tuple[int, int]
    _lengths: tuple[int, int]
    _is_causal: bool
    _hides_only_later: bool  # known to be the causal rule and no more
    _nnzb: int | None
    _counted: int  # for races: _nnzb, or about as many; -1: nobody knows

    def _fill(
        self,
        crow: Tensor,
        col: Tensor,
        block: tuple[int, int],
        lengths: tuple[int, int],
        is_causal: bool,
    ) -> None:
        self._crow_indices, self._col_indices = crow, col
        self._block_size, self._lengths, self._is_causal = block, lengths, is_causal
        self._nnzb, self._counted = None, -1
        self._hides_only_later = False

    @classmethod
    def _made_of(
        cls,
        crow: Tensor,
        col: Tensor,
        block: tuple[int, int],
        lengths: tuple[int, int],
        is_causal: bool,
    ) -> Self:
        """Of parts that are known to fit."""
        made = object.__new__(cls)
        made._fill(crow, col, block, lengths, is_causal)
        return made

    def _count(self, nnzb: int | None = None, *, about: bool = False) -> None:
        """Keeps the number of stored blocks; None: looks, which waits for a GPU."""
        if nnzb is None:
            crow = self._crow_indices
            nnzb = int((crow[..., -1] - crow[..., 0]).sum())
        self._counted = nnzb
        if not about:
            self._nnzb = nnzb

    def _grid(self) -> tuple[int, int]:
        return grid_shape(self._block_size, self._lengths)

    @property
    def crow_indices(self) -> Tensor:
        """Where the blocks of each block row begin, (..., block rows + 1), int32."""
        return self._crow_indices

    @property
    def col_indices(self) -> Tensor:
        """The block column of each stored block of all patterns, (capacity,), int32."""
        return self._col_indices

    @property
    def block_size(self) -> tuple[int, int]:
        """Queries and keys of a block, ``(block_m, block_n)``."""
        return self._block_size

    @property
    def lengths(self) -> tuple[int, int]:
        """``(S, T)``: numbers of queries and of keys."""
        return self._lengths

    @property
    def is_causal(self) -> bool:
        """Whether key ``j`` is seen by query ``i`` only where ``j <= i``."""
        return self._is_causal

    @property
    def device(self) -> torch.device:
        """The device of the indices."""
        return self._crow_indices.device

    @property
    def shape(self) -> torch.Size:
        """``(..., S, T)``; the leading dimensions are those of the patterns."""
        return torch.Size((*self._crow_indices.shape[:-1], *self._lengths))

    @property
    def nnzb(self) -> int:
        """The number of stored blocks of all patterns. It waits for a GPU at the first time."""
        if self._nnzb is None:
            # Races go on by what they went by: asking is no reason for another one.
            raced = self._counted
            self._count()
            self._counted = self._counted if raced < 0 else raced
        assert self._nnzb is not None
        return self._nnzb

    @property
    def density(self) -> float:
        """The fraction of blocks that are stored, 0 to 1; waits as `nnzb` does."""
        patterns = forms.lead_count(self._crow_indices.shape[:-1])
        blocks = patterns * math.prod(self._grid())
        return self.nnzb / blocks if blocks else 0.0

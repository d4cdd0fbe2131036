"""What a `BsrTensor` is made of, and what it tells about itself."""

from __future__ import annotations

import torch
from torch import Tensor

from .launching import ShortWay
from .lifetimes import Kept, PlanOwner
from .matrix_checks import Components


class Described(Kept):
    """The parts of a block-sparse matrix, and its read-only attributes."""

    __slots__ = (
        "_block_size",
        "_col_indices",
        "_cols",
        "_crow_indices",
        "_plan_owner",
        "_rows",
        "_short_way",
        "_transposed",
        "_values",
    )

    _crow_indices: Tensor
    _col_indices: Tensor
    _values: Tensor
    _rows: int  # of the matrix as stored
    _cols: int
    _transposed: bool
    _block_size: tuple[int, int]
    _plan_owner: PlanOwner | None
    _short_way: ShortWay | None

    def _parts(self) -> Components:
        return Components(
            self._crow_indices,
            self._col_indices,
            self._values,
            self._rows,
            self._cols,
            self._transposed,
        )

    @property
    def crow_indices(self) -> Tensor:
        """(block rows + 1,): where the blocks of each block row begin in ``values``."""
        return self._crow_indices

    @property
    def col_indices(self) -> Tensor:
        """(nnzb,): the block column of each stored block."""
        return self._col_indices

    @property
    def values(self) -> Tensor:
        """(nnzb, block_m, block_k): the stored blocks; (batch, nnzb, …) for a batch."""
        return self._values

    @property
    def shape(self) -> torch.Size:
        """``(rows, cols)`` in elements, swapped for a transpose; a batch prepends its length."""
        # Of a pytree that was mapped to something else, values have no shape.
        batch = getattr(self._values, "shape", ())[:-3]
        stored = (self._rows, self._cols)
        return torch.Size((*batch, *(stored[::-1] if self._transposed else stored)))

    @property
    def block_size(self) -> tuple[int, int]:
        """``(block_m, block_k)``: rows and columns of a stored block."""
        return self._block_size

    @property
    def is_transposed(self) -> bool:
        """Whether this is the transpose of the matrix that the tensors describe."""
        return self._transposed

    @property
    def nnzb(self) -> int:
        """The number of stored blocks; for a batch, of each matrix."""
        return self._col_indices.shape[0]

    @property
    def density(self) -> float:
        """The fraction of blocks that are stored, 0 to 1; 0 for a matrix without elements."""
        block_m, block_k = self._block_size
        blocks = (self._rows // block_m) * (self._cols // block_k)
        return self.nnzb / blocks if blocks else 0.0

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self._values.dtype

    @property
    def device(self) -> torch.device:
        """The device of all three tensors."""
        return self._values.device

    @property
    def requires_grad(self) -> bool:
        """Whether the values require grad; their gradient is ``values.grad``."""
        return self._values.requires_grad

    def __repr__(self) -> str:
        block_m, block_k = self._block_size
        turned = " of a transposed matrix" if self._transposed else ""
        frozen = ", frozen" if self._frozen else ""
        shape = "x".join(map(str, self.shape))
        return (
            f"BsrTensor({shape}, block {block_m}x{block_k}{turned}, nnzb {self.nnzb}, "
            f"density {self.density:.4g}, {str(self.dtype).removeprefix('torch.')}, "
            f"{self.device}{frozen})"
        )

"""Cells that nobody chose: a seed draws them from a space of all that a cell may be."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from sparse_autotune.choices import Pattern

from .cell import Cell

_Name = TypeVar("_Name", bound=str)

_BLOCKS = (1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
_PATTERNS: dict[Pattern, float] = {
    "uniform": 0.64,
    "banded": 0.09,
    "power_law": 0.1,
    "one_dense_row": 0.07,
    "half_empty": 0.1,
}
_MOST_DENSE = 0.45  # that half_empty has room for


@dataclass(frozen=True)
class Space:
    """What a survey draws from.

    Attributes:
        dtypes: their shares.
        sizes: of both sides of A, before they are rounded down to whole blocks.
        columns: of the product.
        most_flops: of the dense product for each dtype, so that a cell takes about a second.
        most_elements: of A with its zeros.
    """

    dtypes: dict[str, float]
    sizes: Sequence[int]
    columns: Sequence[int]
    most_flops: dict[str, float]
    most_elements: int

    def cells(self, count: int) -> list[Cell]:
        """As `SURVEY_SEED` says, or those of seed 1."""
        draw = random.Random(os.environ.get("SURVEY_SEED", "1"))
        return [self._draw(draw) for _ in range(count)]

    def _draw(self, draw: random.Random) -> Cell:
        def one_of(shares: dict[_Name, float]) -> _Name:
            return draw.choices(list(shares), list(shares.values()))[0]

        while True:
            dtype, block, n = one_of(self.dtypes), draw.choice(_BLOCKS), draw.choice(self.columns)
            m, k = (draw.choice(self.sizes) // block * block for _ in range(2))
            density = math.exp(draw.uniform(math.log(0.005), math.log(_MOST_DENSE)))
            op = draw.choice(("matmul", "matmul", "linear"))
            cell = Cell(m, n, k, block, round(density, 4), dtype, one_of(_PATTERNS), op)
            blocks = (m // block) * (k // block)
            # A full row, and something besides.
            least = k // block + 8 if cell.pattern == "one_dense_row" else 8
            enough = cell.density * blocks >= least
            small = m * k <= self.most_elements and cell.dense_flops <= self.most_flops[dtype]
            if enough and small:
                return cell

"""Races of products that mode "record" missed: on a matrix like those that were multiplied."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..conversions import indices_of
from ..generators import with_longest_row
from ..missed_products import MissedProduct
from ..operators.library import bsr_problem_race
from ..settings import settings

# Of index tensors and of what generating them takes, for each stored block and each block row.
_BYTES_FOR_A_BLOCK, _BYTES_FOR_A_ROW = 64, 64


def race_of_product(product: MissedProduct, device: torch.device) -> Tensor:
    """The text of the race's record, as a tensor; empty where the winner is known.

    Raises:
        ValueError: its operands cannot be made here.
    """
    crow, col = _pattern_of(product, device)
    return bsr_problem_race(crow, col, product.problem_text(), product.selector)


def _pattern_of(product: MissedProduct, device: torch.device) -> tuple[Tensor, Tensor]:
    """Indices of a matrix, as stored, with as many blocks and as long a longest row.

    Raises:
        ValueError: there cannot be one, or it would take too much memory.
    """
    m, k, block_m, block_k, nnzb, longest = (
        int(product.problem[name])
        for name in ("m", "k", "block_m", "block_k", "nnzb", "longest_row")
    )
    grid = m // block_m, k // block_k
    needed = nnzb * _BYTES_FOR_A_BLOCK + sum(grid) * _BYTES_FOR_A_ROW
    if needed > settings.tuning_bytes:
        raise ValueError(
            f"its pattern would take {needed} bytes, more than settings.tuning_bytes "
            f"({settings.tuning_bytes})"
        )
    if longest < 0:  # not known there: rows of equal length, as nearly as it goes
        longest = math.ceil(nnzb / grid[0])
    generator = torch.Generator("cpu").manual_seed(0)
    positions = with_longest_row(grid, nnzb, longest, generator)
    if product.problem["transpose"]:  # the matrix is stored the other way round
        positions = positions % grid[1] * grid[0] + positions // grid[1]
        grid = grid[1], grid[0]
    dtype = torch.int32 if product.problem["index"] == "i32" else torch.int64
    crow, col = indices_of(positions.sort().values, grid)
    return crow.to(device, dtype), col.to(device, dtype)

"""Random block-sparse matrices in patterns that pruned and structured models have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

import torch
from torch import Tensor

from .bsr_tensor import BsrTensor
from .checks.matrix import block_shape, check_divides, check_value_dtype, kind, share, size
from .checks.variant_names import unknown
from .choices import Pattern
from .conversions import indices_of

# A power-law matrix has a longest block row of this many times the mean, where it fits.
_POWER_LAW_SKEW = 50
# The largest grid of blocks that is shuffled whole.
_MOST_KEYS = 1 << 24


def random_bsr(
    m: int,
    k: int,
    block_size: int | Sequence[int],
    *,
    density: float | None = None,
    sparsity: float | None = None,
    pattern: Pattern = "uniform",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | int | None = None,
    generator: torch.Generator | None = None,
) -> BsrTensor:
    """A random (m, k) matrix with normally distributed values and int64 indices.

    Exactly ``round(density * blocks)`` blocks are stored, except where the pattern sets them:

    - ``uniform``: any blocks, equally likely;
    - ``banded``: the blocks nearest to the diagonal, from the first block to the last;
    - ``power_law``: blocks per row fall off as a power of the row's rank, the longest row having 50
      times the mean, or being full; rows in random order, columns at random;
    - ``one_dense_row``: one random block row is full, the other rows share the rest;
    - ``half_empty``: half of the block rows, at random, are empty;
    - ``block_diagonal``: the blocks on the diagonal; sets its own density;
    - ``causal``: the blocks that ``torch.tril`` does not zero entirely; sets its own density.

    Indices and values are drawn on the CPU, so a seed gives the same matrix on every device.

    Args:
        m: rows, a multiple of the block's.
        k: columns, a multiple of the block's.
        block_size: an int or ``(block_m, block_k)``.
        density: the fraction of blocks to store, 0 to 1.
        sparsity: 1 - density; give one of the two, or neither if the pattern sets it.
        pattern: one of the names above.
        dtype: float16, bfloat16, float32 or float64.
        device: of the result; by default torch's default device.
        generator: the source of randomness; by default torch's CPU generator.

    Raises:
        TypeError: a size, block size, pattern, dtype or generator of the wrong kind.
        ValueError: a negative size, an unknown pattern, a block size that does not divide the
            shape, a density outside [0, 1], missing, given twice, or given although the pattern
            sets it, or a pattern that cannot hold that many blocks.
    """
    block_m, block_k = block_shape(block_size)
    check_value_dtype(dtype, "dtype")
    m, k = size(m, "m"), size(k, "k")
    check_divides((m, k), (block_m, block_k), "the matrix")
    grid = (m // block_m, k // block_k)
    generator = _on_cpu(generator)
    if not isinstance(pattern, str):
        raise TypeError(f"pattern must be a name, got {kind(pattern)}")
    if pattern in _FIXED:
        if density is not None or sparsity is not None:
            raise ValueError(f"pattern {pattern!r} sets its own density: leave it out")
        positions = _FIXED[pattern](grid, (block_m, block_k))
    elif pattern in _SIZED:
        count = round(_density(density, sparsity) * grid[0] * grid[1])
        positions = _SIZED[pattern](grid, count, generator)
    else:
        raise unknown("pattern", pattern, get_args(Pattern))
    crow_indices, col_indices = indices_of(positions.sort().values, grid)
    shape = positions.numel(), block_m, block_k
    drawn = torch.float64 if dtype == torch.float64 else torch.float32
    values = torch.randn(shape, dtype=drawn, device="cpu", generator=generator).to(dtype)
    a = BsrTensor(crow_indices, col_indices, values, (m, k))
    return a.to(torch.get_default_device() if device is None else torch.device(device))


def _on_cpu(generator: torch.Generator | None) -> torch.Generator | None:
    """A CPU generator that continues one of another device."""
    if not isinstance(generator, torch.Generator | None):
        raise TypeError(f"generator must be a torch.Generator, got {kind(generator)}")
    if generator is None or generator.device.type == "cpu":
        return generator
    seed = torch.randint(1 << 62, (), device=generator.device, generator=generator)
    return torch.Generator("cpu").manual_seed(int(seed))


def _density(density: float | None, sparsity: float | None) -> float:
    if (density is None) == (sparsity is None):
        raise ValueError(f"give density or sparsity, got {density=} and {sparsity=}")
    return share(density, "density") if density is not None else 1 - share(sparsity, "sparsity")


def _choose(total: int, count: int, generator: torch.Generator | None) -> Tensor:
    """``count`` of ``range(total)``, all subsets equally likely."""
    if total <= _MOST_KEYS:
        return torch.randperm(total, device="cpu", generator=generator)[:count]
    return _distinct(torch.tensor([count], device="cpu"), total, generator)


def _in_rows(
    rows: Tensor, cols: int, count: int, pattern: str, generator: torch.Generator | None
) -> Tensor:
    """``count`` blocks anywhere in the given block rows."""
    if count > rows.numel() * cols:
        raise ValueError(
            f"pattern {pattern!r} has room for {rows.numel() * cols} blocks here, "
            f"the density asks for {count}"
        )
    chosen = _choose(rows.numel() * cols, count, generator)
    return rows[chosen // max(cols, 1)] * cols + chosen % max(cols, 1)


def _half_empty(grid: tuple[int, int], count: int, generator: torch.Generator | None) -> Tensor:
    filled = grid[0] - grid[0] // 2
    rows = torch.randperm(grid[0], device="cpu", generator=generator)[:filled]
    return _in_rows(rows, grid[1], count, "half_empty", generator)


def _one_dense_row(grid: tuple[int, int], count: int, generator: torch.Generator | None) -> Tensor:
    rows = torch.randperm(grid[0], device="cpu", generator=generator)
    dense, others = rows[:1], rows[1:]
    needed = dense.numel() * grid[1]
    if count < needed:
        raise ValueError(
            f"pattern 'one_dense_row' needs at least the {needed} blocks of a full block row, "
            f"the density asks for {count}"
        )
    full = dense * grid[1] + torch.arange(needed, device="cpu")
    rest = _in_rows(others, grid[1], count - needed, "one_dense_row", generator)
    return torch.cat([full, rest])


def _banded(grid: tuple[int, int], count: int, generator: torch.Generator | None) -> Tensor:
    rows, cols = grid
    # The diagonal runs from the middle of the first block to the middle of the last.
    row_indices = torch.arange(rows, dtype=torch.float64, device="cpu")
    centre = (row_indices + 0.5) * (cols / max(rows, 1)) - 0.5

    def band(width: int) -> tuple[Tensor, Tensor]:
        first = (centre - width).ceil().clamp(min=0).long()
        last = (centre + width).floor().clamp(max=cols - 1).long()
        return first, (last - first + 1).clamp(min=0)

    narrow, wide = -1, max(rows, cols, 1)  # the wide band holds every block
    while wide - narrow > 1:
        width = (narrow + wide) // 2
        narrow, wide = (width, wide) if int(band(width)[1].sum()) < count else (narrow, width)
    first, length = band(wide)
    row = torch.repeat_interleave(torch.arange(rows, device="cpu"), length)
    within = torch.arange(row.numel(), device="cpu") - (length.cumsum(0) - length)[row]
    col = first[row] + within
    # Nearest first; a random order decides among blocks equally far away.
    order = torch.randperm(row.numel(), device="cpu", generator=generator)
    distance = (col - centre[row]).abs()[order]
    nearest = order[distance.argsort(stable=True)[:count]]
    return row[nearest] * cols + col[nearest]


def _power_law(grid: tuple[int, int], count: int, generator: torch.Generator | None) -> Tensor:
    rows, cols = grid
    longest = min(cols, max(1, round(_POWER_LAW_SKEW * count / max(rows, 1))), count)
    return with_longest_row(grid, count, longest, generator)


def with_longest_row(
    grid: tuple[int, int], count: int, longest: int, generator: torch.Generator | None
) -> Tensor:
    """``count`` blocks, ``longest`` of them in one row, and fewer by a power of the row's rank.

    A row may have ``longest`` blocks at most, and all together ``count``.
    """
    rows, cols = grid
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device="cpu")
    rank = torch.arange(1, rows + 1, dtype=torch.float64, device="cpu")
    flat, steep = 0.0, 64.0  # exponents: rows of equal length, and one row alone
    for _ in range(60):
        exponent = (flat + steep) / 2
        if float((longest * rank**-exponent).sum()) > count:
            flat = exponent
        else:
            steep = exponent
    wanted = longest * rank**-steep
    length = wanted.floor().long()
    # Rounding left some blocks over: they go to the rows that lost the largest fraction.
    by_loss = (wanted - length).argsort(descending=True, stable=True)
    while (left := count - int(length.sum())) > 0:
        room = by_loss[length[by_loss] < longest][:left]
        length[room] += 1
    length = length[torch.randperm(rows, device="cpu", generator=generator)]
    return _distinct(length, cols, generator)


def _distinct(length: Tensor, cols: int, generator: torch.Generator | None) -> Tensor:
    """For each row as many different columns as ``length`` says, all choices equally likely."""
    rows = length.numel()
    # Of more than half of the columns those left out are drawn: a draw is then seldom in vain.
    inverted = 2 * length > cols
    wanted = torch.where(inverted, cols - length, length)
    drawn = torch.empty(0, dtype=torch.int64, device="cpu")
    while (left := wanted - torch.bincount(drawn // cols, minlength=rows)).any():
        row = torch.arange(rows, device="cpu").repeat_interleave(left)
        col = torch.randint(cols, row.shape, device="cpu", generator=generator)
        drawn = torch.cat([drawn, row * cols + col]).unique()
    left_out = inverted[drawn // cols]
    long_rows = inverted.nonzero().squeeze(1)
    stored = torch.ones(long_rows.numel(), cols, dtype=torch.bool, device="cpu")
    stored[inverted.cumsum(0)[drawn[left_out] // cols] - 1, drawn[left_out] % cols] = False
    row, col = stored.nonzero(as_tuple=True)
    return torch.cat([drawn[~left_out], long_rows[row] * cols + col])


def _block_diagonal(grid: tuple[int, int], block: tuple[int, int]) -> Tensor:
    # On a grid that is not square, the shorter side's blocks repeat along the longer.
    steps = torch.arange(max(grid) if min(grid) else 0, device="cpu")
    row, col = (steps * side // max(*grid, 1) for side in grid)
    return row * grid[1] + col


def _causal(grid: tuple[int, int], block: tuple[int, int]) -> Tensor:
    last_row = (torch.arange(grid[0], device="cpu") + 1) * block[0] - 1
    first_col = torch.arange(grid[1], device="cpu") * block[1]
    return (first_col <= last_row[:, None]).flatten().nonzero().squeeze(1)


_SIZED: dict[Pattern, Callable[[tuple[int, int], int, torch.Generator | None], Tensor]] = {
    "uniform": lambda grid, count, generator: _choose(grid[0] * grid[1], count, generator),
    "banded": _banded,
    "power_law": _power_law,
    "one_dense_row": _one_dense_row,
    "half_empty": _half_empty,
}
_FIXED: dict[Pattern, Callable[[tuple[int, int], tuple[int, int]], Tensor]] = {
    "block_diagonal": _block_diagonal,
    "causal": _causal,
}

"""Which blocks of a matrix to keep: criteria, scores and counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from ..checks.matrix import check_keep, kind, share
from ..conversions import nonzero_blocks

Criterion = Literal["magnitude", "nonzero"] | Tensor | Callable[[Tensor], Tensor]


def stored_count(density: Any, grid: tuple[int, int]) -> int:
    """``round(density * blocks)``.

    Raises:
        ValueError: a density that is not a number in [0, 1].
    """
    return round(share(density, "density") * grid[0] * grid[1])


def blocks_to_keep(
    weight: Tensor, block: tuple[int, int], density: float | None, criterion: Criterion
) -> Tensor:
    """The bool mask of the blocks of a dense weight that the criterion keeps."""
    grid = (weight.shape[0] // block[0], weight.shape[1] // block[1])
    blocks = weight.reshape(grid[0], block[0], grid[1], block[1]).transpose(1, 2)
    keep = None
    if isinstance(criterion, Tensor):
        check_keep(criterion, grid, weight, "criterion", "linear")
        keep = criterion
    elif criterion == "nonzero":
        keep = nonzero_blocks(blocks)
    if keep is not None:
        count = int(keep.sum())
        if density is not None and stored_count(density, grid) != count:
            raise ValueError(
                f"the criterion keeps {count} blocks, but density {density} asks for "
                f"{stored_count(density, grid)} of {grid[0] * grid[1]}: leave density out"
            )
        return keep
    if density is None:
        raise ValueError("density must be given, unless criterion is 'nonzero' or a mask of blocks")
    if criterion == "magnitude":
        scores = squared_norms(blocks, (2, 3))
    elif callable(criterion):
        scores = check_scores(
            criterion(weight), grid, weight.device, "block", masks_go="as criterion itself"
        )
    else:
        raise TypeError(
            "criterion must be 'magnitude', 'nonzero', a bool mask of blocks or a callable, got "
            + (repr(criterion) if isinstance(criterion, str) else kind(criterion))
        )
    return highest(scores, stored_count(density, grid))


def squared_norms(blocks: Tensor, within: tuple[int, int]) -> Tensor:
    """Those of blocks whose elements are along the dimensions ``within``; float32 or float64."""
    wide = blocks if blocks.dtype == torch.float64 else blocks.float()
    return wide.square().sum(within)


def check_scores(
    scores: Any,
    shape: tuple[int, ...],
    device: torch.device,
    per: str,
    name: str = "criterion",
    masks_go: str = "to set_pattern_",
) -> Tensor:
    """What the callable argument ``name`` returned, if it is one score per block.

    Raises:
        TypeError: not a tensor of numbers.
        ValueError: another shape, or NaN.
    """
    if not isinstance(scores, Tensor) or scores.dtype == torch.bool or scores.is_complex():
        given = scores.dtype if isinstance(scores, Tensor) else kind(scores)
        raise TypeError(
            f"{name} must return one score per {per} as a tensor of numbers, got {given}; a bool "
            f"mask of blocks is passed {masks_go}"
        )
    if tuple(scores.shape) != shape:
        raise ValueError(
            f"{name} must return one score per {per}, shape {shape}; got {tuple(scores.shape)}"
        )
    scores = scores.detach().to(device)
    if bool(scores.isnan().any()):
        raise ValueError(f"{name} returned NaN as a score")
    return scores


def highest(scores: Tensor, count: int) -> Tensor:
    """A bool mask of the ``count`` highest scores; the first of equal ones."""
    order = scores.flatten().argsort(descending=True, stable=True)
    keep = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
    keep[order[:count]] = True
    return keep.reshape(scores.shape)

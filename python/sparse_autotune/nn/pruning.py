"""Changing the pattern of a `SparseLinear` between training steps: prune, regrow, and when.

Only stored blocks have gradients, so blocks are pruned by their values, and grown at random or by
scores from the caller. Each change gives the layer new index tensors and hence a new plan. Compiled
code recompiles when the number of blocks changes, up to the recompile limit of ``torch._dynamo``;
with its ``config.force_parameter_static_shapes`` and
``config.force_nn_module_property_static_shapes`` False, one graph serves any number. Pass the
optimizer, so that its state moves with the blocks. Under DistributedDataParallel keep the number of
blocks and make the same change in all processes, or change patterns before wrapping; with FSDP
always do it before parameters are sharded. An averaged copy of a model needs the same patterns, set
by `set_pattern_`: torch averages values by their position in memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ..bsr_tensor import BsrTensor
from ..checks.matrix import check_keep, kind, share
from ..conversions import block_rows, indices_of
from .parameters import replace_data, whose_values
from .selection import check_scores, highest, squared_norms, stored_count
from .sparse_linear import SparseLinear

# One score per stored block from the weight, (nnzb,).
StoredScores = Literal["magnitude"] | Callable[[BsrTensor], Tensor]
# One score per block of the grid from the weight; those of stored blocks are not used.
AbsentScores = Literal["random"] | Callable[[BsrTensor], Tensor]


@dataclasses.dataclass(frozen=True)
class PolynomialDensity:
    """A density for every step: ``initial`` until ``begin``, ``final`` from ``end`` on.

    In between it is ``final + (initial - final) * (1 - progress) ** power``, which changes fast at
    first (Zhu and Gupta, "To prune, or not to prune", 2017, with power 3).

    Args:
        initial: the density at the beginning, 0 to 1.
        final: the density at the end, 0 to 1.
        begin: the step at which the change begins.
        end: the step at which it ends, after ``begin``.
        power: the exponent, positive.

    Raises:
        ValueError: an argument is outside its range.
    """

    initial: float
    final: float
    begin: int
    end: int
    power: float = 3.0

    def __post_init__(self) -> None:
        share(self.initial, "initial")
        share(self.final, "final")
        if self.end <= self.begin:
            raise ValueError(f"end must be after begin, got begin={self.begin}, end={self.end}")
        if not self.power > 0:
            raise ValueError(f"power must be positive, got {self.power}")

    def __call__(self, step: int) -> float:
        """The density at ``step``."""
        progress = min(max((step - self.begin) / (self.end - self.begin), 0.0), 1.0)
        return self.final + (self.initial - self.final) * (1 - progress) ** self.power


def set_pattern_(
    layer: SparseLinear, keep: Tensor, optimizer: torch.optim.Optimizer | None = None
) -> SparseLinear:
    """Makes a layer store the blocks that a mask marks; those not stored before start at 0.

    ``values`` remains the same Parameter; its gradient is dropped. The backward of a graph that was
    recorded with the old pattern raises.

    Args:
        layer: the layer, changed in place.
        keep: bool, (block rows, block columns), on the layer's device.
        optimizer: its state for ``values`` (tensors with an entry for each block, such as momenta)
            moves with the blocks, and starts at 0 for new ones.

    Returns:
        The layer.

    Raises:
        TypeError: ``layer`` is not a SparseLinear, ``keep`` is not a bool mask, or ``optimizer`` is
            not an optimizer.
        ValueError: ``keep`` has the wrong shape.
        RuntimeError: the layer is frozen, its values are sharded or computed from other tensors, or
            ``keep`` is on a different device.
    """
    _check_changeable(layer)
    check_keep(keep, layer._grid(), layer.values, "keep", "layer")
    if optimizer is not None and not hasattr(optimizer, "state"):  # wrappers are welcome
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {kind(optimizer)}")
    rows, cols = keep.nonzero(as_tuple=True)
    place = torch.full(layer._grid(), -1, dtype=torch.int64, device=keep.device)
    place[_positions(layer)] = torch.arange(layer.nnzb, device=keep.device)
    source = place[rows, cols]
    had = source >= 0

    def moved(old: Tensor) -> Tensor:
        new = old.new_zeros((source.numel(), *old.shape[1:]))
        new[had] = old[source[had]]
        return new

    values = layer.values
    if optimizer is not None:
        state = optimizer.state.get(values, {})
        for name, entry in state.items():
            # Factored second moments have the length of one side of the block, or of both.
            if isinstance(entry, Tensor) and entry.dim() == 3 and len(entry) == layer.nnzb:
                state[name] = moved(entry)
    replace_data(values, moved(values.data))
    # Every graph saved these, even one that needed no values.
    torch.autograd.graph.increment_version((layer.crow_indices, layer.col_indices))
    crow_indices, col_indices = indices_of(rows * keep.shape[1] + cols, layer._grid())
    layer.crow_indices = crow_indices.to(layer.crow_indices.dtype)
    layer.col_indices = col_indices.to(layer.col_indices.dtype)
    layer._own_plan()
    return layer


def prune_(
    layer: SparseLinear,
    density: float,
    criterion: StoredScores = "magnitude",
    *,
    optimizer: torch.optim.Optimizer | None = None,
) -> int:
    """Drops the least important stored blocks until ``density`` is reached.

    Args:
        layer: the layer, changed in place.
        density: the fraction of blocks that stay stored, 0 to 1; no effect unless it is below the
            layer's.
        criterion: "magnitude" drops the blocks of smallest Frobenius norm; a callable takes
            ``layer.weight`` and returns one score per stored block, (nnzb,), and the blocks of
            lowest score are dropped.
        optimizer: as for `set_pattern_`.

    Returns:
        The number of blocks dropped.

    Raises:
        TypeError, ValueError, RuntimeError: as `set_pattern_`; also for a density outside [0, 1],
            an unknown criterion, and scores of the wrong kind or shape.
    """
    _check_changeable(layer)
    count = stored_count(density, layer._grid())
    dropped = max(0, layer.nnzb - count)
    if dropped:
        set_pattern_(layer, _strongest(layer, count, criterion), optimizer)
    return dropped


def regrow_(
    layer: SparseLinear,
    density: float,
    criterion: AbsentScores = "random",
    *,
    optimizer: torch.optim.Optimizer | None = None,
) -> int:
    """Stores more blocks, initially zero, until ``density`` is reached.

    Args:
        layer: the layer, changed in place.
        density: the fraction of blocks that are stored afterwards, 0 to 1; no effect unless it is
            above the layer's.
        criterion: "random" adds absent blocks at random, by torch's CPU generator; a callable takes
            ``layer.weight`` and returns one score per block, (block rows, block columns), and the
            absent blocks of highest score are added.
        optimizer: as for `set_pattern_`.

    Returns:
        The number of blocks added.

    Raises:
        TypeError, ValueError, RuntimeError: as `prune_`.
    """
    _check_changeable(layer)
    added = max(0, stored_count(density, layer._grid()) - layer.nnzb)
    if added:
        stored = _stored(layer)
        set_pattern_(layer, stored | _absent(layer, stored, added, criterion), optimizer)
    return added


def prune_and_regrow_(
    layer: SparseLinear,
    fraction: float,
    *,
    prune: StoredScores = "magnitude",
    regrow: AbsentScores = "random",
    optimizer: torch.optim.Optimizer | None = None,
) -> int:
    """Moves a fraction of the stored blocks; the number of blocks stays the same.

    The least important blocks are dropped, and as many that were absent are stored, initially zero.

    Args:
        layer: the layer, changed in place.
        fraction: of the stored blocks, 0 to 1; at most as many move as there are absent blocks.
        prune: as ``criterion`` of `prune_`.
        regrow: as ``criterion`` of `regrow_`.
        optimizer: as for `set_pattern_`.

    Returns:
        The number of blocks moved.

    Raises:
        TypeError, ValueError, RuntimeError: as `prune_` and `regrow_`.
    """
    _check_changeable(layer)
    stored = _stored(layer)
    moved = min(round(share(fraction, "fraction") * layer.nnzb), stored.numel() - layer.nnzb)
    if moved:
        kept = _strongest(layer, layer.nnzb - moved, prune, "prune")
        set_pattern_(layer, kept | _absent(layer, stored, moved, regrow, "regrow"), optimizer)
    return moved


def _check_changeable(layer: SparseLinear) -> None:
    if not isinstance(layer, SparseLinear):
        raise TypeError(f"layer must be a SparseLinear, got {kind(layer)}")
    if layer._frozen_weight is not None:
        raise RuntimeError("the pattern of a frozen layer must not change: call thaw() first")
    if not_ours := whose_values(layer):
        raise RuntimeError(
            f"values is {not_ours}: the pattern of a layer whose values are sharded, or computed "
            "from others, cannot change"
        )


def _positions(layer: SparseLinear) -> tuple[Tensor, Tensor]:
    """(nnzb,) each: block row and block column of the stored blocks."""
    return block_rows(layer.crow_indices, layer.nnzb), layer.col_indices


def _stored(layer: SparseLinear, which: Tensor | bool = True) -> Tensor:
    """The bool mask of the stored blocks, or of ``which`` of them, (nnzb,)."""
    stored = torch.zeros(layer._grid(), dtype=torch.bool, device=layer.values.device)
    stored[_positions(layer)] = which
    return stored


def _strongest(
    layer: SparseLinear, count: int, criterion: StoredScores, name: str = "criterion"
) -> Tensor:
    """The mask of the ``count`` stored blocks of highest score, by the argument ``name``."""
    values = layer.values.detach()
    if criterion == "magnitude":
        scores = squared_norms(values, (1, 2))
    elif callable(criterion):
        given = criterion(layer.weight.detach())
        scores = check_scores(given, (layer.nnzb,), values.device, "stored block", name)
    else:
        raise TypeError(f"{name} must be 'magnitude' or a callable, got {criterion!r}")
    return _stored(layer, highest(scores, count))


def _absent(
    layer: SparseLinear,
    stored: Tensor,
    count: int,
    criterion: AbsentScores,
    name: str = "criterion",
) -> Tensor:
    """The mask of the ``count`` blocks of highest score among those not stored."""
    if criterion == "random":
        scores = torch.rand(stored.shape, device="cpu").to(stored.device)
    elif callable(criterion):
        given = criterion(layer.weight.detach())
        scores = check_scores(given, tuple(stored.shape), stored.device, "block", name).double()
    else:
        raise TypeError(f"{name} must be 'random' or a callable, got {criterion!r}")
    grown = torch.zeros_like(stored)
    grown[~stored] = highest(scores[~stored], count)
    return grown

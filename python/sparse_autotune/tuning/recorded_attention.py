"""Races of attention that mode "record" missed: under a mask like those that were seen."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..missed_products import MissedProduct
from ..operators.attention import attention_problem_race
from ..settings import settings

# Of what drawing one pattern takes, for each block that may be stored, and of index tensors.
_BYTES_FOR_A_PLACE, _BYTES_FOR_A_BLOCK = 32, 4
_GUESSED_DENSITY = 0.25  # of a mask whose blocks nobody has counted; the core guesses the same


def race_of_attention(missed: MissedProduct, device: torch.device) -> Tensor:
    """The text of the race's record, as a tensor; empty where the winner is known.

    Raises:
        ValueError: its mask cannot be made here.
    """
    problem = missed.problem
    mask = None if problem["block_m"] == 0 else _Mask(problem)
    ccol = row = None
    if mask is None:
        crow = col = torch.empty(0, dtype=torch.int32, device=device)
    else:
        mask.check_memory()
        crow, col = (part.to(device) for part in mask.by_row())
        if problem["op"] == "attention_backward":
            ccol, row = (part.to(device) for part in mask.by_column())
    return attention_problem_race(crow, col, ccol, row, missed.problem_text(), missed.selector)


class _Mask:
    """Random blocks, as many of them as the problem has.

    Of a causal attention they lie at or below the diagonal as far as there is room: a mask that
    stores others stores them in vain.
    """

    def __init__(self, problem: dict[str, Any]) -> None:
        self.problem = problem
        sides = ("rows", "block_m"), ("columns", "block_n")
        self.grid = tuple(math.ceil(problem[n] / problem[block]) for n, block in sides)
        heads = problem["heads"] if problem["mask_head_stride"] else 1
        self.lead = problem["patterns"] // heads, heads
        self.places = self.grid[0] * self.grid[1]
        room = self.places * problem["patterns"]
        nnzb = problem["nnzb"]
        if nnzb < 0:
            nnzb = min(round(_GUESSED_DENSITY * room), problem["capacity"])
        if nnzb > room:
            raise ValueError(f"a mask of {room} blocks cannot store {nnzb}")
        self.nnzb = nnzb

    def check_memory(self) -> None:
        """Refuses what would take more than a race may.

        Raises:
            ValueError: it would.
        """
        blocks = self.problem["capacity"] + self.problem["row_capacity"]
        needed = self.places * (self.problem["patterns"] + _BYTES_FOR_A_PLACE)
        needed += blocks * _BYTES_FOR_A_BLOCK
        if needed > settings.tuning_bytes:
            raise ValueError(
                f"its mask would take {needed} bytes, more than settings.tuning_bytes "
                f"({settings.tuning_bytes})"
            )

    @cached_property
    def blocks(self) -> Tensor:
        """(patterns, block rows, block columns), bool."""
        generator = torch.Generator("cpu").manual_seed(0)
        patterns = self.problem["patterns"]
        stored = torch.zeros(patterns, self.places, dtype=torch.bool, device="cpu")
        hidden = self._hidden()
        for i, pattern in enumerate(stored):
            count = self.nnzb // patterns + (i < self.nnzb % patterns)
            order = torch.rand(self.places, generator=generator, device="cpu") + hidden
            pattern[order.topk(count, largest=False, sorted=False).indices] = True
        return stored.view(patterns, *self.grid)

    def _hidden(self) -> Tensor:
        """1 for each block that a causal rule hides, else 0."""
        if not self.problem["causal"]:
            return torch.zeros(self.places, device="cpu")
        last = torch.arange(1, self.grid[0] + 1, device="cpu") * self.problem["block_m"]
        first = torch.arange(self.grid[1], device="cpu") * self.problem["block_n"]
        return (first >= last.clamp(max=self.problem["rows"])[:, None]).flatten().float()

    def by_row(self) -> tuple[Tensor, Tensor]:
        """``crow_indices`` (batch or 1, heads or 1, block rows + 1) and ``col_indices``."""
        return self._listed(self.blocks, self.problem["capacity"])

    def by_column(self) -> tuple[Tensor, Tensor]:
        """The same by block columns."""
        return self._listed(self.blocks.mT, self.problem["row_capacity"])

    def _listed(self, blocks: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
        """Begins of lines and the blocks of all, one pattern behind the other.

        Raises:
            ValueError: there is no room.
        """
        begins = blocks.sum(-1).flatten().cumsum(0).view(*self.lead, -1)
        starts = torch.cat([begins.new_zeros(1), begins[..., -1].flatten()[:-1]])
        begins = torch.cat([starts.view(*self.lead, 1), begins], -1)
        found = blocks.nonzero()[:, -1]
        if found.numel() > capacity:
            raise ValueError(f"there is no room for {found.numel()} blocks in {capacity}")
        listed = torch.zeros(capacity, dtype=torch.int32, device="cpu")
        listed[: found.numel()] = found
        return begins.int(), listed

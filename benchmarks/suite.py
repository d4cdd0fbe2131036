"""What a file of `benchmarks/suites/` holds: the cells, and how they are measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .cell import Cell
from .result import Result


@dataclass(frozen=True)
class Suite:
    """Cells to measure on a device, "cpu" or "cuda".

    Attributes:
        rounds: interleaved rounds of each mode.
        modes: what is timed on a GPU, see `comparison`.
        budget_s: seconds that the race of a cell may take.
        peers: measure families and peers, not the choice and its companions alone.
        without: peers to leave out.
        without_in: those to leave out in a cell besides.
        dense_rate: time cuBLAS on a full random matrix of A's shape too.
        portable: leave out what needs Hopper: of our families those of that name and the libraries,
            whose kernels are for the GPU at hand, and all peers but `triton_sm80`, which other
            suites leave out.
        measure: of a cell and its suite, where cells are no products; None: `comparison.measure`.
        companions: for a cell, others by name whose choice runs in the same rounds, and whose time
            the cell's is compared with.
    """

    device: str
    cells: Sequence[Any]
    rounds: int
    modes: tuple[str, ...] = ("warm", "cold", "eager")
    budget_s: float = 1.0
    peers: bool = True
    without: tuple[str, ...] = ()
    without_in: Callable[[Cell], tuple[str, ...]] = lambda cell: ()
    dense_rate: bool = False
    portable: bool = False
    measure: Callable[[Any, Suite], Result] | None = None
    companions: Callable[[Cell], dict[str, Cell]] = lambda cell: {}

    @property
    def has_swept_peer(self) -> bool:
        """Whether a peer takes part whose knobs are swept for each cell: Triton's product."""
        swept = self.device == "cuda" and self.peers and self.measure is None
        return swept and "triton_tuned" not in self.without

    def cells_named(self, parts: str) -> list[Any]:
        """The cells whose printed name contains all of these parts, which commas separate."""
        wanted = [part.strip() for part in parts.split(",")]
        return [cell for cell in self.cells if all(part in str(cell) for part in wanted)]

"""What was measured in one cell, and the ratios that decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from .timing import Timing

CHOICE = "choice"
_Quotient = Callable[[str, float | None, float | None], None]
# cuBLAS on a full random matrix of A's shape: another product, hence no peer, but its rate of
# FLOP/s is what a dense kernel reaches here on data without zeros.
DENSE_RATE = "dense_random"
# Likewise attention without a mask.
DENSE_ATTENTION = "dense_attention"
# Attention on the blocks of 128 that a mask of smaller ones lies in: what kernels for blocks of 128
# have to compute in its place. Another attention, too.
COVER_ATTENTION = "cover_attention"
_RATES = {DENSE_RATE: "cuBLAS on random data", DENSE_ATTENTION: "torch without a mask"}


@dataclass
class Row:
    """One contestant in one cell. `timings` maps "wall", "warm", "cold" or "eager" to a Timing."""

    name: str
    kind: str  # "choice", "family", "peer", "companion" or "rate"
    status: str = "ok"  # or "unsupported", "disqualified", "failed", "wrong", "left out", "skipped"
    reason: str = ""
    error: float | None = None  # in tolerances, see Operands.error
    timings: dict[str, Timing] = field(default_factory=dict)
    method: str = ""  # how kernel time was taken: "graph" or "burst"
    detail: str = ""  # which configuration ran, where a contestant has several

    def median(self, mode: str) -> float | None:
        """Median microseconds in a mode; None where it was not measured."""
        found = self.timings.get(mode)
        return found.median_us if found is not None else None


@dataclass
class Result:
    """Everything measured in one cell.

    `judged` is the mode in which the tuner ranks such operands, `chosen` the variant that won its
    race: what `choice` runs.
    """

    cell: Any  # a Cell, or an attention.cells.AttentionCell
    device: str
    judged: str
    chosen: str
    nnzb: int
    nnz_flops: float
    rows: list[Row]
    seconds: float = 0.0  # that measuring the cell took

    @property
    def modes(self) -> list[str]:
        """What was timed."""
        return list(dict.fromkeys(mode for row in self.rows for mode in row.timings))

    def row(self, name: str | None) -> Row | None:
        """The contestant of that name; None where there is none."""
        return next((row for row in self.rows if row.name == name), None)

    def median(self, name: str | None, mode: str) -> float | None:
        """Median of a row that exists and is right; None otherwise."""
        row = self.row(name)
        return row.median(mode) if row is not None and row.status == "ok" else None

    def best_peer(self, mode: str) -> str | None:
        """Name of the peer that is fastest in a mode."""
        timed = {r.name: self.median(r.name, mode) for r in self.rows if r.kind == "peer"}
        known = {name: median for name, median in timed.items() if median is not None}
        return min(known, key=known.__getitem__) if known else None

    def best_cover_us(self, mode: str) -> float | None:
        """The least that is known to compute more than the mask: its blocks of 128, or all pairs.

        None where no blocks of 128 were computed.
        """
        cover, dense = (self.median(name, mode) for name in (COVER_ATTENTION, DENSE_ATTENTION))
        return cover if cover is None or dense is None else min(cover, dense)

    def ratios(self) -> dict[str, float]:
        """What decides, by what it compares. "speed" and "rate": more is better; "time": less."""
        found: dict[str, float] = {}

        def quotient(label: str, upper: float | None, lower: float | None) -> None:
            if upper is not None and lower is not None:
                found[label] = upper / lower

        kernel_modes = [mode for mode in self.modes if mode != "eager"]
        for mode in kernel_modes:
            choice, best = self.median(CHOICE, mode), self.median(self.best_peer(mode), mode)
            quotient(f"speed choice / best peer, {mode}", best, choice)
            for row in self.rows:
                if row.kind == "companion":
                    other = self.median(row.name, mode)
                    quotient(f"time choice / {row.name}, {mode}", choice, other)
            quotient(f"speed choice / best cover, {mode}", self.best_cover_us(mode), choice)
        if self.device == "cpu":
            self._cpu_ratios(quotient)
        for rate, what in _RATES.items():
            mode = "wall" if self.device == "cpu" else "warm"
            dense, choice = self.median(rate, mode), self.median(CHOICE, mode)
            share = self.nnz_flops / self.cell.dense_flops
            quotient(f"rate choice (nnz) / {what}", dense and dense * share, choice)
        return found

    def _cpu_ratios(self, quotient: _Quotient) -> None:
        # A variant asked for by name goes a longer way than a choice: 20 us and more of host time.
        names = ("cpu_tiled", CHOICE) if self.chosen.startswith("cpu_tiled/") else ("cpu_tiled",)
        medians = [median for name in names if (median := self.median(name, "wall")) is not None]
        tiled, dense = min(medians, default=None), self.median("torch_dense", "wall")
        share = self.nnz_flops / self.cell.dense_flops
        quotient("rate cpu_tiled (nnz) / torch_dense", dense and dense * share, tiled)
        quotient("speed cpu_tiled / torch_bsr", self.median("torch_bsr", "wall"), tiled)

    def to_dict(self) -> dict:
        """For JSON."""
        rows = [asdict(row) for row in self.rows]
        for row, source in zip(rows, self.rows, strict=True):
            # The dense product counts every element of A, and so does what multiplies zeros.
            for name, flops in (
                ("tflops_nnz", self.nnz_flops),
                ("tflops_dense", self.cell.dense_flops),
            ):
                row[name] = {m: flops / (t.median_us * 1e6) for m, t in source.timings.items()}
        return {
            "cell": self.cell.to_dict(),
            "device": self.device,
            "judged": self.judged,
            "chosen": self.chosen,
            "nnzb": self.nnzb,
            "seconds": self.seconds,
            "rows": rows,
            "ratios": self.ratios(),
        }

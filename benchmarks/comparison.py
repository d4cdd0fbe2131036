"""One cell measured: our choice, each of our families and every peer, in the same rounds."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from types import ModuleType

import torch

import sparse_autotune

from . import peers, timing
from .cell import Call, Cell, Operands, UnsupportedError

CHOICE = "choice"
# Rows of Result.ratios: measured in every round, however far behind.
_KEEP = {
    CHOICE,
    "cpu_tiled",
    "torch_dense",
    "torch_bsr",
    "mma_sm80",
    "cusparse_bsr",
    "triton_tuned",
}
# Readable and far too slow for these sizes: one call can take longer than a cell's whole budget.
_LEFT_OUT = {"reference": "the reference is not timed at these sizes"}


@dataclass
class Row:
    """One contestant in one cell. `timings` maps "wall", "warm", "cold" or "eager" to a Timing."""

    name: str
    kind: str  # "choice", "family" or "peer"
    status: str = "ok"  # or "unsupported", "failed", "wrong"
    reason: str = ""
    error: float | None = None  # in tolerances, see Operands.error
    timings: dict[str, timing.Timing] = field(default_factory=dict)
    method: str = ""  # how kernel time was taken: "graph" or "burst"
    detail: str = ""  # which configuration ran, where a contestant has several

    def median(self, mode: str) -> float | None:
        """Median microseconds in a mode; None where it was not measured."""
        found = self.timings.get(mode)
        return found.median_us if found is not None else None


@dataclass
class Result:
    """Everything measured in one cell."""

    cell: Cell
    device: str
    judged: str  # the mode in which the tuner ranks such operands, hence the one that is compared
    chosen: str  # the variant behind `choice`
    nnzb: int
    nnz_flops: float
    rows: list[Row]

    def median(self, name: str) -> float | None:
        """Judged median of a row that exists and is right; None otherwise."""
        for row in self.rows:
            if row.name == name and row.status == "ok":
                return row.median(self.judged)
        return None

    def best_peer(self) -> str | None:
        """Name of the fastest peer."""
        timed = {r.name: self.median(r.name) for r in self.rows if r.kind == "peer"}
        known = {name: median for name, median in timed.items() if median is not None}
        return min(known, key=known.__getitem__) if known else None

    def ratios(self) -> dict[str, float]:
        """The figures that decide, by what they compare; times are judged medians."""
        found = {}

        def quotient(label: str, upper: float | None, lower: float | None) -> None:
            if upper is not None and lower is not None:
                found[label] = upper / lower

        best = self.best_peer()
        quotient("time choice / best peer", self.median(CHOICE), best and self.median(best))
        if self.device == "cuda":
            for peer in ("cusparse_bsr", "triton_tuned"):
                quotient(f"speed mma_sm80 / {peer}", self.median(peer), self.median("mma_sm80"))
        else:
            tiled, dense = self.median("cpu_tiled"), self.median("torch_dense")
            share = self.nnz_flops / self.cell.dense_flops
            quotient("rate cpu_tiled (nnz) / torch_dense", dense and dense * share, tiled)
            quotient("speed cpu_tiled / torch_bsr", self.median("torch_bsr"), tiled)
        return found

    def to_dict(self) -> dict:
        """For JSON."""
        rows = [asdict(row) for row in self.rows]
        for row, source in zip(rows, self.rows, strict=True):
            row["tflops_nnz"] = {
                mode: self.nnz_flops / (t.median_us * 1e6) for mode, t in source.timings.items()
            }
        return {
            "cell": self.cell.to_dict(),
            "device": self.device,
            "judged": self.judged,
            "chosen": self.chosen,
            "nnzb": self.nnzb,
            "rows": rows,
            "ratios": self.ratios(),
        }


def find_peers(device: str) -> dict[str, ModuleType]:
    """The peers of a device by name: every module of `benchmarks.peers` that lists it."""
    found = {}
    for module in pkgutil.iter_modules(peers.__path__):
        peer = importlib.import_module(f"{peers.__name__}.{module.name}")
        if device in peer.DEVICES:
            found[module.name] = peer
    return found


def _ours(variant: str) -> Callable[[Operands], Call]:
    def prepare(operands: Operands) -> Call:
        a, b = operands.a, operands.b
        return lambda: sparse_autotune.matmul(a, b, variant=variant)

    return prepare


def _contestants(operands: Operands, device: str) -> tuple[list[Row], dict[str, Callable]]:
    found_peers = find_peers(device)
    rows, prepares = [Row(CHOICE, "choice")], {CHOICE: _ours("auto")}
    families = {name.split("/")[0] for name in sparse_autotune.variants(operands.a, operands.b)}
    # A library family that is also a peer is timed once, as the peer it is.
    for family in sorted(families - found_peers.keys()):
        rows.append(Row(family, "family"))
        if family in _LEFT_OUT:
            rows[-1].status, rows[-1].reason = "left out", _LEFT_OUT[family]
        else:
            prepares[family] = _ours(family)
    for name, peer in found_peers.items():
        rows.append(Row(name, "peer"))
        prepares[name] = peer.prepare
    return rows, prepares


def _prepare(row: Row, prepare: Callable[[Operands], Call], copies: list[Operands]) -> list[Call]:
    """Calls of a contestant, one for each copy of the operands; none where `row` now says why."""
    try:
        calls = [prepare(operands) for operands in copies]
        row.error = copies[0].error(calls[0]())
        row.detail = getattr(calls[0], "detail", "")
    except UnsupportedError as reason:
        row.status, row.reason = "unsupported", str(reason)
        return []
    except Exception as failure:  # a peer's failure is a result, not the end of the benchmark
        row.status, row.reason = "failed", f"{type(failure).__name__}: {failure}".split("\n")[0]
        return []
    if row.error > 1:
        row.status, row.reason = "wrong", f"off by {row.error:.3g} tolerances"
    return calls


def measure(cell: Cell, device: str, rounds: int) -> Result:
    """Tunes the cell, checks every contestant's result and times them in interleaved rounds.

    Peers are handed `a` in the form they want; our own choice and families pay for whatever they
    convert. On a GPU three modes are measured: "warm" and "cold" kernel time, and "eager".
    """
    first = Operands(cell, device)
    copies = [first]
    judged, l2 = "wall", 0
    if device == "cuda":
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        judged = "cold" if first.bytes <= 2 * l2 else "warm"
        copies += [Operands(cell, device, copy) for copy in range(1, 1 + 3 * l2 // first.bytes)]
    chosen = sparse_autotune.tune(first.a, first.b).best.name
    rows, prepares = _contestants(first, device)
    samplers: dict[str, dict[str, timing.Sampler]] = {}
    flush = torch.empty(2 * l2, dtype=torch.uint8, device=device)
    for row in rows:
        if row.name not in prepares:
            continue
        calls = _prepare(row, prepares[row.name], copies)
        if not calls:
            continue
        if device == "cpu":
            samplers.setdefault("wall", {})[row.name] = timing.cpu_sampler(calls[0])
            continue
        samplers.setdefault("warm", {})[row.name], row.method = timing.kernel_sampler(calls[:1])
        samplers.setdefault("cold", {})[row.name], _ = timing.kernel_sampler(calls)
        samplers.setdefault("eager", {})[row.name] = timing.eager_sampler(calls[0], flush)
    by_name = {row.name: row for row in rows}
    for mode, contestants in samplers.items():
        for name, taken in timing.interleave(contestants, rounds, _KEEP).items():
            by_name[name].timings[mode] = taken
    return Result(cell, device, judged, chosen, first.a.nnzb, first.nnz_flops, rows)

"""The three passes of a linear layer Y = X Wᵀ: forward, dX = dY W, and dW = dYᵀ X.

Every contestant's results are compared element by element with fp64 before anything is timed.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch

import sparse_autotune
from benchmarks import timing
from benchmarks.cell import Call, Cell, Operands, UnsupportedError, in_tolerances
from benchmarks.peers import stk as stk_peer
from benchmarks.result import Row

PASSES = ("forward", "dX", "dW")
# The three one after the other, as one call.
ALL = "all three"
OURS, DENSE, STK = "sparse_autotune", "dense", "stk"


class Results(NamedTuple):
    """What the three passes computed; dW as a matrix, or as the values of its stored blocks."""

    forward: torch.Tensor
    dx: torch.Tensor
    dw: torch.Tensor


def stored_blocks(matrix: torch.Tensor, pattern: sparse_autotune.BsrTensor) -> torch.Tensor:
    """(nnzb, block_m, block_k): the blocks of a dense matrix that a pattern stores."""
    block_m, block_k = pattern.block_size
    grid = matrix.unflatten(1, (-1, block_k)).unflatten(0, (-1, block_m)).permute(0, 2, 1, 3)
    rows = torch.arange(grid.shape[0], device=matrix.device)
    return grid[rows.repeat_interleave(pattern.crow_indices.diff()), pattern.col_indices]


def errors(
    weight: torch.Tensor,
    x: torch.Tensor,
    dy: torch.Tensor,
    results: Results,
    pattern: sparse_autotune.BsrTensor | None,
) -> dict[str, float]:
    """The largest error of each pass, in tolerances (`in_tolerances`), by its name.

    Args:
        weight: (m, k), dense.
        x: (tokens, k).
        dy: (tokens, m).
        results: (tokens, m), (tokens, k), and (m, k) or the values of the pattern's blocks.
        pattern: of `results.dw`, where that is not dense.
    """
    stored = weight != 0

    def error(got: torch.Tensor, left: torch.Tensor, right: torch.Tensor, length: int) -> float:
        left, right = left.double(), right.double()
        expected, magnitude = left @ right, left.abs() @ right.abs()
        if pattern is not None and got is results.dw:
            expected, magnitude = (stored_blocks(c, pattern) for c in (expected, magnitude))
        return in_tolerances(got, expected, magnitude, length)

    return {
        "forward": error(results.forward, x, weight.mT, int(stored.sum(1).max())),
        "dX": error(results.dx, dy, weight, int(stored.sum(0).max())),
        "dW": error(results.dw, dy.mT, x, x.shape[0]),
    }


def poison(device: str, elements: int) -> None:
    """Leaves NaN in the memory that the CUDA allocator hands out next."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.full((elements,), torch.nan, device=device)


@dataclass
class LayerResult:
    """A layer's measurements: a row per contestant of each pass, and of `ALL`."""

    cell: Cell
    device: str
    nnzb: int
    nnz_flops: float  # of one pass
    rows: dict[str, dict[str, Row]]

    def median(self, step: str, name: str) -> float | None:
        """Median microseconds of a contestant that is right; None otherwise."""
        row = self.rows[step].get(name)
        return row.median(mode(self.device)) if row is not None and row.status == "ok" else None

    def tflops(self, step: str, name: str) -> float | None:
        """Stored blocks' TFLOP/s; of the dense layer, which computes every block, all of them."""
        median = self.median(step, name)
        flops = self.cell.dense_flops if name == DENSE else self.nnz_flops
        return None if median is None else flops * (3 if step == ALL else 1) / (median * 1e6)

    def ratios(self) -> dict[str, float]:
        """Speed against the others in every pass, and of dX against our own forward."""
        found = {}
        for step in self.rows:
            ours = self.median(step, OURS)
            for other in (DENSE, STK):
                theirs = self.median(step, other)
                if ours is not None and theirs is not None:
                    found[f"{step} / {other}"] = theirs / ours
        forward, dx = self.median("forward", OURS), self.median("dX", OURS)
        if forward is not None and dx is not None:
            found["dX / own forward"] = forward / dx
        return found

    def to_dict(self) -> dict:
        """For JSON."""
        rates = {
            step: {name: self.tflops(step, name) for name in rows}
            for step, rows in self.rows.items()
        }
        return {
            "cell": self.cell.to_dict(),
            "nnzb": self.nnzb,
            "rows": {
                step: {name: asdict(row) for name, row in rows.items()}
                for step, rows in self.rows.items()
            },
            "tflops": rates,
            "ratios": self.ratios(),
        }


def mode(device: str) -> str:
    """Which time is taken: of warm kernels on a GPU, by the clock on a CPU."""
    return "warm" if device == "cuda" else "wall"


def _ours(w: sparse_autotune.BsrTensor, x: torch.Tensor, dy: torch.Tensor) -> dict[str, Call]:
    return {
        "forward": lambda: sparse_autotune.linear(x, w),
        "dX": lambda: sparse_autotune.matmul(dy, w),
        "dW": lambda: sparse_autotune.sampled_matmul(dy.mT, x, w).values,
    }


def _dense(w: torch.Tensor, x: torch.Tensor, dy: torch.Tensor) -> dict[str, Call]:
    return {
        "forward": lambda: torch.mm(x, w.mT),
        "dX": lambda: torch.mm(dy, w),
        "dW": lambda: torch.mm(dy.mT, x),
    }


def _stk(w: sparse_autotune.BsrTensor, x: torch.Tensor, dy: torch.Tensor) -> dict[str, Call]:
    matrix = stk_peer.matrix_of(w)
    transposed = matrix.t()
    import stk

    return {
        "forward": lambda: stk.ops.dds(x, transposed),
        "dX": lambda: stk.ops.dds(dy, matrix),
        "dW": lambda: stk.ops.sdd(dy.mT, x, matrix).data,
    }


def _winners(
    w: sparse_autotune.BsrTensor, x: torch.Tensor, dy: torch.Tensor, budget_s: float
) -> dict[str, str]:
    """Tunes the passes; the name of the variant that each runs from now on."""
    with sparse_autotune.settings.override(budget_s=budget_s):
        reports = {
            "forward": sparse_autotune.tune(w, x, linear=True),
            "dX": sparse_autotune.tune(dy, w),
            "dW": sparse_autotune.tune(dy.mT, x, pattern=w),
        }
    return {step: report.best.name for step, report in reports.items() if report.best is not None}


def _together(calls: Mapping[str, Call]) -> Call:
    def run() -> Results:
        return Results(*(calls[step]() for step in PASSES))

    return run


def measure(
    cell: Cell, device: str, rounds: int, budget_s: float, pause_s: float = 0.0
) -> LayerResult:
    """Ours, a dense layer and, where it can be imported, stk, in interleaved rounds.

    `cell` is a "linear" one. The dense layer's weight has no zeros. `pause_s` comes before every
    sample.
    """
    operands = Operands(cell, device)
    w, x = operands.a, operands.b
    # Data apart from that of the operands, which is drawn with the seed 1.
    data = torch.Generator(device).manual_seed(2)
    dy = torch.randn((cell.n, cell.m), generator=data, device=device, dtype=x.dtype)
    full = torch.randn((cell.m, cell.k), generator=data, device=device, dtype=x.dtype)
    winners = _winners(w, x, dy, budget_s)
    contestants = {
        OURS: (lambda: _ours(w, x, dy), operands.dense, w),
        DENSE: (lambda: _dense(full, x, dy), full, None),
        STK: (lambda: _stk(w, x, dy), operands.dense, w),
    }
    steps = (*PASSES, ALL)
    rows: dict[str, dict[str, Row]] = {step: {} for step in steps}
    samplers: dict[str, dict[str, timing.Sampler]] = {step: {} for step in steps}
    for name, (prepare, weight, pattern) in contestants.items():
        mine = {step: Row(name, "choice" if name == OURS else "peer") for step in steps}
        for step in steps:
            rows[step][name] = mine[step]
        try:
            calls = prepare()
            together = _together(calls)
            together()  # what is compiled or allocated once comes before the poison
            poison(device, cell.n * (cell.m + cell.k) + cell.m * cell.k)
            found = errors(weight, x, dy, together(), pattern)
        except UnsupportedError as reason:
            for row in mine.values():
                row.status, row.reason = "unsupported", str(reason)
            continue
        except Exception as failure:
            if name == OURS:
                raise
            for row in mine.values():  # a peer's failure is a result
                row.status = "failed"
                row.reason = f"{type(failure).__name__}: {failure}".split("\n")[0]
            continue
        for step, call in {**calls, ALL: together}.items():
            row = mine[step]
            row.error = max(found.values()) if step == ALL else found[step]
            row.detail = winners.get(step, "") if name == OURS else ""
            if row.error > 1:
                row.status, row.reason = "wrong", f"off by {row.error:.3g} tolerances"
            if device == "cuda":
                samplers[step][name], row.method = timing.kernel_sampler([call])
            else:
                samplers[step][name] = timing.cpu_sampler(call)
    for step in steps:
        for name, taken in timing.interleave(samplers[step], rounds, contestants, pause_s).items():
            rows[step][name].timings[mode(device)] = taken
    return LayerResult(cell, device, w.nnzb, operands.nnz_flops, rows)


def release(device: str) -> None:
    """Gives back the memory of a measurement that ended, its CUDA graphs included."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()

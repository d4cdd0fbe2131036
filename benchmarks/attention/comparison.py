"""One cell of attention measured: our choice, our families and what PyTorch has, in turns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

import sparse_autotune as sa
from benchmarks import timing
from benchmarks.cell import Call
from benchmarks.result import CHOICE, Result, Row
from benchmarks.suite import Suite

from .cells import AttentionCell, AttentionOperands
from .contestants import contestants


def measure(cell: AttentionCell, suite: Suite) -> Result:
    """Races the cell, compares all results with each other and times them in interleaved rounds.

    A GPU's times are of kernels, with caches as warm as the call itself leaves them.
    """
    operands = AttentionOperands(cell, suite.device)
    nnzb, mode = operands.nnzb, "wall" if suite.device == "cpu" else "warm"
    with sa.settings.override(budget_s=suite.budget_s):
        report = sa.tune(operands.q, operands.k, v=operands.v, mask=operands.mask,
                         is_causal=operands.is_causal, backward=cell.backward)  # fmt: skip
    assert report.best is not None, report.failure
    chosen = report.captured_winner or report.winner  # kernels are timed in CUDA graphs
    found = contestants(operands, report)
    found[0][0].detail = chosen
    calls = {row.name: call for row, make in found if (call := _prepared(row, make))}
    rows = {row.name: row for row, _ in found}
    _compare(cell, rows, calls)
    samplers: dict[str, timing.Sampler] = {}
    for name, call in calls.items():
        if suite.device == "cpu":
            samplers[name] = timing.cpu_sampler(call)
        else:
            samplers[name], rows[name].method = timing.kernel_sampler([call])
    keep = {row.name for row in rows.values() if row.kind != "family"}
    for name, taken in timing.interleave(samplers, suite.rounds, keep).items():
        rows[name].timings[mode] = taken
    flops = cell.nnz_flops(nnzb)
    return Result(cell, suite.device, mode, chosen, nnzb, flops, list(rows.values()))


def both_passes(device: str, cells: list[AttentionCell]) -> Suite:
    """The suite of each cell forward and backward."""
    both = [replace(cell, backward=way) for cell in cells for way in (False, True)]
    return Suite(device=device, cells=both, rounds=7, measure=measure)


def _prepared(row: Row, make: Callable[[], Call]) -> Call | None:
    """The call of a contestant, which ran once; None where `row` now says why there is none."""
    try:
        call = make()
        call()
    except Exception as failure:  # a peer's failure is a result, not the end of the benchmark
        row.status, row.reason = "failed", f"{type(failure).__name__}: {failure}".split("\n")[0]
        return None
    return call


def _compare(cell: AttentionCell, rows: dict[str, Row], calls: dict[str, Call]) -> None:
    """How far each is from our choice, and that one from whoever is next to it.

    In units of four roundings of the dtype, and of sums in fp32 of as many products as a row has
    columns: above 1 one of both is wrong.
    """
    if CHOICE not in calls:
        return
    unit = 4 * torch.finfo(getattr(torch, cell.dtype)).eps
    unit += 2**-24 * (8 + 4 * math.sqrt(cell.length))
    ours = [tensor.double() for tensor in calls[CHOICE]()]
    same = [name for name in calls if name != CHOICE and rows[name].kind != "rate"]
    for name in same:
        row = rows[name]
        try:
            off = max(
                float(((theirs.double() - own).abs() / (own.abs() + 1)).nan_to_num(math.inf).max())
                for theirs, own in zip(calls[name](), ours, strict=True)
            )
        except torch.OutOfMemoryError:
            row.status, row.reason = "failed", "no memory beside the others"
            del calls[name]
            continue
        row.error = off / unit
        if row.error > 1:
            row.status, row.reason = "wrong", f"off by {row.error:.3g} tolerances"
    errors = [row.error for row in rows.values() if row.error is not None]
    rows[CHOICE].error = min(errors, default=None)
    if errors and min(errors) > 1:
        rows[CHOICE].status, rows[CHOICE].reason = "wrong", "unlike all others"

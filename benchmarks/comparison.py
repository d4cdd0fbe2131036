"""One cell measured: our choice, each of our families and every peer, in the same rounds."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable
from types import ModuleType

import torch

import sparse_autotune

from . import families, peers, timing
from .cell import Call, Cell, Operands, UnsupportedError
from .peers import torch_dense, triton_sm80
from .result import CHOICE, DENSE_RATE, Result, Row
from .suite import Suite

_Prepare = Callable[[Operands], Call]


def find_peers(device: str) -> dict[str, ModuleType]:
    """The peers of a device by name: every module of `benchmarks.peers` that lists it."""
    found = {}
    for module in pkgutil.iter_modules(peers.__path__):
        peer = importlib.import_module(f"{peers.__name__}.{module.name}")
        if device in peer.DEVICES:
            found[module.name] = peer
    return found


def _ours(variant: str) -> _Prepare:
    return lambda operands: operands.product(operands.a, variant)


def _dense_rate(operands: Operands) -> Call:
    full = torch.randn_like(operands.dense)
    return torch_dense.product(full, operands)


def _copies(cell: Cell, device: str) -> list[Operands]:
    """The operands; on a GPU as many sets as make three times its L2 cache, and one more."""
    first = Operands(cell, device)
    if device == "cpu":
        return [first]
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    return [first, *(Operands(cell, device, i) for i in range(1, 1 + 3 * l2 // first.bytes))]


def _tune(
    operands: Operands, budget_s: float, portable: bool = False
) -> sparse_autotune.BenchmarkReport:
    a, b, linear = operands.a, operands.b, operands.linear
    if portable:
        legal = sparse_autotune.variants(a, b, linear=linear)
        names = [name for name in legal if families.is_portable(name)]
        return sparse_autotune.benchmark(a, b, variants=names, budget_s=budget_s, linear=linear)
    with sparse_autotune.settings.override(budget_s=budget_s):
        return sparse_autotune.tune(a, b, linear=linear)


def _prepare(row: Row, prepare: _Prepare, copies: list[Operands]) -> tuple[list[Call], float]:
    """Calls of a contestant, one for each copy of the operands; none where `row` now says why.

    And what the first of them took, in microseconds: on a GPU, to be queued.
    """
    try:
        calls = [prepare(operands) for operands in copies]
        begin = time.perf_counter()
        result = calls[0]()
        first_us = (time.perf_counter() - begin) * 1e6
        row.detail = getattr(calls[0], "detail", row.detail)
        if row.kind != "rate":  # what it computes is not this product
            row.error = copies[0].error(result)
    except UnsupportedError as reason:
        row.status, row.reason = "unsupported", str(reason)
        return [], 0.0
    except Exception as failure:  # a peer's failure is a result, not the end of the benchmark
        row.status, row.reason = "failed", f"{type(failure).__name__}: {failure}".split("\n")[0]
        return [], 0.0
    if row.error is not None and row.error > 1:
        row.status, row.reason = "wrong", f"off by {row.error:.3g} tolerances"
    return calls, first_us


def _contestants(
    cell: Cell, suite: Suite, copies: list[Operands]
) -> tuple[str, list[tuple[Row, _Prepare | None, list[Operands]]]]:
    """The variant chosen for the cell, and a row for everybody, with what makes its calls."""
    report = _tune(copies[0], suite.budget_s, suite.portable)
    assert report.best is not None, report.failure
    chosen = report.captured_winner or report.winner  # kernels are timed in CUDA graphs
    ours = _ours(chosen if suite.portable else "auto")
    found: list[tuple[Row, _Prepare | None, list[Operands]]] = [
        (Row(CHOICE, "choice", detail=chosen), ours, copies)
    ]
    if suite.peers:
        peers_here = find_peers(suite.device)
        without = {*suite.without, *suite.without_in(cell)}
        known = {
            name: peer
            for name, peer in peers_here.items()
            if name not in without and (peer is triton_sm80) == suite.portable
        }
        # A library family that is also a peer is timed once, as the peer it is.
        for row, best in families.rows(report, copies[0], suite.device, set(known)):
            found.append((row, _ours(best) if best else None, copies))
        found += [(Row(name, "peer"), peer.prepare, copies) for name, peer in known.items()]
    if suite.dense_rate and suite.device == "cuda":
        found.append((Row(DENSE_RATE, "rate"), _dense_rate, copies))
    for name, other in suite.companions(cell).items():
        theirs = _copies(other, suite.device)
        best_of = _tune(theirs[0], suite.budget_s).best
        row = Row(name, "companion", detail=best_of.name if best_of is not None else "")
        found.append((row, _ours("auto"), theirs))
    return chosen, found


def measure(cell: Cell, suite: Suite) -> Result:
    """Tunes the cell, checks every contestant's result and times them in interleaved rounds.

    Peers are handed `a` in the form they want; our own choice and families pay for whatever they
    convert. On a GPU up to three modes are measured: kernel time "warm", on one set of operands,
    and "cold", on sets in turn that together exceed three times the L2 cache; and "eager".
    """
    device = suite.device
    copies = _copies(cell, device)
    first = copies[0]
    judged = "wall"
    flush = torch.empty(0)
    if device == "cuda":
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        judged = "cold" if first.bytes <= 2 * l2 else "warm"
        flush = torch.ones(4 * l2 // 4, device=device)  # of floats, four times the cache
    chosen, contestants = _contestants(cell, suite, copies)
    samplers: dict[str, dict[str, timing.Sampler]] = {}
    for row, prepare, theirs in contestants:
        if prepare is None:
            continue
        calls, first_us = _prepare(row, prepare, theirs)
        if not calls:
            continue
        if device == "cpu":
            samplers.setdefault("wall", {})[row.name] = timing.cpu_sampler(calls[0], first_us)
            continue
        samplers.setdefault("warm", {})[row.name], row.method = timing.kernel_sampler(calls[:1])
        if "cold" in suite.modes:
            samplers.setdefault("cold", {})[row.name], _ = timing.kernel_sampler(calls)
        if "eager" in suite.modes:
            samplers.setdefault("eager", {})[row.name] = timing.eager_sampler(calls[0], flush)
    rows = {row.name: row for row, _, _ in contestants}
    keep = {row.name for row in rows.values() if row.kind in ("choice", "companion", "rate")}
    # Ratios compare them with the choice, however far behind they are.
    keep |= {"torch_dense", "cpu_tiled", "torch_bsr"} if device == "cpu" else set()
    for mode, racing in samplers.items():
        for name, taken in timing.interleave(racing, suite.rounds, keep).items():
            rows[name].timings[mode] = taken
    return Result(cell, device, judged, chosen, first.a.nnzb, first.nnz_flops, list(rows.values()))

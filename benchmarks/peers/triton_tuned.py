"""PyTorch's own Triton kernel (bsr_dense_addmm) with its knobs swept for each cell.

The best knobs of a cell on a GPU are kept in triton_tuned.json beside this file and used again,
until `--renew-peers` sweeps anew.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import multiprocessing
import os
import time
from pathlib import Path

import torch

from benchmarks import timing, triton_bsr
from benchmarks.cell import Call, Cell, Operands, UnsupportedError

DEVICES = ("cuda",)
_STORE = Path(__file__).with_suffix(".json")
# A sweep looks at every point for a moment, and then at the best of them in interleaved rounds.
_GLANCES = 3
_FINALISTS = 6
_ROUNDS = 5
# Seconds after which a sweep looks at no further point.
_SWEEP_S = 15.0
# Processes that compile at a time; each holds a CUDA context.
_COMPILERS = 14


def _stored() -> dict[str, dict]:
    return json.loads(_STORE.read_text()) if _STORE.is_file() else {}


def _keep(stored: dict[str, dict]) -> None:
    _STORE.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


def _key(cell: Cell) -> str:
    return f"{torch.cuda.get_device_name(0)}/{cell.key}"


def is_stored(cell: Cell) -> bool:
    """Whether the cell's knobs are known on this GPU."""
    return _key(cell) in _stored()


def candidates(cell: Cell) -> list[dict[str, int]]:
    """The points of a sweep: tiles of N, stages, warps, and block rows that share a tile's pass."""
    # Of the tiles that are not mostly padding, the three widest; the kernel's narrowest is 16.
    widths = [tile for tile in (16, 32, 64, 128, 256) if tile == 16 or tile < 2 * cell.n]
    knobs = itertools.product(widths[-3:], (2, 3, 4), (4, 8), (1, 4))
    return [
        {"TILE": tile, "num_stages": stages, "num_warps": warps, "GROUP_SIZE_ROW": group}
        for tile, stages, warps, group in knobs
    ]


def _compile(cell: Cell, knobs: dict[str, int]) -> None:
    try:
        triton_bsr.prepared(Operands(cell, "cuda"), knobs)()
        torch.cuda.synchronize()
    except Exception:  # too much shared memory, too many registers: the sweep finds that out again
        return


def compile_ahead(cells: list[Cell], renew: bool = False) -> None:
    """Forgets stored knobs on `renew`; fills Triton's own cache for what is to come.

    A sweep compiles dozens of kernels; here many processes do that at once, and the sweep itself
    only measures. What cannot be compiled here is compiled there.
    """
    stored = _stored()
    if renew:
        stored = {key: value for key, value in stored.items() if key not in map(_key, cells)}
        _keep(stored)
    jobs = {}
    for cell in cells:
        nnzb = round(cell.density * (cell.m // cell.block) * (cell.k // cell.block))
        twin = triton_bsr.small_twin(cell, nnzb)
        known = stored.get(_key(cell))
        for knobs in [known["knobs"]] if known else candidates(cell):
            if cell.block >= 16:
                jobs[(twin, triton_bsr.describe(knobs))] = (twin, knobs)
    if len(jobs) < 2:
        return
    print(f"compiling {len(jobs)} Triton kernels ahead for triton_tuned", flush=True)
    workers = min(_COMPILERS, max(1, len(os.sched_getaffinity(0)) - 2), len(jobs))
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        done = [pool.submit(_compile, *job) for job in jobs.values()]
        broken = [job.exception() for job in done if job.exception() is not None]
    if broken:
        print(f"compiling ahead failed ({broken[0]}); the sweeps compile for themselves")


def _sweep(operands: Operands) -> dict:
    points: list[tuple[float, int, dict[str, int]]] = []
    refused, begin = "no point was tried", time.monotonic()
    for knobs in candidates(operands.cell):
        if points and time.monotonic() - begin > _SWEEP_S:
            break
        try:
            call = triton_bsr.prepared(operands, knobs)
            call()
            glances = [timing.once_us([call]) for _ in range(_GLANCES)]
            points.append((min(glances), len(points), knobs))
        except Exception as failure:  # too much shared memory, for example: no candidate
            refused = f"{type(failure).__name__}: {failure}".partition("\n")[0]
    samplers, by_name = {}, {}
    for _, _, knobs in sorted(points, key=lambda point: point[:2])[:_FINALISTS]:
        call = triton_bsr.prepared(operands, knobs)
        if operands.error(call()) > 1:
            refused = f"wrong result with {triton_bsr.describe(knobs)}"
            continue
        name = triton_bsr.describe(knobs)
        samplers[name], _ = timing.kernel_sampler([call])
        by_name[name] = knobs
    if not by_name:
        raise UnsupportedError(f"no point of the sweep serves; the last said {refused}")
    taken = timing.interleave(samplers, _ROUNDS)
    best = min(taken, key=lambda name: taken[name].median_us)
    return {
        "knobs": by_name[best],
        "us": taken[best].median_us,
        "points": len(points),
        "torch": torch.__version__,
    }


def prepare(operands: Operands) -> Call:
    """Sweeps the cell where it has no stored knobs for this GPU."""
    triton_bsr.check_block(operands.cell)
    key = _key(operands.cell)
    stored = _stored()
    if key not in stored:
        stored[key] = _sweep(operands)
        _keep(stored)
    return triton_bsr.prepared(operands, stored[key]["knobs"])

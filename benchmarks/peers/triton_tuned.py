"""PyTorch's own Triton kernel (bsr_dense_addmm) with its knobs swept for each cell.

The best knobs of a cell on a GPU are kept in triton_tuned.json beside this file and used again,
until `--renew-peers` sweeps anew. A saved run has those of its cells, which `benchmarks.keep` adds
to the file.

Given an architecture, Triton's passes compile for that one: with "sm80" they choose mma.sync and
cp.async where they would choose wgmma, and PTX and machine code are still made for the GPU at hand.
"""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import json
import multiprocessing
import os
import re
import time
from collections.abc import Sequence
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
# Seconds after which a sweep looks at no further point; the likely ones come first.
_SWEEP_S = 6.0
# For this kernel three stages and four give the same machine code, and five the first that loads
# two tiles ahead (seen with Triton 3.6).
_STAGES = (2, 3, 5)
_AHEAD = 5
# What a thread block of an A100 may have.
_SHARED_BYTES_SM80 = 163 * 1024
# Processes that compile at a time; each holds a CUDA context.
_COMPILERS = 14


def _stored() -> dict[str, dict]:
    return json.loads(_STORE.read_text()) if _STORE.is_file() else {}


def _keep(stored: dict[str, dict]) -> None:
    _STORE.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


def _key(cell: Cell, arch: str) -> str:
    return f"{torch.cuda.get_device_name(0)}{arch and f', {arch}'}/{cell.key}"


def stored(cells: Sequence[Cell], arch: str = "") -> dict[Cell, dict[str, dict]]:
    """Of the cells whose knobs are known on this GPU: the knobs, as the file has them."""
    found = _stored()
    keys = {cell: _key(cell, arch) for cell in cells}
    return {cell: {key: found[key]} for cell, key in keys.items() if key in found}


def add(knobs: dict[str, dict]) -> None:
    """Adds what `stored` returned on the machine that swept."""
    _keep(_stored() | knobs)


def _shared_bytes(cell: Cell, knobs: triton_bsr.Knobs) -> int:
    """Of a block and of its tile of B, once or twice."""
    elements = cell.block * (cell.block + int(knobs["TILE"]))
    ahead = 2 if int(knobs["num_stages"]) >= _AHEAD else 1
    return elements * ahead * getattr(torch, cell.dtype).itemsize


def candidates(cell: Cell, arch: str = "") -> list[dict[str, int | str]]:
    """The points of a sweep: tiles of N, stages, warps, and block rows that share a tile's pass.

    Those that won a stored sweep with this block and this many columns come first.
    """
    # Of the tiles that are not mostly padding, the three widest; the kernel's narrowest is 16.
    widths = [tile for tile in (16, 32, 64, 128, 256) if tile == 16 or tile < 2 * cell.n]
    knobs = itertools.product(widths[-3:], _STAGES, (4, 8), (1, 4))
    points: list[dict[str, int | str]] = [
        {"TILE": tile, "num_stages": stages, "num_warps": warps, "GROUP_SIZE_ROW": group}
        for tile, stages, warps, group in knobs
    ]
    alike = re.compile(rf"/\d+_{cell.n}_\d+_b{cell.block}_")
    same = [known["knobs"] for key, known in _stored().items() if alike.search(key)]
    won = collections.Counter(frozenset(knobs.items()) for knobs in same)
    points.sort(key=lambda point: -won[frozenset(point.items())])
    if not arch:
        return points
    fitting = [point for point in points if _shared_bytes(cell, point) <= _SHARED_BYTES_SM80]
    return [{**point, "arch": arch} for point in fitting]


def _compile(cell: Cell, knobs: triton_bsr.Knobs) -> None:
    try:
        triton_bsr.prepared(Operands(cell, "cuda"), knobs)()
        torch.cuda.synchronize()
    except Exception:  # too much shared memory, too many registers: the sweep finds that out again
        return


def compile_ahead(cells: Sequence[Cell], renew: bool = False, arch: str = "") -> None:
    """Forgets stored knobs on `renew`; fills Triton's own cache for what is to come.

    A sweep compiles dozens of kernels; here many processes do that at once, and the sweep itself
    only measures. What cannot be compiled here is compiled there.
    """
    if renew:
        old = {_key(cell, arch) for cell in cells}
        _keep({key: value for key, value in _stored().items() if key not in old})
    found = _stored()
    jobs = {}
    for cell in cells:
        nnzb = round(cell.density * (cell.m // cell.block) * (cell.k // cell.block))
        twin = triton_bsr.small_twin(cell, nnzb)
        known = found.get(_key(cell, arch))
        points = [known["knobs"]] if known else candidates(cell, arch)
        for knobs in points:
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


def _sweep(operands: Operands, arch: str) -> dict:
    points: list[tuple[float, int, triton_bsr.Knobs]] = []
    refused, begin = "no point was tried", time.monotonic()
    for knobs in candidates(operands.cell, arch):
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
    for _, _, finalist in sorted(points, key=lambda point: point[:2])[:_FINALISTS]:
        call, name = triton_bsr.prepared(operands, finalist), triton_bsr.describe(finalist)
        if operands.error(call()) > 1:
            refused = f"wrong result with {name}"
            continue
        samplers[name], _ = timing.kernel_sampler([call])
        by_name[name] = finalist
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


def prepare(operands: Operands, arch: str = "") -> Call:
    """Sweeps the cell where it has no stored knobs for this GPU."""
    triton_bsr.check_block(operands.cell)
    key = _key(operands.cell, arch)
    if key not in _stored():
        add({key: _sweep(operands, arch)})
    return triton_bsr.prepared(operands, _stored()[key]["knobs"])

"""PyTorch's own Triton kernel (bsr_dense_addmm) with its knobs swept for each cell.

The best knobs of a cell on a GPU are kept in triton_tuned.json beside this file and used again,
until `--renew-peers` sweeps anew.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import json
import math
import multiprocessing
import os
from pathlib import Path

import torch

from benchmarks import timing
from benchmarks.cell import Call, Cell, Operands, UnsupportedError

DEVICES = ("cuda",)
_STORE = Path(__file__).with_suffix(".json")
_ROUNDS = 5
# Processes that compile at a time; each holds a CUDA context.
_COMPILERS = 12


def _stored() -> dict[str, dict]:
    return json.loads(_STORE.read_text()) if _STORE.is_file() else {}


def _key(cell: Cell) -> str:
    return f"{torch.cuda.get_device_name(0)}/{cell.key}"


def _candidates(cell: Cell) -> list[dict[str, int]]:
    """36 points: tiles of N, stages, warps, and how many block rows share a tile's pass."""
    tiles = [tile for tile in (16, 32, 64, 128, 256) if cell.n % tile == 0] or [cell.n]
    # A tile of N wide enough to reuse the block, within what registers hold.
    tiles = sorted(tiles, key=lambda tile: abs(math.log2(tile * cell.block / 2**13.1)))[:3]
    knobs = itertools.product(tiles, (2, 3, 4), (4, 8), (1, 4))
    return [
        {"SPLIT_N": cell.n // tile, "num_stages": stages, "num_warps": warps, "GROUP_SIZE_ROW": g}
        for tile, stages, warps, g in knobs
    ]


def _call(operands: Operands, meta: dict[str, int]) -> Call:
    from torch.sparse._triton_ops import bsr_dense_addmm

    a, b = operands.torch_bsr, operands.b
    out = b.new_empty(a.shape[0], b.shape[1])

    def call() -> object:
        return bsr_dense_addmm(out, a, b, beta=0, alpha=1, out=out, meta=dict(meta))

    call.detail = " ".join(f"{name}={value}" for name, value in meta.items())  # type: ignore[attr-defined]
    return call


@functools.lru_cache(maxsize=1)
def _compiler_operands(cell: Cell) -> Operands:
    return Operands(cell, "cuda")


def _compile(cell: Cell, meta: dict[str, int]) -> None:
    try:
        _call(_compiler_operands(cell), meta)()
        torch.cuda.synchronize()
    except Exception:  # too much shared memory, too many registers: the sweep finds that out again
        return


def compile_ahead(cells: list[Cell], renew: bool = False) -> None:
    """Forgets stored knobs on `renew`; fills Triton's own cache for the sweeps that are to come.

    A sweep compiles dozens of kernels; here many processes do that at once, and the sweep itself
    only measures. What cannot be compiled here is compiled there.
    """
    stored = _stored()
    if renew:
        stored = {key: value for key, value in stored.items() if key not in map(_key, cells)}
        _STORE.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    wanted = {}
    for cell in cells:
        if _key(cell) not in stored and cell.block >= 16:
            # Kernels differ by block, n and dtype, not by how many blocks there are.
            wanted[(cell.m, cell.n, cell.k, cell.block, cell.dtype)] = cell
    jobs = [(cell, meta) for cell in wanted.values() for meta in _candidates(cell)]
    if not jobs:
        return
    print(f"compiling {len(jobs)} Triton kernels for the sweeps of triton_tuned", flush=True)
    workers = min(_COMPILERS, max(1, len(os.sched_getaffinity(0)) - 2), len(jobs))
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        done = [pool.submit(_compile, cell, meta) for cell, meta in jobs]
        broken = [job.exception() for job in done if job.exception() is not None]
    if broken:
        print(f"compiling ahead failed ({broken[0]}); the sweeps compile for themselves")


def _sweep(operands: Operands) -> dict:
    samplers, metas, refused = {}, {}, ""
    for meta in _candidates(operands.cell):
        try:
            call = _call(operands, meta)
            if operands.error(call()) > 1:
                raise ArithmeticError("wrong result")
            name = call.detail  # type: ignore[attr-defined]
            samplers[name], _ = timing.kernel_sampler([call])
            metas[name] = meta
        except Exception as failure:  # too much shared memory, for example: no candidate
            refused = f"{type(failure).__name__}: {failure}".partition("\n")[0]
    if not metas:
        raise UnsupportedError(f"no point of the sweep runs; the last said {refused}")
    taken = timing.interleave(samplers, _ROUNDS)
    best = min(taken, key=lambda name: taken[name].median_us)
    return {
        "meta": metas[best],
        "us": taken[best].median_us,
        "points": len(metas),
        "torch": torch.__version__,
    }


def prepare(operands: Operands) -> Call:
    """Sweeps the cell where it has no stored knobs for this GPU."""
    if operands.cell.block < 16:
        raise UnsupportedError("torch's Triton kernel needs blocks of at least 16")
    key = _key(operands.cell)
    stored = _stored()
    if key not in stored:
        stored[key] = _sweep(operands)
        _STORE.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    return _call(operands, stored[key]["meta"])

"""PyTorch's own Triton kernel (bsr_dense_addmm) with its knobs swept for each cell.

The best knobs of a cell on a GPU are kept in triton_tuned.json beside this file and used again;
RENEW (`--renew-peers`) sweeps anew.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import torch

from benchmarks import timing
from benchmarks.cell import Call, Cell, Operands, UnsupportedError

DEVICES = ("cuda",)
RENEW = False
_STORE = Path(__file__).with_suffix(".json")
_swept: set[str] = set()


def _stored() -> dict[str, dict]:
    return json.loads(_STORE.read_text()) if _STORE.is_file() else {}


def _candidates(cell: Cell) -> list[dict[str, int]]:
    """24 points: tiles of N, stages, warps, and how many block rows share a tile's pass."""
    tiles = [tile for tile in (32, 64, 128, 256) if cell.n % tile == 0] or [cell.n]
    # A tile of N wide enough to reuse the block, within what registers hold.
    tiles = sorted(tiles, key=lambda tile: abs(tile * cell.block - 128 * 64))[:2]
    knobs = itertools.product(tiles, (2, 3, 4), (4, 8), (1, 4))
    return [
        {"SPLIT_N": cell.n // tile, "num_stages": stages, "num_warps": warps, "GROUP_SIZE_ROW": g}
        for tile, stages, warps, g in knobs
    ]


def _call(operands: Operands, meta: dict[str, int]) -> Call:
    from torch.sparse._triton_ops import bsr_dense_addmm

    a, b = operands.torch_bsr, operands.b
    out = b.new_empty(a.shape[0], b.shape[1])
    return lambda: bsr_dense_addmm(out, a, b, beta=0, alpha=1, out=out, meta=dict(meta))


def _sweep(operands: Operands) -> dict:
    timed = []
    for meta in _candidates(operands.cell):
        try:
            call = _call(operands, meta)
            if operands.error(call()) > 1:
                continue
            sample, _ = timing.kernel_sampler([call])
            timed.append((min(sample() for _ in range(3)), meta))
        except Exception:  # too much shared memory, too many registers: this point is no candidate
            continue
    if not timed:
        raise UnsupportedError("no point of the sweep runs")
    best_us, meta = min(timed, key=lambda entry: entry[0])
    return {"meta": meta, "us": best_us, "points": len(timed), "torch": torch.__version__}


def prepare(operands: Operands) -> Call:
    """Sweeps the cell where it has no stored knobs for this GPU."""
    if operands.cell.block < 16:
        raise UnsupportedError("torch's Triton kernel needs blocks of at least 16")
    key = f"{torch.cuda.get_device_name(0)}/{operands.cell.key}"
    stored = _stored()
    if key not in stored or (RENEW and key not in _swept):
        stored[key] = _sweep(operands)
        _swept.add(key)
        _STORE.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    return _call(operands, stored[key]["meta"])

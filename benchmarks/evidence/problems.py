"""The problem of a race, as the native tuner describes it, made again from the cell alone."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from benchmarks.cell import Cell, drawn_pattern

# As in csrc/row_orders.h and csrc/row_groups.h.
_PART_LIMITS = [2**order for order in range(10)]
_GROUP_ROWS = [2, 4, 8, 16, 32]
_NAMES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}


def _row_cuts(lengths: np.ndarray) -> dict[str, list[int]]:
    rows, parts = [0], [0]
    for limit in _PART_LIMITS[1:]:
        cut = lengths[lengths > limit]
        rows.append(len(cut))
        parts.append(int((-(-cut // limit)).sum()))
    return {"cut_rows": rows, "cut_parts": parts}


def _group_counts(rows: np.ndarray, columns: np.ndarray, width: int) -> dict[str, list[int]]:
    counts, longest = [], []
    for group in _GROUP_ROWS:
        found = np.unique(rows // group * width + columns) // width
        counts.append(len(found))
        longest.append(int(np.bincount(found).max()))
    return {"group_columns": counts, "group_longest": longest}


@lru_cache(maxsize=None)
def _facts(cell: Cell, transposed: bool) -> dict[str, Any]:
    pattern = drawn_pattern(cell)
    lengths = pattern.crow_indices.diff().numpy()
    rows = np.repeat(np.arange(len(lengths)), lengths)
    columns = pattern.col_indices.numpy().astype(np.int64)
    height, width = len(lengths), cell.k // cell.block
    if transposed:
        rows, columns, height, width = columns, rows, width, height
        lengths = np.bincount(rows, minlength=height)
    return {
        "nnzb": len(rows),
        "longest_row": int(lengths.max()),
        **_row_cuts(lengths),
        **_group_counts(rows, columns, width),
    }


def problem(cell: Cell) -> tuple[str, dict[str, Any]]:
    """Its text, and what a plan derives from the pattern: what `_tuner.estimates` takes."""
    transposed, sampled = cell.op == "dX", cell.op == "dW"
    m, k = (cell.k, cell.m) if transposed else (cell.m, cell.k)
    facts = _facts(replace(cell, n=1, dtype="float32", op="matmul"), transposed)
    item = getattr(torch, cell.dtype).itemsize
    # A single column is read along its length.
    rows = cell.op == "matmul" and cell.n > 1
    ldb, ldc = (cell.n, cell.n) if rows else (k, m)
    values = {
        "op": "sampled_matmul" if sampled else "matmul",
        "device": "cuda",
        "dtype": _NAMES[cell.dtype],
        "index": "i64",
        "m": m,
        "n": cell.n,
        "k": k,
        "nnzb": facts["nnzb"],
        "block_m": cell.block,
        "block_k": cell.block,
        "longest_row": facts["longest_row"],
        "ldb": ldb,
        "ldc": ldc,
        "batch": 1,
        "b_batch_stride": 0,
        "c_batch_stride": 0,
        "b_layout": "row" if rows else "col",
        "c_layout": "row" if rows else "col",
        "activation": "none",
        "bias": 0,
        "transpose": int(transposed),
        "frozen": 0,
        "tf32": 0,
        "deterministic": 0,
        "exact_nonfinite": 0,
        "values_alignment": 16,
        "b_alignment": math.gcd(ldb * item, 16),
        "c_alignment": math.gcd(ldc * item, 16),
    }
    return " ".join(f"{name}={value}" for name, value in values.items()), facts

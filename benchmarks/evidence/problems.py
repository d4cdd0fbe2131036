"""The problem of a race, as the native tuner describes it, made again from the cell alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cell import Cell, drawn_pattern

# What a problem says of its pattern.
Facts = dict[str, Any]

# As in csrc/row_orders.h and csrc/row_groups.h.
_PART_LIMITS = [2**order for order in range(1, 10)]
_GROUP_ROWS = [2, 4, 8, 16, 32]
_DTYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}


def facts_of(cell: Cell) -> Facts:
    """What a plan finds in the pattern of op(A)."""
    pattern = drawn_pattern(cell)
    lengths = pattern.crow_indices.diff().numpy()
    rows = np.repeat(np.arange(len(lengths)), lengths)
    columns = pattern.col_indices.numpy()
    width = cell.k // cell.block
    if cell.op == "dX":
        rows, columns, width = columns, rows, len(lengths)
        lengths = np.bincount(rows, minlength=cell.k // cell.block)
    cuts = [lengths[lengths > limit] for limit in _PART_LIMITS]
    parts = [-(-cut // limit) for cut, limit in zip(cuts, _PART_LIMITS, strict=True)]
    groups = [np.unique(rows // group * width + columns) // width for group in _GROUP_ROWS]
    return {
        "nnzb": len(rows),
        "longest_row": int(lengths.max()),
        "cut_rows": [0, *map(len, cuts)],
        "cut_parts": [0, *(int(count.sum()) for count in parts)],
        "group_columns": [len(group) for group in groups],
        "group_longest": [int(np.bincount(group).max()) for group in groups],
    }


class Patterns:
    """The facts of cells' patterns, kept in a file: drawing and counting them takes minutes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Facts] = json.loads(path.read_text()) if path.exists() else {}

    def facts(self, cell: Cell) -> Facts:
        """Of this cell's pattern."""
        grid = (cell.m // cell.block, cell.k // cell.block)
        turned = "transposed" if cell.op == "dX" else "as stored"
        key = f"{grid[0]}x{grid[1]} {cell.pattern} {cell.density:.6g} {turned}"
        if key not in self._known:
            self._known[key] = facts_of(cell)
        return self._known[key]

    def save(self) -> None:
        """Writes the file, a pattern a line."""
        lines = [
            f"{json.dumps(key)}: {json.dumps(self._known[key])}" for key in sorted(self._known)
        ]
        self._path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def text_of(cell: Cell, facts: Facts) -> str:
    """The problem's text, as csrc/autotune/problem_text.h has it, of operands on a GPU."""
    transposed, sampled = cell.op == "dX", cell.op == "dW"
    m, k = (cell.k, cell.m) if transposed else (cell.m, cell.k)
    item = getattr(torch, cell.dtype).itemsize
    # A single column is read along its length.
    rows = cell.op == "matmul" and cell.n > 1
    ldb, ldc = (cell.n, cell.n) if rows else (k, m)
    layout = "row" if rows else "col"
    values = {
        "op": "sampled_matmul" if sampled else "matmul",
        "device": "cuda",
        "dtype": _DTYPES[cell.dtype],
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
        "b_layout": layout,
        "c_layout": layout,
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
    return " ".join(f"{name}={value}" for name, value in values.items())

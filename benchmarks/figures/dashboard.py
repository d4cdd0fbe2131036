"""docs/dashboard.html: one page that holds all kept results and fetches nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.result import CHOICE
from benchmarks.training.layer import DENSE, OURS

from . import names
from .results import Run, label, percent

_TEMPLATE = Path(__file__).with_name("dashboard.html")
_DATA = "/* data */"

# A contestant: its name, what it is, its times by mode, and what else is known of it.
Contestant = dict[str, Any]


def _contestant(name: str, kind: str, us: dict[str, list], **more: Any) -> Contestant:
    return {"name": name, "kind": kind, "us": us} | {k: v for k, v in more.items() if v}


def _cells(run: Run) -> list[dict[str, Any]]:
    found = []
    for kept, result in zip(run.kept.get("cells", []), run.results, strict=True):
        rows = [
            _contestant(
                names.shown(row["name"]) if row["kind"] != "family" else row["name"],
                row["kind"],
                row.get("us", {}),
                detail=row.get("detail"),
                status=row.get("status"),
                reason=row.get("reason"),
            )
            for row in kept["rows"]
        ]
        found.append(
            {
                "name": label(result.cell),
                "flops": result.nnz_flops,
                "dense": result.cell.dense_flops,
                "won": result.chosen,
                "rows": rows,
                "key": json.dumps(kept["cell"], sort_keys=True),
            }
        )
    return found


def _others(run: Run) -> list[dict[str, Any]]:
    """Passes of layers, steps of MLPs, steps of a model and calls of the host, as cells are."""
    found = []
    kept = run.kept
    kinds = {OURS: "choice", CHOICE: "choice"}
    for layer in kept.get("layers", []):
        cell = layer["cell"]
        shape = f"{cell['m']}×{cell['k']}, blocks of {cell['block']}, {percent(cell['density'])}"
        for step, rows in layer["rows"].items():
            of = [
                _contestant(
                    row["name"],
                    kinds.get(row["name"], "peer"),
                    row.get("us", {}),
                    detail=row.get("detail"),
                    status=row.get("status"),
                    reason=row.get("reason"),
                )
                for row in rows
            ]
            flops = 2.0 * layer["nnzb"] * cell["block"] ** 2 * cell["n"]
            found.append({"name": f"{step}, {shape}", "flops": flops, "rows": of})
            if step == "all three":
                found[-1]["flops"] *= 3
    for mlp in kept.get("mlps", []):
        if mlp["us"]:
            shape = f"blocks of {mlp['block']}, {percent(mlp['density'])}"
            name = f"MLP {mlp['width']} → {mlp['hidden']} → {mlp['width']}, {shape}"
            found.append({"name": name, "rows": _pair(mlp["us"], run)})
    for step in kept.get("steps", []):
        found.append({"name": step["name"], "rows": _pair(step["us"], run)})
    for row in kept.get("host_times", []):
        rows = [
            _contestant(row["name"], "choice", {"host": [row["us"]]}),
            _contestant(row["reference"], "peer", {"host": [row["reference_us"]]}),
        ]
        found.append({"name": row["name"], "rows": rows})
    return found


def _pair(us: dict[str, list], run: Run) -> list[Contestant]:
    return [
        _contestant(name, kind, {run.modes[0]: us[name]})
        for name, kind in ((OURS, "choice"), (DENSE, "peer"))
    ]


def data(runs: list[Run]) -> list[dict[str, Any]]:
    """What the page shows."""
    return [
        {
            "device": run.device,
            "suite": run.suite,
            "origin": run.origin.replace("`", ""),
            "date": run.date,
            "revision": run.kept["environment"]["revision"] or "",
            "notes": run.kept.get("notes", []),
            "cells": _cells(run) + _others(run),
            "history": run.kept.get("history", []),
        }
        for run in runs
    ]


def page(runs: list[Run]) -> str:
    """The whole page."""
    text = json.dumps(data(runs), ensure_ascii=False, separators=(",", ":"))
    # "</script>" in a string would end the script; a line a run keeps differences readable.
    text = text.replace("</", "<\\/").replace('},{"device"', '},\n{"device"')
    return _TEMPLATE.read_text().replace(_DATA, text)

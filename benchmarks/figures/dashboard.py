"""docs/dashboard.html: one page that holds all kept results and fetches nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.keep import key_of
from benchmarks.training.layer import ALL, OURS

from . import names
from .results import Run, label, percent

_TEMPLATE = Path(__file__).with_name("dashboard.html")
_DATA = "/* data */"

# A contestant: its name, what it is, its times by mode, and what else is known of it.
Contestant = dict[str, Any]
# What it was measured in: a cell, a pass, a step or a call.
Product = dict[str, Any]


def _timed(name: str, kind: str, us: dict[str, list]) -> Contestant:
    return {"name": name, "kind": kind, "us": us}


def _contestant(kept: dict[str, Any]) -> Contestant:
    name = kept["name"] if kept["kind"] == "family" else names.shown(kept["name"])
    more = {key: kept[key] for key in ("detail", "status", "reason") if kept.get(key)}
    return _timed(name, kept["kind"], kept.get("us", {})) | more


def _cells(run: Run) -> list[Product]:
    return [
        {
            "name": label(result.cell),
            "flops": result.nnz_flops,
            "dense": result.cell.dense_flops,
            "won": result.chosen,
            "rows": [_contestant(row) for row in kept["rows"]],
            "key": key_of(kept),
        }
        for kept, result in zip(run.kept.get("cells", []), run.results, strict=True)
    ]


def _passes(layer: dict[str, Any]) -> list[Product]:
    cell = layer["cell"]
    shape = f"{cell['m']}×{cell['k']}, blocks of {cell['block']}, {percent(cell['density'])}"
    flops = 2.0 * layer["nnzb"] * cell["block"] ** 2 * cell["n"]
    return [
        {
            "name": f"{step}, {shape}",
            "flops": flops * (3 if step == ALL else 1),
            "won": next((r.get("detail", "") for r in rows if r["kind"] == "choice"), ""),
            "rows": [_contestant(row) for row in rows],
            "key": key_of(layer, step),
        }
        for step, rows in layer["rows"].items()
    ]


def _others(run: Run) -> list[Product]:
    """Passes of layers, steps of MLPs, steps of a model and calls of the host, as cells are."""
    kept = run.kept
    found = [product for layer in kept.get("layers", []) for product in _passes(layer)]
    for mlp in kept.get("mlps", []):
        if mlp["us"]:
            shape = f"blocks of {mlp['block']}, {percent(mlp['density'])}"
            name = f"MLP {mlp['width']} → {mlp['hidden']} → {mlp['width']}, {shape}"
            found.append({"name": name, "rows": _together(mlp["us"], run), "key": key_of(mlp)})
    for step in kept.get("steps", []):
        rows = _together(step["us"], run)
        found.append({"name": step["name"], "rows": rows, "key": key_of(step)})
    for call in kept.get("host_times", []):
        rows = [
            _timed(call["name"], "choice", {"host": [call["us"]]}),
            _timed(call["reference"], "peer", {"host": [call["reference_us"]]}),
        ]
        found.append({"name": call["name"], "rows": rows, "key": key_of(call)})
    return found


def _together(us: dict[str, list], run: Run) -> list[Contestant]:
    return [
        _timed(names.shown(name), "choice" if name == OURS else "peer", {run.modes[0]: taken})
        for name, taken in sorted(us.items(), key=lambda item: item[0] != OURS)
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

"""Saved runs reduced to what is kept: `python -m benchmarks.keep build/collected/*.json`.

Writes benchmarks/results/DEVICE/SUITE.json, from which `make figures` makes tables and pictures:
medians, quartiles, errors, the environment, the command, the revision and the date. A run that was
kept before leaves the medians of its choices in the new file's history. Knobs that a peer was swept
for go to those that are stored beside the peer.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .peers import triton_tuned

RESULTS = Path(__file__).parent / "results"
_DIGITS = 4
# What a run lists, a line of the file each.
_LISTS = ("cells", "layers", "mlps", "steps", "host_times", "history")


def device_of(environment: dict) -> str:
    """The folder of a device's results: "h200", or "epyc-zen4-2" for two cores of an EPYC."""
    if "gpu" in environment:
        return environment["gpu"]["name"].replace("NVIDIA ", "").split()[0].lower()
    cpu = environment["cpu"].lower()
    kind = re.search(r"xeon|epyc|ryzen|core", cpu)
    zen = re.search(r"\(zen (\d)\)", cpu)
    parts = [kind.group() if kind else "cpu", f"zen{zen[1]}" if zen else ""]
    return "-".join(filter(None, [*parts, str(environment["threads"])]))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _timings(timings: dict[str, dict]) -> dict[str, list]:
    """By mode, or by contestant: first quartile, median, third quartile, rounds."""
    parts = ("low_us", "median_us", "high_us", "rounds")
    return {name: [taken[part] for part in parts] for name, taken in timings.items()}


def median_us(taken: list[float]) -> float:
    """Of what `_timings` makes, or of a median alone where nothing else was published."""
    return taken[0] if len(taken) == 1 else taken[1]


def _row(row: dict) -> dict:
    """Of what did not run, why; of what ran, the times."""
    kept = {key: row[key] for key in ("name", "kind")}
    if row["status"] != "ok":
        kept |= {"status": row["status"], "reason": row["reason"][:160]}
    kept |= {key: row[key] for key in ("error", "detail") if row[key]}
    if row["method"] not in ("", "graph"):  # as nearly all are
        kept["method"] = row["method"]
    return kept | ({"us": _timings(row["timings"])} if row["timings"] else {})


def _cell(result: dict) -> dict:
    kept = {key: result[key] for key in ("cell", "judged", "chosen", "nnzb", "seconds")}
    # Which of our families cannot compute a cell is no result, nor by how much the slowest lose.
    told = [row for row in result["rows"] if row["kind"] != "family" or _stayed(row, result)]
    return kept | {"rows": [_row(row) for row in told]}


def _stayed(row: dict, result: dict) -> bool:
    """Whether a row was timed as often as any in one mode: who is far behind leaves the rounds."""
    return any(
        taken["rounds"]
        == max(r["timings"][mode]["rounds"] for r in result["rows"] if mode in r["timings"])
        for mode, taken in row["timings"].items()
    )


def _layer(result: dict) -> dict:
    rows = {
        step: [_row(row) for row in by_name.values()] for step, by_name in result["rows"].items()
    }
    return {"cell": result["cell"], "nnzb": result["nnzb"], "rows": rows}


def _mlp(result: dict) -> dict:
    kept = {key: value for key, value in result.items() if key not in ("timings", "compiled")}
    over_eager = {way: steps["over_eager"] for way, steps in result["compiled"].items()}
    return kept | {"us": _timings(result["timings"]), "compiled_over_eager": over_eager}


def _step(step: dict) -> dict:
    return {"name": step["name"], "us": _timings(step["timings"])}


def reduced(saved: dict, revision: str = "") -> dict:
    """What is kept of a saved run.

    Args:
        saved: what `environment.Record` wrote.
        revision: of the code, where the machine that measured had no repository.

    Raises:
        ValueError: the run measured nothing, or names no revision, and none was given.
    """
    if not any(saved.get(name) for name in _LISTS):
        raise ValueError(f"the run of suite {saved['suite']} measured nothing")
    environment = {key: value for key, value in saved["environment"].items() if key != "settings"}
    environment["revision"] = revision or environment["revision"]
    if not environment["revision"]:
        raise ValueError(f"the run of suite {saved['suite']} names no revision: give --revision")
    reducers = {"cells": _cell, "layers": _layer, "mlps": _mlp, "steps": _step}
    lists = {
        name: [reducers.get(name, dict)(item) for item in saved[name]]
        for name in _LISTS
        if name in saved
    }
    rest = {key: value for key, value in saved.items() if key != "knobs"}
    return _rounded({**rest, "environment": environment, **lists})


def key_of(item: dict, step: str = "") -> str:
    """What names an item of a run's lists, or a pass of a layer, in every run of the suite."""
    if "name" in item:
        return item["name"]
    shape = item.get("cell") or {
        key: item[key] for key in ("width", "hidden", "tokens", "dtype", "block", "density")
    }
    return f"{step} {json.dumps(shape, sort_keys=True)}".strip()


def _choice_us(kept: dict) -> Iterator[tuple[str, dict[str, float]]]:
    """The medians of our choice by mode, of everything that a run measured, and its key."""
    mode = "warm" if "gpu" in kept["environment"] else "wall"
    for cell in kept.get("cells", []):
        choices = (row for row in cell["rows"] if row["kind"] == "choice")
        yield (
            key_of(cell),
            {m: median_us(us) for row in choices for m, us in row.get("us", {}).items()},
        )
    for layer in kept.get("layers", []):
        for step, rows in layer["rows"].items():
            ours = (row for row in rows if row["kind"] == "choice")
            us = {m: median_us(taken) for row in ours for m, taken in row.get("us", {}).items()}
            yield key_of(layer, step), us
    for item in [*kept.get("mlps", []), *kept.get("steps", [])]:
        if item["us"]:
            yield key_of(item), {mode: median_us(item["us"]["sparse_autotune"])}
    for call in kept.get("host_times", []):
        yield key_of(call), {"host": call["us"]}


def _summary(kept: dict) -> dict:
    """What the history keeps of a run: when, which revision, the medians of our choices."""
    us = {key: found for key, found in _choice_us(kept) if found}
    return {"started": kept["started"], "revision": kept["environment"]["revision"], "us": us}


def text(kept: dict) -> str:
    """JSON with a line an item, so that a difference shows what was measured anew."""
    parts = []
    for key, value in kept.items():
        if key in _LISTS and value:
            items = ",\n".join(f"  {json.dumps(item, ensure_ascii=False)}" for item in value)
            parts.append(f" {json.dumps(key)}: [\n{items}\n ]")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def keep(path: Path, revision: str = "", results: Path = RESULTS) -> Path:
    """Writes what is kept of a saved run, and returns where."""
    saved = json.loads(path.read_text())
    kept = reduced(saved, revision)
    if saved.get("knobs"):
        triton_tuned.add(saved["knobs"])
    target = results / device_of(kept["environment"]) / f"{kept['suite']}.json"
    if target.is_file():
        before = json.loads(target.read_text())
        same = before["started"] == kept["started"]
        kept["history"] = before.get("history", []) + ([] if same else [_summary(before)])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text(kept))
    return target


def main() -> int:
    """Keeps the runs; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keep")
    parser.add_argument("saved", type=Path, nargs="+", help="files that a benchmark saved")
    parser.add_argument("--revision", default="", help="of the code, where the run does not say")
    options = parser.parse_args()
    for path in options.saved:
        print(f"{path} is kept in {keep(path, options.revision)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

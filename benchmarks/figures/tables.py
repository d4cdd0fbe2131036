"""The kept results as Markdown: what stands between two marks of a page."""

from __future__ import annotations

from collections.abc import Callable
from statistics import geometric_mean

from benchmarks.keep import median_us
from benchmarks.markdown import lines
from benchmarks.result import CHOICE, Result
from benchmarks.training.layer import ALL, DENSE, OURS, PASSES, STK

from . import names
from .results import DTYPES, Run, label, of_suite, percent, row_of, speedup

Table = list[dict[str, str]]

_RATES = ("gpu_large_blocks", "gpu_small_blocks")  # in TFLOP/s; others in µs
# Of a suite of more cells than the first, so many, those that look the worst.
_MOST, WORST = 60, 20


def number(value: float) -> str:
    """Two or three digits, and no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def measure(result: Result, name: str | None, mode: str, rate: bool) -> str:
    """A contestant's microseconds, or its rate."""
    us = result.median(name, mode)
    if us is None:
        return "–"
    return number(result.nnz_flops / (us * 1e6) if rate else us)


def timed(result: Result, modes: tuple[str, ...]) -> list[str]:
    """Those of the modes in which our choice was timed."""
    return [mode for mode in modes if result.median(CHOICE, mode) is not None]


def peers(result: Result, modes: list[str], rate: bool) -> str:
    """The best peer of each mode and its figures; its name once where it is the same one."""
    best = [result.best_peer(mode) for mode in modes]
    figures = [measure(result, b, m, rate) for b, m in zip(best, modes, strict=True)]
    if len(set(best)) == 1:
        return f"{names.shown(best[0])} {' / '.join(figures)}"
    return " / ".join(f"{names.shown(b)} {f}" for b, f in zip(best, figures, strict=True))


def _line(result: Result, run: Run, rate: bool, several: bool) -> dict[str, str]:
    cell, modes = result.cell, timed(result, run.modes)
    ratios = [speedup(result, result.best_peer(mode), mode) for mode in modes]
    what = label(cell).partition(",")[0]
    what = what if several else what.rpartition(" ")[0]
    what += f", {cell.pattern.replace('_', ' ')}" if cell.pattern != "uniform" else ""
    what += ", `linear`" if cell.op == "linear" else ""
    of_choice = " / ".join(measure(result, CHOICE, mode, rate) for mode in modes)
    line = {
        "product": what,
        "block": str(cell.block),
        "stored": percent(cell.density),
        f"choice, {'TFLOP/s' if rate else 'µs'}": f"**{of_choice}**",
        "best peer": peers(result, modes, rate),
        "×": " / ".join("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
    }
    if result.chosen:
        line["family"] = f"`{result.chosen.partition('/')[0]}`"
    return line


def _summary(run: Run) -> str:
    said = []
    for mode in run.modes:
        found = [speedup(result, result.best_peer(mode), mode) for result in run.results]
        known = [ratio for ratio in found if ratio is not None]
        if known:
            said.append(
                f"{geometric_mean(known):.2f} in geometric mean{f' {mode}' * run.gpu} "
                f"({min(known):.2f} to {max(known):.2f})"
            )
    some = "" if run.kept["complete"] else " of the suite's"
    return f"{len(run.results)}{some} products, ×: {', '.join(said)}."


def cells(runs: list[Run], suite: str) -> str:
    """A suite's products on every device that ran it: choice, best peer and the ratio."""
    parts = []
    for run in of_suite(runs, suite):
        shown = run.results
        text = _summary(run)
        if len(shown) > _MOST:
            shown = sorted(
                shown, key=lambda r: speedup(r, r.best_peer(run.modes[-1]), run.modes[-1]) or 0
            )[:WORST]
            text += f" The {WORST} with the least × are:"
        several = len({result.cell.dtype for result in run.results}) > 1
        if not several:
            text = f"{DTYPES[run.results[0].cell.dtype]}, {text}"
        table = [_line(result, run, suite in _RATES, several) for result in shown]
        parts += [f"**{run.device}**, `{suite}`: {text}", lines(table), *foot(run)]
    return "\n\n".join(parts)


def foot(run: Run) -> list[str]:
    """What stands below a run's table: notes, and where its figures are from."""
    several = run.results and len(timed(run.results[0], run.modes)) > 1
    modes = "Warm / cold. " if several else ""
    return [*run.kept.get("notes", []), f"*{modes}{run.origin}*"]


def training(runs: list[Run], suite: str = "training") -> str:
    """The passes of layers and the steps of MLPs."""
    parts = []
    for run in of_suite(runs, suite):
        parts += [f"**{run.device}**, µs of each pass, and what all three take:"]
        parts += [lines([_layer(layer) for layer in run.kept["layers"]])]
        parts += ["Forward and backward of MLPs with tanh-GELU:"]
        parts += [lines([_mlp(mlp) for mlp in run.kept["mlps"]]), *foot(run)]
    return "\n\n".join(parts)


def _layer(layer: dict) -> dict[str, str]:
    cell = layer["cell"]
    found = {
        step: {row["name"]: row_of(row) for row in rows} for step, rows in layer["rows"].items()
    }

    def us(step: str, name: str) -> float | None:
        row = found.get(step, {}).get(name)
        if row is None or row.status != "ok":
            return None
        return next((taken.median_us for taken in row.timings.values()), None)

    line = {
        "layer": f"{cell['m']}×{cell['k']}",
        "block, stored": f"{cell['block']}, {percent(cell['density'])}",
    }
    for step in PASSES:
        for name, shown in ((OURS, "ours"), (STK, "stk"), (DENSE, "dense")):
            value = us(step, name)
            text = "–" if value is None else number(value)
            line[f"{step}: {shown}"] = f"**{text}**" if name == OURS else text
    dense, ours = us(ALL, DENSE), us(ALL, OURS)
    ratio = layer.get("speedup") or (dense and ours and dense / ours)
    return line | {"all three, dense / ours": "–" if ratio is None else f"{ratio:.2f}"}


def _mlp(mlp: dict) -> dict[str, str]:
    line = {
        "MLP": f"{mlp['width']} → {mlp['hidden']} → {mlp['width']}, {mlp['tokens']} tokens",
        "block, stored": f"{mlp['block']}, {percent(mlp['density'])}",
    }
    for name, shown in ((OURS, "ours"), (DENSE, "dense")):
        line[f"{shown}, ms"] = f"{median_us(mlp['us'][name]) / 1e3:.2f}" if mlp["us"] else "–"
    return line | {"×": f"**{mlp['speedup']:.2f}**"}


def host(runs: list[Run], suite: str = "host") -> str:
    """What a call costs the host once its product is tuned."""
    parts = []
    for run in of_suite(runs, suite):
        table = [
            {
                "call": f"`{row['name']}`",
                "µs": number(row["us"]),
                "beside": f"`{row['reference']}`",
                "its µs": number(row["reference_us"]),
                "times as long": f"{row['ratio']:.2f}",
            }
            for row in run.kept["host_times"]
        ]
        parts += [f"**{run.device}**:", lines(table), *foot(run)]
    return "\n\n".join(parts)


def llama(runs: list[Run], suite: str = "llama") -> str:
    """A Llama's prefill and decode beside the dense model."""
    parts = []
    for run in of_suite(runs, suite):
        model = run.kept["model"]
        table = [
            {
                "what": step["name"],
                "dense, ms": number(median_us(step["us"][DENSE]) / 1e3),
                "block-sparse MLPs, ms": f"**{number(median_us(step['us'][OURS]) / 1e3)}**",
                "×": f"{median_us(step['us'][DENSE]) / median_us(step['us'][OURS]):.2f}",
            }
            for step in run.kept["steps"]
        ]
        parts += [
            f"**{run.device}**: {model['layers']} layers of {model['hidden']} features, "
            f"{DTYPES[model['dtype']]}, blocks of {model['block']}, {percent(model['density'])}:",
            lines(table),
            *foot(run),
        ]
    return "\n\n".join(parts)


SECTIONS: dict[str, Callable[..., str]] = {
    "cells": cells,
    "training": training,
    "host": host,
    "llama": llama,
}

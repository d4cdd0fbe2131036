"""Attention's tables: cells beside what PyTorch has, and a transformer block."""

from __future__ import annotations

from collections.abc import Callable
from statistics import geometric_mean

from benchmarks.attention.cells import AttentionCell
from benchmarks.keep import median_us
from benchmarks.markdown import lines
from benchmarks.result import CHOICE, COVER_ATTENTION, DENSE_ATTENTION, Result
from benchmarks.training.layer import OURS

from . import names
from .results import DTYPES, Run, is_of_attention, of_suite, seen, speedup
from .tables import foot, measure, number, peers


def attention(runs: list[Run], suite: str) -> str:
    """A suite's cells on every device that ran it, with the rate of attention without a mask."""
    parts = []
    for run in of_suite(runs, suite):
        mode = run.modes[0]
        covers = any(result.best_cover_us(mode) is not None for result in run.results)
        table = lines([_line(result, mode, covers) for result in run.results])
        text = "; ".join(said for way in (False, True) if (said := _summary(run, way)))
        parts += [f"**{run.device}**, `{suite}`: {text}.", table, *foot(run)]
    return "\n\n".join(parts)


def _line(result: Result, mode: str, covers: bool) -> dict[str, str]:
    cell = result.cell
    assert isinstance(cell, AttentionCell)
    ratio = speedup(result, result.best_peer(mode), mode)
    dense = result.median(DENSE_ATTENTION, mode)
    entries = f"{cell.batch} × " if cell.batch > 1 else ""
    line = {
        "heads × length": f"{entries}{cell.heads} × {cell.length}",
        "D, dtype": f"{cell.dim}, {DTYPES[cell.dtype]}",
        "seen": seen(cell),
        "pass": "backward" if cell.backward else "forward",
        "choice, TFLOP/s": f"**{measure(result, CHOICE, mode, True)}**",
        "best peer": peers(result, [mode], True),
        "×": "–" if ratio is None else f"{ratio:.2f}",
        "no mask": "–" if dense is None else number(cell.dense_flops / (dense * 1e6)),
    }
    if covers:
        choice, cover = result.median(CHOICE, mode), result.best_cover_us(mode)
        ratio = None if choice is None or cover is None else cover / choice
        line |= {
            "its blocks of 128": measure(result, COVER_ATTENTION, mode, True),
            "× these or no mask": "–" if ratio is None else f"{ratio:.2f}",
        }
    return line | {
        "family": f"`{result.chosen.partition('/')[0]}`",
    }


def _summary(run: Run, backward: bool) -> str:
    mode = run.modes[0]
    results = [r for r in run.results if getattr(r.cell, "backward", None) == backward]
    ratios = [speedup(result, result.best_peer(mode), mode) for result in results]
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return ""
    return (
        f"{'backward' if backward else 'forward'} {geometric_mean(known):.2f} times as fast as the "
        f"best peer in geometric mean of {len(known)} cells ({min(known):.2f} to {max(known):.2f})"
    )


def reached(runs: list[Run]) -> str:
    """In short: how fast the choice is on each device, and beside its best peer."""
    of_attention = [run for run in runs if is_of_attention(run)]
    table = [line for run in of_attention for way in (False, True) for line in _in_short(run, way)]
    return lines(table) if table else ""


def _in_short(run: Run, backward: bool) -> list[dict[str, str]]:
    mode = run.modes[0]
    rates, ratios = [], []
    for result in run.results:
        us, ratio = result.median(CHOICE, mode), speedup(result, result.best_peer(mode), mode)
        if result.cell.backward == backward and us is not None and ratio is not None:
            rates.append(result.nnz_flops / (us * 1e6))
            ratios.append((ratio, seen(result.cell)))
    if not rates:
        return []
    (least, slow), (most, fast) = min(ratios), max(ratios)
    return [
        {
            "on": f"{run.device}, {run.date}",
            "suite": f"`{run.suite}`",
            "pass": "backward" if backward else "forward",
            "TFLOP/s": f"{number(min(rates))} to {number(max(rates))}",
            "×, least": f"{least:.2f}: {slow}",
            "×, most": f"{most:.2f}: {fast}",
        }
    ]


def block(runs: list[Run], suite: str = "attention_block") -> str:
    """A transformer block under a sliding window: each step with each attention."""
    parts = []
    for run in of_suite(runs, suite):
        model = run.kept["model"]
        table = []
        for step in run.kept["steps"]:
            us = {name: median_us(taken) for name, taken in step["us"].items()}
            line = {"step": step["name"]}
            for name, taken in us.items():
                text = number(taken / 1e3)
                shown = f"{names.shown(name)}, ms"
                line[shown] = f"**{text}**" if name == OURS else text
            others = [taken for name, taken in us.items() if name != OURS]
            table.append(line | {"best of them / ours": f"{min(others) / us[OURS]:.2f}"})
        parts += [
            f"**{run.device}**: {model['tokens']} tokens, {model['hidden']} features, "
            f"{model['heads']} heads ({model['kv_heads']} of k and v), {DTYPES[model['dtype']]}, "
            f"blocks of {model['block']}, a window of {model['window']} and {model['sinks']} "
            "sinks:",
            lines(table),
            *foot(run),
        ]
    return "\n\n".join(parts)


SECTIONS: dict[str, Callable[..., str]] = {
    "attention": attention,
    "attention_reached": reached,
    "block": block,
}

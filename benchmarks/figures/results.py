"""The kept runs: what `benchmarks.keep` wrote, read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.attention.cells import AttentionCell
from benchmarks.cell import Cell
from benchmarks.keep import RESULTS, median_us
from benchmarks.result import CHOICE, Result, Row
from benchmarks.timing import Timing

# The order in which devices are shown; a folder that is not here comes last, by its name.
_DEVICES = ("h200", "h100")
DTYPES = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def timing_of(taken: list[float]) -> Timing:
    """From quartiles, median and rounds; from a median alone, which is of 0 rounds."""
    median = median_us(taken)
    low, _, high, rounds = taken if len(taken) > 1 else (median, median, median, 0)
    return Timing(median_us=median, low_us=low, high_us=high, rounds=int(rounds))


def row_of(kept: dict[str, Any]) -> Row:
    """A contestant."""
    told = {key: kept[key] for key in ("status", "reason", "error", "detail") if key in kept}
    timings = {mode: timing_of(taken) for mode, taken in kept.get("us", {}).items()}
    return Row(kept["name"], kept["kind"], timings=timings, **told)


def _result_of(kept: dict[str, Any], device: str) -> Result:
    fields = kept["cell"]
    cell = AttentionCell(**fields) if "heads" in fields else Cell(**fields)
    flops = cell.nnz_flops(kept["nnzb"])
    rows = [row_of(row) for row in kept["rows"]]
    return Result(cell, device, kept["judged"], kept["chosen"], kept["nnzb"], flops, rows)


@dataclass(frozen=True)
class Run:
    """A kept run of a suite. `folder` is the device's, `kept` what the file holds."""

    folder: str
    kept: dict[str, Any]

    @property
    def suite(self) -> str:
        """Its name."""
        return self.kept["suite"]

    @property
    def gpu(self) -> bool:
        """Whether it ran on a GPU."""
        return "gpu" in self.kept["environment"]

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that tables show; pictures show the first."""
        return ("warm", "cold") if self.gpu else ("wall",)

    @property
    def date(self) -> str:
        """The day of its start."""
        return self.kept["started"][:10]

    @cached_property
    def results(self) -> list[Result]:
        """Its cells; empty where it measured something else."""
        device = "cuda" if self.gpu else "cpu"
        return [_result_of(kept, device) for kept in self.kept.get("cells", [])]

    @property
    def device(self) -> str:
        """Its name for readers: "NVIDIA H200", "AMD EPYC, 2 threads"."""
        found = self.kept["environment"]
        return found["gpu"]["name"] if self.gpu else f"{found['cpu']}, {found['threads']} threads"

    @property
    def versions(self) -> str:
        """PyTorch, and of a GPU CUDA and the driver."""
        found = self.kept["environment"]
        parts = [f"torch {found['torch'].partition('+')[0]}"]
        if self.gpu:
            driver = (found["gpu"].get("state") or "unknown").partition(",")[0]
            parts += [f"CUDA {found['gpu']['torch_cuda']}", f"driver {driver}"]
        return ", ".join(parts)

    @property
    def origin(self) -> str:
        """Where and when its figures were measured, and how to measure them again."""
        revision = self.kept["environment"]["revision"]
        parts = [self.device, self.date, self.versions]
        parts += [f"revision {revision}"] if revision else []
        said = f"{', '.join(parts)}; `{self.kept['command']}`."
        if "source" in self.kept:
            said += f" {self.kept['source'][0].upper()}{self.kept['source'][1:]}."
        elif not self.kept["complete"]:
            said += " The run's time was up before the suite's end."
        return said


def read(folder: Path = RESULTS) -> list[Run]:
    """All kept runs, those of the devices named first in front."""

    def order(path: Path) -> tuple[int, str, str]:
        name = path.parent.name
        return _DEVICES.index(name) if name in _DEVICES else len(_DEVICES), name, path.stem

    paths = sorted(folder.glob("*/*.json"), key=order)
    return [Run(path.parent.name, json.loads(path.read_text())) for path in paths]


def of_suite(runs: list[Run], suite: str) -> list[Run]:
    """A suite's runs, one for each device that ran it."""
    return [run for run in runs if run.suite == suite]


def of_matmul(runs: list[Run]) -> list[Run]:
    """All but attention's, and suites that leave out a part of what `matmul` chooses from."""
    return [run for run in runs if run.suite != "gpu_portable" and not is_of_attention(run)]


def is_of_attention(run: Run) -> bool:
    """Whether its cells are no products."""
    return any("heads" in kept["cell"] for kept in run.kept.get("cells", []))


def by_device(runs: list[Run]) -> dict[str, list[Run]]:
    """The runs of each device."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.folder, []).append(run)
    return found


def speedup(result: Result, peer: str | None, mode: str) -> float | None:
    """How many times as fast as a peer our choice is; None where one of them has no time."""
    theirs, ours = result.median(peer, mode), result.median(CHOICE, mode)
    return None if theirs is None or ours is None else theirs / ours


def label(cell: Cell | AttentionCell, density: bool = True) -> str:
    """A cell in words: "8192³ bf16, blocks of 64, 12.5%"."""
    if isinstance(cell, AttentionCell):
        return _attention_label(cell)
    size = (
        f"{cell.m}³"
        if cell.m == cell.k == cell.n
        else f"{cell.m}² × {cell.n}"
        if cell.m == cell.k
        else f"{cell.m} × {cell.k} × {cell.n}"
    )
    parts = [f"{size} {DTYPES[cell.dtype]}", f"blocks of {cell.block}"]
    parts += [percent(cell.density)] if density else []
    parts += [cell.pattern.replace("_", " ")] if cell.pattern != "uniform" else []
    parts += ["linear"] if cell.op == "linear" else []
    return ", ".join(parts)


def percent(share: float) -> str:
    """A density for readers."""
    return f"{100 * share:.3g}%"


def _attention_label(cell: AttentionCell) -> str:
    """In words: "attention of 32 heads × 8192, bf16, blocks of 128, random 26%, backward"."""
    entries = f"{cell.batch} × " if cell.batch > 1 else ""
    parts = [f"attention of {entries}{cell.heads} heads × {cell.length}, {DTYPES[cell.dtype]}"]
    parts += [f"D {cell.dim}"] if cell.dim != 128 else []
    parts += [seen(cell)]
    parts += ["backward"] if cell.backward else []
    return ", ".join(parts)


def seen(cell: AttentionCell) -> str:
    """The mask of an attention in words."""
    if not cell.has_mask:
        return "no mask" if cell.mask == "none" else "causal, no mask"
    share = f" {percent(cell.density)}" if cell.mask in ("random", "window") else ""
    return f"blocks of {cell.block}, {cell.mask}{share}"

"""What ncu says of the variant that wins each cell: `python benchmarks/profile_cells.py`.

Races the cells of a suite (`--suite`, `--only`), then runs one warm launch of each winner under ncu
with the clocks as they are, and prints one Markdown table.
Needs a GPU, ncu and the right to read its counters. Times under ncu are of a single launch on a GPU
that does nothing else, and so not comparable with the medians of the benchmark.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

if __package__ in (None, ""):  # run as a file: its own folder is on the path instead of the tree's
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import environment, markdown
from benchmarks.cell import Cell, Operands
from sparse_autotune import tune

METRICS = (
    "gpu__time_duration.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    # Bytes that SMs got from L2, TMA's too, and sectors that L2 looked up.
    "l1tex__m_xbar2l1tex_read_bytes.sum",
    "lts__t_sectors_op_read.sum",
    "lts__t_sector_hit_rate.pct",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "sm__cycles_active.min",
    "sm__cycles_active.avg",
    "sm__cycles_active.max",
    "sm__cycles_elapsed.max",
    "launch__grid_size",
    "launch__waves_per_multiprocessor",
)
# To nanoseconds and bytes.
_UNITS = {
    "ns": 1.0,
    "us": 1e3,
    "usecond": 1e3,
    "nsecond": 1.0,
    "ms": 1e6,
    "msecond": 1e6,
    "byte": 1.0,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
}


@dataclasses.dataclass(frozen=True)
class Profiled:
    """A cell, the variant that won its race, and the operations of its product."""

    cell: Cell
    variant: str
    nnz_flops: float


def parse(text: str) -> list[dict[str, float]]:
    """The launches in ncu's raw CSV page: a line of names, one of units, one for each launch."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise RuntimeError(f"ncu printed no table:\n{text[-3000:]}")
    table = list(csv.reader(io.StringIO("\n".join(lines[start:]))))
    header, units = table[0], table[1]
    found = []
    for line in table[2:]:
        row = {}
        for name, unit, value in zip(header, units, line, strict=False):
            if name in METRICS:
                try:
                    row[name] = float(value.replace(",", "")) * _UNITS.get(unit, 1.0)
                except ValueError:  # "n/a": this ncu or GPU has no such counter
                    continue
        found.append(row)
    return found


def _columns(entry: Profiled, row: Mapping[str, float]) -> dict[str, str]:
    def shown(value: float | None, form: str = ".0f") -> str:
        return "n/a" if value is None else format(value, form)

    def scaled(name: str, by: float) -> float | None:
        return row[name] * by if name in row else None

    def rate(name: str, item_bytes: float = 1.0) -> float | None:
        """TB/s, from bytes and nanoseconds."""
        return row[name] * item_bytes / time / 1e3 if name in row and time else None

    time = row.get("gpu__time_duration.sum")
    dram = [row.get("dram__bytes_read.sum"), row.get("dram__bytes_write.sum")]
    dram_rate = sum(filter(None, dram)) / time / 1e3 if time and None not in dram else None
    mean = row.get("sm__cycles_active.avg")
    least, most = (row.get(f"sm__cycles_active.{end}") for end in ("min", "max"))
    balance = "n/a"
    if mean and least is not None and most is not None:
        balance = f"{least / mean:.2f} / 1 / {most / mean:.2f}"
    elapsed = row.get("sm__cycles_elapsed.max")
    cell = entry.cell
    return {
        "m × k × n": f"{cell.m} × {cell.k} × {cell.n}",
        "block": str(cell.block),
        "density": f"{cell.density:.3g}",
        "variant": f"`{entry.variant}`",
        "µs": shown(scaled("gpu__time_duration.sum", 1e-3), ".1f"),
        "TFLOP/s": shown(entry.nnz_flops / time / 1e3 if time else None),
        "tensor pipe % (of elapsed)": shown(row.get(METRICS[1]), ".1f"),
        "% (while active)": shown(row.get(METRICS[2]), ".1f"),
        "L2→SM MB": shown(scaled("l1tex__m_xbar2l1tex_read_bytes.sum", 1e-6)),
        "L2→SM TB/s": shown(rate("l1tex__m_xbar2l1tex_read_bytes.sum"), ".2f"),
        "L2 reads TB/s": shown(rate("lts__t_sectors_op_read.sum", 32), ".2f"),
        "L2 hits %": shown(row.get("lts__t_sector_hit_rate.pct"), ".1f"),
        "DRAM MB read + written": " + ".join(shown(None if x is None else x * 1e-6) for x in dram),
        "DRAM TB/s": shown(dram_rate, ".2f"),
        "SM active % of elapsed": shown(
            100 * mean / elapsed if mean is not None and elapsed else None, ".1f"
        ),
        "SM active least / mean / most": balance,
        "grid": shown(row.get("launch__grid_size")),
        "waves": shown(row.get("launch__waves_per_multiprocessor"), ".2f"),
        "GHz": shown(elapsed / time if elapsed and time else None, ".2f"),
    }


def table(entries: list[Profiled], rows: list[dict[str, float]]) -> str:
    """One line a cell."""
    if len(entries) != len(rows):
        raise RuntimeError(f"{len(entries)} cells were run, ncu saw {len(rows)} launches")
    return markdown.lines([_columns(*pair) for pair in zip(entries, rows, strict=True)])


def _race(cells: list[Cell]) -> list[Profiled]:
    entries = []
    for cell in cells:
        operands = Operands(cell, "cuda")
        best = tune(operands.a, operands.b, linear=operands.linear).best
        assert best is not None
        entries.append(Profiled(cell, best.name, operands.nnz_flops))
        print(f"{cell}: {best.name}", flush=True)
    return entries


def _launch_each(path: str) -> None:
    """In the process that ncu watches: one launch of each entry between start and stop."""
    for saved in json.loads(Path(path).read_text()):
        operands = Operands(Cell(**saved["cell"]), "cuda")
        call = operands.product(operands.a, saved["variant"])
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        call()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def _ncu(entries: list[Profiled]) -> str:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    ncu = shutil.which("ncu") or shutil.which("ncu", path=f"{home}/bin")
    if ncu is None:
        raise SystemExit("ncu is neither on PATH nor in CUDA_HOME/bin")
    with tempfile.TemporaryDirectory(prefix="profile_cells_") as folder:
        path = Path(folder, "entries.json")
        path.write_text(json.dumps([dataclasses.asdict(entry) for entry in entries]))
        command = [ncu, "--clock-control", "none", "--cache-control", "none"]
        command += ["--profile-from-start", "off", "--metrics", ",".join(METRICS)]
        command += ["--csv", "--page", "raw"]
        command += ["--print-units", "base", "--print-fp"]
        command += [sys.executable, __file__, "--launch", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"ncu failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main() -> int:
    """Prints the table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks/profile_cells.py")
    parser.add_argument("--suite", default="gpu_large_blocks")
    parser.add_argument("--only", default="", help="as of benchmarks/run.py")
    parser.add_argument("--launch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launch:
        _launch_each(options.launch)
        return 0
    suite = importlib.import_module(f"benchmarks.suites.{options.suite}").SUITE
    with environment.own_cache():
        entries = _race(suite.cells_named(options.only))
    torch.cuda.empty_cache()
    print(table(entries, parse(_ncu(entries))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

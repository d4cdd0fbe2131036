"""The entry: `python -m benchmarks.training --save build/training.json`; two minutes on an H200.

Without arguments, on a GPU: bf16, 4096 tokens, layers of 4096x4096, 14336x4096 and 4096x14336 and
the MLP 4096 -> 14336 -> 4096; on a CPU: fp32, 512 tokens, 2048x2048. Exits non-zero when a result
of ours was wrong. A slow one is reported, never an error.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import environment
from benchmarks.cell import Cell

from . import host, layer, mlp, text

Shape = tuple[int, int]
Pair = tuple[int, float]

# What an MLP or a layer is expected to take.
_SHORTLY_S = 8.0


def _shape(text: str) -> tuple[int, int]:
    rows, _, cols = text.partition("x")
    return int(rows), int(cols)


def _pair(text: str) -> Pair:
    block, _, density = text.partition(":")
    return int(block), float(density)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The options as the command line gives them, or these words."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training")
    parser.add_argument("--save", type=Path, help="write results and environment as JSON")
    parser.add_argument("--device", choices=["cuda", "cpu"])
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"])
    parser.add_argument(
        "--layers", type=_shape, nargs="*", metavar="OUTxIN", help="out and in features"
    )
    parser.add_argument(
        "--patterns", type=_pair, nargs="+", metavar="BLOCK:DENSITY", help="of every layer"
    )
    parser.add_argument(
        "--mlp", type=_shape, nargs="*", metavar="WIDTHxHIDDEN", help="MLPs, in the same patterns"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=float, default=1.0, help="seconds that one race may take")
    parser.add_argument(
        "--pause",
        type=float,
        default=0.0,
        help="seconds before each sample of a layer: a GPU that is not hot runs at another clock",
    )
    parser.add_argument(
        "--eager", dest="compiled", action="store_false", help="leave compiled MLPs out"
    )
    options = parser.parse_args(given)
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    chosen = options.layers is not None or options.patterns is not None
    gpu = options.device == "cuda"
    defaults = {
        "tokens": 4096 if gpu else 512,
        "dtype": "bfloat16" if gpu else "float32",
        "layers": [(4096, 4096), (14336, 4096), (4096, 14336)] if gpu else [(2048, 2048)],
        "patterns": [(128, 0.25), (128, 0.125), (64, 0.25), (64, 0.125)]
        if gpu
        else [(64, 0.125), (32, 0.125)],
        "mlp": [(4096, 14336)] if gpu else [],
    }
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    # Small blocks are of interest in one layer alone.
    options.small = [(32, 0.125), (16, 0.125)] if gpu and not chosen else []
    return options


def main() -> int:
    """Runs the benchmark; returns the exit status."""
    options = arguments()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("--device cuda: torch sees no GPU", file=sys.stderr)
        return 2
    with environment.own_cache():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    command = environment.command("python -m benchmarks.training")
    record = environment.Record("training", options.device, options.save, command)
    print(json.dumps(record.environment))
    begin = time.monotonic()
    broken = measure(options, record)
    print(f"in {time.monotonic() - begin:.0f} s")
    if options.save is not None:
        print(f"saved in {options.save}")
    for line in broken:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if broken else 0


def measure(
    options: argparse.Namespace, record: environment.Record, deadline: float = math.inf
) -> list[str]:
    """Measures MLPs, then layers, and keeps what is measured; returns what was wrong of ours.

    Nothing is begun after `deadline`, a time of `time.monotonic`, or shortly before.
    """
    layers: list[layer.LayerResult] = []
    mlps: list[mlp.MlpResult] = []

    def save(complete: bool, host_time: dict | None = None) -> None:
        record.save(
            complete=complete,
            pause_s=options.pause,
            layers=[result.to_dict() for result in layers],
            mlps=[result.to_dict() for result in mlps],
            host_time=host_time,
        )

    def of_mlp(shape: Shape, pattern: Pair) -> None:
        (width, hidden), (block, density) = shape, pattern
        what = width, hidden, options.tokens, options.dtype, block, density
        how = options.device, options.rounds, options.budget, options.compiled
        mlps.append(mlp.measure(*what, *how))
        print(text.of_mlp(mlps[-1]), flush=True)

    def of_layer(shape: Shape, pattern: Pair) -> None:
        (m, k), (block, density) = shape, pattern
        cell = Cell(m, options.tokens, k, block, density, options.dtype, op="linear")
        how = options.device, options.rounds, options.budget, options.pause
        layers.append(layer.measure(cell, *how))
        print(text.of_layer(layers[-1]), flush=True)

    jobs = [(of_mlp, shape, pattern) for shape in options.mlp for pattern in options.patterns]
    first, *others = options.layers or [None]
    for shape in [first, *others]:
        if shape is not None:
            jobs += [(of_layer, shape, pattern) for pattern in options.patterns]
            jobs += [(of_layer, shape, small) for small in options.small if shape == first]
    for job, shape, pattern in jobs:
        if time.monotonic() + _SHORTLY_S > deadline:
            return text.broken(layers, mlps)
        job(shape, pattern)
        layer.release(options.device)
        save(complete=False)  # what is measured is kept, whatever becomes of the rest
    host_time = host.measure(options.device)
    print(host.show(host_time))
    save(complete=True, host_time=host_time)
    return text.broken(layers, mlps)


if __name__ == "__main__":
    sys.exit(main())

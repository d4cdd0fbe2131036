"""The entry: `python -m benchmarks.training --save build/training.json`; two minutes on an H200.

Without arguments, on a GPU: bf16, 4096 tokens, layers of 4096x4096, 14336x4096 and 4096x14336 and
the MLP 4096 -> 14336 -> 4096; on a CPU: fp32, 512 tokens, 2048x2048. Exits non-zero when a result
of ours was wrong. A slow one is reported, never an error.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from pathlib import Path

import torch

from benchmarks import environment
from benchmarks.cell import Cell

from . import host, layer, mlp, text

Pair = tuple[int, float]


def _shape(text: str) -> tuple[int, int]:
    rows, _, cols = text.partition("x")
    return int(rows), int(cols)


def _pair(text: str) -> Pair:
    block, _, density = text.partition(":")
    return int(block), float(density)


def _arguments() -> argparse.Namespace:
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
    options = parser.parse_args()
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    given = options.layers is not None or options.patterns is not None
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
    options.small = [(4096, 4096, 32, 0.125), (4096, 4096, 16, 0.125)] if gpu and not given else []
    return options


def main() -> int:
    """Runs the benchmark; returns the exit status."""
    options = _arguments()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("--device cuda: torch sees no GPU", file=sys.stderr)
        return 2
    with environment.own_cache():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    begin, started = time.monotonic(), datetime.datetime.now(datetime.timezone.utc)
    described = environment.describe(options.device)
    print(json.dumps(described))
    layers: list[layer.LayerResult] = []
    mlps: list[mlp.MlpResult] = []

    def save(host_time: dict | None = None) -> None:
        if options.save is None:
            return
        options.save.parent.mkdir(parents=True, exist_ok=True)
        saved = {
            "complete": host_time is not None,
            "started": started.isoformat(timespec="seconds"),
            "seconds": time.monotonic() - begin,
            "environment": described,
            "pause_s": options.pause,
            "layers": [result.to_dict() for result in layers],
            "mlps": [result.to_dict() for result in mlps],
            "host_time": host_time,
        }
        options.save.write_text(json.dumps(saved, indent=1) + "\n")

    cells = [(*shape, *pair) for shape in options.layers for pair in options.patterns]
    for m, k, block, density in cells + options.small:
        cell = Cell(m, options.tokens, k, block, density, options.dtype, op="linear")
        how = options.device, options.rounds, options.budget, options.pause
        layers.append(layer.measure(cell, *how))
        layer.release(options.device)
        print(text.of_layer(layers[-1]), flush=True)
        save()  # what is measured is kept, whatever becomes of the rest
    for width, hidden in options.mlp:
        for block, density in options.patterns:
            shape = (width, hidden, options.tokens, options.dtype, block, density)
            mlps.append(mlp.measure(*shape, options.device, options.rounds, options.budget))
            layer.release(options.device)
            print(text.of_mlp(mlps[-1]), flush=True)
            save()
    host_time = host.measure(options.device)
    print(host.show(host_time))
    save(host_time)
    print(f"in {time.monotonic() - begin:.0f} s")
    if options.save is not None:
        print(f"saved in {options.save}")
    broken = text.broken(layers, mlps)
    for line in broken:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""A Llama with block-sparse MLPs beside the dense one, as `examples/llama.py` makes them.

Random weights, the layer sizes of Llama 3 8B on a GPU and a quarter of them on a CPU.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import importlib.util
from pathlib import Path
from types import ModuleType

import torch

import sparse_autotune
from benchmarks import models, timing
from benchmarks.cell import Call
from benchmarks.training import layer

_EXAMPLE = Path(__file__).parents[2] / "examples" / "llama.py"
DENSE, OURS = layer.DENSE, layer.OURS
ROUNDS = 9
# What it takes, roughly.
SECONDS = 40.0
_BLOCK, _DENSITY = 64, 0.125
# A sample lasts about so long: a call is as long as the host and the device together.
_SAMPLE_S = 0.05
# Relative, of the logits, against the same numbers in dense layers.
_DIFFERENCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def _example() -> ModuleType:
    """The example. It needs transformers, and ends the program where that is missing."""
    spec = importlib.util.spec_from_file_location("llama_example", _EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _sampler(call: Call, device: str) -> timing.Sampler:
    """Of as many calls as a sample has time for."""
    wait = timing.wait_of(device)
    whole = timing.whole_sampler(call, 1, wait)
    whole()
    return timing.whole_sampler(call, max(1, round(_SAMPLE_S * 1e6 / whole())), wait)


def _difference(sparse: torch.nn.Module, names: list[str], tokens: torch.Tensor) -> float:
    """Of the logits from those of the same model with dense layers, as a part of their norm."""
    zeros = copy.deepcopy(sparse)
    for name in names:
        parent, _, child = name.rpartition(".")
        sparse_layer = zeros.get_submodule(name)
        assert isinstance(sparse_layer, sparse_autotune.SparseLinear)
        setattr(zeros.get_submodule(parent), child, sparse_layer.to_linear())
    logits, expected = (model(tokens).logits.double() for model in (sparse, zeros))
    return ((logits - expected).norm() / expected.norm()).item()


@torch.no_grad()
def measure(device: str, rounds: int) -> dict:
    """Prefill, decode and the MLPs alone: microseconds of the dense and of the sparse model."""
    llama = _example()
    gpu = device == "cuda"
    hidden, layers, count = (4096, 4, 4096) if gpu else (1024, 2, 256)
    dtype = torch.bfloat16 if gpu else torch.float32
    torch.manual_seed(0)
    with torch.device(device):
        dense = llama.dense_llama(hidden, layers, device, dtype)
        tokens = torch.randint(1024, (1, count))
        x = torch.randn(1, count, hidden, dtype=dtype)
    sparse = copy.deepcopy(dense)
    names = sparse_autotune.sparsify_(
        sparse, _BLOCK, _DENSITY, filter=lambda name, _: ".mlp." in name
    )
    error = _difference(sparse, names, tokens) / _DIFFERENCE[dtype]
    calls: dict[str, dict[str, Call]] = {}
    for name, model in ((DENSE, dense), (OURS, sparse)):
        alone = llama.replayed(llama.mlps(model, x[:, :1]))
        ways = {
            f"prefill, {count} tokens": functools.partial(
                model, tokens, use_cache=False, logits_to_keep=1
            ),
            f"one MLP, {count} tokens": functools.partial(model.model.layers[0].mlp, x),
            "decode, 1 token": functools.partial(model, tokens[:, :1], use_cache=False),
            "MLPs, 1 token" + (", CUDA graph" if gpu else ""): alone,
        }
        for what, call in ways.items():
            calls.setdefault(what, {})[name] = call
    steps = []
    for what, both in calls.items():
        samplers = {name: _sampler(call, device) for name, call in both.items()}
        taken = timing.interleave(samplers, rounds, keep=samplers)
        steps.append(
            {"name": what, "timings": {n: dataclasses.asdict(t) for n, t in taken.items()}}
        )
    size = {"hidden": hidden, "layers": layers, "block": _BLOCK, "density": _DENSITY}
    return {
        "model": {**size, "dtype": str(dtype).partition(".")[2]},
        "error": error,
        "steps": steps,
    }


def _line(step: dict) -> str:
    dense, ours = (step["timings"][name]["median_us"] for name in (DENSE, OURS))
    return f"{step['name']:28} dense {dense:10.1f} µs, {ours:10.1f} µs: {dense / ours:.2f}x"


def run(options: argparse.Namespace, device: str) -> int:
    """As `models.run`."""
    measured = functools.partial(measure, device, options.rounds or ROUNDS)
    return models.run("llama", options, device, measured, _line, "logits")

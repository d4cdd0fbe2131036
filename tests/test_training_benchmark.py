"""What `benchmarks.training` measures is checked first, and what is wrong is no figure."""

import dataclasses
import math
import pathlib
import sys

import pytest
import torch

import sparse_autotune
from sparse_autotune.operators import autograd

sys.path.append(str(pathlib.Path(__file__).parent.parent))

from benchmarks.cell import Cell
from benchmarks.training import layer, mlp, text

CELL = Cell(64, 48, 32, 16, 0.5, "float32", op="linear")


def measured():
    return layer.measure(CELL, "cpu", rounds=2, budget_s=0.02)


def test_a_layer():
    result = measured()
    assert list(result.rows) == ["forward", "dX", "dW", "all three"]
    for rows in result.rows.values():
        for name in (layer.OURS, layer.DENSE):
            assert rows[name].status == "ok", rows[name].reason
            assert 0 <= rows[name].error <= 1
            assert rows[name].timings["wall"].rounds == 2
        assert rows[layer.STK].status == "unsupported"
    ratios = result.ratios()
    assert ratios["dX / own forward"] > 0
    assert ratios["all three / dense"] > 0
    share = result.nnz_flops / CELL.dense_flops
    times = [result.median("dW", name) for name in (layer.OURS, layer.DENSE)]
    rates = [result.tflops("dW", name) for name in (layer.OURS, layer.DENSE)]
    assert rates[0] / rates[1] == pytest.approx(share * times[1] / times[0])
    assert not text.broken([result], [])
    assert "dX / own forward" in text.of_layer(result)


@pytest.mark.parametrize("name", ["matmul", "linear", "sampled_matmul"])
@pytest.mark.parametrize("wrong", ["one element", "nan", "transposed order"])
def test_a_wrong_pass_has_no_figure(monkeypatch, name, wrong):
    real = getattr(sparse_autotune, name)

    def product(*arguments):
        found = real(*arguments)
        values = found.values if name == "sampled_matmul" else found
        flat = values.view(-1)
        if wrong == "one element":
            flat[-1] += 0.01 * flat.abs().max()
        elif wrong == "nan":
            flat[0] = torch.nan
        else:
            flat.copy_(flat.flip(0))
        return found

    monkeypatch.setattr(sparse_autotune, name, product)
    result = measured()
    step = {"linear": "forward", "matmul": "dX", "sampled_matmul": "dW"}[name]
    for broken in (step, layer.ALL):
        assert result.rows[broken][layer.OURS].status == "wrong"
        assert result.median(broken, layer.OURS) is None
        assert f"{broken} / dense" not in result.ratios()
    assert len(text.broken([result], [])) == 2
    assert "wrong" in text.of_layer(result)


def test_an_mlp(monkeypatch):
    shape = (32, 64, 24, "float32", 16, 0.5, "cpu", 2, 0.02)
    result = mlp.measure(*shape)
    assert 0 <= result.error <= 1
    assert result.speedup > 0
    assert 0 <= result.compiled_difference < 1e-5
    assert list(result.compiled) == ["compiled"]  # CUDA graphs need CUDA
    assert not mlp.measure(*shape, compiled=False).compiled
    compiled = result.compiled["compiled"]
    low, ratio, high = compiled.over_eager
    assert 0 < low <= ratio <= high
    assert 0 < compiled.issued_us <= compiled.timing.high_us
    assert "compiled: " in text.of_mlp(result)
    assert not text.broken([], [result])
    for difference in (1e-3, math.nan):
        wrong = dataclasses.replace(result, compiled_difference=difference)
        assert len(text.broken([], [wrong])) == 1
    real = autograd.sampled
    monkeypatch.setattr(autograd, "sampled", lambda *given: 1.001 * real(*given))
    wrong = mlp.measure(*shape, compiled=False)
    assert wrong.error > 1
    assert len(text.broken([], [wrong])) == 1


def test_stored_blocks():
    a = sparse_autotune.random_bsr(24, 30, (4, 5), density=0.4)
    assert torch.equal(layer.stored_blocks(a.to_dense(), a), a.values)

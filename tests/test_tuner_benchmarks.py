"""The benchmarks of buckets and of noisy races, and the soak: they run, save, and can fail."""

import json
import pathlib
import random
import re
import subprocess
import sys

import pytest
import soak
import soaked_attention
import torch

import sparse_autotune
from sparse_autotune import settings

sys.path.append(str(pathlib.Path(__file__).parent.parent))

from benchmarks import buckets, noisy_races

SOAK = pathlib.Path(soak.__file__)


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    """Both change settings of the process."""
    monkeypatch.setattr(settings, "buckets", settings.buckets)


def run(module, monkeypatch, path, options):
    command = [module.__name__, "--device", "cpu", "--save", str(path), *options.split()]
    monkeypatch.setattr(sys, "argv", command)
    return module.main(), json.loads(path.read_text())


def test_numbers_of_columns():
    found = buckets.numbers(90)
    assert len(found) >= 60 and found[0] == 1 and found[-1] == 8192
    assert {n % 2 for n in found} == {0, 1}


def test_buckets(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(buckets, "LARGEST", 64)
    monkeypatch.setattr(buckets, "MOST_TIME", 1e9)
    options = "--size 64 --block 16 --count 8 --race-s 0.02 --rounds 1"
    status, saved = run(buckets, monkeypatch, tmp_path / "saved.json", options)
    ns = [column["n"] for column in saved["columns"]]
    assert status == 0 and saved["complete"] and ns == buckets.numbers(8)
    assert saved["races"]["exact"] == len(ns) >= saved["races"]["geometric"] > 1
    total = {b: sum(column["us"][b] for column in saved["columns"]) for b in buckets.BOTH}
    assert saved["time_over_exact"] == pytest.approx(total["geometric"] / total["exact"])
    assert "in total" in capsys.readouterr().out
    monkeypatch.setattr(buckets, "MOST_TIME", 0)
    assert run(buckets, monkeypatch, tmp_path / "saved.json", options)[0] == 1


def test_noisy_races(monkeypatch, tmp_path, capsys):
    options = "--size 64 --block 16 -n 8 --races 4 --race-s 0.05 --rest-s 0.05"
    monkeypatch.setattr(noisy_races, "WITHIN", 1e9)
    status, saved = run(noisy_races, monkeypatch, tmp_path / "saved.json", options)
    assert status == 0 and saved["unverified"] == []
    assert set(saved["beside"]) == {"stream", "process"}
    for beside in saved["beside"].values():
        assert beside["races"] == beside["within"] == 2
        assert not any(name.startswith("planted") for name in beside["chosen"])
    assert not any(name.startswith("planted") for name in saved["at_rest_us"])
    assert "planted" not in str(sparse_autotune.variants())
    monkeypatch.setattr(noisy_races, "WITHIN", 0)
    assert run(noisy_races, monkeypatch, tmp_path / "saved.json", options)[0] == 1


def test_the_soak_runs():
    command = [sys.executable, str(SOAK), "--minutes", "0.05", "--device", "cpu"]
    done = subprocess.run(
        [*command, "--threads", "3"], capture_output=True, text=True, timeout=300, check=False
    )
    # So short a time says nothing about memory.
    said = [line for line in done.stdout.splitlines() if "the memory of" not in line]
    assert not any(line.startswith("FAILED") for line in said), done.stdout + done.stderr
    assert "0 failures" in said[-1]


@pytest.mark.parametrize("blunder", [0.01, float("nan")])
def test_the_soak_finds_a_wrong_element(blunder, monkeypatch, tmp_path, no_races):
    right = sparse_autotune.matmul

    def wrong(*operands, **options):
        result = right(*operands, **options)
        result.view(-1)[-1] += blunder * (1 + result.view(-1)[-1].abs())
        return result

    work = soak.Soak("cpu", 1, tmp_path)
    monkeypatch.setattr(sparse_autotune, "matmul", wrong)
    with pytest.raises(soak.WrongError, match=r"1 of \d+ elements"):
        for step in range(20):
            work.product(random.Random(step), work.weights[0])


@pytest.mark.parametrize("step", [soak.Soak.attention, soak.Soak.attention_gradients])
def test_the_soak_finds_wrong_attention(step, monkeypatch, tmp_path, no_races):
    """One element of a result, or of a gradient, that is off by a hundredth."""
    real = soaked_attention.Attention.forward

    def off(self, *operands, **keywords):
        out, lse = real(self, *operands, **keywords)
        wrong = torch.zeros_like(out)
        wrong[0, 0, 0, 0] = 0.01
        return (out + wrong if step is soak.Soak.attention else out * (1 + wrong)), lse

    work = soak.Soak("cpu", 1, tmp_path)
    seeds = range(6)
    for seed in seeds:
        step(work, random.Random(seed))
    monkeypatch.setattr(soaked_attention.Attention, "forward", off)
    monkeypatch.setattr(soaked_attention, "DTYPES", (torch.float32,))
    found = 0
    for seed in seeds:
        try:
            step(work, random.Random(seed))
        except soak.WrongError as error:
            assert re.search(r"(out|d[qkv]): \d+ of \d+ are wrong", str(error))
            found += 1
    assert found >= 3  # where nothing is seen nothing shows


def test_the_soak_finds_growth():
    flat = [{"host": 10**9 + i % 7} for i in range(40)]
    assert soak.grown(flat) == {}
    assert set(soak.grown([{"host": 10**9 + i * 10**7} for i in range(40)])) == {"host"}


def test_what_the_soak_allows():
    """Rounding is allowed, in each dtype."""
    for dtype in soak.DTYPES:
        left, right = (torch.randn(200, 200).to(dtype) for _ in range(2))
        soak.check(left @ right, left, right)

"""The runner of random problems: some of them, and that it finds what is wrong."""

import dataclasses
import functools
import json
import math
import os
import pathlib
import subprocess
import sys
from collections import Counter

import pytest
import torch
from problem import DTYPES
from random_cases import LARGEST, Case, draw
from random_problems import Plan, State, Tally, reproducer, run

import sparse_autotune

ROOT = pathlib.Path(__file__).parent.parent
SEED = 20240607
OPS = ("matmul", "linear", "transposed", "right", "right_transposed")
DEVICES = (("cpu", 80), pytest.param("cuda", 1000, marks=pytest.mark.gpu))


@pytest.mark.parametrize(("device", "count"), DEVICES)
def test_some_hundred(device, count):
    tally, alive = run(Plan(SEED, device), 0, count)
    assert not tally.failures, "\n".join(tally.failures)
    assert alive and tally.problems == count
    assert tally.products["auto"] == count
    families = {name.split("/")[0] for name in tally.products}
    assert len(families) >= 3, tally.products


def test_every_variant():
    tally, _ = run(Plan(SEED, "cpu", every_variant=True), 500, 20)
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.products["reference/fp64"] == 20
    assert tally.products.total() > 3 * 20


def test_a_number_is_one_problem():
    assert draw(SEED, 7) == draw(SEED, 7)
    assert draw(SEED, 7) != draw(SEED, 8)
    assert draw(SEED + 1, 7) != draw(SEED, 7)
    first, second = Case(draw(SEED, 7), "cpu"), Case(draw(SEED, 7), "cpu")
    assert torch.equal(first.a.values, second.a.values)
    assert torch.equal(first.b, second.b)


def test_problems_are_of_every_kind():
    problems = [draw(SEED, index) for index in range(3000)]
    for p in problems:
        assert p.m % p.block[0] == p.k % p.block[1] == 0
        assert 1 <= p.m <= LARGEST and 1 <= p.k <= LARGEST
        assert p.n is None or 1 <= p.n <= LARGEST

    def seen(what):
        return {what(p) for p in problems}

    assert seen(lambda p: p.dtype) == set(DTYPES)
    assert seen(lambda p: p.op) == set(OPS)
    assert {(op, True) for op in OPS} <= seen(lambda p: (p.op, p.native))
    assert {(op, True) for op in OPS} <= seen(lambda p: (p.op, p.frozen))
    assert len(seen(lambda p: p.pattern)) == 10
    assert len(seen(lambda p: p.b_layout)) == 9 and len(seen(lambda p: p.out_layout)) == 7
    assert seen(lambda p: p.activation) == {None, "relu", "gelu", "gelu_tanh", "silu"}
    flags = ("bias", "native", "tf32", "frozen", "deterministic", "exact_nonfinite")
    for flag in flags:
        assert seen(lambda p, flag=flag: getattr(p, flag)) == {False, True}, flag
    assert {0, 1, 2, 3} == seen(lambda p: len(p.batch))
    assert {True, False} == seen(lambda p: 0 in p.batch)
    assert {True, False} == seen(lambda p: p.infinity is None) == seen(lambda p: p.n is None)
    assert {True, False} == seen(lambda p: p.block[0] == p.block[1])
    # What kernels for large blocks take: some in whole units of 16 bytes, some not.
    large = [p for p in problems if p.block[0] % 64 == p.block[1] % 64 == 0 and p.n is not None]
    assert len(large) > 600
    assert 0.2 < sum(p.n % 8 == 0 for p in large) / len(large) < 0.8


def _one_element(result):
    result.view(-1)[-1] = result.view(-1)[-1] * 1.02 + 0.02


def _nan(result):
    result.view(-1)[result.numel() // 2] = math.nan


def _row_twice(result):
    if result.dim() == 2 and result.shape[0] > 1:
        result[-1] = result[0]


BLUNDERS = {"one element": _one_element, "not written": _nan, "wrong row": _row_twice}


@pytest.mark.parametrize("blunder", BLUNDERS)
@pytest.mark.parametrize("op", OPS)
def test_finds_a_wrong_result(op, blunder, monkeypatch):
    """Of one product of many, and names it by a command that runs it again."""
    function = "linear" if op == "linear" else "matmul"
    right = getattr(sparse_autotune, function)
    chosen = next(
        index
        for index in range(40, 400)
        if (p := draw(SEED, index)).op == op and p.out_layout == "row" and p.infinity is None
        and p.n not in (None, 1) and p.m > 1 and not p.batch and not p.activation
        and p.pattern == "uniform" and p.dtype in (torch.float32, torch.float64)
    )  # fmt: skip
    shape = draw(SEED, chosen).result_shape

    def wrong(*arguments, **keywords):
        result = right(*arguments, **keywords)
        if result.shape == shape:
            BLUNDERS[blunder](result)
        return result

    monkeypatch.setattr(sparse_autotune, function, wrong)
    tally, alive = run(Plan(SEED, "cpu", variant="reference"), chosen - 2, 5)
    assert alive and len(tally.failures) == 1
    line, what, problem = tally.failures[0].split("\n")
    assert line == reproducer(SEED, chosen, "reference", "cpu")
    assert "elements are wrong, the worst at" in what
    assert f"'m': {draw(SEED, chosen).m}" in problem


def test_finds_writes_beside_the_result(monkeypatch):
    chosen = next(
        index
        for index in range(4000)
        if (p := draw(SEED, index)).out_layout == "padded" and p.op == "matmul" and p.n is not None
    )
    right = sparse_autotune.matmul

    def wrong(*arguments, out, **keywords):
        result = right(*arguments, out=out, **keywords)
        out.as_strided((1,), (1,), out.storage_offset() + out.stride(-2) - 1).zero_()
        return result

    monkeypatch.setattr(sparse_autotune, "matmul", wrong)
    tally, _ = run(Plan(SEED, "cpu", variant="reference"), chosen, 1)
    assert ["memory beside the result was written" in line for line in tally.failures] == [True]


def test_an_exception_is_a_failure(monkeypatch):
    def wrong(*arguments, **keywords):
        raise RuntimeError("launch failed")

    monkeypatch.setattr(sparse_autotune, "matmul", wrong)
    monkeypatch.setattr(sparse_autotune, "linear", wrong)
    tally, alive = run(Plan(SEED, "cpu", variant="auto"), 10, 2)
    assert alive and len(tally.failures) == 2
    assert tally.failures[0].startswith(reproducer(SEED, 10, "auto", "cpu"))
    assert "RuntimeError: launch failed" in tally.failures[0]


def test_what_an_infinity_reaches():
    """Rows whose blocks meet it must not be finite; NaN elsewhere is wrong."""
    chosen = next(
        p
        for p in map(functools.partial(draw, SEED), range(3000))
        if p.infinity and p.pattern == "uniform" and p.m > 4 * p.block[0] and p.n and not p.batch
    )
    problem = dataclasses.replace(chosen, op="matmul", out_layout="row", density=0.5)
    case = Case(problem, "cpu")
    column = chosen.infinity[1]
    got, _ = case.run("reference")
    assert bool(case.good(got).all())
    reached = ~got.isfinite()
    assert 0 < int(reached.sum()) < chosen.m and bool(reached[:, column].any())
    spread = got.clone()
    spread[:, column] = math.nan
    assert torch.equal(case.good(spread)[:, column], reached[:, column])
    assert not bool(case.good(torch.where(reached, 0, got))[reached].any())


def test_resuming(tmp_path):
    path = tmp_path / "state.json"
    state = State(path, SEED, "cpu")
    state.finish(0, Tally(100, Counter(auto=100)))
    state.finish(2, Tally(100, failures=["wrong"]))
    again = State(path, SEED, "cpu")
    assert again.done == {0, 2} and again.tally.problems == 200
    assert again.tally.failures == ["wrong"] and again.tally.products["auto"] == 100
    assert json.loads(path.read_text())["of"]["seed"] == SEED
    with pytest.raises(SystemExit, match="remove it to begin anew"):
        State(path, SEED + 1, "cpu")


def test_command_line(tmp_path):
    """Two processes, a file to resume from, and the reproducer as it is printed."""

    def command(line):
        words = [sys.executable, *line.split()[1:]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "1 problems, 1 products" in command(reproducer(SEED, 3, "reference", "cpu"))
    many = (
        f"python tests/random_problems.py --seed {SEED} --count 100 --jobs 2 --device cpu "
        f"--variant auto --resume {tmp_path / 'state.json'}"
    )
    assert "100 problems, 100 products (0 refused their out), 0 wrong" in command(many)
    before = (tmp_path / "state.json").read_text()
    assert "0 problems/s" in command(many)
    assert (tmp_path / "state.json").read_text() == before

"""What saved races say of families: that the judgement is right, and that each earns its place."""

import dataclasses
import json
import math
import pathlib
import re
import sys

import pytest
import torch

import sparse_autotune

sys.path.append(str(pathlib.Path(__file__).parent.parent))

from benchmarks.cell import Cell, Operands, drawn_pattern
from benchmarks.evidence import __main__ as measuring
from benchmarks.evidence import estimates, judgement, page, problems, races
from benchmarks.evidence.saved import Evidence, Race
from benchmarks.evidence.sources import Sources

ROOT = pathlib.Path(__file__).parents[1]
CELL = Cell(256, 128, 512, 64, 0.25, "bfloat16")


def race(times, *, suite="one", timing="warm", winner=None, expected=None, **cell):
    """Of {variant: microseconds}; estimates are the times unless there are others."""
    return Race(
        suite,
        dataclasses.replace(CELL, **cell).to_dict(),
        timing,
        winner=winner or min(times, key=times.get),
        flops=1e9,
        bytes=1e6,
        expected=expected or times,
        median=times,
    )


# Saving


def test_evidence_is_saved_as_it_is(tmp_path):
    path = tmp_path / "results" / "evidence.json"
    left_out = race({"simt/a": 2.0}, expected={"simt/a": 3.0, "wgmma_sm90/b": 1e9}, timing="cold")
    failed = Race("two", CELL.to_dict(), "warm", failure="no memory")
    kept = Evidence({"torch": "2"}, "2026-11-24", True, [race({"simt/a": 1.5}), left_out, failed])
    kept.save(path)
    assert Evidence.load(path) == kept
    long = race({"simt/a": 1.23456789, "simt/b": 1234567.89})
    Evidence(races=[long]).save(path)
    found = Evidence.load(path)
    assert found.races[0].median == {"simt/a": 1.235, "simt/b": 1235000.0}
    assert not found.complete and [p.name for p in path.parent.iterdir()] == [path.name]


def test_hundreds_of_races_stay_small(tmp_path):
    times = {f"some_family_{i % 30}_sm90/m128_n256_s{i}": 10.123456 * (i + 1) for i in range(60)}
    Evidence(races=[race(times, n=n) for n in range(906)]).save(tmp_path / "e.json")
    assert (tmp_path / "e.json").stat().st_size < 1.8e6


def test_another_file_is_refused(tmp_path):
    (tmp_path / "other.json").write_text('{"suite": "gpu_layers"}')
    with pytest.raises(ValueError, match=r"other\.json was not saved by"):
        Evidence.load(tmp_path / "other.json")


# Measuring


class Measured:
    """A race that takes no time; fails at the given number."""

    def __init__(self, fail_at=None):
        self.asked, self.fail_at = [], fail_at

    def __call__(self, suite, cell, timing):
        if len(self.asked) == self.fail_at:
            raise KeyboardInterrupt
        self.asked.append((suite, cell.n, timing))
        return race({"simt/a": 1.0}, suite=suite, timing=timing, n=cell.n)


LISTED = [("one", dataclasses.replace(CELL, n=n)) for n in (1, 2, 3)]


def test_a_run_that_is_cut_goes_on_where_it_was(tmp_path):
    path, environment = tmp_path / "e.json", {"kernels": "x", "torch": "2", "gpu": {"name": "g"}}
    first = Measured(fail_at=3)
    with pytest.raises(KeyboardInterrupt):
        measuring.run(measuring.begun(path, environment), path, LISTED, 60, first)
    found = Evidence.load(path)
    assert len(found.races) == 3 and not found.complete
    none = Measured()
    measuring.run(measuring.begun(path, environment), path, LISTED, -1, none)  # no time at all
    assert not none.asked and Evidence.load(path) == found
    second = Measured()
    measuring.run(measuring.begun(path, environment), path, LISTED, 60, second)
    every = {("one", cell.n, timing) for _, cell in LISTED for timing in races.TIMINGS}
    assert {*first.asked, *second.asked} == every and len(second.asked) == 3
    assert Evidence.load(path).complete
    for name in ("kernels", "gpu"):
        with pytest.raises(ValueError, match=f"e.json is of another {name}"):
            measuring.begun(path, environment | {name: {"name": "other"}})


def test_a_run_that_is_cut_has_some_of_every_suite():
    of = {"long": [dataclasses.replace(CELL, n=n) for n in range(40)], "short": [CELL] * 10}
    order = races.in_order(of)
    for suite, cells in of.items():
        assert [cell for name, cell in order if name == suite] == cells
    for end in range(5, 50, 5):
        assert abs(sum(name == "short" for name, _ in order[:end]) - end / 5) <= 1
    assert {"gradients", "gpu_survey", "gpu_layers"} <= set(races.cells())


@pytest.mark.parametrize("op", ["matmul", "linear", "dX", "dW"])
def test_a_race(op):
    cell = Cell(64, 48, 32, 16, 0.5, "float32", op=op)
    found = races.race("some", cell, "cold", 0.02, device="cpu")
    assert found.winner in found.median.keys() & found.expected.keys(), found.failure
    assert found.median[found.winner] > 0 and found.bytes > 0
    assert found.flops == pytest.approx(2 * 0.5 * 64 * 48 * 32)
    assert any(name.startswith("sampled_") for name in found.expected) == (op == "dW")


def test_a_race_that_fails_says_why(monkeypatch):
    def fail(*_):
        raise RuntimeError("no memory\nat all")

    monkeypatch.setattr(races, "_report", fail)
    found = races.race("some", CELL, "warm", 0.02)
    assert found.failure == "no memory" and not found.median


# Judging


def test_gains():
    one = race({"a_sm90/x": 10.0, "a_sm90/y": 5.0, "b/x": 8.0, "c/x": 20.0})
    (win,) = judgement.wins([one])
    assert (win.family, win.gain) == ("a_sm90", 8 / 5)
    (win,) = judgement.wins([one], without={"a_sm90"})
    assert (win.family, win.gain) == ("b", 20 / 8)
    # The tuner takes the one of less memory within its margin.
    (win,) = judgement.wins([race({"a/x": 10.0, "b/x": 10.1}, winner="b/x")])
    assert (win.family, win.gain) == ("b", 10 / 10.1)
    (win,) = judgement.wins([race({"a/x": 10.0})])
    assert win.gain == math.inf
    gone = one.among({"b", "c"})
    assert gone.winner == "b/x" and set(gone.median) == {"b/x", "c/x"}
    assert judgement.wins([one.among(set())]) == []


def test_worth():
    won = [
        *(race({"a/x": 10.0, "b/x": time}, n=n) for n, time in ((1, 11.0), (2, 12.0), (3, 15.0))),
        race({"a/x": 10.0, "b/x": 20.0}, timing="cold", n=3),
        race({"a/x": 10.0, "b/x": 5.0}),
    ]
    found = judgement.worth(judgement.wins(won), "a")
    assert found.cells == {"warm": 3, "cold": 1}
    assert found.median == {"warm": 1.2, "cold": 2.0}
    assert found.largest == {"warm": 1.5, "cold": 2.0}
    assert found.counting == 3


ENOUGH, TOO_LITTLE = {"a/x": 10.0, "b/x": 11.0}, {"a/x": 10.0, "b/x": 10.9}


@pytest.mark.parametrize(
    ("of", "stays"),
    [
        ([race(ENOUGH), race(ENOUGH, n=64)], True),
        ([race(ENOUGH), race(ENOUGH, block=32)], True),
        ([race(ENOUGH), race(ENOUGH, suite="two")], True),
        ([race(ENOUGH), race(ENOUGH, timing="cold")], False),
        ([race(ENOUGH), race(ENOUGH, density=0.5)], False),
        ([race(ENOUGH), race(TOO_LITTLE, n=64)], False),
        ([race(TOO_LITTLE, n=n) for n in range(1, 9)], False),
        ([], False),
    ],
)
def test_the_rule(of, stays):
    worth = judgement.worth(judgement.wins(of), "a")
    assert judgement.earns_its_place("a", worth) == stays
    assert judgement.earns_its_place("simt", worth)


def test_a_portable_family_is_judged_among_portable_ones(tmp_path):
    times = {"w_sm90/x": 1.0, "p/x": 5.0, "q/x": 9.0}
    for name in ("w_sm90", "p", "q"):
        write(tmp_path, f"kernels/cuda/room/{name}.cu", f'const V v{{"{name}/x"}};\n')
    evidence = Evidence(races=[race(times), race(times, n=64)])
    judged = page.Judged("H9", evidence, Sources(tmp_path))
    none = page.Judged("H8", Evidence(), Sources(tmp_path))
    assert page.without_a_place([none, judged]) == ["q"]
    assert judged.worth("p").counting == 0 and judged.portable_worth("p").counting == 2


def test_orders():
    expected = {"a/x": 1.0, "b/x": 2.0, "c/x": 3.0, "d/x": 4.0, "never/timed": 0.5}
    times = {"a/x": 8.0, "b/x": 6.0, "c/x": 4.0, "d/x": 2.0}
    (worst,) = judgement.orders([race(times, expected=expected)])
    assert worst == judgement.Order("d", 4, "never", None)
    del expected["never/timed"]
    third, first = judgement.orders(
        [
            race(times, winner="c/x", expected=expected),
            race(times | {"a/x": 1.0}, expected=expected),
        ]
    )
    assert (third.rank, third.guess, third.loss) == (3, "a", 2.0)
    assert (first.rank, first.loss) == (1, 1.0)
    found = judgement.quality([worst, third, first])
    assert (found.races, found.first, found.among_three) == (3, 1 / 3, 2 / 3)
    assert found.loss == pytest.approx(math.sqrt(2))
    assert math.isnan(judgement.quality([]).loss)


# Sources


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_lines_that_only_one_family_uses(tmp_path):
    room = "kernels/cuda/room"
    write(tmp_path, f"{room}/a.cu", f'#include "{room}/a.cuh"\nconst V a{{"a/x"}}, b{{"a/y"}};\n')
    write(tmp_path, f"{room}/a.cuh", f'#include "{room}/shared.cuh"\n\n')
    write(tmp_path, f"{room}/a_launch.cu", f'#include "{room}/a.cuh"\n\n\n')  # no variants
    write(tmp_path, f"{room}/b.cu", f'#include "{room}/shared.cuh"\nconst V b{{"b/x"}};\n')
    write(tmp_path, f"{room}/shared.cuh", "\n\n\n\n\n")
    write(tmp_path, f"{room}/table.h", "\n" * 9)
    write(tmp_path, f"{room}/c.cu", f'#include "{room}/table.h"\nconst V c{{"c/x"}};\n')
    write(tmp_path, "ops/user.cpp", f'#include "{room}/table.h"\nconst V d{{"dense/mm"}};\n')
    sources = Sources(tmp_path)
    assert set(sources.files) == {"a", "b", "c"} and sources.vendors == {"dense"}
    assert {family: sources.own_lines(family) for family in sources.files} == {
        "a": 2 + 2 + 3,
        "b": 2,
        "c": 2,
    }


@pytest.fixture(scope="module")
def judged():
    return page.saved()


def test_the_sources_have_the_families_that_are_documented(judged):
    text = (ROOT / "docs/variants.md").read_text()
    documented = set(re.findall(r"^\| `(\w+)` \| CUDA \|", text, re.MULTILINE))
    assert len(documented) > 20
    for one in judged:
        assert documented <= one.ours | one.sources.vendors
        assert one.ours <= documented
        for family in one.ours:
            assert one.sources.own_lines(family) > 0


# Problems, made again from cells


@pytest.mark.parametrize(
    ("op", "n"),
    [("matmul", 1), ("matmul", 24), ("linear", 24), ("dX", 1), ("dX", 24), ("dW", 24)],
)
def test_a_problem_is_what_the_call_is(op, n, tmp_path):
    """On a GPU the same, as a call on a CPU is recorded."""
    cell = Cell(80, n, 112, 16, 0.4, "bfloat16", op=op)
    path = tmp_path / "missed.jsonl"
    operands = Operands(dataclasses.replace(cell, op="linear" if op[0] == "d" else op), "cpu")
    a, b = operands.a, operands.b
    dy = torch.randn(n, cell.m, dtype=torch.bfloat16)
    calls = {
        "matmul": lambda: sparse_autotune.matmul(a, b),
        "linear": lambda: sparse_autotune.linear(b, a),
        "dX": lambda: sparse_autotune.matmul(dy, a),
        "dW": lambda: sparse_autotune.sampled_matmul(dy.mT, b, a),
    }
    with sparse_autotune.settings.override(mode="record", record_path=path):
        calls[op]()
    (line,) = path.read_text().splitlines()
    text = problems.text_of(cell, problems.facts_of(cell)).replace("device=cuda", "device=cpu")
    recorded = json.loads(line)["problem"]
    assert dict(word.split("=") for word in text.split()) == {
        k: str(v) for k, v in recorded.items()
    }


@pytest.mark.parametrize("op", ["matmul", "dX"])
def test_facts_of_a_pattern(op):
    cell = Cell(70, 8, 90, 1, 0.1, "float32", pattern="power_law", op=op)
    dense = drawn_pattern(cell).to_dense() != 0
    stored = (dense.mT if op == "dX" else dense).tolist()
    lengths = [sum(row) for row in stored]
    found = problems.facts_of(cell)
    assert found["nnzb"] == sum(lengths) and found["longest_row"] == max(lengths)
    for order in range(1, 10):
        long = [length for length in lengths if length > 2**order]
        assert found["cut_rows"][order] == len(long)
        assert found["cut_parts"][order] == sum(math.ceil(length / 2**order) for length in long)
    for grouping, rows in enumerate((2, 4, 8, 16, 32)):
        columns = [
            sum(map(any, zip(*stored[i : i + rows], strict=True)))
            for i in range(0, len(stored), rows)
        ]
        assert found["group_columns"][grouping] == sum(columns)
        assert found["group_longest"][grouping] == max(columns)


def test_estimates_name_what_is_wrong():
    gpu = json.loads(page.SAVED[0].read_text())["environment"]["gpu"] | {"compute_capability": 90}
    facts = problems.facts_of(CELL)
    with pytest.raises(ValueError, match="not a problem: 'm=0' says nothing"):
        sparse_autotune._tuner.estimates("m=0", facts, gpu, [])
    text = problems.text_of(CELL, facts)
    with pytest.raises(ValueError, match="there is no variant simt/none"):
        sparse_autotune._tuner.estimates(text, facts, gpu, ["simt/none"])
    short = facts | {"cut_rows": [0]}
    with pytest.raises(ValueError, match="cut_rows: wrong length"):
        sparse_autotune._tuner.estimates(text, short, gpu, [])


def test_patterns_are_kept(tmp_path, monkeypatch):
    path = tmp_path / "patterns.json"
    patterns = problems.Patterns(path)
    dx = dataclasses.replace(CELL, op="dX")
    expected = [patterns.facts(cell) for cell in (CELL, dx)]
    patterns.save()
    monkeypatch.setattr(problems, "facts_of", None)
    again = problems.Patterns(path)
    assert [again.facts(cell) for cell in (CELL, dx)] == expected


# The saved races


def test_families_that_are_kept_exist(judged):
    assert all(set(judgement.KEPT) <= one.ours for one in judged)


def test_the_page_is_what_the_races_say(judged):
    assert page.PAGE.read_text() == page.text(judged), "`make families` renews the page"


@pytest.mark.skipif(
    not sparse_autotune._tuner.build_info()["cuda"], reason="the build has no CUDA variants"
)
@pytest.mark.parametrize("path", page.SAVED, ids=lambda path: path.stem)
def test_saved_estimates_are_those_of_today(path):
    evidence = Evidence.load(path)
    patterns = problems.Patterns(page.PATTERNS)
    for saved, now in zip(evidence.races, estimates.renew(evidence, patterns), strict=True):
        assert now.expected == pytest.approx(saved.expected, rel=1e-3), "`make families`"


def test_mode_off_is_near_the_choice(judged):
    """What the estimates alone choose takes at most 1.25 times as long, on each GPU."""
    assert {one.gpu for one in judged} == {"H100", "H200"}
    for one in judged:
        overall = judgement.quality(judgement.orders(one.races))
        assert overall.loss <= 1.25 and overall.among_three >= 0.9


def test_every_family_earns_its_place(judged):
    measure = "`python -m benchmarks.evidence --save benchmarks/results/evidence_….json` on a GPU"
    assert judged, f"there are no saved races: {measure} makes them, `make families` the page"
    # One GPU is enough, as it is for the rule.
    ours = set().union(*(one.ours for one in judged))
    raced = set().union(*(one.raced for one in judged))
    assert ours - judgement.KEPT.keys() <= raced, f"new families have to race first: {measure}"
    assert not page.without_a_place(judged)

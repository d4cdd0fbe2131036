"""The parts of the benchmarks that are not timing: cells, suites, ratios, tables, sweeps."""

import importlib
import json
import math
import pathlib
import pkgutil
import sys
from dataclasses import replace

import pytest
import torch

import sparse_autotune

sys.path.append(str(pathlib.Path(__file__).parent.parent))

from benchmarks import (
    comparison,
    families,
    profile_cells,
    run,
    suites,
    tables,
    timing,
    triton_bsr,
)
from benchmarks.cell import Cell, Operands, UnsupportedError
from benchmarks.peers import torch_dense, triton_tuned
from benchmarks.result import Result, Row
from benchmarks.suite import Suite

SUITES = {
    found.name: module.SUITE
    for found in pkgutil.iter_modules(suites.__path__)
    if hasattr(module := importlib.import_module(f"benchmarks.suites.{found.name}"), "SUITE")
}


def taken(us):
    return timing.Timing.of([us] * 3)


def result(cell, choice, peers, **others):
    """A GPU's result from {"warm": us, "cold": us} of the choice and of each peer."""

    def row(name, kind, times, **more):
        return Row(name, kind, timings={mode: taken(us) for mode, us in times.items()}, **more)

    rows = [row("choice", "choice", choice)]
    rows += [row(name, "peer", times) for name, times in peers.items()]
    rows += [row(name, kind, times) for name, (kind, times) in others.items()]
    return Result(cell, "cuda", "cold", "wgmma/x", 8, 0.25 * cell.dense_flops, rows)


CELL = Cell(256, 128, 512, 64, 0.25, "bfloat16")


# Cells


@pytest.mark.parametrize("name", SUITES)
def test_suites(name):
    suite = SUITES[name]
    assert suite.device in ("cpu", "cuda") and suite.rounds >= 3
    assert len({str(cell) for cell in suite.cells}) == len(suite.cells)
    if suite.measure is not None:  # no products
        assert all(cell.length % cell.block == 0 for cell in suite.cells if cell.has_mask)
        return
    cells = [*suite.cells, *(c for cell in suite.cells for c in suite.companions(cell).values())]
    for cell in cells:
        assert cell.m % cell.block == cell.k % cell.block == 0
        assert cell.op in ("matmul", "linear")
    assert len({cell.key for cell in suite.cells}) == len(suite.cells)


def test_the_cells_that_issues_are_judged_by():
    assert len(SUITES["gpu_large_blocks"].cells) == 12
    assert len(SUITES["gpu_layers"].cells) == 4 * 4 * 2 * 3
    for way in (False, True):
        assert sum(cell.backward == way for cell in SUITES["gpu_attention"].cells) == 10
    assert {c.pattern for c in SUITES["gpu_patterns"].cells} == {
        *("banded", "block_diagonal", "causal", "power_law", "one_dense_row", "half_empty"),
    }


@pytest.mark.parametrize("pattern", ["block_diagonal", "causal", "banded", "power_law"])
def test_a_uniform_twin_has_as_many_blocks(pattern):
    cell = (
        Cell.of_fixed(pattern, 512, 8, 16, "float32")
        if pattern in ("block_diagonal", "causal")
        else Cell(512, 8, 512, 16, 0.1, pattern=pattern)
    )
    ours, twin = Operands(cell, "cpu"), Operands(cell.uniform_twin(), "cpu")
    assert ours.a.nnzb == twin.a.nnzb == round(cell.density * 32 * 32)
    assert cell.key != cell.uniform_twin().key
    assert not torch.equal(ours.a.col_indices, twin.a.col_indices)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", ["matmul", "linear"])
def test_operands_and_their_check(op, dtype):
    operands = Operands(Cell(96, 20, 64, 16, 0.4, dtype, op=op), "cpu")
    dense = operands.a.to_dense().double()
    exact = (
        operands.b.double() @ dense.T if op == "linear" else dense @ operands.b.double()
    )  # fmt: skip
    torch.testing.assert_close(operands.expected[0], exact)
    good = operands.product(operands.a, "auto")()
    assert good.shape == exact.shape and operands.error(good) <= 1
    for blunder in (lambda c: c[3, 5].add_(1), lambda c: c[-1, -1].fill_(math.nan)):
        bad = good.clone()
        blunder(bad)
        assert operands.error(bad) > 1
    assert operands.error(good.T) == math.inf
    other = Operands(operands.cell, "cpu", copy=1)
    assert torch.equal(other.a.col_indices, operands.a.col_indices)
    assert not torch.equal(other.a.values, operands.a.values)


@pytest.mark.parametrize("op", ["matmul", "linear"])
@pytest.mark.parametrize("peer", comparison.find_peers("cpu"))
def test_peers_of_the_cpu_compute_the_cell(peer, op):
    operands = Operands(Cell(96, 20, 64, 16, 0.4, op=op), "cpu")
    call = comparison.find_peers("cpu")[peer].prepare(operands)
    assert operands.error(call()) <= 1


@pytest.mark.parametrize("op", ["matmul", "linear"])
def test_a_matrix_too_large_with_its_zeros(op):
    cell = Cell(90_000, 2, 90_000, 3, 5 / 30_000, "float64", op=op)
    operands = Operands(cell, "cpu")
    with pytest.raises(UnsupportedError, match="90000 x 90000 is too large"):
        torch_dense.prepare(operands)
    good = operands.product(operands.a, "reference")()
    assert operands.error(good) <= 1
    good.view(-1)[7] += 1
    assert operands.error(good) > 1
    with sparse_autotune.settings.override(budget_s=1.0):  # time for all, on a busy machine too
        report = sparse_autotune.tune(operands.a, operands.b, linear=operands.linear)
    statuses = {row.name: row.status for row, _ in families.rows(report, operands, "cpu", set())}
    # Whether the others were measured or expected to take too long is the machine's business.
    assert [n for n, s in statuses.items() if s == "left out"] == ["dense", "reference"]


def test_single_elements_are_the_matrix():
    operands = Operands(Cell(96, 20, 64, 16, 0.4), "cpu")
    assert torch.equal(operands.torch_csr.to_dense(), operands.a.to_dense())


def test_peers_of_the_gpu():
    assert {
        *("torch_dense", "torch_bsr", "torch_csr", "triton_default", "triton_tuned", "stk"),
        *("cusparse_bsr", "cusparse_blocked_ell", "triton_sm80"),
    } == comparison.find_peers("cuda").keys()


# Sweeps of Triton's knobs


@pytest.mark.parametrize("n", [1, 16, 128, 300, 4096])
def test_points_of_a_sweep(n):
    points = triton_tuned.candidates(Cell(4096, n, 4096, 64, 0.1))
    assert len({triton_bsr.describe(p) for p in points}) == len(points) >= 12
    tiles = {p["TILE"] for p in points}
    assert all(tile >= 16 and tile < max(2 * n, 17) for tile in tiles)
    assert max(tiles) == min(256, max(16, 1 << (n - 1).bit_length()))


def test_likely_points_come_first(monkeypatch, tmp_path):
    """Those that won on any GPU, in cells with as many columns and the same block."""
    monkeypatch.setattr(triton_tuned, "_STORE", tmp_path / "knobs.json")
    cell = Cell(64, 512, 64, 32, 0.5, "bfloat16")
    likely, *others = reversed(triton_tuned.candidates(cell))
    fewer = replace(cell, n=16)
    triton_tuned.add({f"X/{cell.key}": {"knobs": likely}, f"X/{fewer.key}": {"knobs": others[0]}})
    first, *rest = triton_tuned.candidates(replace(cell, m=128))
    assert first == likely and rest == others[::-1]


def test_points_for_ampere():
    cell = Cell(8192, 8192, 8192, 128, 0.1, "bfloat16")
    points = triton_tuned.candidates(cell, "sm80")
    assert all(point["arch"] == "sm80" for point in points)
    two_tiles = {point["TILE"] for point in points if point["num_stages"] == 5}
    # Of 2 x 128 x (128 + 256) elements of two bytes an A100 has no room: 192 KiB.
    assert two_tiles == {64, 128} and {point["TILE"] for point in points} == {64, 128, 256}


def test_knobs_come_home(monkeypatch, tmp_path):
    """What a run on another machine swept is in its file, and `add` stores it beside the peer."""
    monkeypatch.setattr(triton_tuned, "_STORE", tmp_path / "there.json")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA X")
    swept, other = Cell(64, 64, 64, 16, 0.5, "bfloat16"), Cell(64, 64, 64, 32, 0.5, "bfloat16")
    monkeypatch.setattr(triton_tuned, "_sweep", lambda operands, arch: {"knobs": {"TILE": 16}})
    for arch in ("", "sm80"):
        triton_tuned.prepare(Operands(swept, "cpu"), arch)
    found = [Result(cell, "cuda", "warm", "", 1, 1.0, []) for cell in (swept, other)]
    usual = run.to_save(found, Suite("cuda", [], 1))["knobs"]
    portable = run.to_save(found, Suite("cuda", [], 1, portable=True))["knobs"]
    assert list(usual) == [f"NVIDIA X/{swept.key}"]
    assert list(portable) == [f"NVIDIA X, sm80/{swept.key}"]
    assert "knobs" not in run.to_save(found, Suite("cpu", [], 1))
    monkeypatch.setattr(triton_tuned, "_STORE", tmp_path / "here.json")
    assert not triton_tuned.stored([swept])
    triton_tuned.add(usual)
    assert triton_tuned.stored([swept, other]) == {swept: usual}


def test_sweeping_anew_forgets_what_was_stored(monkeypatch, tmp_path):
    monkeypatch.setattr(triton_tuned, "_STORE", tmp_path / "knobs.json")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA X")
    triton_tuned.add({f"NVIDIA X/{CELL.key}": {"knobs": {}}, "NVIDIA Y/other": {"knobs": {}}})
    # A block of 8 is none of Triton's: nothing to compile.
    triton_tuned.compile_ahead([Cell(64, 64, 64, 8, 0.5)], renew=True)
    assert triton_tuned.stored([CELL])
    monkeypatch.setattr(triton_tuned, "candidates", lambda cell, arch: [])
    triton_tuned.compile_ahead([CELL], renew=True)
    assert not triton_tuned.stored([CELL]) and "NVIDIA Y/other" in triton_tuned._stored()


@pytest.mark.parametrize(
    ("name", "portable"),
    [
        ("mma_sm80/m128", True),
        ("simt/rows4", True),
        ("wgmma_sm90/x", False),
        ("small_n_rings_sm90/x", False),
        ("cublas_dense/mm", False),
        ("cusparse_bsr/csr", False),
    ],
)
def test_what_is_portable(name, portable):
    assert families.is_portable(name) == portable


def test_a_portable_suite(monkeypatch):
    """Its choice, families and peers are those without Hopper's code; others lack its peer."""
    usual = families.is_portable
    monkeypatch.setattr(families, "is_portable", lambda n: usual(n) and n.startswith("cpu_rows/"))
    suite = Suite("cpu", [], 2, budget_s=0.05, portable=True)
    with sparse_autotune.settings.override(verbosity=0):
        found = comparison.measure(Cell(64, 8, 64, 16, 0.5), suite)
    assert found.chosen.startswith("cpu_rows/")
    assert {row.name for row in found.rows} == {"choice", "cpu_rows"}
    assert found.row("choice").error <= 1 and found.median("choice", "wall") > 0


@pytest.mark.parametrize("nnzb", [4096, 819])
def test_the_small_twin_compiles_the_same_kernel(nnzb):
    cell = Cell(8192, 8192, 8192, 64, 0.25, "bfloat16", "causal", "linear")
    twin = triton_bsr.small_twin(cell, nnzb)
    operands = Operands(twin, "cpu")
    assert (operands.a.nnzb % 16 == 0) == (nnzb % 16 == 0)
    assert (twin.n, twin.block, twin.dtype, twin.op) == (8192, 64, "bfloat16", "linear")
    assert twin.m == twin.k == 512


# Rounds


def rounds_of(times, rounds=5, keep=()):
    """How many rounds each contestant was in, from what each of its calls takes."""

    def sampler(name, us):
        taken = iter([us] * rounds if isinstance(us, (int, float)) else us)
        return lambda: float(next(taken))

    samplers = {name: sampler(name, us) for name, us in times.items()}
    return {n: t.rounds for n, t in timing.interleave(samplers, rounds, keep).items()}


def test_who_is_far_behind_leaves_the_rounds():
    times = {"best": 100, "near": 250, "behind": 350, "kept": 1000}
    assert rounds_of(times, keep={"kept"}) == {"best": 5, "near": 5, "behind": 3, "kept": 5}
    # In reach once is enough to stay, and of one round no short call is judged.
    assert rounds_of({"best": 100, "hiccups": [9000, 9000, 290, 9000, 9000]})["hiccups"] == 5
    assert rounds_of({"best": [9000, 100, 100, 100, 100], "hopeless": 9000})["hopeless"] == 3


def test_long_calls_leave_after_one_round():
    times = {"best": 3e4, "hopeless": 3.1e5, "behind": 2.9e5, "kept": 4e6}
    assert rounds_of(times, keep={"kept"}) == {"best": 5, "hopeless": 1, "behind": 3, "kept": 5}
    assert rounds_of({"best": 900, "behind": 9.9e4}) == {"best": 5, "behind": 3}


def test_a_long_first_call_is_not_repeated():
    calls = []
    sample = timing.cpu_sampler(lambda: calls.append(0), first_us=2e5)
    assert not calls
    sample()
    assert len(calls) == 1
    timing.cpu_sampler(lambda: calls.append(0), first_us=100.0)
    assert len(calls) == 2


# Ratios and tables


def test_ratios_are_against_the_best_peer_of_each_mode():
    peers = {"a": {"warm": 30.0, "cold": 90.0}, "b": {"warm": 40.0, "cold": 60.0}}
    found = result(CELL, {"warm": 20.0, "cold": 50.0}, peers)
    assert found.best_peer("warm") == "a" and found.best_peer("cold") == "b"
    assert found.ratios() == {
        "speed choice / best peer, warm": 1.5,
        "speed choice / best peer, cold": 1.2,
    }


def test_a_wrong_peer_does_not_count():
    found = result(CELL, {"warm": 20.0}, {"a": {"warm": 10.0}, "b": {"warm": 30.0}})
    found.row("a").status = "wrong"
    assert found.best_peer("warm") == "b"
    found.row("choice").status = "wrong"
    assert found.ratios() == {}
    found.row("b").status = "failed"
    assert found.best_peer("warm") is None


def test_companions_and_the_dense_rate():
    twin = {"uniform": ("companion", {"warm": 16.0}), "dense_random": ("rate", {"warm": 80.0})}
    found = result(CELL, {"warm": 20.0}, {}, **twin)
    # A quarter of the operations in a quarter of the time: the same rate.
    assert found.ratios() == {
        "time choice / uniform, warm": 1.25,
        "rate choice (nnz) / cuBLAS on random data": 1.0,
    }


def test_tables():
    first = result(CELL, {"warm": 20.0, "cold": 50.0}, {"a": {"warm": 30.0, "cold": 60.0}})
    other = Cell(256, 128, 512, 64, 0.125, "bfloat16")
    second = result(other, {"warm": 20.0, "cold": 40.0}, {"a": {"warm": 24.0, "cold": 40.0}})
    text = tables.of_results([first, second])
    summary = [line for line in text.splitlines() if line.startswith("[1]")]
    assert summary == [
        f"[1]  {'speed choice / best peer, warm':45}{2:6}{math.sqrt(1.5 * 1.2):10.3f}"
        f"{1.2:8.3f}{1.5:8.3f}  {other}"
    ]
    assert tables.headline([first, second]) == (
        "speed choice / best peer: warm 1.342 in geometric mean, at least 1.200, of 2 cells; "
        "cold 1.095 in geometric mean, at least 1.000, of 2 cells"
    )
    cell = tables.of_cell(first)
    assert "a (peer)" in cell and str(CELL) in cell
    json.dumps(first.to_dict())


def test_the_choice_stands_for_its_family():
    def ratios(chosen):
        times = {"choice": 20.0, "cpu_tiled": 30.0, "torch_dense": 90.0, "torch_bsr": 120.0}
        rows = [Row(name, "peer", timings={"wall": taken(us)}) for name, us in times.items()]
        return Result(CELL, "cpu", "wall", chosen, 8, 0.25 * CELL.dense_flops, rows).ratios()

    named, chosen = ratios("cpu_turned/x"), ratios("cpu_tiled/x")
    assert named["speed cpu_tiled / torch_bsr"] == 4 and chosen["speed cpu_tiled / torch_bsr"] == 6
    label = "rate cpu_tiled (nnz) / torch_dense"
    assert named[label] == pytest.approx(0.75) and chosen[label] == pytest.approx(1.125)


def test_tables_say_where_a_peer_left_the_rounds():
    found = result(CELL, {"warm": 20.0}, {"a": {"warm": 90.0}})
    assert "rounds:" not in tables.of_results([found])
    found.row("a").timings["warm"] = timing.Timing.of([90.0])
    assert "a, rounds: 1 " in tables.of_results([found])


def test_one_cell_measured():
    """From operands to ratios, with a companion."""
    cell = Cell(128, 32, 128, 16, 0.3)
    twin = {"uniform": cell.uniform_twin()}
    suite = Suite("cpu", [cell], 3, budget_s=0.05, companions=lambda _: twin)
    found = comparison.measure(cell, suite)
    rows = {row.name: row for row in found.rows}
    assert rows["choice"].status == rows["torch_dense"].status == rows["uniform"].status == "ok"
    assert rows["choice"].timings["wall"].rounds == 3
    assert found.chosen in sparse_autotune.variants()
    assert rows["cpu_tiled"].detail.startswith("cpu_tiled/")
    assert {"speed choice / best peer, wall", "time choice / uniform, wall"} <= set(found.ratios())


# ncu's figures


def test_profile_table():
    header = ["ID", "Kernel Name", *profile_cells.METRICS]
    units = ["", "", *("" for _ in profile_cells.METRICS)]
    values = {
        "gpu__time_duration.sum": "50,000",
        "l1tex__m_xbar2l1tex_read_bytes.sum": "200000000",
        "sm__cycles_active.avg": "1000",
        "sm__cycles_active.max": "1100",
        "sm__cycles_active.min": "900",
    }
    units[header.index("gpu__time_duration.sum")] = "ns"
    units[header.index("l1tex__m_xbar2l1tex_read_bytes.sum")] = "byte"
    line = ["0", "wgmma", *(values.get(metric, "7") for metric in profile_cells.METRICS)]
    said = "==PROF== Connected\n" + "\n".join(
        ",".join(f'"{item}"' for item in row) for row in (header, units, line)
    )
    (row,) = profile_cells.parse(said)
    assert row["gpu__time_duration.sum"] == 50000.0
    entry = profile_cells.Profiled(CELL, "wgmma_sm90/m128_n256", 1e10)
    table = profile_cells.table([entry], [row])
    cells = [cell.strip() for cell in table.splitlines()[-1].strip("|").split("|")]
    titles = [cell.strip() for cell in table.splitlines()[0].strip("|").split("|")]
    shown = dict(zip(titles, cells, strict=True))
    assert shown["µs"] == "50.0" and shown["TFLOP/s"] == "200"
    assert shown["L2→SM MB"] == "200" and shown["L2→SM TB/s"] == "4.00"
    assert shown["SM active least / mean / most"] == "0.90 / 1 / 1.10"

"""`benchmark_grid`: every combination once, kept in a file that outlives interruptions."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

import sparse_autotune as sa
from sparse_autotune.tuning import announcements, grid

SMALL = {"blocks": [8, (16, 32)], "densities": [0.5, 1], "budget_s": 0.01}


@pytest.fixture
def measured(monkeypatch):
    """The keys of the products that were measured."""
    keys, real = [], grid._cell

    def count(key, *arguments):
        keys.append(key)
        return real(key, *arguments)

    monkeypatch.setattr(grid, "_cell", count)
    return keys


def key_of(cell):
    return tuple(cell[name] for name in grid._KEY)


def test_every_combination_has_a_cell(device):
    dtypes = [torch.float32, torch.bfloat16]
    report = sa.benchmark_grid([32, (64, 96, 5)], dtypes=dtypes, device=device, **SMALL)
    assert [key_of(cell) for cell in report.cells] == [
        (*shape, block, density, dtype)
        for dtype in ("float32", "bfloat16")
        for shape in ((32, 32, 32), (64, 96, 5))
        for block in ("8x8", "16x32")
        for density in (0.5, 1)
    ]
    for cell in report.cells:
        assert cell["winner"] in sa.variants() and not cell["failure"]
        times = [us for us in (cell["dense_us"], cell["sparse_us"]) if us is not None]
        assert 0 < min(times) <= cell["median_us"]
        if device == "cpu":  # on a GPU the host's time for a launch counts, too
            assert cell["median_us"] <= 1.021 * min(times)
        stored = cell["m"] * cell["k"] * cell["density"]
        assert cell["tflops"] == pytest.approx(2 * stored * cell["n"] / cell["median_us"] / 1e6)
        assert cell["peak_share"] > 0 and cell["memory_share"] > 0
        if len(times) == 2:
            assert cell["speed_up"] == pytest.approx(cell["dense_us"] / cell["sparse_us"])
    assert any(cell["speed_up"] for cell in report.cells)


def test_the_dense_product_is_not_charged_for_making_its_matrix(monkeypatch):
    seen = []

    def benchmark(a, b, *, budget_s):
        seen.append(repr(a))
        return real(a, b, budget_s=budget_s)

    real = grid.benchmark
    monkeypatch.setattr(grid, "benchmark", benchmark)
    sa.benchmark_grid([32], blocks=[8], densities=[0.5], budget_s=0.01)
    assert len(seen) == 1 and "frozen" in seen[0]


def test_a_product_without_stored_blocks():
    (cell,) = sa.benchmark_grid([32], blocks=[8], densities=[0], budget_s=0.01).cells
    assert "nothing to race" in cell["failure"] and cell["winner"] == ""
    assert cell["median_us"] is cell["speed_up"] is None


# The file


def test_it_goes_on_where_it_was_interrupted(tmp_path, measured, monkeypatch):
    path, real = tmp_path / "grid.json", grid.benchmark

    def interrupted(*arguments, **keywords):
        if len(measured) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(grid, "benchmark", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sa.benchmark_grid([32], path=path, **SMALL)
    kept = json.loads(path.read_text())["cells"]
    assert [key_of(cell) for cell in kept] == measured[:2]
    assert os.listdir(tmp_path) == ["grid.json"]

    del measured[:]
    report = sa.benchmark_grid([32], path=path, **SMALL)
    assert len(measured) == 2 and report.cells[:2] == kept
    assert json.loads(path.read_text()) == report.to_dict()

    del measured[:]
    assert sa.benchmark_grid([32], path=str(path), **SMALL) == report
    assert measured == []
    larger = sa.benchmark_grid([32, 64], path=path, **SMALL)
    assert {key[0] for key in measured} == {64} and larger.cells[:4] == report.cells
    part = sa.benchmark_grid([64], path=path, blocks=[8], densities=[1.0])
    assert [cell["m"] for cell in part.cells] == [64]
    assert len(json.loads(path.read_text())["cells"]) == 8


def test_a_killed_process_leaves_whole_results(tmp_path):
    """Killed while it measures and writes: what is there can be read, and is gone on from."""
    path = tmp_path / "grid.json"
    program = f"""
        import sparse_autotune as sa
        densities = [i / 1000 for i in range(1, 1001)]
        sa.benchmark_grid([32], blocks=[8], densities=densities, budget_s=1e-3, path={str(path)!r})
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    try:
        end = time.monotonic() + 120
        while not path.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = json.loads(path.read_text())["cells"]
    densities = [cell["density"] for cell in kept]
    assert densities == [i / 1000 for i in range(1, len(kept) + 1)]
    again = sa.benchmark_grid([32], blocks=[8], densities=densities, budget_s=1e-3, path=path)
    assert again.cells == kept


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content | {"device": "another"}, "has device 'another', now it is"),
        (lambda content: content | {"timing": "hot"}, "has timing 'hot'"),
        (lambda content: content | {"versions": "0"}, "has versions '0'"),
        (lambda content: content["cells"], "is not a file of benchmark_grid"),
        (lambda content: content | {"cells": [{}]}, "is not a file of benchmark_grid"),
    ],
)
def test_another_file_is_refused(tmp_path, measured, change, words):
    path = tmp_path / "grid.json"
    arguments = {"blocks": [8], "densities": [0.5], "budget_s": 0.01, "path": path}
    sa.benchmark_grid([32], **arguments)
    before = json.dumps(change(json.loads(path.read_text())))
    path.write_text(before)
    del measured[:]
    with pytest.raises(ValueError, match=f"path: {re.escape(str(path))} {words}"):
        sa.benchmark_grid([32], **arguments)
    assert measured == [] and path.read_text() == before


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"sparse_autotune_race 4\n"])
def test_what_is_no_json_is_refused(tmp_path, content):
    path = tmp_path / "grid.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a file of benchmark_grid"):
        sa.benchmark_grid([32], path=path, **SMALL)
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(FileNotFoundError):
        sa.benchmark_grid([32], path=tmp_path / "missing" / "grid.json", **SMALL)


# Arguments


@pytest.mark.parametrize(
    ("sizes", "keywords", "error", "words"),
    [
        (64, {}, TypeError, "sizes must be a list, got builtins.int"),
        ("64", {}, TypeError, "sizes must be a list, got builtins.str"),
        ([], {}, ValueError, "sizes must have an element"),
        ([64.5], {}, TypeError, "sizes must be an int, got 64.5"),
        ([(64, 64)], {}, TypeError, r"sizes must be an int, got \(64, 64\)"),
        ([-64], {}, ValueError, "sizes must not be negative, got -64"),
        ([64], {"blocks": [48]}, ValueError, r"sizes has shape \(64, 64\) and block size \(48"),
        ([64], {"blocks": [(16, 16, 16)]}, TypeError, "blocks must be an int or a pair"),
        ([64], {"blocks": [0]}, ValueError, "blocks must be at least 1"),
        ([64], {"densities": [0.1, 1.5]}, ValueError, r"densities must lie in \[0, 1\], got 1.5"),
        ([64], {"dtypes": ["float32"]}, TypeError, "dtypes must be a torch.dtype"),
        ([64], {"dtypes": [torch.int8]}, TypeError, "dtypes must be float16"),
        ([64], {"dtypes": torch.float32}, TypeError, "dtypes must be a list, got torch.dtype"),
        ([64], {"budget_s": 0}, ValueError, "budget_s must be a positive"),
        ([64], {"device": "meta"}, RuntimeError, "but device is meta"),
    ],
)
def test_bad_arguments(tmp_path, measured, sizes, keywords, error, words):
    """They are found before anything is measured."""
    with pytest.raises(error, match=words):
        sa.benchmark_grid(sizes, path=tmp_path / "grid.json", **{**SMALL, **keywords})
    assert measured == [] and os.listdir(tmp_path) == []


# What it shows


@pytest.mark.parametrize("missing", [False, True])
def test_the_progress_bar(monkeypatch, capsys, missing):
    """Without tqdm there is none."""
    pytest.importorskip("tqdm")
    monkeypatch.setattr(announcements, "_watched", lambda: True)
    monkeypatch.setattr(sa.settings, "verbosity", 1)
    if missing:
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    sa.benchmark_grid([32], **SMALL)
    assert ("4/4" in capsys.readouterr().err) != missing


def cells(speed_up):
    """Those of a made-up grid whose sparse product takes 200 µs times the density."""
    return [
        {
            **dict(zip(grid._KEY, (64, 64, 64, block, density, "float32"), strict=True)),
            "winner": "some/kernel",
            "dense_us": 40.0,
            "sparse_us": 200 * density,
            "speed_up": speed_up(density),
        }
        for block in ("8x8", "16x16")
        for density in (0.1, 0.4, 0.05)
    ]


@pytest.fixture
def pyplot():
    pytest.importorskip("pandas")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def test_the_plot_shows_the_crossing(pyplot):
    (ax,) = sa.GridReport("Some GPU", "cold", "0", cells(lambda d: 0.2 / d)).plot().axes
    lines = {line.get_label(): line for line in ax.lines}
    assert list(lines["16x16"].get_xdata()) == pytest.approx([0.05, 0.1, 0.4])
    assert list(lines["8x8"].get_ydata()) == pytest.approx([10, 20, 80])
    rings = [line for line in ax.lines if line.get_fillstyle() == "none"]
    assert len(rings) == 2
    for ring in rings:  # a line in logarithms from (0.1, 20) to (0.4, 80)
        assert [ring.get_xdata()[0], ring.get_ydata()[0]] == pytest.approx([0.2, 40])
    assert list(lines["dense"].get_ydata()) == [40, 40]
    assert "64 × 64 × 64, float32" in ax.get_title()
    never = sa.GridReport("Some GPU", "cold", "0", cells(lambda d: 2.0)).plot().axes[0]
    assert not [line for line in never.lines if line.get_fillstyle() == "none"]


def test_the_heat_map(pyplot):
    made = cells(lambda d: 0.2 / d)
    made[0] |= {"winner": "", "speed_up": None}
    (ax,) = sa.GridReport("Some GPU", "cold", "0", made).heat_map().axes
    assert [text.get_text() for text in ax.texts] == [
        *("4×\nsome", "–", "0.5×\nsome"),
        *("4×\nsome", "2×\nsome", "0.5×\nsome"),
    ]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["5%", "10%", "40%"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["8x8", "16x16"]


def test_a_panel_for_each_size_and_dtype(pyplot):
    dtypes = [torch.float32, torch.float64]
    report = sa.benchmark_grid([32, 64, 96], dtypes=dtypes, **SMALL)
    for figure in (report.plot(), report.heat_map()):
        titles = [ax.get_title() for ax in figure.axes]
        assert titles == [
            f"{m} × {m} × {m}, {t}" for t in ("float32", "float64") for m in (32, 64, 96)
        ]
        assert f"{report.device}, {report.timing}" == figure.get_suptitle()


def test_pandas():
    pytest.importorskip("pandas")
    report = sa.benchmark_grid([32], **SMALL)
    frame = report.to_pandas()
    assert frame.to_dict("records") == report.cells
    assert frame.attrs == {name: getattr(report, name) for name in ("device", "timing", "versions")}

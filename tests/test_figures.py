"""What is made from the kept results is what the results make; keeping and collecting them."""

import copy
import json
import math
import pathlib
import re
import sys
import time
import xml.etree.ElementTree as ET

import pytest

sys.path.append(str(pathlib.Path(__file__).parent.parent))

from benchmarks import collect, comparison, environment, keep, run
from benchmarks.cell import Cell
from benchmarks.figures import (
    comparisons,
    dashboard,
    first_screen,
    pages,
    results,
    roofline,
    svg,
    sweeps,
    tables,
)
from benchmarks.peers import triton_tuned
from benchmarks.result import Result
from benchmarks.suite import Suite

KEPT = results.read()
ENVIRONMENT = {
    "gpu": {"name": "NVIDIA H200", "torch_cuda": "13.0", "state": "580.1, 1980 MHz"},
    "torch": "2.11.0+cu130",
    "revision": "abc123",
}


def kept_cell(cell, choice, peers, mode="warm"):
    """A cell as a file has it, from the medians of the choice and of its peers."""
    row = {"name": "choice", "kind": "choice", "us": {mode: [choice, choice, choice, 5]}}
    others = [{"name": n, "kind": "peer", "us": {mode: [us]}} for n, us in peers.items()]
    nnzb = round(cell.density * (cell.m // cell.block) * (cell.k // cell.block))
    return {"cell": cell.to_dict(), "judged": mode, "chosen": "wgmma/x", "nnzb": nnzb,
            "seconds": 1.0, "rows": [row, *others]}  # fmt: skip


def run_of(suite, *cells, folder="h200", **more):
    kept = {"suite": suite, "command": "make bench-gpu", "complete": True,
            "started": "2026-11-24", "environment": ENVIRONMENT, "cells": list(cells)}  # fmt: skip
    return results.Run(folder, kept | more)


H100 = ENVIRONMENT | {"gpu": ENVIRONMENT["gpu"] | {"name": "NVIDIA H100 80GB HBM3"}}


def h100_run(suite, *cells, **more):
    return run_of(suite, *cells, folder="h100", environment=H100, **more)


def fp32(m=512, n=128, density=0.25, block=32, **more):
    return Cell(m, n, m, block, density, "float32", **more)


# What is in the repository


def test_nothing_is_stale():
    """`make figures` makes it anew."""
    assert not pages.stale(KEPT)


def test_results_are_whole():
    """Each file is a run that says where it comes from, small, and under its device's name."""
    assert KEPT
    for kept in KEPT:
        path = keep.RESULTS / kept.folder / f"{kept.suite}.json"
        assert path.stat().st_size < 300_000
        assert path.read_text() == keep.text(kept.kept)
        assert kept.folder == keep.device_of(kept.kept["environment"])
        assert kept.kept["environment"]["revision"] or kept.kept["source"]
        assert kept.kept["command"] and re.match(r"\d{4}-\d\d-\d\d", kept.kept["started"])
        cells = [result.cell for result in kept.results]
        assert len(set(cells)) == len(cells)
        for result in kept.results:
            times = [t.median_us for row in result.rows for t in row.timings.values()]
            assert times and all(0 < us < math.inf for us in times)


def test_two_cpus_of_one_name_have_folders_of_their_own():
    """A virtual machine says "AMD EPYC" of either."""
    assert [environment.zen_generation(*cpu) for cpu in ((25, 1), (25, 17), (26, 2), (6, 85))] == [
        3, 4, 5, None]  # fmt: skip
    names = {"AMD EPYC (Zen 4)": "epyc-zen4-2", "AMD EPYC 7763 64-Core Processor": "epyc-2",
             "Intel(R) Xeon(R) CPU @ 2.20GHz": "xeon-2", "Neoverse-V2": "cpu-2"}  # fmt: skip
    for cpu, folder in names.items():
        assert keep.device_of({"cpu": cpu, "threads": 2}) == folder


def test_figures_that_a_sentence_repeats_are_those_of_the_runs():
    """Such a sentence is written by hand, and would outlive the run that it was taken from."""
    runs = {run.suite: run for run in KEPT if run.folder == "h200"}

    def us(suite, cell, name="choice"):
        (found,) = [r for r in runs[suite].results if str(r.cell).startswith(cell)]
        return found.median(name, "warm")

    times = {}
    for layer in runs["training"].kept["layers"]:
        cell, rows = layer["cell"], layer["rows"]["all three"]
        if (cell["m"], cell["k"], cell["density"]) == (4096, 4096, 0.125):
            took = {row["name"]: keep.median_us(row["us"]["warm"]) for row in rows if "us" in row}
            times[cell["block"]] = f"{took['dense'] / took['sparse_autotune']:.1f} times"
    token = ("gpu_small_n", "4096x4096x1 linear block 64 density 0.125")
    mesh, meshes = (
        ("gpu_science", f"999999x999999x{n} matmul block 3 density 8.1e-05 float64")
        for n in (1, 16)
    )
    even = ("gpu_large_blocks", "4096x4096x4096 matmul block 64 density 0.125")
    decoding = {
        run.folder: keep.median_us(step["us"]["dense"])
        / keep.median_us(step["us"]["sparse_autotune"])
        for run in KEPT
        if run.suite == "llama"
        for step in run.kept["steps"]
        if step["name"] == "decode, 1 token"
    }
    sentences = {
        "models": [f"{times[128]} as fast as the dense layer's with blocks of 128, {times[64]} "
                   f"with 64, {times[32]} with 32 and {times[16]} with 16"],
        "serving": [f"one token takes {us(*token):.1f} µs, the dense layer "
                    f"{us(*token, 'torch_dense'):.1f} µs"],
        "scientific": [f"takes {us(*mesh):.0f} µs, PyTorch's CSR {us(*mesh, 'torch_csr'):.0f} µs",
                       f"16 columns take {us(*meshes):.0f} µs there"],
        "reading_figures": [f"took {us(*even, 'triton_default'):.0f} µs with its defaults and "
                            f"{us(*even, 'triton_tuned'):.0f} with settings swept",
                            f"{decoding['h200']:.2f} of the dense Llama's speed on an H200, "
                            f"{decoding['h100']:.2f} on an H100"],
    }  # fmt: skip
    for page, expected in sentences.items():
        text = " ".join((pages.ROOT / f"docs/{page}.md").read_text().split())
        assert [sentence for sentence in expected if sentence not in text] == [], page


def test_what_is_transcribed_from_a_page_is_there():
    (run,) = [run for run in KEPT if "docs/examples.md" in run.kept.get("source", "")]
    page = (pages.ROOT / "docs/examples.md").read_text()
    for step in run.kept["steps"]:
        dense, ours = (f"{keep.median_us(taken) / 1e3:.3f}" for taken in step["us"].values())
        assert re.search(rf"{dense} +{ours}", page), step["name"]


PICTURES = pages.pictures(KEPT)


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_stand_alone(name):
    text = PICTURES[name]
    root = ET.fromstring(text)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    for element in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 <= float(element.attrib["x"]) <= width and 0 < float(element.attrib["y"]) < height
    assert "prefers-color-scheme:dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_dashboard_fetches_nothing():
    text = (pages.ROOT / pages.DASHBOARD).read_text()
    assert not re.search(r"https?://|\bsrc=|<link|@import|url\(|fetch\(|import\(", text)
    assert text.count("</script>") == text.count("<script>") == 1
    shown = json.loads(re.search(r"const RUNS = (.*);\nconst BEST", text, re.DOTALL)[1])
    assert [(r["device"], r["suite"]) for r in shown] == [(k.device, k.suite) for k in KEPT]


def test_a_stale_page_is_found(tmp_path):
    for page in pages.PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text((pages.ROOT / page).read_text())
    first = pages.stale(KEPT, tmp_path)
    assert pages.DASHBOARD in first and not set(pages.PAGES) & set(first)
    assert sorted(pages.write(KEPT, tmp_path)) == sorted(first)
    assert not pages.stale(KEPT, tmp_path)
    readme, extra = tmp_path / "README.md", tmp_path / pages.FIGURES / "old.svg"
    readme.write_text(re.sub(r"\*\*(\d)", r"**9\1", readme.read_text(), count=1))
    extra.write_text("<svg/>")
    assert pages.stale(KEPT, tmp_path) == ["README.md", f"{pages.FIGURES}/old.svg"]
    pages.write(KEPT, tmp_path)
    assert readme.read_text() == (pages.ROOT / "README.md").read_text() and not extra.exists()


def test_an_unknown_section_is_an_error():
    with pytest.raises(ValueError, match="no section is called 'cell'"):
        pages.renewed("<!-- figures: cell x -->\n<!-- figures: end -->", KEPT)


# Tables and pictures


def test_a_table_of_cells():
    first = kept_cell(fp32(), 20.0, {"torch_dense": 50.0, "torch_bsr": 40.0})
    second = kept_cell(fp32(density=0.5), 30.0, {"torch_dense": 15.0})
    text = tables.cells([run_of("gpu", first, second)], "gpu")
    assert "| 512² × 128 | 32 | 25% | **20.0** | torch BSR 40.0 | 2.00 | `wgmma` |" in text
    assert "2 products, ×: 1.00 in geometric mean warm (0.50 to 2.00)" in text
    assert "revision abc123" in text and "time was up" not in text
    cut = tables.cells([run_of("gpu", first, complete=False)], "gpu")
    assert "time was up" in cut and "1 of the suite's products" in cut
    lost = comparisons.losses([run_of("gpu", first, second)])
    assert "Of the 2 products whose figures are kept, 1 is slower" in lost
    assert "| dense 15.0 | 0.50 |" in lost
    assert tables.cells([], "gpu") == ""


def test_the_first_screen_leaves_out_what_is_not_measured():
    cell = Cell(8192, 8192, 8192, 128, 0.125, "bfloat16")
    text = first_screen.table([run_of("gpu_large_blocks", kept_cell(cell, 260.0, {"stk": 520.0}))])
    assert text.count("\n| ") == 2 and "**529** TFLOP/s; stk 264 | 2.00 |" in text
    assert "we lose" not in text and "(row 1)" in text
    lost = Cell(4096, 16, 4096, 1, 0.1, "bfloat16")
    both = [run_of("gpu_losses", kept_cell(lost, 20.0, {"torch_dense": 10.0}, "cold"))]
    assert "20.0 µs; dense **10.0** | 0.50 |" in first_screen.table(both)
    assert "we lose" in first_screen.table(both)
    assert first_screen.table([]) == first_screen.picture([]) == ""


def test_the_first_screen_has_every_gpu():
    """Two GPUs side by side, one of which lacks a row; what is not of `matmul` is not there."""
    large, lost = (
        Cell(8192, 8192, 8192, 128, 0.125, "bfloat16"),
        Cell(4096, 16, 4096, 1, 0.1, "bfloat16"),
    )
    runs = [
        run_of("gpu_losses", kept_cell(lost, 20.0, {"torch_dense": 10.0}, "cold")),
        h100_run("gpu_large_blocks", kept_cell(large, 520.0, {"stk": 1040.0})),
        h100_run("gpu_losses", kept_cell(lost, 20.0, {"torch_dense": 30.0}, "cold")),
    ]
    heads, _, first, last, _, notes, *_ = first_screen.table(runs).splitlines()
    assert heads.count("choice, best peer") == 2 and "×, H200" in heads and "×, H100" in heads
    assert first.endswith("| – | – | **264** TFLOP/s; stk 132 | 2.00 |")
    assert last.endswith("| 20.0 µs; dense **10.0** | 0.50 | **20.0** µs; dense 30.0 | 1.50 |")
    assert notes.startswith("NVIDIA H200, ") and "; NVIDIA H100 80GB HBM3, torch 2.11.0" in notes
    assert "(row 1)" in notes and "(row 2)" in notes
    assert "speedups_h200.svg)" in first_screen.picture(runs)
    assert "[H100](docs/figures/speedups_h100.svg)" in first_screen.picture(runs)


def test_every_page_has_every_gpu():
    """A second GPU's runs appear wherever the first one's do, without a change to the code."""
    first = [k for k in KEPT if k.folder != "h100"]
    twins = [results.Run("h100", k.kept | {"environment": H100}) for k in first if k.gpu]
    runs = [*first, *twins]
    pictures = pages.pictures(runs)
    assert {n.replace("h200", "h100") for n in pictures} <= pictures.keys()
    performance = (pages.ROOT / "docs/performance.md").read_text()
    both = pages.renewed(performance, runs)
    assert 0 < both.count("**NVIDIA H200**") == both.count("**NVIDIA H100 80GB HBM3**")
    shown = {(r["device"], r["suite"]) for r in dashboard.data(runs)}
    assert {("NVIDIA H100 80GB HBM3", twin.suite) for twin in twins} <= shown
    readme = pages.renewed((pages.ROOT / "README.md").read_text(), runs)
    assert readme.count("\n") <= 130
    rows = re.search(r"\| product.*?\n\n", readme, re.DOTALL)[0].strip().splitlines()[2:]
    assert 0 < len(rows) <= 8


def test_portable_code_is_not_the_choice():
    cell = kept_cell(fp32(), 50.0, {"triton_sm80": 20.0})
    runs = [run_of("gpu_portable", cell)]
    assert "| Triton, sm_80 20.0 | 0.40 |" in tables.cells(runs, "gpu_portable")
    assert "Of the 0 products" in comparisons.losses(runs) and not pages.pictures(runs)


def test_companions():
    cell = kept_cell(fp32(), 30.0, {})
    cell["rows"].append({"name": "uniform", "kind": "companion", "us": {"warm": [20.0]}})
    text = comparisons.companions([run_of("gpu_patterns", cell)], "gpu_patterns")
    assert "| `uniform`, warm | 1 | 1.50 | 1.50 | 1.50: 512² × 128 fp32" in text
    assert comparisons.companions([run_of("x", kept_cell(fp32(), 30.0, {}))], "x") == ""


def test_where_the_dense_product_is_as_fast():
    cells = [
        kept_cell(fp32(density=density), 800 * density, {"torch_dense": 200.0})
        for density in (0.0625, 0.125, 0.5)
    ]
    text = sweeps.density([run_of("gpu", *cells)])
    assert "as fast as dense at 25%" in text
    assert sweeps.density([run_of("gpu", *cells[:2])]) is None
    assert sweeps.columns([run_of("gpu", *cells)]) is None


def test_intensity_counts_what_has_to_move():
    (result,) = run_of("gpu", kept_cell(fp32(), 20.0, {})).results
    elements = 64 * 32 * 32 + 2 * 512 * 128
    flops = 2 * 64 * 32 * 32 * 128
    assert roofline.intensity(result) == flops / (4 * elements + 8 * (64 + 16 + 1))


def test_log_axis():
    axis = svg.LogAxis(0.1, 1000, 0, 400)
    assert axis(0.1) == 0 and axis(1000) == 400 and axis(10) == pytest.approx(200)
    assert axis.ticks() == pytest.approx([0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000])


# Runs that are kept


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small suite as a benchmark saves it."""
    path = tmp_path_factory.mktemp("saved") / "tiny.json"
    suite = Suite("cpu", [Cell(128, 32, 128, 16, 0.3)], 3, budget_s=0.05)
    record = environment.Record("tiny", "cpu", path)
    with environment.own_cache():
        found = run.measure_cells(suite.cells, suite, record, brief=True)
    record.save(complete=True, cells=[result.to_dict() for result in found])
    return path, found[0]


def test_what_is_kept_is_what_was_measured(saved, tmp_path):
    path, measured = saved
    target = keep.keep(path, "abc", tmp_path)
    (kept,) = results.read(tmp_path)
    assert target == tmp_path / kept.folder / "tiny.json"
    assert kept.kept["environment"]["revision"] == "abc" and kept.kept["environment"]["torch"]
    assert "settings" not in kept.kept["environment"]
    assert kept.kept["command"] == "python benchmarks/run.py --suite tiny"
    (read,) = kept.results
    assert (read.cell, read.chosen, read.nnzb) == (measured.cell, measured.chosen, measured.nnzb)
    assert read.nnz_flops == measured.nnz_flops
    for name in ("choice", "torch_dense", "cpu_tiled"):
        ours, theirs = (result.row(name).timings["wall"] for result in (read, measured))
        assert ours.median_us == pytest.approx(theirs.median_us, rel=1e-3)
        assert ours.rounds == theirs.rounds == 3
    assert read.ratios() == pytest.approx(measured.ratios(), rel=3e-3)


def test_history(saved, tmp_path):
    path, _ = saved
    target = keep.keep(path, "first", tmp_path)
    assert "history" not in json.loads(target.read_text())
    again = json.loads(path.read_text()) | {"started": "2030-01-01T00:00:00"}
    later = tmp_path / "later.json"
    later.write_text(json.dumps(again))
    for _ in range(2):  # the same run twice is one
        keep.keep(later, "second", tmp_path)
        (before,) = json.loads(target.read_text())["history"]
    assert before["revision"] == "first"
    (cell,) = json.loads(target.read_text())["cells"]
    assert list(before["us"]) == [json.dumps(cell["cell"], sort_keys=True)]
    (shown,) = dashboard.data([run for run in results.read(tmp_path) if run.suite == "tiny"])
    assert shown["history"] == [before] and shown["cells"][0]["key"] in before["us"]


def test_a_run_without_a_revision_is_refused(saved):
    nameless = json.loads(saved[0].read_text())
    nameless["environment"]["revision"] = None
    with pytest.raises(ValueError, match="suite tiny measured nothing"):
        keep.reduced(nameless | {"cells": []}, "abc")
    with pytest.raises(ValueError, match="suite tiny names no revision: give --revision"):
        keep.reduced(nameless)
    assert keep.reduced(nameless, "abc")["environment"]["revision"] == "abc"


def test_knobs_are_kept_beside_the_peer(saved, monkeypatch, tmp_path):
    monkeypatch.setattr(triton_tuned, "_STORE", tmp_path / "knobs.json")
    swept = tmp_path / "swept.json"
    knobs = {"NVIDIA X/cell": {"knobs": {"TILE": 64}}}
    swept.write_text(json.dumps(json.loads(saved[0].read_text()) | {"knobs": knobs}))
    assert "knobs" not in json.loads(keep.keep(swept, "abc", tmp_path).read_text())
    assert json.loads((tmp_path / "knobs.json").read_text()) == knobs


def test_families_that_fell_behind_are_not_kept(saved):
    changed = copy.deepcopy(json.loads(saved[0].read_text()))
    (cell,) = changed["cells"]
    choice = next(row for row in cell["rows"] if row["kind"] == "choice")
    for name, rounds in (("far_behind", 2), ("near", 3)):
        timings = {"wall": choice["timings"]["wall"] | {"rounds": rounds}}
        cell["rows"].append(choice | {"name": name, "kind": "family", "timings": timings})
    kept = {row["name"] for row in keep.reduced(changed)["cells"][0]["rows"]}
    assert "near" in kept and "far_behind" not in kept and "torch_dense" in kept


def test_rows_that_did_not_run(saved):
    changed = copy.deepcopy(json.loads(saved[0].read_text()))
    rows = changed["cells"][0]["rows"]
    rows += [
        {"name": name, "kind": kind, "status": "unsupported", "reason": "why", "error": None,
         "timings": {}, "method": "", "detail": ""}
        for name, kind in (("stk", "peer"), ("wgmma", "family"))
    ]  # fmt: skip
    kept = {row["name"]: row for row in keep.reduced(changed)["cells"][0]["rows"]}
    assert kept["stk"] == {"name": "stk", "kind": "peer", "status": "unsupported", "reason": "why"}
    assert "wgmma" not in kept


@pytest.mark.parametrize("save", [["--save", "/tmp/x.json"], ["--save=/tmp/x.json"], []])
def test_the_command_of_a_run(monkeypatch, save):
    monkeypatch.setattr(sys, "argv", ["run.py", "--suite", "cpu", *save, "--only", "block 64"])
    expected = "python benchmarks/run.py --suite cpu --only 'block 64'"
    assert environment.command("python benchmarks/run.py") == expected


# Several suites within a budget


def test_no_cell_begins_that_would_end_after_the_deadline(monkeypatch, tmp_path):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    cells = [fp32(density=d) for d in (0.1, 0.2, 0.3, 0.4, 0.5)]

    def measure(cell, suite):
        clock[0] += 4
        return Result(cell, "cpu", "wall", "", 1, 1.0, [])

    monkeypatch.setattr(comparison, "measure", measure)
    record = environment.Record("tiny", "cpu", tmp_path / "tiny.json")
    suite = Suite("cpu", cells, 3)
    found = run.measure_cells(cells, suite, record, brief=True, deadline=113.0)
    assert [result.seconds for result in found] == [4, 4, 4] and clock[0] == 112
    saved = json.loads((tmp_path / "tiny.json").read_text())
    assert not saved["complete"] and len(saved["cells"]) == 3
    assert run.measure_cells(cells, suite, record, brief=True, deadline=114.0) == []


def test_collected_suites_are_shorter():
    whole = Suite("cuda", [], 9, budget_s=1.0)
    short = collect.shortened(whole, 5)
    assert (short.rounds, short.budget_s, short.modes) == (5, 0.5, ("warm", "cold"))
    assert collect.shortened(Suite("cuda", [], 3, budget_s=0.2), 5).rounds == 3
    for name in {*collect.GPU, *collect.CPU} - {"training"}:
        assert (pages.ROOT / "benchmarks/suites" / f"{name}.py").is_file()


def test_an_unknown_suite_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["collect", "--out", "x", "--suites", "cpu,gpuu"])
    with pytest.raises(SystemExit):
        collect.main()
    assert "there is no suite 'gpuu'; there are attention_block, cpu, " in capsys.readouterr().err


def test_peers_that_a_collection_leaves_out():
    few, many = (Cell(64, n, 64, 16, 0.5, "bfloat16") for n in (512, 1024))
    assert collect._without(few, [few]) == ()
    assert collect._without(many, [few]) == ("triton_tuned", "triton_sm80")


def test_collect(monkeypatch, tmp_path, capsys):
    """A file for each suite; a suite that fails does not end the others."""
    from benchmarks.suites import cpu_short, llama

    tiny = Suite("cpu", [Cell(64, 8, 64, 16, 0.5)], 2, budget_s=0.02)
    monkeypatch.setattr(cpu_short, "SUITE", tiny)
    monkeypatch.setattr(llama, "run", lambda *_: 1 / 0)
    words = ["collect", "--out", str(tmp_path), "--suites", "llama,cpu_short", "--budget-s", "100"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(collect.torch.cuda, "is_available", lambda: False)
    assert collect.main() == 1
    printed = capsys.readouterr()
    assert "ZeroDivisionError" in printed.err and "FAILED: suite llama ended early" in printed.err
    saved = json.loads((tmp_path / "cpu_short.json").read_text())
    assert saved["complete"] and saved["cells"][0]["seconds"] > 0
    assert saved["command"] == "python -m benchmarks.collect --suites cpu_short"
    assert not (tmp_path / "llama.json").exists()

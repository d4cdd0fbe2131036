"""`benchmark` and its report: each variant once, figures that agree with each other, all forms."""

import dataclasses
import json
import re
import sys

import numpy as np
import pytest
import torch
from machine import built

import sparse_autotune
from sparse_autotune import (
    BenchmarkReport,
    VariantRecord,
    _tuner,
    benchmark,
    cache,
    random_bsr,
    settings,
    tuning_count,
    variants,
)
from sparse_autotune.tuning.report import report_of, significant

M, K, N, BLOCK = 96, 64, 40, (16, 8)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(settings, "budget_s", 1.0)


def problem(device="cpu", dtype=torch.float32):
    a = random_bsr(M, K, BLOCK, density=0.5, device=device, dtype=dtype)
    return a, torch.randn(K, N, device=device).to(dtype)


# A race as the core tells it, with every outcome: 2e9 FLOP, 8e9 dense, 1e6 bytes, on a device of
# 50 TFLOP/s and 20 GB/s.
RACE = """sparse_autotune_race 4
signature matmul_test
device_class Some_GPU
device Some <GPU> & more
problem 1x2x3 bs4 density 0.5 bf16
winner fast/small
failure\x20
timing cold
when 2026-01-31T12:34:56Z
seconds 0.25
nnz_flops 2e+09
dense_flops 8e+09
bytes 1e+06
peak_tflops 50
peak_gbps 20
entrant fast/big\tok\t42\t99\t1.5\t9\t0.25\t2097152\t0\tcaptured\t
entrant fast/small\tok\t42\t100\t2\t9\t0.5\t1024\t0\tcaptured\t
entrant dense/mm\teliminated\t42\t400\t9\t3\t0.1\t0\t0\tcaptured\tfar behind after 3 rounds
entrant fast/other\twrong_result\t42\t0\t0\t0\t7.5\t0\t0\tcaptured\t3 of 4 elements are wrong
entrant huge/x\tout_of_memory\t42\t0\t0\t0\t0\t0\t0\tcaptured\tit needs 5 bytes
entrant huge/y\tout_of_memory\t42\t0\t0\t0\t0\t0\t0\tcaptured\tit needs 6 bytes
entrant slow/x\tskipped\t42\t0\t0\t0\t0\t0\t0\tcaptured\ttoo slow
end 7
"""
UNSUPPORTED = {"picky/a": "blocks are <1>", "picky/b": "blocks are <2>"}


@pytest.fixture
def report():
    return report_of(_tuner.parse_record(RACE), "cuda", UNSUPPORTED, "cold")


# benchmark


def test_every_variant_of_the_device_has_one_record():
    a, b = problem()
    report = benchmark(a, b)
    assert sorted(r.name for r in report.records) == sorted(built("cpu"))
    assert {r.name for r in report.records if r.status == "ok"} == set(variants(a, b))
    for r in report.records:
        assert r.family == r.name.split("/")[0]
        assert (r.reason == "") == (r.status == "ok"), r


def test_unsupported_variants_say_why():
    """A block that MKL does not take."""
    a, b = problem()
    (aten,) = [r for r in benchmark(a, b).records if r.family == "aten_bsr"]
    assert aten.status == "unsupported"
    assert "square" in aten.reason
    assert aten.median_us is aten.tflops is aten.error is None
    assert f"unsupported: {aten.reason}" in str(benchmark(a, b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_figures(device, dtype):
    a, b = problem(device, dtype)
    report = benchmark(a, b, num_runs=5)
    assert report.best is not None
    assert report.best.status == "ok"
    timed = [r for r in report.records if r.median_us is not None]
    assert {r.name for r in timed} == {r.name for r in report.records if r.status == "ok"}
    assert [r.median_us for r in timed] == sorted(r.median_us for r in timed)
    # What a CUDA graph takes: calls that the host launches may have a winner of their own.
    (in_graphs,) = [r for r in timed if r.name == (report.captured_winner or report.winner)]
    assert in_graphs.median_us <= 1.021 * timed[0].median_us
    nnz, dense = 2 * a.nnzb * BLOCK[0] * BLOCK[1] * N, 2 * M * K * N
    item = torch.finfo(dtype).bits // 8
    stored = a.values.numel() * item + a.col_indices.numel() * 8
    for r in timed:
        assert r.samples == 5
        assert r.spread_us >= 0
        assert r.tflops == pytest.approx(nnz / r.median_us / 1e6)
        assert r.dense_tflops == pytest.approx(dense / r.median_us / 1e6)
        least, most = stored + M * N * item, stored + (M + 1) * 8 + (K + M) * N * item
        assert least <= r.gbps * r.median_us * 1e3 <= most
        assert 0 <= r.error <= 1
        assert r.peak_share == pytest.approx(r.tflops / report.peak_tflops)
        assert r.memory_share == pytest.approx(r.gbps / report.peak_gbps)


def test_only_those_asked_for():
    a, b = problem()
    names = variants(a, b)
    dense = next(name for name in names if name.startswith("dense/"))
    family = benchmark(a, b, variants="dense").records
    assert {r.name for r in family if r.status == "ok"} == {dense}
    assert {r.family for r in family} == {"dense"}
    assert {r.name for r in benchmark(a, b, variants=dense).records} == {dense}
    both = benchmark(a, b, variants=("dense", dense, "reference"))
    assert sorted(r.family for r in both.records if r.status == "ok") == ["dense", "reference"]
    everything = benchmark(a, b, variants=(name for name in names))
    assert {r.name for r in everything.records} == set(names)


def test_an_illegal_one_among_legal_ones_is_reported():
    report = benchmark(*problem(), variants=["aten_bsr", "reference"])
    assert [(r.family, r.status) for r in report.records] == [
        ("reference", "ok"),
        ("aten_bsr", "unsupported"),
    ]


@pytest.mark.parametrize("timing", ["cold", "warm"])
def test_the_timing_is_that_of_the_settings(timing, device):
    """And where the launches found the caches otherwise, as on every CPU, it says so, too."""
    a, b = problem(device)
    with settings.override(timing=timing):
        report = benchmark(a, b, variants=variants(a, b)[:1], num_runs=1)
        idle = benchmark(random_bsr(M, K, BLOCK, density=0, device=device), b)
        with settings.override(tuning_bytes=1000):
            failed = benchmark(a, b)
    measured = "warm" if device == "cpu" else timing
    assert (report.timing, report.measured) == (timing, measured)
    shown = timing if measured == timing else f"{timing} (measured {measured})"
    for text in (str(report).splitlines()[0], report._repr_html_()):
        assert f", {shown}, " in text
    for report in (idle, failed):
        assert (report.timing, report.measured) == (timing, "")
        assert f", {timing}, " in str(report)


def test_linear_bias_and_activation():
    a, b = problem()
    report = benchmark(a, b, bias=torch.randn(M), activation="gelu", variants="reference")
    assert "_bias_gelu_" in report.signature
    x = torch.randn(5, K)
    report = benchmark(a, x, linear=True, bias=torch.randn(M), variants="reference")
    assert "_transposed_" in report.signature or "_bC" in report.signature
    assert report.records[0].status == "ok"


def test_the_budget_bounds_it():
    """Whose expected time exceeds the budget is skipped, unless a number of runs is asked for."""
    a = random_bsr(512, 512, 32, density=0.5)
    b = torch.randn(512, 64)
    names = ["dense/mm", "reference"]
    status = {r.family: r.status for r in benchmark(a, b, variants=names, budget_s=0.005).records}
    assert status == {"dense": "ok", "reference": "skipped"}
    (reference,) = benchmark(a, b, variants="reference", budget_s=0.005).records
    assert reference.status == "ok"
    report = benchmark(a, b, variants=names, budget_s=0.005, num_runs=1)
    assert {r.status for r in report.records} == {"ok"}


def test_it_remembers_nothing_and_says_nothing(fresh_cache, caplog, monkeypatch):
    monkeypatch.setattr(settings, "verbosity", 1)
    before = tuning_count(), len(_tuner.known())
    with caplog.at_level("INFO"):
        benchmark(*problem())
    assert (tuning_count(), len(_tuner.known())) == before
    assert cache.entries() == []
    assert not fresh_cache.exists()
    assert caplog.messages == []


def test_operands_are_not_used_and_not_changed():
    """Neither NaN nor zeros decide who is right."""
    a, b = problem()
    a.values.fill_(float("nan"))
    b.fill_(float("inf"))
    report = benchmark(a, b)
    assert {r.status for r in report.records} <= {"ok", "unsupported"}
    assert a.values.isnan().all()
    assert b.isinf().all()


def test_inputs_that_require_grad():
    a, b = problem()
    a.values.requires_grad_()
    assert benchmark(a, b.requires_grad_(), variants="reference").best is not None


def test_numbers_of_numpy():
    report = benchmark(
        *problem(), variants="reference", num_runs=np.int64(2), budget_s=np.float32(1)
    )
    assert report.best.samples == 2


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"variants": "fastest"}, ValueError, "variants must be one of .*reference.*'fastest'"),
        ({"variants": ["reference", "referenc"]}, ValueError, "did you mean 'reference'"),
        (
            {"variants": "sampled_reference"},
            ValueError,
            "variants 'sampled_reference' is not legal .* computes sampled_matmul, not matmul",
        ),
        ({"variants": "aten_bsr"}, ValueError, "variants: none .* legal .*aten_bsr/.*square"),
        ({"variants": []}, ValueError, "variants must name one at least"),
        *(({"num_runs": n}, ValueError, f"num_runs .*- 1; got {n}") for n in (0, 2.5, True, 2**31)),
        *(
            ({"budget_s": bad}, ValueError, f"budget_s .*finite .*got {bad!r}")
            for bad in (0, float("nan"), float("inf"), True, "long")
        ),
        ({"variants": 3}, TypeError, "variants must be names, got builtins.int"),
        ({"bias": torch.ones(3)}, ValueError, r"bias .*\(3,\)"),
        ({"activation": "tanh"}, ValueError, "activation .*'tanh'"),
    ],
)
def test_bad_arguments(keywords, error, words):
    with pytest.raises(error, match=words):
        benchmark(*problem(), **keywords)


def test_bad_operands():
    a, b = problem()
    with pytest.raises(ValueError, match="b"):
        benchmark(a, b[1:])
    with pytest.raises(TypeError, match="dtype"):
        benchmark(a, b.double())
    with pytest.raises(TypeError, match="a must be"):
        benchmark(b, b)
    for ask in (benchmark, sparse_autotune.tune, variants):
        with pytest.raises(RuntimeError, match=r"^variants run on the CPU .*, but b is on meta$"):
            ask(a.to("meta"), b.to("meta"))


def test_nothing_to_race():
    empty = random_bsr(M, K, BLOCK, density=0)
    for a, b in ((empty, problem()[1]), (problem()[0], torch.empty(K, 0))):
        report = benchmark(a, b)
        assert report.best is None
        assert report.device == benchmark(*problem(), num_runs=1, variants="reference").device
        assert "nothing to race" in str(report)
        assert {r.status for r in report.records} <= {"skipped", "unsupported"}
        assert "skipped" in {r.status for r in report.records}


# The report


def test_statuses(report):
    assert [(r.name, r.status, r.reason) for r in report.records] == [
        ("fast/big", "ok", ""),
        ("fast/small", "ok", ""),
        ("dense/mm", "eliminated", "far behind after 3 rounds"),
        ("fast/other", "failed", "wrong result: 3 of 4 elements are wrong"),
        ("huge/x", "failed", "out of memory: it needs 5 bytes"),
        ("huge/y", "failed", "out of memory: it needs 6 bytes"),
        ("slow/x", "skipped", "too slow"),
        ("picky/a", "unsupported", "blocks are <1>"),
        ("picky/b", "unsupported", "blocks are <2>"),
    ]
    best = report.best
    assert best.name == "fast/small"
    assert (best.tflops, best.dense_tflops, best.gbps) == (20.0, 80.0, 10.0)
    assert (best.peak_share, best.memory_share) == (0.4, 0.5)
    assert (best.median_us, best.spread_us, best.error, best.memory_bytes) == (100, 2, 0.5, 1024)
    wrong = report.records[3]
    assert (wrong.error, wrong.median_us, wrong.tflops) == (7.5, None, None)


def test_table(report):
    """A line per family, its best or the winner; with `configs`, one per variant."""
    title, head, *lines = str(report).splitlines()
    assert title == (
        "1x2x3 bs4 density 0.5 bf16 on Some <GPU> & more (limits 50 TFLOP/s, 20 GB/s), "
        "cold, 2026-01-31T12:34:56Z"
    )
    assert re.split(r"  +", head) == [
        *("variant", "median µs", "± µs", "TFLOP/s (nnz)", "of peak", "(dense-eq.)"),
        *("GB/s", "of memory", "error", "MiB", "status"),
    ]
    status = [
        "ok; 1 of 3 failed, fast/other: wrong result: 3 of 4 elements are wrong",
        "eliminated: far behind after 3 rounds",
        "failed: out of memory: it needs 5 bytes",
        "skipped: too slow",
        "unsupported: blocks are <1>",
    ]
    assert [re.split(r"  +", line) for line in lines] == [
        ["fast/small *", "100", "2", "20", "40%", "80", "10", "50%", "0.5", "0.00098", status[0]],
        ["dense/mm", "400", "9", "5", "10%", "20", "2.5", "12%", "0.1", status[1]],
        ["huge", status[2]],
        ["slow/x", status[3]],
        ["picky", status[4]],
    ]
    assert {line.index(text) for line, text in zip(lines, status, strict=True)} == {
        head.index("status")
    }
    assert report.table() == str(report) == repr(report)
    everything = report.table(configs=True).splitlines()[2:]
    assert [line.split()[0] for line in everything] == [r.name for r in report.records]


def test_a_cpu_limit_is_called_rough():
    report = report_of(_tuner.parse_record(RACE), "cpu", {}, "cold")
    assert " ~40% " in str(report) and " ~50% " in str(report)
    assert "(limits ~50 TFLOP/s, ~20 GB/s)" in str(report)


def test_unknown_limits_have_no_shares():
    text = RACE.replace("peak_tflops 50", "peak_tflops 0").replace("peak_gbps 20", "peak_gbps 0")
    report = report_of(_tuner.parse_record(text), "cuda", {}, "cold")
    assert {(r.peak_share, r.memory_share) for r in report.records} == {(None, None)}
    assert "limits" not in str(report)


def test_without_a_winner():
    text = RACE.replace("winner fast/small", "winner ").replace("failure ", "failure no memory")
    report = report_of(_tuner.parse_record(text), "cuda", {}, "cold")
    assert report.best is None
    assert report.table().splitlines()[0].endswith(", no memory")
    assert "*" not in report.table()


def test_html(report):
    page = report._repr_html_()
    assert "Some &lt;GPU&gt; &amp; more" in page
    assert "blocks are &lt;1&gt;" in page
    assert "<GPU>" not in page
    assert page.count("<tr>") == 1 + 5
    assert page.count("<th ") == page.count("<td ") / 5 == 11
    for tag in ("table", "caption", "thead", "tbody", "tr"):
        assert page.count(f"<{tag}>") == page.count(f"</{tag}>")


@pytest.mark.parametrize("width", [200, 100, 80])
def test_rich(report, width):
    """In a narrow terminal names and reasons wrap, figures never, and nothing is cut off."""
    console = pytest.importorskip("rich.console")
    with open("/dev/null", "w") as nowhere:
        terminal = console.Console(file=nowhere, record=True, width=width)
        terminal.print(report)
    shown = terminal.export_text()
    assert all(len(line) <= width for line in shown.splitlines())
    for name, *figures, status in report._rows(configs=False):
        assert all(figure in shown for figure in figures)
        assert width < 200 or (name in shown and status in shown)
        assert width < 100 or all(word in shown for word in status.split())
    assert "…" not in shown


def test_dict_and_json(report, tmp_path):
    content = report.to_dict()
    assert (
        BenchmarkReport(**{**content, "records": [VariantRecord(**r) for r in content["records"]]})
        == report
    )
    assert set(content["records"][0]) == {f.name for f in dataclasses.fields(VariantRecord)}
    report.save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == content
    report.save(str(tmp_path / "again.json"))
    measured = benchmark(*problem())
    measured.save(tmp_path / "measured.json")
    assert json.loads((tmp_path / "measured.json").read_text()) == measured.to_dict()
    with pytest.raises(FileNotFoundError):
        report.save(tmp_path / "missing" / "report.json")


def test_pandas(report):
    pytest.importorskip("pandas")
    frame = report.to_pandas()
    assert list(frame["name"]) == [r.name for r in report.records]
    assert list(frame.columns) == [f.name for f in dataclasses.fields(VariantRecord)]
    assert frame["median_us"].min() == 99
    assert frame.attrs == {k: v for k, v in report.to_dict().items() if k != "records"}


def test_plot(report, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    ax = report.plot()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["dense/mm", "fast/small"]
    assert [bar.get_width() for bar in ax.patches] == [5.0, 20.0]
    assert "nnz" in ax.get_xlabel() and ", cold" in ax.get_title()
    assert [text.get_text() for text in ax.texts] == [
        "10% of peak\n12% of memory",
        "40% of peak\n50% of memory",
    ]
    _, mine = pyplot.subplots()
    assert report.plot(mine, configs=True) is mine
    assert len(mine.patches) == 3
    pyplot.close("all")


@pytest.mark.parametrize("missing", ["pandas", "matplotlib"])
def test_a_missing_extra_is_named(report, missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=missing):
        (report.to_pandas if missing == "pandas" else report.plot)()


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        *((1549.4, 4, "1549"), (15494.0, 4, "15494"), (9999.7, 4, "10000"), (26.497, 4, "26.5")),
        *((0.000123456, 3, "0.000123"), (999.6, 3, "1000"), (1234567.8, 3, "1234568"), (0, 3, "0")),
    ],
)
def test_significant(value, digits, text):
    assert significant(value, digits) == text


def test_reports_are_public():
    assert isinstance(benchmark(*problem(), variants="reference"), sparse_autotune.BenchmarkReport)

"""Asking the tuner (`variants`, `tune`, `tuning_count`), and what it says while it races."""

import io
import logging
import re
import sys
import threading
import types

import pytest
import torch
from interpreters import run_python

import sparse_autotune
from sparse_autotune import (
    _tuner,
    announcements,
    cache,
    linear,
    matmul,
    random_bsr,
    settings,
    tune,
    tuning_count,
    variants,
)

M, K, N, BLOCK = 64, 48, 24, 16
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
# The lines of the issue that defines them.
FAMILY = re.compile(r"  (\w+) +([\d.]+) µs +([\d.]+(?:e-\d+)?) TFLOP/s \(nnz\)(; .*)?")
WINNER = re.compile(r"  winner: (\S+)( \(dense wins: [^)]*\))?, saved to (\S.*\.txt)")


@pytest.fixture(autouse=True)
def _quick(fresh_cache, monkeypatch):
    monkeypatch.setattr(settings, "budget_s", 0.02)


@pytest.fixture
def told(monkeypatch, caplog):
    """Log messages at verbosity 1."""
    monkeypatch.setattr(settings, "verbosity", 1)
    with caplog.at_level("INFO", "sparse_autotune"):
        yield caplog.messages


def problem(device="cpu", dtype=torch.float32, n=N):
    a = random_bsr(M, K, BLOCK, density=0.5, device=device, dtype=dtype)
    return a, torch.randn(K, n, device=device).to(dtype)


# variants


def test_variants_of_the_build():
    names = variants()
    assert names == sorted(names) == [v["name"] for v in _tuner.variants()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9_]+/[a-z0-9_]+", name) for name in names)
    assert {"reference", "dense", "aten_bsr", "cpu_tiled"} <= {n.split("/")[0] for n in names}


@pytest.mark.parametrize("device", DEVICES)
def test_variants_of_a_product_run(device):
    """Exactly those that are listed can be forced."""
    a, b = problem(device)
    legal = variants(a, b)
    assert set(legal) <= {v["name"] for v in _tuner.variants() if v["device"] == device}
    expected = a.to_dense().double() @ b.double()
    for name in variants():
        if name in legal:
            assert (matmul(a, b, variant=name) - expected).abs().max() < 1e-3, name
        else:
            with pytest.raises(ValueError, match="not legal"):
                matmul(a, b, variant=name)


def test_variants_depend_on_the_keywords():
    a, b = problem()
    with torch.no_grad(), settings.override(exact_nonfinite=True):
        assert set(variants(a, b)) < set(variants())
    assert variants(a, torch.randn(5, K), linear=True)
    with pytest.raises(ValueError, match="bias"):
        variants(a, b, bias=torch.ones(3))
    with pytest.raises(ValueError, match="activation"):
        variants(a, b, activation="tanh")
    with pytest.raises(TypeError, match="both a and b"):
        variants(a)


# tune


@pytest.mark.parametrize("device", DEVICES)
def test_tune_races_always_and_replaces_the_entry(device):
    a, b = problem(device)
    for times in (1, 2):
        before = tuning_count()
        report = tune(a, b)
        assert tuning_count() == before + 1
        (entry,) = cache.entries()
        assert (entry.signature, entry.winner) == (report.signature, report.winner), times
        assert entry.median_us == report.best.median_us
    before = tuning_count()
    assert torch.equal(matmul(a, b), matmul(a, b, variant=report.winner))
    assert tuning_count() == before


@pytest.mark.parametrize("mode", ["off", "readonly", "record"])
def test_tune_races_in_every_mode(mode):
    with settings.override(mode=mode):
        before = tuning_count()
        tune(*problem())
        assert tuning_count() == before + 1
        assert len(cache.entries()) == 1


def test_a_new_race_decides_at_once():
    """Also for a matrix whose plan has remembered the older winner."""
    a, b = problem()
    matmul(a, b)
    (entry,) = cache.entries()
    bundle = entry.path.with_suffix(".bundle")
    other = next(name for name in variants(a, b) if name.startswith("reference/"))
    text = re.sub(r"^winner .*$", f"winner {other}", entry.path.read_text(), flags=re.MULTILINE)
    text = re.sub(rf"^(entrant {other}\t)\w+", r"\1ok", text, flags=re.MULTILINE)
    bundle.write_text(text)
    cache.load(bundle)
    expected = matmul(a, b, variant=other)
    assert torch.equal(matmul(a, b), expected)
    winner = tune(a, b).winner
    assert winner != other, "the reference is the fastest here: this shows nothing"
    assert torch.equal(matmul(a, b), matmul(a, b, variant=winner))
    assert not torch.equal(matmul(a, b), expected)


def test_tune_with_the_keywords_of_matmul():
    """Each changes the kind of problem: the product that follows does not race."""
    a, b = problem()
    bias = torch.randn(M)
    for keywords in ({}, {"bias": bias}, {"activation": "gelu"}):
        tune(a, b, **keywords)
    assert len(cache.entries()) == 3
    before = tuning_count()
    for keywords in ({}, {"bias": bias}, {"activation": "gelu"}):
        matmul(a, b, **keywords)
    x = torch.randn(3, 5, K)
    tune(a, x, linear=True, bias=bias)
    assert tuning_count() == before + 1
    linear(x, a, bias)
    matmul(a.to_torch(), b)
    assert tuning_count() == before + 1


def test_tune_one_family_leaves_the_entry():
    a, b = problem()
    tune(a, b)
    before = cache.entries()[0].path.read_text()
    for variant in ("reference", "reference/fp64"):
        report = tune(a, b, variant=variant)
        assert [r.name for r in report.records] == ["reference/fp64"]
    assert [entry.path.read_text() for entry in cache.entries()] == [before]


def test_tune_does_not_touch_the_operands():
    a, b = problem()
    b.fill_(float("nan"))
    before = a.values.clone()
    assert tune(a, b).best is not None
    assert torch.equal(a.values, before)
    assert b.isnan().all()


def test_tune_refuses_what_matmul_refuses():
    a, b = problem()
    with pytest.raises(ValueError, match="variant must be one of .*'fastest'"):
        tune(a, b, variant="fastest")
    with pytest.raises(ValueError, match="variant must be one of"):
        tune(a, b, variant="simt")
    with pytest.raises(ValueError, match="b"):
        tune(a, b[1:])
    with pytest.raises(TypeError, match="dtype"):
        tune(a, b.double())


def test_empty_products_tune_nothing():
    before = tuning_count()
    empty = random_bsr(M, K, BLOCK, density=0)
    report = tune(empty, problem()[1])
    assert report.best is None
    assert "nothing to race" in report.failure
    tune(problem()[0], torch.empty(K, 0))
    matmul(empty, problem()[1])
    assert tuning_count() == before
    assert cache.entries() == []


# What it says


@pytest.mark.parametrize("device", DEVICES)
def test_lines(device, told):
    a, b = problem(device)
    matmul(a, b)
    first, *families, last = told
    assert first == (
        f"sparse_autotune: tuning {M}x{K}x{N} bs{BLOCK} density 0.5 f32 "
        f"on {_tuner.device_info(-1 if device == 'cpu' else 0)['name']}"
    )
    (entry,) = cache.entries()
    record = _tuner.parse_record(entry.path.read_text())
    timed = {}
    for entrant in record["entrants"]:
        timed.setdefault(entrant["name"].split("/")[0], entrant["median_us"])
    assert len(families) == len(timed)
    for line in families:
        family, us, rate, _ = FAMILY.fullmatch(line).groups()
        assert float(us) == pytest.approx(timed[family], rel=1e-3)
        flops = 2 * a.nnzb * BLOCK * BLOCK * N
        assert float(rate) == pytest.approx(flops / timed[family] / 1e6, rel=1e-2)
    winner, _, file = WINNER.fullmatch(last).groups()
    assert (winner, file) == (entry.winner, str(entry.path))
    told.clear()
    matmul(a, b)
    assert told == []


def record(*entrants, winner):
    names = ("name", "status", "median_us", "reason")
    keys = [dict(zip(names, (*entrant, "")[:4], strict=True)) for entrant in entrants]
    return {"nnz_flops": 2e9, "winner": winner, "failure": "", "entrants": keys}


def test_lines_of_a_race():
    """As the issue has them; a variant that failed is told even where its family did well."""
    race = record(
        ("mma_sm80/a", "ok", 50.0),
        ("mma_sm80/b", "ok", 51.0),
        ("cusparse_bsr/alg1", "eliminated", 1549.2, "far behind"),
        ("simt/x", "eliminated", 15490.0, "far behind"),
        ("mma_sm80/c", "wrong_result", 0.0, "9 elements differ"),
        ("cublas_dense/mm", "skipped", 0.0, "too slow"),
        ("cusparse_blocked_ell/alg1", "out_of_memory", 0.0, "it needs 3 bytes"),
        winner="mma_sm80/a",
    )
    assert announcements.race_lines(race, "saved to /x.txt") == [
        "  mma_sm80                   50 µs     40 TFLOP/s (nnz); "
        "1 of 3 failed, mma_sm80/c: wrong result: 9 elements differ",
        "  cusparse_bsr             1549 µs   1.29 TFLOP/s (nnz)",
        "  simt                    15490 µs  0.129 TFLOP/s (nnz)",
        "  cublas_dense         skipped: too slow",
        "  cusparse_blocked_ell cusparse_blocked_ell/alg1: out of memory: it needs 3 bytes",
        "  winner: mma_sm80/a, saved to /x.txt",
    ]


def test_where_dense_wins_the_line_says_so_with_both_times():
    race = record(
        *(("dense/mm", "ok", 98.74), ("simt/x", "ok", 158.21), ("simt/y", "ok", 160.0)),
        winner="dense/mm",
    )
    assert announcements.race_lines(race, None)[-1] == (
        "  winner: dense/mm (dense wins: 98.74 µs, the best sparse variant, simt/x, 158.2 µs)"
    )
    alone = announcements.race_lines(record(("dense/mm", "ok", 98.74), winner="dense/mm"), None)
    assert alone[-1] == "  winner: dense/mm (dense wins: 98.74 µs)"


def test_without_a_winner():
    race = record(("simt/x", "launch_failed", 0.0, "invalid argument"), winner="")
    assert announcements.race_lines(race, None) == [
        "  simt                 simt/x: launch failed: invalid argument",
        "  no winner: every variant failed",
    ]
    race["failure"] = "out of memory"
    assert announcements.race_lines(race, None)[-1] == "  no winner: out of memory"


def test_verbosity_0_is_silent(caplog, capfd, monkeypatch):
    monkeypatch.setattr(settings, "verbosity", 0)
    with caplog.at_level("INFO"):
        tune(*problem())
    assert caplog.messages == []
    assert "".join(capfd.readouterr()) == ""


def test_an_unwritable_cache_is_told(told, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(settings, "cache_dir", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(cache, "_warned", {})
    with pytest.warns(RuntimeWarning):
        matmul(*problem())
    assert told[-1].endswith(", kept in memory only")


CALL = """
import logging, sys, torch, sparse_autotune
exec(sys.argv[1])
a = sparse_autotune.random_bsr(64, 48, 16, density=0.5)
for n in (24, 24, 100):
    sparse_autotune.matmul(a, torch.randn(48, n))
print(open(sys.argv[2]).read())
"""


@pytest.mark.parametrize(
    ("setup", "verbose", "expected"),
    [
        ("", "1", r"(sparse_autotune: tuning \S+ bs16.*\n(  .*\n)+  winner: .*\n){2}"),
        ("", "0", ""),
        # Through the root logger once somebody has set it up, and not twice.
        (
            "logging.basicConfig(format='root %(message)s', level='WARNING')",
            "1",
            r"(root .*\n)+",
        ),
        ("logging.getLogger('sparse_autotune').setLevel('WARNING')", "1", ""),
    ],
    ids=["as it comes", "silent", "with a root logger", "by level"],
)
def test_stderr(setup, verbose, expected, tmp_path):
    """What a terminal shows, in a process where nothing else configures logging."""
    redirect = "sys.stderr = open(sys.argv[2], 'w', encoding='utf-8', buffering=1)\n"
    shown = run_python(
        *(CALL, tmp_path / "cache", redirect + setup, tmp_path / "stderr"),
        verbose=verbose,
        budget_s="0.02",
    )
    assert re.fullmatch(expected + r"\n", shown), shown


# The progress bar


class Bar:
    """Stands in for tqdm."""

    all = []  # noqa: RUF012

    def __init__(self, total, **_):
        self.total, self.n, self.names, self.closed = total, 0, [], False
        Bar.all.append(self)

    def set_postfix_str(self, name, refresh):
        self.names.append(name)

    def update(self, step):
        assert step >= 0
        self.n += step

    def close(self):
        self.closed = True


@pytest.fixture
def bars(monkeypatch):
    module = types.ModuleType("tqdm.auto")
    module.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    monkeypatch.setattr(Bar, "all", [])
    monkeypatch.setattr(announcements, "_SECONDS_BEFORE_BAR", 0.0)
    return Bar.all


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_long_tuning_shows_a_bar_in_a_terminal(bars, told, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    a, b = problem()
    tune(a, b)
    (bar,) = bars
    assert bar.closed
    assert bar.total == 100
    assert 0 < bar.n <= 100
    assert set(bar.names) == set(variants(a, b))
    sparse_autotune.benchmark(a, b)
    assert len(bars) == 2
    assert bars[1].closed


@pytest.mark.parametrize("why", ["no terminal", "silent", "short"])
def test_no_bar_otherwise(why, bars, told, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO() if why == "no terminal" else Terminal())
    monkeypatch.setattr(settings, "verbosity", 0 if why == "silent" else 1)
    if why == "short":
        monkeypatch.setattr(announcements, "_SECONDS_BEFORE_BAR", 60.0)
    tune(*problem())
    assert bars == []


def test_without_tqdm_there_is_no_bar(bars, told, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert tune(*problem()).best is not None
    assert bars == []


def test_races_of_other_threads_are_not_silenced(told):
    """`benchmark` is quiet about its own race alone."""
    done = threading.Event()

    def elsewhere():
        tune(*problem(n=40))
        done.set()

    with announcements.silenced():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(60)
        here = len(told)
        tune(*problem())
        assert len(told) == here
    assert done.is_set()
    assert here > 0
    assert logging.getLogger("sparse_autotune").handlers

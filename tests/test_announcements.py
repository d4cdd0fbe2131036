"""What a race tells its user: log lines and a progress bar."""

import io
import logging
import re
import sys
import threading
import time
import types
import warnings

import pytest
import torch
from interpreters import run_python

import sparse_autotune
from sparse_autotune import (
    _tuner,
    cache,
    matmul,
    random_bsr,
    settings,
    tune,
    variants,
)
from sparse_autotune.tuning import announcements

M, K, N, BLOCK = 64, 48, 24, 16
# The lines of a family and of the winner.
FAMILY = re.compile(r"  (\w+) +([\d.]+) µs +([\d.]+(?:e-\d+)?) TFLOP/s \(nnz\)(; .*)?")
WINNER = re.compile(r"  winner: (\S+)( \(dense wins: [^)]*\))?, saved to (\S.*\.txt)")


@pytest.fixture(autouse=True)
def _quick(fresh_cache, monkeypatch):
    monkeypatch.setattr(settings, "budget_s", 1.0)


class Listener(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.fixture
def told(monkeypatch):
    """Log messages at verbosity 1."""
    monkeypatch.setattr(settings, "verbosity", 1)
    listener = Listener()
    announcements.logger.addHandler(listener)
    yield listener.messages
    announcements.logger.removeHandler(listener)


def problem(device="cpu", dtype=torch.float32, n=N):
    a = random_bsr(M, K, BLOCK, density=0.5, device=device, dtype=dtype)
    return a, torch.randn(K, n, device=device).to(dtype)


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


# Each case in a process of its own, forked where torch is already there.
CALLS = """
import logging, os, sys, torch, sparse_autotune
torch.set_num_threads(1)
setups = sys.argv[1:]
for setup in setups:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        sys.stderr = os.fdopen(write, "w", encoding="utf-8", buffering=1)
        exec(setup)
        sparse_autotune.settings.cache_dir += f"/{os.getpid()}"
        a = sparse_autotune.random_bsr(64, 48, 16, density=0.5)
        for n in (24, 24, 100):
            sparse_autotune.matmul(a, torch.randn(48, n))
        os._exit(0)
    os.close(write)
    print(os.fdopen(read, encoding="utf-8").read(), end="=")
    assert os.waitpid(child, 0)[1] == 0
"""
TWO_RACES = r"(sparse_autotune: tuning \S+ bs16.*\n(  \w.*\n)+  winner: .*\n){2}"
CASES = {
    "": TWO_RACES,
    "sparse_autotune.settings.verbosity = 0": "",
    # Through the root logger where somebody has set it up, and not twice.
    "logging.basicConfig(format='root:%(message)s', level='WARNING')": r"(root:.*\n)+",
    "logging.getLogger('sparse_autotune').setLevel('WARNING')": "",
    "sparse_autotune.settings.mode = 'off'": "",
}


def test_stderr(tmp_path):
    """What a terminal shows where nothing else configures logging, and where something does."""
    shown = run_python(CALLS, tmp_path / "cache", *CASES, verbose="1", budget_s="0.02")
    *texts, end = shown.split("=")
    assert end == ""
    for (setup, expected), text in zip(CASES.items(), texts, strict=True):
        assert re.fullmatch(expected, text), f"{setup}: {text}"


# The progress bar


class Bar:
    """Stands in for tqdm."""

    all = []  # noqa: RUF012

    def __init__(self, total, **_):
        self.total, self.n, self.names, self.closed = total, 0, [], False
        Bar.all.append(self)

    def set_description_str(self, name, refresh):
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


def test_the_bar_moves_on(told, monkeypatch):
    """That of tqdm itself, however large its first step was."""
    pytest.importorskip("tqdm")
    monkeypatch.setattr(announcements, "_SECONDS_BEFORE_BAR", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    announcements.report({"kind": "start", "description": "a product", "device": "a device"})
    for fraction in (0.0, 0.56, 0.7, 0.9):
        announcements.report({"kind": "progress", "fraction": fraction, "variant": f"x/{fraction}"})
        time.sleep(0.15)  # tqdm draws at most ten times a second
    announcements._close_bar()
    shown = re.findall(r"sparse_autotune: +(\d+)%\|[^\r]*\| (\S+)", sys.stderr.getvalue())
    assert shown == [("56", "x/0.56"), ("70", "x/0.7"), ("90", "x/0.9")]


def test_what_tqdm_advises_on_import_is_not_passed_on(bars, told, monkeypatch, tmp_path):
    """In a notebook without widgets."""
    (tmp_path / "tqdm").mkdir()
    (tmp_path / "tqdm" / "__init__.py").touch()
    (tmp_path / "tqdm" / "auto.py").write_text(
        "import warnings\nfrom test_announcements import Bar as tqdm\nwarnings.warn('IProgress')\n"
    )
    for name in ("tqdm", "tqdm.auto"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tune(*problem())
    assert len(bars) == 1


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
    announcements.report({"kind": "progress", "fraction": 0.5, "variant": "a/b"})  # as a race does
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

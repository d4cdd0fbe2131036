"""What a signal's handler raises during a race: it stops the race, and nothing is half done."""

import os
import signal
import threading

import pytest
import torch
from reference import close

from sparse_autotune import (
    benchmark,
    cache,
    matmul,
    random_bsr,
    settings,
    tune,
    tuning_count,
)
from sparse_autotune.tuning import announcements


class Stop(BaseException):
    """Not an Exception: to be caught by nobody but who waits for it."""


@pytest.fixture(autouse=True)
def _interruptible():
    """What a shell starts in the background ignores SIGINT, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def problem(fresh_cache, monkeypatch):
    monkeypatch.setattr(settings, "budget_s", 0.1)
    a = random_bsr(64, 48, 16, density=0.5)
    return a, torch.randn(48, 24)


def _race_and_after(a, b):
    count = tuning_count()
    matmul(a, b)
    for _ in range(100):  # the interpreter raises between two of its steps
        pass
    raise AssertionError(f"not interrupted in {tuning_count() - count} races")


def _silent(event):
    return None


def _still_works(a, b):
    close(matmul(a, b), a.to_dense() @ b)
    temporary = [file for file in cache.path().rglob("*") if file.name.startswith(".")]
    assert temporary == []


@pytest.fixture
def reports_to(monkeypatch):
    """Has the core report to another function."""

    def install(report):
        monkeypatch.setattr(announcements, "report", report)
        announcements.install()

    yield install
    monkeypatch.undo()
    announcements.install()


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, Stop])
@pytest.mark.parametrize("kind", ["start", "progress", "finish"])
def test_it_is_raised_after_the_product(kind, raised, problem, reports_to, capfd):
    def report(event):
        if event["kind"] == kind:
            raise raised("now")

    reports_to(report)
    with pytest.raises(raised, match="now"):
        _race_and_after(*problem)
    assert "Exception ignored" not in capfd.readouterr().err
    reports_to(_silent)
    _still_works(*problem)


@pytest.mark.parametrize("progress", [1, 4])
@pytest.mark.parametrize("call", [matmul, tune, benchmark], ids=lambda call: call.__name__)
def test_the_race_stops(call, progress, problem, reports_to):
    """Nothing more is launched, remembered or saved; the next product races."""
    kinds = []

    def report(event):
        kinds.append(event["kind"])
        if kinds.count("progress") == progress:
            raise KeyboardInterrupt

    reports_to(report)
    with pytest.raises(KeyboardInterrupt):
        call(*problem)
        for _ in range(100):
            pass
    assert kinds == ["start", *["progress"] * progress, "finish"]
    assert cache.entries() == []
    reports_to(_silent)
    races = tuning_count()
    _still_works(*problem)
    assert tuning_count() == races + 1
    assert len(cache.entries()) == 1


def test_another_thread_s_race_goes_on(problem, reports_to):
    """The main thread, which is interrupted, does not run it."""
    raced = []

    def report(event):
        if event["kind"] == "start":
            os.kill(os.getpid(), signal.SIGINT)
        if event["kind"] == "finish":
            raced.append(event)

    reports_to(report)
    ended = threading.Event()  # join() takes a thread whose first join() was interrupted for ended

    def race():
        matmul(*problem)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=race).start()
        ended.wait(timeout=60)
        for _ in range(100):
            pass
    assert ended.wait(timeout=60)
    assert len(raced) == 1
    assert len(cache.entries()) == 1


def test_ctrl_c(problem, reports_to):
    def report(event):
        if event["kind"] == "start":
            os.kill(os.getpid(), signal.SIGINT)

    reports_to(report)
    with pytest.raises(KeyboardInterrupt):
        _race_and_after(*problem)
    reports_to(_silent)
    _still_works(*problem)


def test_other_errors_stay_ignored(problem, reports_to, monkeypatch):
    seen = []
    monkeypatch.setattr("sys.unraisablehook", lambda raised: seen.append(raised.exc_value))

    def report(event):
        raise ValueError("a mistake of the host's")

    reports_to(report)
    _still_works(*problem)
    assert seen and all(isinstance(error, ValueError) for error in seen)

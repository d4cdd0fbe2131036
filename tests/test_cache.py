"""The winners on disk: where, whole or not at all, shared by processes, and never in the way."""

import inspect
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import warnings

import pytest
import torch

import sparse_autotune
from sparse_autotune import (
    SparseLinear,
    _tuner,
    cache,
    matmul,
    random_bsr,
    settings,
    tune,
    tuning_count,
)


@pytest.fixture(autouse=True)
def _quick(fresh_cache, monkeypatch):
    monkeypatch.setattr(settings, "budget_s", 0.02)
    monkeypatch.setattr(cache, "_warned", {})
    monkeypatch.setattr(cache, "_in_memory", {})


def problem(n=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return random_bsr(32, 32, 16, density=0.5, generator=generator), torch.randn(32, n)


def check(n=8, seed=0):
    """A right product; returns how many races it took."""
    before = tuning_count()
    a, b = problem(n, seed)
    assert torch.allclose(matmul(a, b), a.to_dense() @ b, atol=1e-4)
    return tuning_count() - before


def entry_file():
    (entry,) = cache.entries()
    return entry.path


# Where


def test_location(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "cache_dir", None)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.path() == tmp_path / ".cache" / "sparse_autotune"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache.path() == tmp_path / ".cache" / "sparse_autotune"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.path() == tmp_path / "xdg" / "sparse_autotune"
    monkeypatch.setattr(settings, "cache_dir", str(tmp_path / "mine"))
    assert cache.path() == tmp_path / "mine"


def test_without_a_home_winners_stay_in_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "cache_dir", None)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    with pytest.warns(RuntimeWarning, match="there is no home directory"):
        assert check() == 1
    assert check() == 0
    assert list(tmp_path.iterdir()) == []


def test_an_entry(fresh_cache):
    assert cache.entries() == []
    assert not fresh_cache.exists()
    assert check() == 1
    (entry,) = cache.entries()
    assert entry.path.parent.parent == fresh_cache
    assert entry.path.name == f"{entry.signature}.txt"
    assert entry.signature.startswith("matmul_32x32_bs16x16_n8_")
    assert entry.problem == "32x32x8 bs16 density 0.5 f32"
    assert entry.winner in sparse_autotune.variants(*problem())
    assert entry.median_us > 0
    assert entry.device == _tuner.device_info(-1)["name"]
    record = _tuner.parse_record(entry.path.read_text())
    assert record["winner"] == entry.winner
    assert {e["name"] for e in record["entrants"]} == set(sparse_autotune.variants(*problem()))


def test_entries_are_for_their_owner_alone(fresh_cache):
    before = os.umask(0)
    try:
        check()
    finally:
        os.umask(before)
    file = entry_file()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for directory in (file.parent, fresh_cache):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_the_environment_is_part_of_the_place(monkeypatch):
    """Another driver, torch or build does not use these times."""
    assert check() == 1
    monkeypatch.setattr(cache, "environment", lambda: "0123456789ab")
    assert cache.entries() == []
    _tuner.forget()
    assert check() == 1


def test_what_the_environment_is(monkeypatch):
    """A driver, not a device: entries name their device's class."""
    lines = {"device": "A", "kernels": "1234", "driver": "13000"}

    def of(**changes):
        text = "".join(f"{name} {value}\n" for name, value in (lines | changes).items())
        monkeypatch.setattr(_tuner, "environment", lambda ordinal: text)
        return cache.environment.__wrapped__()

    assert of() == of(device="B")
    assert len({of(), of(kernels="5678"), of(driver="13010")}) == 3
    monkeypatch.setattr(torch, "__version__", "0.0")
    for on_gpu in (True, False):  # where the vendors' libraries race
        monkeypatch.setattr(torch.cuda, "is_available", lambda on_gpu=on_gpu: on_gpu)
        monkeypatch.setattr(_tuner, "libraries", list)
        before = of()
        monkeypatch.setattr(_tuner, "libraries", lambda: [{"name": "cusparse", "version": "12.0"}])
        assert (before != of()) == on_gpu


# Whole or not at all


def test_a_write_that_fails_leaves_the_entry_as_it_was(monkeypatch):
    check()
    file = entry_file()
    before = file.read_bytes()

    def no_space(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.warns(RuntimeWarning, match=r"cannot be written.*No space left"):
        tune(*problem())
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]
    monkeypatch.undo()


def test_kill_in_the_middle_of_a_write():
    """kill -9, 100 times, at whatever instant: the entry is one of the two texts, complete."""
    tune(*problem())
    file = entry_file()
    short = file.read_text()
    lines = short.splitlines(keepends=True)
    entrants = [line for line in lines if line.startswith("entrant ")]
    copies = 1900 // len(entrants)  # a record holds 2,048 at most
    more = [
        line.replace("entrant ", f"entrant copy{i}/") for i in range(copies) for line in entrants
    ]
    long = "".join([*lines[:-1], *more, f"end {len(entrants) + len(more)}\n"])
    _tuner.parse_record(long)
    place = (file.parent.name.rpartition("-")[0], file.stem)
    assert cache.file_of(*place) == file
    for i in range(100):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child uses no thread
            child = os.fork()
        if child == 0:
            while True:
                cache.write(*place, long)
                cache.write(*place, short)
        time.sleep(0.005 + 0.0002 * i)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert file.read_text() in (short, long)
    assert cache.clear() == 1
    assert list(file.parent.iterdir()) == [], "what killed processes left behind"


def test_a_write_beside_a_clear(fresh_cache, monkeypatch):
    """The directory that goes while an entry is being written is made again."""
    real = os.replace

    def too_late(*names, **directories):
        monkeypatch.setattr(os, "replace", real)
        shutil.rmtree(fresh_cache)
        real(*names, **directories)

    monkeypatch.setattr(os, "replace", too_late)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check() == 1
    assert [path.name for path in entry_file().parent.iterdir()] == [entry_file().name]
    _tuner.forget()
    assert check() == 0


def test_an_interrupted_write_leaves_nothing(fresh_cache, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.write("device", "signature", "text")
    assert [path for path in fresh_cache.rglob("*") if path.is_file()] == []


def test_a_write_that_works_again_ends_the_copy_in_memory(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_, **__: os.stat("/not/there"))
        with pytest.warns(RuntimeWarning, match="cannot be written"):
            assert cache.write("device", "signature", "old") is None
    assert cache.read("device", "signature") == "old"
    file = cache.write("device", "signature", "new")
    assert cache.read("device", "signature") == "new"
    file.unlink()
    assert cache.read("device", "signature") is None


def test_what_a_killed_process_left_behind_goes_with_clear():
    check()
    left = entry_file().with_name(".1.2.3.abcd.tmp")
    left.write_text("half")
    assert cache.clear() == 1
    assert not left.exists()


TEN_PROCESSES = """
import os, sys, torch, sparse_autotune
from sparse_autotune import _tuner, ranks
from sparse_autotune.tuning import announcements
torch.set_num_threads(1)

def multiply():
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        a = sparse_autotune.random_bsr(32, 32, 16, density=0.5, generator=generator)
        for n in (1, 8, 40):
            b = torch.randn(32, n)
            assert torch.allclose(sparse_autotune.matmul(a, b), a.to_dense() @ b, atol=1e-4)

all_there, go = os.pipe()
there, here = os.pipe()

def save_together(*entry):
    os.write(here, b"x")
    os.read(all_there, 1)  # nothing before all have raced for their first entry
    return announcements.save(*entry)

children = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        os.close(go)
        _tuner.install_host(
            ranks.load, save_together, announcements.report, announcements.reclaim
        )
        multiply()
        sys.stdout.write(f"{sparse_autotune.tuning_count()}\\n")
        sys.stdout.flush()
        os._exit(0)
    children.append(child)
os.close(here)
for _ in children:
    os.read(there, 1)
os.close(go)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert codes == [0] * 10, codes
multiply()
print(sparse_autotune.tuning_count())
"""


def test_ten_processes_tune_at_once(fresh_cache):
    """They leave a valid cache: whole entries only, and the next process tunes nothing."""
    environment = {**os.environ, "SPARSE_AUTOTUNE_BUDGET_S": "0.02"}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", TEN_PROCESSES],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    *of_children, of_next = map(int, done.stdout.split())
    files = [path for path in fresh_cache.rglob("*") if path.is_file()]
    assert len(files) >= 3
    assert len(of_children) == 10
    assert sum(of_children) >= len(files) + 9, "ten raced for the first entry"
    assert of_next == 0
    for file in files:
        assert _tuner.parse_record(file.read_text())["signature"] == file.stem


# Trouble


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace(b"signature matmul", b"signature matmux", 1),
        lambda text: text + text,
        lambda text: b"\xff\x00" + text,
        lambda text: text + b"x" * (2 << 20),
    ],
    ids=["empty", "truncated", "another's", "twice", "binary", "too large"],
)
def test_a_bad_entry_is_replaced_with_one_warning(damage):
    check()
    file = entry_file()
    bad = damage(file.read_bytes())
    file.write_bytes(bad)
    _tuner.forget()
    with pytest.warns(RuntimeWarning, match=f"^sparse_autotune: .*{file.stem}") as caught:
        assert check() == 1
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert _tuner.parse_record(file.read_text())["signature"] == file.stem
    file.write_bytes(bad)
    _tuner.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check() == 1  # the process has been warned


def test_an_entry_of_another_device_is_replaced_with_one_warning():
    """A GPU's signature is that of the next GPU: the file says whose it is."""
    check()
    file = entry_file()
    own = file.read_text()
    others = own.replace("device_class ", "device_class another_", 1)
    file.write_text(others)
    assert cache.entries() == []
    _tuner.forget()
    with pytest.warns(
        RuntimeWarning, match=f"{file.stem} is of another device.*another_"
    ) as caught:
        assert check() == 1
    assert [warning.filename for warning in caught] == [__file__]
    first_line = next(line for line in own.splitlines() if line.startswith("device_class "))
    assert first_line in file.read_text().splitlines()
    assert [entry.path for entry in cache.entries()] == [file]
    file.write_text(others)
    _tuner.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check() == 1  # the process has been warned


def test_with_warnings_as_errors_products_still_work(caplog):
    check()
    entry_file().write_bytes(b"")
    _tuner.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check() == 1
    assert "unreadable" in caplog.text


def test_an_unwritable_directory_costs_one_warning(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setattr(settings, "cache_dir", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning) as caught:
        assert (check(8), check(40)) == (1, 1)
    assert [warning.filename for warning in caught] == [__file__]
    assert str(tmp_path / "file" / "cache") in str(caught[0].message)
    _tuner.forget()
    assert (check(8), check(40)) == (0, 0)
    assert {entry.path for entry in cache.entries()} == {None}
    monkeypatch.setattr(settings, "cache_dir", str(tmp_path / "other"))
    assert cache.entries() == []
    assert check(8) == 1


def test_an_unreadable_entry_is_a_miss(monkeypatch):
    check()
    file = entry_file()
    file.unlink()
    file.mkdir()
    _tuner.forget()
    with pytest.warns(RuntimeWarning) as caught:
        assert check() == 1
    assert [warning.filename for warning in caught] == [__file__]
    assert check() == 0


def through_a_module(a, x):
    SparseLinear(32, 32, 16, density=0.5)(x.t())


def through_backward(a, x):
    with settings.override(mode="off"):
        product = matmul(a, x.requires_grad_()).sum()
    product.backward()


def through_inductor(a, x):
    torch.compile(lambda x: matmul(a, x))(x)


@pytest.mark.parametrize("way", [through_a_module, through_backward, through_inductor])
def test_a_warning_points_at_the_users_line(way, monkeypatch, tmp_path, fresh_dynamo):
    """Not at torch's frames around ours, and code that it generates lies anywhere."""
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setattr(settings, "cache_dir", str(tmp_path / "file" / "cache"))
    a, x = problem()
    with pytest.warns(RuntimeWarning, match="cannot be written") as caught:
        way(a, x)
    ours = [(w.filename, w.lineno) for w in caught if "sparse_autotune" in str(w.message)]
    lines, first = inspect.getsourcelines(way)
    assert ours == [(__file__, first + len(lines) - 1)]


@pytest.mark.parametrize("function", ["read", "write", "warn_once"])
def test_a_host_that_raises_does_no_harm(function, monkeypatch):
    """Nothing that Python does when it is told of a race may end a product."""
    check()
    entry_file().write_bytes(b"")
    _tuner.forget()
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    def broken(*_):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(cache, function, broken)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert check() == 1
        assert check() == 0
    assert {str(one.exc_value) for one in told} == {"broken on purpose"}


def test_a_host_that_returns_nonsense_does_no_harm(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    monkeypatch.setattr(cache, "read", lambda *_: 5)
    assert check() == 1
    assert check() == 0
    assert [type(one.exc_value) for one in told] == [TypeError]


def test_clear_removes_entries_and_nothing_else(fresh_cache):
    check()
    ours = entry_file()
    other = fresh_cache / "thesis"
    other.mkdir()
    (other / "chapter.txt").write_text("mine")
    (fresh_cache / "notes.txt").write_text("mine")
    assert cache.clear() == 1
    assert not ours.exists()
    assert (other / "chapter.txt").read_text() == (fresh_cache / "notes.txt").read_text() == "mine"
    assert cache.clear() == 0
    assert check() == 1

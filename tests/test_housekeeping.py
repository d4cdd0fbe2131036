"""The cache directory: bounded, private, and sound whatever happens to it."""

import ast
import os
import pathlib
import shutil
import stat
import tempfile
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interpreters import run_python
from test_cache import _quick, check, entry_file, problem  # noqa: F401  _quick is a fixture

from sparse_autotune import _tuner, bundles, cache, private_files, settings, tune

HOUR = 3600.0


@pytest.fixture(autouse=True)
def _new_process(monkeypatch):
    monkeypatch.setattr(cache, "_growth", cache._Growth())


@pytest.fixture
def others(fresh_cache):
    """Makes an entry of another environment, so many hours old."""

    def make(environment, name, hours, size=1000):
        directory = fresh_cache / f"cpu-{environment:012x}"
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"{name}.txt"
        file.write_text("x" * size)
        changed = file.stat().st_mtime - hours * HOUR
        os.utime(file, (changed, changed))
        return file

    return make


def size_of(directory):
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


# Bounded


def test_the_oldest_environments_go_first(others, fresh_cache):
    check()
    ours = entry_file()
    os.utime(ours, (0, 0))  # older than all of them
    old, older, oldest = others(1, "a", 1), others(2, "a", 2), others(3, "a", 3)
    also_oldest = others(3, "b", 4)
    assert cache.prune(size_of(fresh_cache)) == 0
    assert cache.prune(size_of(fresh_cache) - 1) == 2, "an environment goes as a whole"
    assert not oldest.exists() and not also_oldest.exists()
    assert cache.prune(1000 + ours.stat().st_size) == 1
    assert not older.exists() and old.exists()
    assert cache.prune(999 + ours.stat().st_size) == 1
    assert list(fresh_cache.rglob("*.txt")) == [ours]


def test_an_environment_in_use_is_not_old(others):
    used, _ = others(1, "new", 0), others(1, "old", 100)
    left = others(2, "a", 50)
    assert cache.prune(2000) == 1
    assert used.exists() and not left.exists()


def test_then_the_oldest_entries_of_this_environment(fresh_cache):
    for n in (1, 2, 8):
        check(n)
    files = [entry.path for entry in cache.entries()]
    for age, file in enumerate(files):
        os.utime(file, (1e9 - age, 1e9 - age))
    assert cache.prune(size_of(fresh_cache) - 1) == 1
    assert [entry.path for entry in cache.entries()] == files[:2]
    assert cache.prune(0) == 2
    assert cache.entries() == []
    assert check(8) == 0, "what was decided stays decided"
    _tuner.forget()
    assert check(8) == 1


def test_by_default_the_setting_counts(others, monkeypatch):
    others(1, "a", 1)
    assert cache.prune() == 0
    monkeypatch.setattr(settings, "cache_bytes", 999)
    assert cache.prune() == 1


@pytest.mark.parametrize("bytes_", [-1, 0.5, True, "1"])
def test_prune_refuses(bytes_):
    with pytest.raises(ValueError, match="max_bytes must be a whole number of bytes"):
        cache.prune(bytes_)


def test_writing_keeps_the_bound(others, fresh_cache, monkeypatch):
    left = others(1, "a", 1, size=5000)
    monkeypatch.setattr(settings, "cache_bytes", 10_000)
    for i in range(30):
        cache.write("device", f"entry{i}", "x" * 1500)
        assert size_of(fresh_cache) <= 10_000
    assert not left.exists()
    assert cache.read("device", "entry29") is not None
    assert cache.read("device", "entry0") is None


def test_what_others_write_is_noticed(others, fresh_cache, monkeypatch):
    monkeypatch.setattr(settings, "cache_bytes", 100_000)
    cache.write("device", "first", "x")
    others(1, "much", 1, size=500_000)
    for i in range(64):
        cache.write("device", f"entry{i}", "x")
    assert size_of(fresh_cache) <= 100_000


def test_another_directory_has_a_size_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "cache_bytes", 1500)
    cache.write("device", "entry", "x" * 1000)
    for directory in ("a", "b", "a"):
        monkeypatch.setattr(settings, "cache_dir", str(tmp_path / directory))
        cache.write("device", "entry", "x" * 1000)
        assert cache.read("device", "entry") is not None


def test_with_no_room_at_all_products_work(fresh_cache, monkeypatch):
    monkeypatch.setattr(settings, "cache_bytes", 0)
    assert check() == 1
    assert size_of(fresh_cache) == 0
    assert check() == 0


def test_only_our_files_count_and_go(others, fresh_cache):
    others(1, "a", 1)
    foreign = fresh_cache / "thesis"
    foreign.mkdir()
    (foreign / "chapter.txt").write_text("mine" * 1000)
    (fresh_cache / "cpu-000000000001" / "notes.md").write_text("mine" * 1000)
    assert cache.prune(1000) == 0
    assert cache.prune(999) == 1
    assert (foreign / "chapter.txt").exists()
    assert (fresh_cache / "cpu-000000000001" / "notes.md").exists()


@pytest.mark.parametrize(("hours", "goes"), [(2, True), (0.5, False), (-0.5, False), (-2, True)])
def test_what_killed_processes_left_behind_goes(hours, goes, others):
    """Not what is being written now; a clock that was set back makes files of the future."""
    file = others(1, "a", hours)
    left = file.with_name(".1.2.3.abcd.tmp")
    file.rename(left)
    assert cache.prune() == 0
    assert left.exists() is not goes


def test_files_that_go_meanwhile(others, monkeypatch):
    gone, _ = others(1, "a", 1), others(1, "b", 1)
    real = os.stat

    def late(path, *arguments, **keywords):
        if path == "a.txt":
            gone.unlink(missing_ok=True)
        return real(path, *arguments, **keywords)

    monkeypatch.setattr(os, "stat", late)
    assert cache.prune(0) == 1


# A clock that runs backwards


@pytest.mark.parametrize("now", [0.0, 4e9])
def test_wrong_clocks(now, monkeypatch, others, fresh_cache):
    check()
    os.utime(entry_file(), (now, now))
    others(1, "a", -10_000)
    monkeypatch.setattr("time.time", lambda: now)
    _tuner.forget()
    assert check() == 0
    monkeypatch.setattr(settings, "cache_bytes", entry_file().stat().st_size + 500)
    assert cache.prune() == 1
    tune(*problem())
    assert len(cache.entries()) == 1


# Private, and through no link of somebody else's


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a link away")
def test_a_link_of_another_user_is_not_followed(tmp_path, monkeypatch):
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    monkeypatch.setattr(settings, "cache_dir", str(link / "cache"))
    with pytest.warns(RuntimeWarning, match="a link of another user lies on the way"):
        assert check() == 1
    assert list(target.iterdir()) == []
    assert check() == 0
    assert cache.entries()[0].path is None
    assert cache.clear() == 0 and cache.prune(0) == 0


@pytest.mark.parametrize("target", ["{0}/target", "target", "sub/../target", "second"])
def test_a_link_of_ones_own_is(target, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "second").symlink_to("target")
    (tmp_path / "link").symlink_to(target.format(tmp_path))
    monkeypatch.setattr(settings, "cache_dir", str(tmp_path / "link" / "cache"))
    assert check() == 1
    _tuner.forget()
    assert check() == 0
    assert len(list((tmp_path / "target" / "cache").rglob("*.txt"))) == 1


def test_links_in_a_circle(tmp_path, monkeypatch):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    monkeypatch.setattr(settings, "cache_dir", str(tmp_path / "a"))
    with pytest.warns(RuntimeWarning, match="Too many levels of symbolic links"):
        assert check() == 1


def test_no_directory_of_entries_is_a_link(tmp_path, fresh_cache):
    check()
    ours = entry_file().parent
    ours.rename(tmp_path / "elsewhere")
    ours.symlink_to(tmp_path / "elsewhere")
    before = {file: file.read_bytes() for file in (tmp_path / "elsewhere").iterdir()}
    _tuner.forget()
    with pytest.warns(RuntimeWarning, match="Not a directory|Too many levels"):
        assert check() == 1
    assert {file: file.read_bytes() for file in (tmp_path / "elsewhere").iterdir()} == before
    assert cache.clear() == 0
    assert before.keys() == set((tmp_path / "elsewhere").iterdir())


def test_no_entry_is_a_link(tmp_path):
    """What it points to is neither read nor written, whosever it is."""
    check()
    file, target = entry_file(), tmp_path / "target"
    file.rename(target)
    file.symlink_to(target)
    before = target.read_bytes()
    assert cache.entries() == []
    _tuner.forget()
    with pytest.warns(RuntimeWarning, match="cannot be read"):
        assert check() == 1
    assert not file.is_symlink()
    target_now = target.read_bytes()
    assert target_now == before and file.read_bytes() != before


def test_a_pipe_in_place_of_an_entry_holds_nobody_up():
    check()
    file = entry_file()
    file.unlink()
    os.mkfifo(file)
    _tuner.forget()
    with pytest.warns(RuntimeWarning, match="not a regular file"):
        assert check() == 1
    assert stat.S_ISREG(file.stat().st_mode)


def test_what_is_made_is_private_from_the_start(fresh_cache, monkeypatch):
    modes = []
    real = os.replace

    def watched(source, target, **keywords):
        modes.append(stat.S_IMODE(os.stat(source, dir_fd=keywords["src_dir_fd"]).st_mode))
        return real(source, target, **keywords)

    monkeypatch.setattr(os, "replace", watched)
    before = os.umask(0)
    try:
        check()
    finally:
        os.umask(before)
    assert modes == [0o600]


def test_bundles_are_to_be_shared(tmp_path):
    check()
    before = os.umask(0o022)
    try:
        cache.export(tmp_path / "bundle")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "bundle").stat().st_mode) == 0o644


def test_descriptors_are_closed(tmp_path):
    def count():
        return len(os.listdir("/proc/self/fd"))

    check()
    before = count()
    for _ in range(3):
        _tuner.forget()
        check()
        tune(*problem())
        cache.entries()
        cache.prune()
        cache.export(tmp_path / "bundle")
        cache.read("no", "entry")
    with pytest.raises(OSError), private_files.directory(tmp_path / "bundle"):
        pass
    assert count() == before


# Whole or not at all


def test_sixteen_writers_of_one_entry(fresh_cache):
    texts = [f"{i}\n" * (1000 + 500 * i) for i in range(16)]
    children = []
    for text in texts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child uses no thread
            child = os.fork()
        if child == 0:
            done = all(cache.write("device", "entry", text) for _ in range(100))
            os._exit(0 if done else 1)
        children.append(child)
    seen = set()
    while children:
        found, code = os.waitpid(-1, os.WNOHANG)
        if found:
            children.remove(found)
            assert code == 0
        seen.add(cache.read("device", "entry"))
    assert seen - {None} <= set(texts)
    assert cache.read("device", "entry") in texts
    directory = cache.file_of("device", "entry").parent
    assert [file.name for file in directory.iterdir()] == ["entry.txt"]


FULL_DISK = """
import json, resource, sys, torch, warnings
import sparse_autotune as sa
generator = torch.Generator().manual_seed(0)
a, b = sa.random_bsr(32, 32, 16, density=0.5, generator=generator), torch.randn(32, 8)
bundle = sys.argv[1]
sa.matmul(a, b)
sa.cache.export(bundle)
before = open(bundle).read()
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))  # no file grows beyond that any more
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for n in (40, 40, 1):
        b = torch.randn(32, n)
        assert torch.allclose(sa.matmul(a, b), a.to_dense() @ b, atol=1e-4)
    sa.settings.mode = "record"
    sa.matmul(a, torch.randn(32, 100))
refused = ""
try:
    sa.cache.export(bundle)
except OSError as error:
    refused = str(error)
print(repr((sa.tuning_count(), [str(w.message) for w in caught], refused,
            open(bundle).read() == before)))
"""


def test_a_full_disk(tmp_path):
    """Products work, what was whole stays whole, and nothing half written is left."""
    directory = tmp_path / "cache"
    out = run_python(FULL_DISK, directory, tmp_path / "bundle", budget_s="0.02", verbose="0")
    races, warned, refused, intact = ast.literal_eval(out.splitlines()[-1])
    assert races == 3 and intact and "File too large" in refused
    of_cache, of_record = warned
    assert "cannot be written" in of_cache and "File too large" in of_cache
    assert "the record" in of_record and "no room for a whole line" in of_record
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    others = sorted(file.name for file in files if file.suffix != ".txt")
    assert others == ["bundle", "missed.jsonl"]
    (entry,) = [file for file in files if file.suffix == ".txt"]
    assert _tuner.parse_record(entry.read_text())["signature"] == entry.stem


def test_a_read_only_directory(monkeypatch):
    place = pathlib.Path(tempfile.mkdtemp())
    try:
        place.chmod(0o755)
        directory = place / "cache"
        directory.mkdir()
        directory.chmod(0o555)
        monkeypatch.setattr(settings, "cache_dir", str(directory))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                if os.geteuid() == 0:
                    os.seteuid(65534)  # root may write anywhere
                first = cache.write("device", "entry", "text"), cache.write("device", "b", "text")
                read = cache.read("device", "entry")
                right = first == (None, None) and read == "text" and len(caught) == 1
                os._exit(0 if right and "Permission denied" in str(caught[0].message) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert list(directory.iterdir()) == []
    finally:
        shutil.rmtree(place)


def test_a_directory_that_vanishes(fresh_cache):
    assert check(8) == 1
    shutil.rmtree(fresh_cache.parent)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check(8) == 0
        assert check(40) == 1
        assert cache.missed() == []
        assert [entry.problem.split()[0] for entry in cache.entries()] == ["32x32x40"]
        shutil.rmtree(fresh_cache)
        _tuner.forget()
        assert cache.entries() == [] and cache.clear() == 0 and cache.prune() == 0
        assert check(40) == 1


# Truncated and hostile files


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    directory = tmp_path_factory.mktemp("good") / "cache"
    with settings.override(cache_dir=str(directory), budget_s=0.02):
        tune(*problem())
        (file,) = directory.rglob("*.txt")
    return file.read_bytes()


EDITS = st.lists(
    st.tuples(
        st.integers(0, 3000),
        st.integers(0, 40),
        st.one_of(
            st.binary(max_size=20),
            st.sampled_from(
                [b"\n", b"\t", b"end 1\n", b"nan", b"-1", b"1e999", b"9" * 400, b"entrant ", b"\0"]
            ),
        ),
    ),
    min_size=1,
    max_size=5,
)


@given(edits=EDITS)
def test_damaged_records_are_refused_or_make_sense(edits, good):
    content = good
    for at, length, new in edits:
        content = content[:at] + new + content[at + length :]
    try:
        record = _tuner.parse_record(content.decode("ascii", errors="replace"))
    except ValueError:
        pass
    else:
        assert record["signature"]
        for entrant in record["entrants"]:
            assert 0 <= entrant["median_us"] < float("inf")
            assert entrant["status"] != "ok" or entrant["name"]
        if record["winner"]:
            (winner,) = [e for e in record["entrants"] if e["name"] == record["winner"]][:1]
            assert winner["status"] == "ok" and winner["median_us"] > 0
    try:
        found = bundles.split(content)
    except ValueError:
        return
    assert all("/" not in name for one in found for name in one.place)


@given(cut=st.integers(0, 5000))
def test_truncated_records_are_refused(cut, good):
    if cut >= len(good):
        return
    with pytest.raises(ValueError, match="not a record of a race: "):
        _tuner.parse_record(good[:cut].decode())
    if cut > 0:
        with pytest.raises(ValueError, match="record 1: "):
            bundles.split(good[:cut])


@pytest.mark.parametrize(
    "content",
    [
        b"sparse_autotune_race \n" * 200_000,
        b"sparse_autotune_race 4\n" + b"entrant " + b"\t" * 4_000_000,
        b"\nend 1\n" * 500_000,
        b"\x00" * (4 << 20),
        b"entrant x" * 400_000,
    ],
    ids=["headers", "tabs", "ends", "zeros", "no line"],
)
def test_large_hostile_bundles_are_refused(content, tmp_path):
    """In time that grows with their length alone: none of them would end otherwise."""
    (tmp_path / "bundle").write_bytes(content)
    with pytest.raises(ValueError, match="is not a bundle"):
        cache.load(tmp_path / "bundle")
    assert cache.entries() == []


@given(content=st.binary(max_size=200), name=st.sampled_from(["entry.txt", "é.txt", ".x.tmp"]))
def test_any_file_may_lie_there(content, name):
    with tempfile.TemporaryDirectory() as place, settings.override(cache_dir=place):
        directory = cache.file_of("device", "entry").parent
        directory.mkdir()
        (directory / name).write_bytes(content)
        assert cache.entries() == []
        cache.read("device", "entry")
        assert cache.export(pathlib.Path(place) / "bundle") == 0
        assert cache.clear() == (1 if name.endswith(".txt") else 0)


# Two versions side by side

VERSIONS = """
import sys, torch, sparse_autotune as sa
from parallel import in_fork
from sparse_autotune import cache

generator = torch.Generator().manual_seed(0)
a, b = sa.random_bsr(32, 32, 16, density=0.5, generator=generator), torch.randn(32, 8)

def one(environment):
    cache.environment = lambda: environment
    sa.matmul(a, b)
    print(sa.tuning_count(), len(cache.entries()), flush=True)

for environment in sys.argv[1:]:
    in_fork(lambda: one(environment))
"""


def test_two_versions_share_a_directory(tmp_path):
    """Each has its own entries, and neither takes or removes the other's."""
    one, other = "1" * 12, "2" * 12
    environments = one, other, one, other
    out = run_python(VERSIONS, tmp_path, *environments, budget_s="0.02", verbose="0")
    assert out.splitlines() == ["1 1", "1 1", "0 1", "0 1"]
    assert len(list(tmp_path.rglob("*.txt"))) == 2


def test_an_entry_of_another_format_is_raced_again():
    check()
    file = entry_file()
    file.write_text(file.read_text().replace("sparse_autotune_race 4", "sparse_autotune_race 5"))
    _tuner.forget()
    with pytest.warns(RuntimeWarning, match="unreadable"):
        assert check() == 1
    assert file.read_text().startswith("sparse_autotune_race 4\n")

"""The build's steps: when one runs again, what is said of them, and what an sdist must hold."""

import errno
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[1]
if not (ROOT / "setup.py").is_file():
    pytest.skip("installed without its sources", allow_module_level=True)
sys.path.insert(0, str(ROOT))
import build_commands  # noqa: E402


@pytest.fixture(params=["ninja", "make"])
def tool(request, monkeypatch):
    which, find_spec = shutil.which, importlib.util.find_spec
    if which(request.param) is None and find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    if request.param == "make":
        monkeypatch.setattr(build_commands, "find_spec", lambda _: None)
        monkeypatch.setattr(shutil, "which", lambda name: None if name == "ninja" else which(name))
    return request.param


def build(work, source, word):
    """Copies `source` to work/out behind `word`; says whether anything was run."""
    commands = build_commands.Commands()
    commands.rule("put", "(echo $flags && cat $in) > $out", "PUT $in", 1)
    commands.add(work / "out", "put", [source], [word])
    before = (work / "out").stat().st_mtime_ns if (work / "out").is_file() else None
    assert commands.run(work) == 0
    return (work / "out").stat().st_mtime_ns != before


@pytest.mark.parametrize("jobs", ["0", "-1", "many", "2.5"])
def test_a_number_of_jobs_that_is_none(jobs, tmp_path, monkeypatch):
    (tmp_path / "source").write_text("1\n")
    monkeypatch.setenv("MAX_JOBS", jobs)
    words = f"^MAX_JOBS must be a whole number, 1 or more; got '{jobs}'$"
    with pytest.raises(SystemExit, match=words):
        build(tmp_path, tmp_path / "source", "a")
    assert not (tmp_path / "out").exists()


def test_a_step_runs_when_its_input_or_its_words_change(tool, tmp_path):
    source = tmp_path / "source"
    source.write_text("1\n")
    assert build(tmp_path, source, "a")
    assert not build(tmp_path, source, "a")
    time.sleep(0.02)
    assert build(tmp_path, source, "b")
    time.sleep(0.02)
    source.write_text("2\n")
    assert build(tmp_path, source, "b")
    assert (tmp_path / "out").read_text() == "b\n2\n"


def test_what_is_said_of_the_steps(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MAX_JOBS", "2")
    (tmp_path / "source").write_text("1\n")

    def said(count):
        commands = build_commands.Commands()
        commands.rule("copy", "cat $in > $out", "COPY $in", 60)
        for i in range(count):
            commands.add(tmp_path / f"out {i}".replace(" ", "_"), "copy", [tmp_path / "source"], [])
        assert commands.run(tmp_path) == 0
        return capsys.readouterr().out

    first = said(40)
    assert "files to make: 40, 2 at a time; about 20 min if as many cores are free\n" in first
    shown = [int(number) for number in re.findall(r"^\[(\d+)/40\] COPY ", first, re.MULTILINE)]
    assert 5 <= len(shown) <= 10  # a line for each tenth, in a pipe
    assert "built in" in first
    again = said(41)
    assert "files to make: 1, 2 at a time; about 30 s if" in again
    nothing = said(41)
    assert "files to make" not in nothing
    assert "built in" not in nothing


def test_a_step_that_fails_says_why(tool, tmp_path, capsys):
    commands = build_commands.Commands()
    commands.rule("fail", "echo the reason; false", "FAIL $in", 1)
    (tmp_path / "source").write_text("1\n")
    commands.add(tmp_path / "out", "fail", [tmp_path / "source"], [])
    assert commands.run(tmp_path) != 0
    said = capsys.readouterr().out
    assert "the reason" in said
    assert "built in" not in said


def test_a_step_runs_when_an_input_that_it_does_not_name_changes(tool, tmp_path):
    for name in ("named", "unnamed"):
        (tmp_path / name).write_text("1\n")

    def run():
        commands = build_commands.Commands()
        commands.rule("copy", "cat $in > $out", "COPY $in", 1)
        commands.add(tmp_path / "made", "copy", [tmp_path / "unnamed"], [])
        commands.add(tmp_path / "out", "copy", [tmp_path / "named"], [], tmp_path / "made")
        assert commands.run(tmp_path) == 0
        return (tmp_path / "out").stat().st_mtime_ns

    first = run()
    assert run() == first
    time.sleep(0.02)
    (tmp_path / "unnamed").write_text("2\n")
    assert run() != first
    assert (tmp_path / "out").read_text() == "1\n"


def test_a_path_with_spaces(tool, tmp_path):
    work = tmp_path / "die höhe"
    work.mkdir()
    (work / "quelle").write_text("1\n")
    if tool == "make":
        with pytest.raises(SystemExit, match=r"^make cannot build in a path with spaces, .*ninja$"):
            build(work, work / "quelle", "a")
        return
    assert build(work, work / "quelle", "it's one")
    assert (work / "out").read_text() == "it's one\n1\n"


def test_builds_of_one_folder_wait_for_each_other(tmp_path):
    code = (
        "import pathlib, sys; from build_commands import alone\n"
        "with alone(pathlib.Path(sys.argv[1])): print('in')"
    )
    with build_commands.alone(tmp_path / "work"):
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "work")],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert other.stdout.readline().startswith("sparse_autotune: waiting for another build in ")
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.2)
    assert other.communicate(timeout=60)[0] == "in\n"


def test_a_file_system_without_locks(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(build_commands.fcntl, "flock", refuse)
    with build_commands.alone(tmp_path / "work"):
        assert (tmp_path / "work").is_dir()
    said = capsys.readouterr().out
    assert said.startswith("sparse_autotune: building without a lock (No locks available)")


def test_every_file_of_the_build_is_in_the_sdist():
    listed = (ROOT / "MANIFEST.in").read_text()
    assert all(path.name in listed for path in ROOT.glob("build_*.py"))
    assert build_commands.__file__ == str(ROOT / "build_commands.py")

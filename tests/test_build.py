"""The build: what it refuses, in which words, and when it runs a step again."""

import dataclasses
import errno
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import time

import pytest

ROOT = pathlib.Path(__file__).parents[1]
if not (ROOT / "setup.py").is_file():
    pytest.skip("installed without its sources", allow_module_level=True)
sys.path.insert(0, str(ROOT))
import build_commands  # noqa: E402
import build_toolchain  # noqa: E402
from build_toolchain import Cuda, check_toolchain, detect_cuda, parse_architectures  # noqa: E402

TORCH = ("13.0", "2.11.0")


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No CUDA in the environment and nothing on PATH; returns a folder for programs."""
    for name in ("CUDA_HOME", "CUDA_PATH", "SPARSE_AUTOTUNE_CUDA", "CXX"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def program(path, says, status=0, stream=1):
    """A compiler that only says something; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&{stream}\nexit {status}\n")
    path.chmod(0o755)
    return path


# CUDA or not


def test_no_nvcc(bare, monkeypatch):
    found = detect_cuda(*TORCH)
    assert found.nvcc is None
    assert found.reason.startswith("no nvcc was found in CUDA_HOME (not set) or on PATH")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert "CUDA_HOME (/nowhere)" in detect_cuda(*TORCH).reason
    monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", "1")
    with pytest.raises(Exception, match=r"^SPARSE_AUTOTUNE_CUDA=1 was set, but no nvcc was found"):
        detect_cuda(*TORCH)


def test_nvcc_of_cuda_home_before_that_of_path(bare, monkeypatch):
    on_path = program(bare / "nvcc", "Cuda compilation tools, release 12.4, V12.4.1")
    assert detect_cuda(*TORCH) == Cuda(on_path, "12.4", "")
    monkeypatch.setenv("CUDA_HOME", str(bare / "no toolkit"))
    assert detect_cuda(*TORCH).nvcc == on_path
    other = program(bare / "tool kit" / "bin" / "nvcc", "release 13.0, V13.0.1")
    monkeypatch.setenv("CUDA_HOME", str(bare / "tool kit"))
    assert detect_cuda(*TORCH) == Cuda(other, "13.0", "")


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("release 11.8, V11.8.89", "nvcc 11.8 is older than 12.0, the oldest with C++20; "),
        ("hello", "nvcc --version prints no release"),
    ],
)
def test_nvcc_that_will_not_do(says, reason, bare, monkeypatch):
    program(bare / "nvcc", says)
    assert reason in detect_cuda(*TORCH).reason
    monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", "1")
    with pytest.raises(Exception, match=r"^SPARSE_AUTOTUNE_CUDA=1 was set, but ") as raised:
        detect_cuda(*TORCH)
    assert reason in str(raised.value)


def test_a_torch_without_cuda(bare, monkeypatch):
    program(bare / "nvcc", "release 13.0, V13.0.1")
    assert detect_cuda(None, "2.11.0+cpu").reason == "torch 2.11.0+cpu is not a CUDA build"
    monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", "1")
    assert detect_cuda(None, "2.11.0+cpu").version == "13.0"


def test_cuda_left_out_or_misspelt(bare, monkeypatch):
    program(bare / "nvcc", "release 13.0, V13.0.1")
    monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", "0")
    assert detect_cuda(*TORCH).reason == "SPARSE_AUTOTUNE_CUDA=0 was set at build time"
    monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", "yes")
    with pytest.raises(Exception, match=r"^SPARSE_AUTOTUNE_CUDA must be 0 or 1, got 'yes'$"):
        detect_cuda(*TORCH)


# Architectures


@pytest.mark.parametrize(
    ("text", "portable", "hopper"),
    [
        ("8.0+PTX;9.0a", ["80,sm_80", "80,sm_90", "80,compute_80"], True),
        ("9.0", ["90,sm_90"], True),
        ("8.6 8.9, 12.0+PTX", ["86,sm_86", "86,sm_89", "86,sm_120", "120,compute_120"], False),
        ("10.0a", ["100,sm_100"], False),
    ],
)
def test_architectures(text, portable, hopper):
    found = parse_architectures(text)
    words = [f"-gencode=arch=compute_{pair.replace(',', ',code=')}" for pair in portable]
    assert found.portable == words
    assert found.hopper == (["-gencode=arch=compute_90a,code=sm_90a"] if hopper else [])


def test_architectures_too_old_are_left_out():
    found = parse_architectures("5.2 7.5+PTX 8.0 9.0+PTX")
    assert found == dataclasses.replace(
        parse_architectures("8.0;9.0+PTX"), left_out=["5.2", "7.5+PTX"]
    )


@pytest.mark.parametrize(
    "text", ["7.5", "7.0 7.5+PTX", "8.0;Ampere", "90", "sm_90", "native", "8.0;;", ";"]
)
def test_architectures_refused(text):
    with pytest.raises(Exception, match=r"^TORCH_CUDA_ARCH_LIST: .*, got '"):
        parse_architectures(text)


# What cannot compile


def test_no_compiler(bare, tmp_path):
    with pytest.raises(Exception, match=r"^no C\+\+ compiler: g\+\+ is not on PATH \(install g"):
        check_toolchain("g++", Cuda(None, "", "no"), None, tmp_path)


def test_a_compiler_that_is_too_old(bare, tmp_path):
    program(bare / "g++", "g++: error: unrecognized option -std=c++20", 1, 2)
    with pytest.raises(Exception, match=r"^g\+\+ cannot compile C\+\+20; .*: g\+\+: error: unrec"):
        check_toolchain("g++", Cuda(None, "", "no"), None, tmp_path)


def test_no_python_headers(bare, tmp_path, monkeypatch):
    program(bare / "g++", "")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(Exception, match=r" has no Python\.h \(install Python's headers: python3"):
        check_toolchain("g++", Cuda(None, "", "no"), None, tmp_path)


def test_an_nvcc_that_compiles_nothing(bare, tmp_path):
    program(bare / "g++", "")
    nvcc = program(bare / "nvcc", "nvcc fatal : Unsupported gpu architecture compute_120", 1, 2)
    with pytest.raises(Exception, match=r"^nvcc 12\.4 with g\+\+ cannot .*architecture compute_12"):
        check_toolchain("g++", Cuda(nvcc, "12.4", ""), parse_architectures("12.0"), tmp_path)


# Steps


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
    commands.rule("put", "(echo $flags && cat $in) > $out", "PUT $in")
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


def test_a_step_runs_when_an_input_that_it_does_not_name_changes(tool, tmp_path):
    for name in ("named", "unnamed"):
        (tmp_path / name).write_text("1\n")

    def run():
        commands = build_commands.Commands()
        commands.rule("copy", "cat $in > $out", "COPY $in")
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
    assert build_toolchain.__file__ == str(ROOT / "build_toolchain.py")

"""`pytest --jobs`: every test runs once, in some process, and one summary tells of all."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

CONFTEST = """
from side_by_side import add_options as pytest_addoption, configure as pytest_configure
"""
# Each waits until two processes have run one.
MODULE = """
import os, pathlib, signal, sys, time, warnings
import pytest

SEEN = pathlib.Path(__file__).parent / "seen"

@pytest.fixture(scope="module")
def once(request):
    (SEEN.parent / f"{request.module.__name__}_made").touch(exist_ok=False)

@pytest.mark.parametrize("i", range(4))
def test_it(i, once):
    SEEN.mkdir(exist_ok=True)
    (SEEN / str(os.getpid())).touch()
    end = time.monotonic() + 20
    while len(list(SEEN.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    if i == 0:
        warnings.warn("mind this")
    print("said by", i)
    assert i != 1
    if i == 2:
        pytest.skip("for a reason")
    if i == 3 and os.environ.get("HELPERS") == "die" and "--helper-in" in str(sys.argv):
        os.kill(os.getpid(), signal.SIGKILL)
"""
MODULES = 6


@pytest.fixture
def run(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for i in range(MODULES):
        (tmp_path / f"test_{i}.py").write_text(MODULE)

    def run(*options, **variables):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--jobs=2"]
        here = str(pathlib.Path(__file__).parent)
        environment = {**os.environ, "PYTHONPATH": here, "PYTEST_ADDOPTS": "", **variables}
        return subprocess.run(
            [*command, *options],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_one_summary(run, tmp_path):
    done = run("--durations=100", "-vv")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    counts = f"{MODULES} failed, {2 * MODULES} passed, {MODULES} skipped, {MODULES} warnings"
    assert counts in done.stdout
    assert done.stdout.count("said by 1") == MODULES  # once for each that failed
    for i in range(MODULES):
        assert f"FAILED test_{i}.py::test_it[1]" in done.stdout
        assert re.search(rf"s call +test_{i}.py::test_it\[0\]", done.stdout)
    assert len(list((tmp_path / "seen").iterdir())) == 2
    assert len(list(tmp_path.glob("*_made"))) == MODULES


def test_the_first_failure_ends_all(run):
    done = run("-x")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "stopping after" in done.stdout
    assert f"{2 * MODULES} passed" not in done.stdout


def test_a_process_dies(run):
    done = run(HELPERS="die")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert re.search(r"a process died \(-9\) in test_.\.py::test_it\[3\]", done.stdout)


def test_not_all_could_be_collected(run, tmp_path):
    (tmp_path / "test_bad.py").write_text("import no_such_module")
    done = run()
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout + done.stderr
    assert "1 error during collection" in done.stdout


def test_the_summary_comes_last():
    """Also after Triton's import, whose nanobind lists at the exit what was not freed."""
    pytest.importorskip("triton")
    tests = pathlib.Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "triton"]
    run = subprocess.run(
        [*command, str(tests / "test_reference.py")],
        cwd=tests.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert re.search(r" passed.* in ", run.stdout.rstrip().rpartition("\n")[2]), run.stdout

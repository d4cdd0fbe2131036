"""What `make native` builds, run as tests run it, and the cache that it shares with Python."""

import os
import subprocess
import sys

import pytest
from native_header import ROOT

from sparse_autotune.operators.library import LIBRARY

BUILD = ROOT / "build"
CORE = LIBRARY.with_name("libsparse_autotune_core.so")  # of this package
HARNESS = "native/prefix/bin/sparse_autotune"
TIMEOUT_S = 300


def run(program, *flags, **environment):
    """A program in build/, with this package's library; what it printed, and its exit code."""
    path = BUILD / program
    if not path.is_file():
        pytest.skip(f"`make native` has not made build/{program}")
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(CORE.parent),
        "SPARSE_AUTOTUNE_LIB_DIR": str(CORE.parent),
        **environment,
    }
    command = [str(path), *flags]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S
    )


def races_in_python(program, cache):
    """How many a program in Python has run in the end, with that cache."""
    program += "\nprint('tunings', sparse_autotune.tuning_count())"
    environment = os.environ | {"SPARSE_AUTOTUNE_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split("tunings ")[1])


def came_from_the_cache(done):
    """Whether the harness's winner did."""
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.endswith(("the winner comes from the cache", "the winner was raced now"))
    return last.endswith("cache")

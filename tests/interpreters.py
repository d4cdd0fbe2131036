"""Python code in a process of its own, with a cache directory and settings of its own."""

import os
import pathlib
import subprocess
import sys

TESTS = pathlib.Path(__file__).parent


def end_of_python(code, cache, *arguments, timeout=300, **environment):
    """Runs `code`, however it ends; the tests' modules can be imported there.

    `environment` holds settings without their prefix: `budget_s="0.1"`; `mode` is SPARSE_AUTOTUNE.
    """
    variables = {f"SPARSE_AUTOTUNE_{name.upper()}": text for name, text in environment.items()}
    if "mode" in environment:
        variables["SPARSE_AUTOTUNE"] = variables.pop("SPARSE_AUTOTUNE_MODE")
    path = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "SPARSE_AUTOTUNE_CACHE_DIR": str(cache),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_python(code, cache, *arguments, timeout=300, expect=0, **environment):
    """As `end_of_python`, and returns what it printed; it has to exit with `expect`."""
    done = end_of_python(code, cache, *arguments, timeout=timeout, **environment)
    assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout

"""The torch-free core: each tests/core/*.cpp is compiled with autotuner and plan alone and run."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORE = sorted((ROOT / "tests" / "core").glob("test_*.cpp"))
# Without devices' own code, operators and variants.
SOURCES = (
    *("autotune/operands.cpp", "autotune/verify.cpp", "autotune/bench_cpu.cpp"),
    *("autotune/race.cpp", "autotune/record.cpp", "autotune/signature.cpp"),
    *("autotune/registry.cpp", "autotune/settings.cpp", "autotune/sha256.cpp", "plan/plan.cpp"),
)


@pytest.fixture(scope="session")
def core_library(tmp_path_factory):
    """An archive of the sources, with assertions of the standard library and a sanitizer on."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        pytest.fail(f"no C++ compiler: {compiler}")
    flags = ["-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Wno-missing-field-initializers"]
    flags += ["-Wno-restrict", "-D_GLIBCXX_ASSERTIONS", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=all", f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests' / 'core'}"]
    folder = tmp_path_factory.mktemp("core")
    objects = []
    for name in SOURCES:
        source = ROOT / "csrc" / name
        objects.append(str(folder / f"{source.stem}.o"))
        subprocess.run([compiler, *flags, "-c", str(source), "-o", objects[-1]], check=True)
    return [compiler, *flags], objects, folder


@pytest.mark.parametrize("source", CORE, ids=lambda path: path.stem)
def test_core(source, core_library):
    compile_command, objects, folder = core_library
    program = folder / source.stem
    subprocess.run([*compile_command, str(source), *objects, "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all passed\n"), done.stdout

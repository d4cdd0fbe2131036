"""The torch-free core: each tests/core/*.cpp is compiled with autotuner and plan alone and run."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORE = sorted((ROOT / "tests" / "core").glob("test_*.cpp"))
# Without devices' own code, operators and variants.
TUNER = (
    *("autotune/operands.cpp", "autotune/verify.cpp", "autotune/bench_cpu.cpp"),
    *("autotune/race.cpp", "autotune/election.cpp", "autotune/record.cpp"),
    *("autotune/signature.cpp", "autotune/buckets.cpp"),
    *("autotune/registry.cpp", "autotune/settings.cpp", "autotune/sha256.cpp"),
    *("autotune/host.cpp", "autotune/problem_text.cpp", "plan/decisions.cpp"),
    *("autotune/known_races.cpp", "autotune/record_winner.cpp", "autotune/tuner.cpp"),
)
PRODUCT = (
    *("operators/product/product_operator.cpp", "operators/product/product_text.cpp"),
    *("operators/product/product_operands.cpp", "operators/product/product_tiles.cpp"),
    *("operators/product/product_reference.cpp", "plan/plan.cpp"),
)
# Tests of the tuner with an operator of their own, and no other in the program.
WITHOUT_PRODUCT = {"test_operator", "test_attention"}
# What a test links besides, and the flags of both.
BESIDES = {
    "test_attention": (
        *(
            f"operators/attention/attention_{part}.cpp"
            for part in ("operator", "text", "operands", "arguments")
        ),
        *(
            f"kernels/cpu/attention/attention_{part}.cpp"
            for part in (
                "naive",
                "naive_backward",
                "tiled",
                "tiled_backward",
                "steps_avx2",
                "steps_avx512",
            )
        ),
    ),
    "test_kept_memory": (
        *("plan/kept_memory.cpp", "plan/kept_memory_cuda.cpp"),
        *("kernels/cuda/host/cuda_status_cuda.cpp", "kernels/cuda/host/captured_graph_cuda.cpp"),
    ),
    "test_thread_pool": ("c_api/thread_pool.cpp",),
    "test_tiled_amx": ("kernels/cpu/microkernels/tiled_amx.cpp",),
}
FLAGS = {
    "test_kept_memory": (
        f"-I{ROOT / 'tests' / 'core' / 'fake_cuda'}",
        "-DSPARSE_AUTOTUNE_WITH_CUDA",
    ),
}
# Programs that compute for seconds at -O0: a sixth of that at -O1, and they compile in as long.
OPTIMISED = {"test_sampled", "test_tasks", "test_verify"}
STANDARD_HEADERS = (
    *("algorithm", "array", "atomic", "chrono", "cmath", "functional", "limits", "map", "memory"),
    *("mutex", "optional", "set", "string", "string_view", "tuple", "unordered_map", "utility"),
    "vector",
)


@pytest.fixture(scope="session")
def core_library(tmp_path_factory):
    """An archive of the sources, with assertions of the standard library and a sanitizer on."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        pytest.fail(f"no C++ compiler: {compiler}")
    # At -O1 with all of -g the compiler takes twice as long; the programs run for a moment.
    flags = ["-std=c++20", "-O0", "-g1", "-Wall", "-Wextra", "-Wno-missing-field-initializers"]
    flags += ["-Wno-restrict", "-D_GLIBCXX_ASSERTIONS", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=all", f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests' / 'core'}"]
    folder = tmp_path_factory.mktemp("core")
    # Reading the standard library is a third of what a file takes. A compiler to which the
    # precompiled headers are of no use, as it optimises, reads them itself.
    headers = folder / "standard.h"
    headers.write_text("".join(f"#include <{name}>\n" for name in STANDARD_HEADERS))
    precompiled = [*flags, "-xc++-header", str(headers), "-o", f"{headers}.gch"]
    subprocess.run([compiler, *precompiled], check=True)
    flags += ["-include", str(headers)]
    objects = {}
    for name in (*TUNER, *PRODUCT):
        source = ROOT / "csrc" / name
        objects[name] = str(folder / f"{source.parent.name}_{source.stem}.o")
        subprocess.run([compiler, *flags, "-c", str(source), "-o", objects[name]], check=True)
    return [compiler, *flags], objects, folder


@pytest.mark.parametrize("source", CORE, ids=lambda path: path.stem)
def test_core(source, core_library):
    compile_command, objects, folder = core_library
    program = folder / source.stem
    besides = [str(ROOT / "csrc" / name) for name in BESIDES.get(source.stem, ())]
    linked = TUNER if source.stem in WITHOUT_PRODUCT else (*TUNER, *PRODUCT)
    command = [*compile_command, *FLAGS.get(source.stem, ()), str(source), *besides]
    command += ["-O1"] if source.stem in OPTIMISED else []
    command += [objects[name] for name in linked]
    subprocess.run([*command, "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    if done.stdout == "no AVX512\n":
        pytest.skip(done.stdout)
    assert done.stdout.endswith("all passed\n"), done.stdout

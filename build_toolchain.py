"""What this machine has to compile with, and in a sentence why it will not do."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from setuptools.errors import CompileError

from build_commands import run
from build_cuda import Architectures, Cuda


def first_error(made: subprocess.CompletedProcess[str]) -> str:
    """What a sentence has room for of a compiler's messages."""
    lines = [line.strip() for line in (made.stderr + made.stdout).splitlines() if line.strip()]
    wrong = [line for line in lines if re.search("error|fatal|cannot find", line)]
    return (wrong or lines or [f"exit status {made.returncode}"])[0]


def check_toolchain(
    cxx: str, cuda: Cuda, architectures: Architectures | None, scratch: Path
) -> None:
    """One clear sentence instead of a page of template errors."""
    if shutil.which(cxx) is None:
        raise CompileError(f"no C++ compiler: {cxx} is not on PATH (install g++ or set CXX)")
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        raise CompileError(f"{headers} has no Python.h (install Python's headers: python3-dev)")
    shared = ["-std=c++20", "-shared", "-o", str(scratch / "probe.so")]
    probe = scratch / "probe.cpp"
    # `using enum` came with g++ 11, <span> before it.
    probe.write_text(
        "#include <span>\nenum class E { kOne };\n"
        "int first(std::span<int> s) { using enum E; return s[static_cast<int>(kOne)]; }\n"
    )
    made = run([cxx, *shared, "-fPIC", str(probe)])
    if made.returncode != 0:
        raise CompileError(
            f"{cxx} cannot compile C++20; g++ 11 or newer can (set CXX): {first_error(made)}"
        )
    if architectures is None:
        return
    probe = scratch / "probe.cu"
    probe.write_text(
        "#include <cuda_fp16.h>\n#include <cusparse.h>\n#include <span>\n"
        "__global__ void f(int* p) { *p = 1; }\n"
    )
    shared += [*architectures.portable, *architectures.hopper]
    made = run([str(cuda.nvcc), *shared, "-Xcompiler=-fPIC", "-ccbin", cxx, str(probe)])
    if made.returncode != 0:
        raise CompileError(
            f"nvcc {cuda.version} with {cxx} cannot compile what the CUDA code needs (install what "
            "the toolkit lacks, set CXX to a compiler that it supports or TORCH_CUDA_ARCH_LIST to "
            "architectures that it knows, or SPARSE_AUTOTUNE_CUDA=0 to build for the CPU): "
            f"{first_error(made)}"
        )

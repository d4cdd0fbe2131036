"""What this machine has to compile with, and in a sentence why it will not do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from setuptools.errors import CompileError

MINIMUM_CUDA = (12, 0)  # the first nvcc with C++20


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """What `command` said and how it ended, whatever that is."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


@dataclass
class Cuda:
    """What the build knows of CUDA: `nvcc` is None exactly when CUDA is left out, and why."""

    nvcc: Path | None
    version: str
    reason: str

    def folders(self, cxx: str) -> tuple[list[str], list[str]]:
        """Where nvcc itself finds headers and libraries.

        What is on PATH may be a script elsewhere, and NVIDIA's, conda's and PyPI's packages are
        laid out differently.
        """
        said = run([str(self.nvcc), "--dryrun", "-ccbin", cxx, "-x", "cu", "-c", os.devnull]).stderr
        lines = dict(re.findall(r"^#\$ (INCLUDES|LIBRARIES)=(.*)$", said, re.MULTILINE))
        return (
            re.findall(r'"-I([^"]+)"', lines.get("INCLUDES", "")),
            re.findall(r'"-L([^"]+)"', lines.get("LIBRARIES", "")),
        )


def find_nvcc() -> tuple[Path | None, str]:
    """CUDA_HOME's or PATH's, else why there is none; no other place is guessed at."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = (shutil.which("nvcc", path=f"{home}/bin") if home else None) or shutil.which("nvcc")
    if nvcc is not None:
        return Path(nvcc), ""
    hint = ""
    if Path("/usr/local/cuda/bin/nvcc").is_file():
        hint = "; there is one in /usr/local/cuda"
    return None, f"no nvcc was found in CUDA_HOME ({home or 'not set'}) or on PATH{hint}"


def detect_cuda(torch_cuda: str | None, torch_version: str) -> Cuda:
    """CUDA is built exactly when nvcc is found and torch is a CUDA build.

    A visible GPU does not matter: build machines rarely have one.
    """
    forced = os.environ.get("SPARSE_AUTOTUNE_CUDA")
    if forced not in (None, "", "0", "1"):
        raise CompileError(f"SPARSE_AUTOTUNE_CUDA must be 0 or 1, got {forced!r}")
    if forced == "0":
        return Cuda(None, "", "SPARSE_AUTOTUNE_CUDA=0 was set at build time")

    def left_out(why: str) -> Cuda:
        if forced == "1":
            raise CompileError(f"SPARSE_AUTOTUNE_CUDA=1 was set, but {why}")
        return Cuda(None, "", why)

    if torch_cuda is None and forced != "1":
        return left_out(f"torch {torch_version} is not a CUDA build")
    nvcc, why_none = find_nvcc()
    if nvcc is None:
        return left_out(why_none)
    match = re.search(r"release (\d+)\.(\d+)", run([str(nvcc), "--version"]).stdout)
    if match is None:
        return left_out(f"{nvcc} --version prints no release")
    found = (int(match.group(1)), int(match.group(2)))
    if found < MINIMUM_CUDA:
        return left_out(
            f"nvcc {found[0]}.{found[1]} is older than {MINIMUM_CUDA[0]}.{MINIMUM_CUDA[1]}, "
            f"the oldest with C++20; no current torch is built for CUDA {found[0]}"
        )
    return Cuda(nvcc, f"{found[0]}.{found[1]}", "")


@dataclass
class Architectures:
    """nvcc's -gencode options for portable files and for files named *_sm90.cu."""

    text: str
    portable: list[str]
    hopper: list[str]
    left_out: list[str]  # entries of the list that are too old


def parse_architectures(text: str) -> Architectures:
    """Reads what TORCH_CUDA_ARCH_LIST may hold; some images list all that torch knows."""
    found: dict[int, bool] = {}  # the code's number, and whether its PTX is wanted
    items = re.split(r"[;,\s]+", text.strip())
    left_out = []
    for item in items:
        match = re.fullmatch(r"(\d+)\.(\d)[af]?(\+PTX)?", item)
        if match is None:
            raise CompileError(
                f"TORCH_CUDA_ARCH_LIST: entries must look like 8.0, 9.0a or 8.0+PTX, got {item!r}"
            )
        number = int(match.group(1) + match.group(2))
        if number < 80:
            left_out.append(item)
            continue
        found[number] = found.get(number, False) or bool(match.group(3))
    if not found:
        raise CompileError(f"TORCH_CUDA_ARCH_LIST: the kernels need 8.0 or newer, got {text!r}")
    if left_out:
        text = ";".join(item for item in items if item not in left_out)
    # The front end takes most of a kernel's compile time, so it runs once, for the oldest: portable
    # files use nothing newer, and nothing that an "a" or "f" stands for.
    oldest = min(found)
    portable = [f"-gencode=arch=compute_{oldest},code=sm_{number}" for number in found]
    for number, with_ptx in found.items():
        if with_ptx:
            portable.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    hopper = ["-gencode=arch=compute_90a,code=sm_90a"] if 90 in found else []
    return Architectures(text, portable, hopper, left_out)


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
        "#include <cusparse.h>\n#include <span>\n__global__ void f(int* p) { *p = 1; }\n"
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

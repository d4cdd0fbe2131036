"""Which files of csrc/ make which library, and how they compile: the one list of it.

setup.py imports it. ``python build_sources.py [ARCHITECTURES]`` prints for CMake, a line each: the
version, the hash of the kernels, the flags of C++ files and of CUDA files, those of files for
sm_90a alone and of all others, and the core's sources. Without ARCHITECTURES, as
TORCH_CUDA_ARCH_LIST has them, they are those of a build for the CPU.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "csrc"


def version() -> str:
    """The package's."""
    match = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    if match is None:
        sys.exit("pyproject.toml has no version line")
    return match.group(1)


def room(path: Path) -> str:
    """The folder of csrc/ that a source lies in."""
    return path.relative_to(CSRC).parts[0]


def is_cuda_source(path: Path) -> bool:
    """Files that exist only in a CUDA build: *.cu, *_cuda.cpp and everything under libraries/."""
    return path.suffix == ".cu" or path.stem.endswith("_cuda") or room(path) == "libraries"


def library_sources(cuda: bool, hopper: bool) -> list[Path]:
    """Of both libraries; with `hopper` also those for sm_90a alone."""
    found = sorted([*CSRC.rglob("*.cpp"), *CSRC.rglob("*.cu")])
    found = [p for p in found if room(p) != "bindings"]
    if not cuda:
        return [p for p in found if not is_cuda_source(p)]
    return [p for p in found if hopper or not p.stem.endswith("_sm90")]


def is_of_core(path: Path) -> bool:
    """All but what includes torch."""
    return room(path) != "ops"


def code_in(folder: Path) -> list[Path]:
    """What is compiled, without the notes beside it."""
    return sorted(p for p in folder.rglob("*") if p.suffix in {".h", ".cuh", ".cpp", ".cu"})


def is_problem(path: Path) -> bool:
    """The header of an operator that kernels include: its problems, launches and variants."""
    return path.stem == path.parent.name and path.parent.parent == CSRC / "operators"


def kernel_hash() -> str:
    """Names the code that raced: a cache entry of other kernels is not trusted."""
    files = [CSRC / "variant.h", *(p for p in CSRC.glob("operators/*/*.h") if is_problem(p))]
    files = [*sorted(files), *code_in(CSRC / "kernels"), *code_in(CSRC / "libraries")]
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(CSRC).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


# Designated initialisers leave the other members at their defaults on purpose.
HOST_FLAGS = [
    *("-pthread", "-fvisibility=hidden", "-fvisibility-inlines-hidden"),
    *("-Wall", "-Wextra", "-Wno-missing-field-initializers"),
]
CUDA_FLAGS = [
    "-O2",  # of the host's code, which only launches; kernels are at -O3
    *("--expt-relaxed-constexpr", "-Xfatbin=-compress-all"),
    # A lone changed kernel's wait: two architectures at a time. Not two functions
    # (--split-compile): of a whole build that costs a tenth, and what comes out of it depends
    # on headers that no kernel uses.
    "--threads=2",
    "-Xcompiler=-fPIC,-fvisibility=hidden,-pthread",
    "-Xptxas=-warn-spills,-Werror",
    "-diag-suppress=2810",  # sees [[nodiscard]] ignored in assignments
]


def print_for_cmake(architectures: str) -> None:
    """What the module's docstring says."""
    portable: list[str] = []
    hopper: list[str] = []
    if architectures:
        from build_cuda import parse_architectures  # it needs setuptools

        found = parse_architectures(architectures)
        portable, hopper = found.portable, found.hopper
    core = [p for p in library_sources(bool(architectures), bool(hopper)) if is_of_core(p)]
    print(version(), kernel_hash(), sep="\n")
    for words in (HOST_FLAGS, CUDA_FLAGS, hopper, portable):
        print(*words, sep=" ")
    print(*(p.relative_to(ROOT).as_posix() for p in core), sep=" ")


if __name__ == "__main__":
    print_for_cmake(sys.argv[1] if len(sys.argv) > 1 else "")

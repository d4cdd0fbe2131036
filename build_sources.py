"""Which files of csrc/ make which library: the one list, for setup.py and for CMake.

``python build_sources.py cuda|cpu [hopper]`` prints it as CMake reads it. Needs nothing but Python.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "csrc"


def version() -> str:
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


def kernel_hash() -> str:
    """Names the code that raced: a cache entry of other kernels is not trusted."""
    files = [CSRC / "variant.h"]
    for folder in ("kernels", "libraries"):
        files += sorted(p for p in (CSRC / folder).rglob("*") if p.is_file())
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(CSRC).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


if __name__ == "__main__":
    core = [p for p in library_sources("cuda" in sys.argv, "hopper" in sys.argv) if is_of_core(p)]
    print(version(), kernel_hash(), *(p.relative_to(ROOT).as_posix() for p in core), sep=";")

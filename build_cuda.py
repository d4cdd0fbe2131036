"""Whether CUDA code is built, with which nvcc and for which architectures."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from setuptools.errors import CompileError

from build_commands import run
from build_gpu import find_gpus

MINIMUM_CUDA = (12, 0)  # the first nvcc with C++20
MINIMUM_CAPABILITY = (8, 0)
# sm_80 code also serves 86 and 89, its PTX everything newer; sm_90a is Hopper with WGMMA and TMA.
DEFAULT_ARCHITECTURES = "8.0+PTX;9.0a"


@dataclass
class Cuda:
    """What the build knows of CUDA: `nvcc` is None exactly when CUDA is left out, and why."""

    nvcc: Path | None
    version: str
    reason: str
    native: str = ""  # the architectures of this machine's GPUs, where the build is for them only

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


def nvccs() -> list[Path]:
    """CUDA_HOME's, PATH's and that of PyPI's packages, if there; no other place is guessed at."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    named = [shutil.which("nvcc", path=f"{home}/bin") if home else None, shutil.which("nvcc")]
    packages = find_spec("nvidia")
    folders = (packages.submodule_search_locations if packages else None) or ()
    installed = sorted(path for folder in folders for path in Path(folder).glob("cu*/bin/nvcc"))
    return [*(Path(nvcc) for nvcc in named if nvcc), *reversed(installed)]


def find_nvcc(torch_cuda: str | None) -> tuple[Path | None, str]:
    """The first that can compile this, and its version; else why there is none."""
    refused = []
    for nvcc in nvccs():
        match = re.search(r"release (\d+)\.(\d+)", run([str(nvcc), "--version"]).stdout)
        if match is None:
            refused.append(f"{nvcc} --version prints no release")
            continue
        found = (int(match.group(1)), int(match.group(2)))
        if found >= MINIMUM_CUDA:
            return nvcc, f"{found[0]}.{found[1]}"
        refused.append(
            f"nvcc {found[0]}.{found[1]} is older than {MINIMUM_CUDA[0]}.{MINIMUM_CUDA[1]}, "
            f"the oldest with C++20; no current torch is built for CUDA {found[0]}"
        )
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    said = f"no nvcc was found in CUDA_HOME ({home or 'not set'}) or on PATH"
    if refused:
        said = refused[0]
    elif Path("/usr/local/cuda/bin/nvcc").is_file():
        return None, f"{said}; there is one in /usr/local/cuda"
    toolkit = toolkit_on_pypi(torch_cuda)
    return None, f"{said}; pip install '{toolkit}' brings one" if toolkit else said


def toolkit_on_pypi(torch_cuda: str | None) -> str | None:
    """The requirement that brings nvcc, CCCL and headers of torch's CUDA version.

    Those for CUDA 12 hold no nvcc.
    """
    if torch_cuda is None or int(torch_cuda.partition(".")[0]) < 13:
        return None
    return f"cuda-toolkit[cccl,cudart,cusparse,nvcc]=={torch_cuda}.*"


def missing_toolkit() -> list[str]:
    """What a build installs first where it lacks nvcc: for a GPU that is here, or if forced."""
    forced = os.environ.get("SPARSE_AUTOTUNE_CUDA")
    if forced == "0" or (forced != "1" and find_gpus().reason) or find_spec("torch") is None:
        return []
    import torch

    toolkit = toolkit_on_pypi(torch.version.cuda)
    return [] if toolkit is None or find_nvcc(torch.version.cuda)[0] else [toolkit]


def native_architectures(torch_cuda: str | None, torch_version: str) -> tuple[str, str]:
    """This machine's GPUs, in the words of TORCH_CUDA_ARCH_LIST; else why for none."""
    gpus = find_gpus()
    if gpus.reason:
        return "", f"{gpus.reason} (SPARSE_AUTOTUNE_CUDA=1 builds it all the same)"
    usable = [capability for capability in gpus.capabilities if capability >= MINIMUM_CAPABILITY]
    if not usable:
        names = ", ".join(f"{major}.{minor}" for major, minor in gpus.capabilities)
        return "", f"the kernels need compute capability 8.0 or newer, the GPU here has {names}"
    if torch_cuda is not None and gpus.driver_cuda[0] < int(torch_cuda.partition(".")[0]):
        newest = f"{gpus.driver_cuda[0]}.{gpus.driver_cuda[1]}"
        return "", f"torch {torch_version} needs CUDA {torch_cuda}, the driver supports {newest}"
    # Hopper's instructions beyond those of every later GPU have a letter.
    return ";".join(f"{a}.{b}a" if (a, b) == (9, 0) else f"{a}.{b}" for a, b in usable), ""


def detect_cuda(torch_cuda: str | None, torch_version: str) -> Cuda:
    """CUDA is built where nvcc is found and torch is a CUDA build.

    A GPU does not matter, as build machines rarely have one, except with
    SPARSE_AUTOTUNE_CUDA=native, which make sets: it builds for this machine's GPUs only.
    """
    forced = os.environ.get("SPARSE_AUTOTUNE_CUDA")
    if forced not in (None, "", "0", "1", "native"):
        raise CompileError(f"SPARSE_AUTOTUNE_CUDA must be 0, 1 or native, got {forced!r}")
    if forced == "0":
        return Cuda(None, "", "SPARSE_AUTOTUNE_CUDA=0 was set at build time")

    def left_out(why: str) -> Cuda:
        if forced == "1":
            raise CompileError(f"SPARSE_AUTOTUNE_CUDA=1 was set, but {why}")
        return Cuda(None, "", why)

    native = ""
    if forced == "native":
        native, why_none = native_architectures(torch_cuda, torch_version)
        if why_none:
            return left_out(why_none)
    if torch_cuda is None and forced != "1":
        return left_out(f"torch {torch_version} is not a CUDA build")
    nvcc, said = find_nvcc(torch_cuda)
    if nvcc is None:
        return left_out(said)
    if native:
        known = run([str(nvcc), "--list-gpu-code"]).stdout.split()
        wanted = {"sm_" + name.rstrip("a").replace(".", "") for name in native.split(";")}
        if not wanted <= set(known):
            native = ""  # a GPU newer than this nvcc: the default list's PTX serves it
    return Cuda(nvcc, said, "", native)


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


def choose_architectures(cuda: Cuda) -> Architectures | None:
    """Says what is built for, and why; None without CUDA."""
    if cuda.nvcc is None:
        print(f"sparse_autotune: CUDA is left out: {cuda.reason}", flush=True)
        return None
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST")
    architectures = parse_architectures(listed or cuda.native or DEFAULT_ARCHITECTURES)
    if architectures.left_out:
        old = ", ".join(architectures.left_out)
        print(f"sparse_autotune: the kernels need 8.0 or newer: {old} is left out")
    why = "every GPU from 8.0 on; SPARSE_AUTOTUNE_CUDA=native builds for this machine's only"
    why = "as TORCH_CUDA_ARCH_LIST says" if listed else "the GPU here" if cuda.native else why
    print(f"sparse_autotune: building with CUDA {cuda.version} ({cuda.nvcc})")
    print(f"sparse_autotune: for {architectures.text}: {why}", flush=True)
    return architectures

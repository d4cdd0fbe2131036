"""Builds the package's three shared objects by one generated list of commands.

libsparse_autotune_core.so   kernels, autotuner and the C interface; no torch, no Python. CMake
                             builds the same library (CMakeLists.txt).
libsparse_autotune.so        the PyTorch operators. Uses torch through the LibTorch stable ABI only:
                             one build serves every torch >= 2.10.
_tuner.*.so                  pybind11 bindings of the torch-free part; one build a Python version.

Nothing runs where the objects in place were built from these very sources for this configuration.

Environment: SPARSE_AUTOTUNE_CUDA=0/1 forces a build without / with CUDA, =native is one for this
machine's GPUs only; TORCH_CUDA_ARCH_LIST picks the architectures, CUDA_HOME (else PATH) the nvcc,
CXX the compiler, MAX_JOBS the number of jobs, SPARSE_AUTOTUNE_WERROR=1 turns host compiler warnings
into errors, SPARSE_AUTOTUNE_ARRIVE_BY_LANES=1 builds what racecheck looks at (device/mbarrier.cuh).
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036  PYTHON= may name any
    sys.exit(f"sparse_autotune needs Python >= 3.10; {sys.executable} is older")
try:
    from setuptools import Extension, setup
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import CompileError
except ImportError as error:
    sys.exit(f"setuptools 64 or newer is not installed for {sys.executable}: {error}")
if {"dist_info", "bdist_wheel", "editable_wheel"} & set(sys.argv) and not (
    find_spec("setuptools.command.bdist_wheel") or find_spec("wheel")
):  # else "invalid command 'bdist_wheel'"
    sys.exit(
        "setuptools before 70.1 makes no wheel by itself: pip install --upgrade setuptools, "
        "or pip install wheel"
    )

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # not everything that runs this file puts its folder there
from build_commands import Commands, alone, run, write  # noqa: E402
from build_cuda import Architectures, Cuda, choose_architectures, detect_cuda  # noqa: E402
from build_sources import (  # noqa: E402
    CSRC,
    CUDA_FLAGS,
    HOST_FLAGS,
    code_in,
    is_of_core,
    kernel_hash,
    library_sources,
    version,
)
from build_toolchain import check_toolchain  # noqa: E402

PACKAGE = "sparse_autotune"
# The oldest torch whose stable ABI the operator library uses, as TORCH_TARGET_VERSION encodes it.
STABLE_ABI_TARGET = "0x020a000000000000"
MINIMUM_TORCH = (2, 10)
# What csrc/ops reads of torch, under torch/csrc.
TORCH_HEADERS = ("stable/library.h", "stable/ops.h", "stable/tensor.h")
# ptxas only mentions that it serialised WGMMA or ignored setmaxnreg; for us that is an error.
PTXAS_FORBIDDEN = r"\(C75(0[78]|1[0-9]|20)\)"


class BuildNative(build_ext):
    """Compiles csrc/ and puts the shared objects beside the Python files."""

    def run(self) -> None:
        if find_spec("torch") is None:
            raise CompileError(f"torch, 2.10 or newer, is not installed for {sys.executable}")
        import torch

        if tuple(map(int, torch.__version__.split(".")[:2])) < MINIMUM_TORCH:
            raise CompileError(f"torch must be 2.10 or newer, {torch.__version__} is installed")
        cxx = os.environ.get("CXX") or "g++"
        cuda = detect_cuda(torch.version.cuda, torch.__version__)
        architectures = choose_architectures(cuda)
        inplace = self.inplace or getattr(self, "editable_mode", False)
        target = (ROOT / "python" if inplace else Path(self.build_lib).resolve()) / PACKAGE
        digest = build_digest(cuda, architectures, torch.__version__)
        there = [target / Path(output).name for output in self.get_outputs()]

        def in_place() -> bool:
            if all(p.is_file() and bytes.fromhex(digest) in p.read_bytes() for p in there):
                print("sparse_autotune: what is in place was built from these sources")
                return True
            return False

        if in_place():
            return
        kind = "cuda" if cuda.nvcc else "cpu"
        work = ROOT / "build" / f"{kind}-cp{sys.version_info.major}{sys.version_info.minor}"
        with alone(work):
            if in_place():  # by a build that this one waited for
                return
            check_toolchain(cxx, cuda, architectures, work)
            commands = Commands()
            compilers = Compilers.of(cxx, cuda, architectures)
            made = write_build(commands, work, compilers, digest)
            if commands.run(work) != 0:
                raise CompileError("compiling csrc/ failed; the compiler's messages are above")
            target.mkdir(parents=True, exist_ok=True)
            for path in made:
                install(path, target / path.name)

    def get_outputs(self) -> list[str]:
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        base = Path(self.build_lib) / PACKAGE
        names = ("libsparse_autotune_core.so", "libsparse_autotune.so", f"_tuner{suffix}")
        return [str(base / name) for name in names]

    def get_source_files(self) -> list[str]:
        folders = (CSRC, ROOT / "include")
        found = [p for folder in folders for p in sorted(folder.rglob("*")) if p.is_file()]
        return [str(p.relative_to(ROOT)) for p in found]


def build_digest(cuda: Cuda, architectures: Architectures | None, torch_version: str) -> str:
    """Names sources and configuration: the linker writes it into all objects as their build id."""
    parts = [cuda.version, cuda.reason, architectures.text if architectures else "", torch_version]
    parts += [str(sysconfig.get_config_var("EXT_SUFFIX")), version()]
    parts += [os.environ.get("SPARSE_AUTOTUNE_WERROR", ""), str(arrives_by_lanes())]
    digest = hashlib.sha256("\0".join(parts).encode())
    sources = [*code_in(CSRC), *code_in(ROOT / "include")]
    for path in (ROOT / "setup.py", *sorted(ROOT.glob("build_*.py")), *sources):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:40]


def arrives_by_lanes() -> bool:
    """Whether warpgroups of attention arrive at barriers lane by lane, which takes them longer."""
    return os.environ.get("SPARSE_AUTOTUNE_ARRIVE_BY_LANES") == "1"


@dataclass(frozen=True)
class Compilers:
    """What compiles, for which architectures, and the flags of all files of a kind."""

    cxx: str
    version: str  # of cxx
    cuda: Cuda
    architectures: Architectures | None
    torch_home: Path
    cuda_includes: list[str]
    cuda_libraries: list[str]

    @staticmethod
    def of(cxx: str, cuda: Cuda, architectures: Architectures | None) -> Compilers:
        import torch

        version = run([cxx, "--version"]).stdout.partition("\n")[0]
        folders = cuda.folders(cxx) if cuda.nvcc else ([], [])
        return Compilers(cxx, version, cuda, architectures, Path(torch.__file__).parent, *folders)

    def common(self) -> list[str]:
        flags = ["-std=c++20", f"-I{CSRC}"]
        return [*flags, "-DSPARSE_AUTOTUNE_WITH_CUDA=1"] if self.cuda.nvcc else flags

    def host(self) -> list[str]:
        """Of C++ files."""
        flags = [*self.common(), "-O3", "-fPIC", *HOST_FLAGS]
        if "clang" not in self.version:  # which does not know it
            flags.append("-Wno-restrict")  # false alarms on std::string in GCC 12 (GCC bug 105329)
        if os.environ.get("SPARSE_AUTOTUNE_WERROR") == "1":
            flags.append("-Werror")
        for folder in self.cuda_includes:
            flags += [f"-isystem{folder}", f"-isystem{folder}/cccl"]
        return flags

    def torch(self) -> list[str]:
        """Besides, of those that include torch."""
        flags = [f"-DTORCH_TARGET_VERSION={STABLE_ABI_TARGET}", "-Wno-unused-parameter"]
        flags.append(f"-isystem{self.torch_home}/include")
        return [*flags, "-DUSE_CUDA"] if self.cuda.nvcc else flags

    def pybind11(self) -> list[str]:
        """Besides, of those that include it."""
        # torch brings a copy of its headers, for environments without pybind11.
        include = self.torch_home / "include"
        if find_spec("pybind11") is not None:
            import pybind11

            include = Path(pybind11.get_include())
        # Else pybind11 asks at each reference it counts whether the GIL is held.
        flags = ["-DNDEBUG", f"-isystem{include}"]
        return [*flags, f"-isystem{sysconfig.get_paths()['include']}"]

    def build_info(self) -> list[str]:
        """Besides, of the file that says what was built."""
        import torch

        info = {
            "VERSION": version(),
            "CUDA_VERSION": self.cuda.version,
            "CUDA_REASON": self.cuda.reason,
            "ARCHITECTURES": self.architectures.text if self.architectures else "",
            "KERNEL_HASH": kernel_hash(),
            "BUILT_WITH_TORCH": torch.__version__,
            "COMPILER": self.version,
        }
        return [f'-DSPARSE_AUTOTUNE_{key}="{text}"' for key, text in info.items()]

    def kernels(self, hopper_only: bool) -> list[str]:
        """Of CUDA files."""
        assert self.architectures is not None
        chosen = self.architectures.hopper if hopper_only else self.architectures.portable
        return [*self.common(), *chosen, *CUDA_FLAGS]

    def linked_core(self) -> list[str]:
        """What the core is linked to."""
        flags = ["-Wl,--exclude-libs,ALL", "-Wl,--no-undefined", "-pthread"]
        # Hidden: the static CUDA runtime must not meet torch's own copy of its symbols.
        if self.cuda.nvcc:
            flags += [f"-L{folder}" for folder in self.cuda_libraries]
            flags += ["-lcudart_static", "-lrt"]
        return [*flags, "-ldl"]

    def linked_torch(self) -> list[str]:
        """What the operators are linked to, besides the core."""
        flags = ["-Wl,--no-undefined", "-pthread", f"-L{self.torch_home}/lib"]
        return [*flags, "-ltorch_cpu", "-lc10", "-ldl"]


def write_build(
    commands: Commands, work: Path, compilers: Compilers, digest: str
) -> tuple[Path, ...]:
    """Fills `commands`; returns the paths of both libraries and of the Python module."""
    add_rules(commands, compilers)
    # At the beginning, as it is long: the last jobs of a build leave cores idle.
    bindings = add_bindings(commands, work, compilers)
    core_objects, operators = add_objects(commands, work, compilers)
    build_id = f"-Wl,--build-id=0x{digest}"
    core, library = work / "libsparse_autotune_core.so", work / "libsparse_autotune.so"
    module = work / ("_tuner" + sysconfig.get_config_var("EXT_SUFFIX"))
    for made, parts, flags in (
        (core, core_objects, compilers.linked_core()),
        (library, [*operators, core], compilers.linked_torch()),
        (module, [bindings, library, core], []),
    ):
        named = [f"-Wl,-soname,{made.name}"] if made != module else []
        beside = ["-Wl,-rpath,$ORIGIN"] if made != core else []
        commands.add(made, "link", parts, [*named, *beside, build_id, *flags])
    return core, library, module


def add_rules(commands: Commands, compilers: Compilers) -> None:
    cxx, nvcc = shlex.quote(compilers.cxx), shlex.quote(str(compilers.cuda.nvcc))
    commands.rule("cxx", f"{cxx} $flags -MD -MF $out.d -c $in -o $out", "C++ $in", 1.7)
    chosen = compilers.architectures.portable if compilers.architectures else []
    # $out.log keeps ptxas's report, so that what it only mentions is found afterwards.
    commands.rule(
        "nvcc",
        f"{nvcc} -ccbin {cxx} $flags -MD -MF $out.d -c $in -o $out > $out.log 2>&1 "
        "|| { cat $out.log; exit 1; }; "
        f"if grep -E '{PTXAS_FORBIDDEN}' $out.log; then rm -f $out; exit 1; fi; "
        "grep -i warning $out.log || true",
        "CUDA $in",
        4.0 + 2.0 * sum("code=sm" in option for option in chosen),
    )
    commands.rule("link", f"{cxx} -shared $in -o $out $flags", "LINK $out", 0.5)


def add_bindings(commands: Commands, work: Path, compilers: Compilers) -> Path:
    """As one: nine tenths of what each file compiles to is pybind11's own code, the same in all."""
    together, made = work / "bindings.cpp", work / "bindings.o"
    files = sorted((CSRC / "bindings").glob("*.cpp"))
    write(together, "".join(f'#include "{p.relative_to(CSRC).as_posix()}"\n' for p in files))
    # At -O3 it takes a fourth longer to compile, and calls take what they take.
    commands.add(made, "cxx", [together], [*compilers.host(), *compilers.pybind11(), "-O2"])
    return made


def add_objects(
    commands: Commands, work: Path, compilers: Compilers
) -> tuple[list[Path], list[Path]]:
    """Those of the core and those of the operators."""
    host, torch = compilers.host(), compilers.torch()
    # Else reading torch's headers is half of what each of the operators' files takes. A compiler to
    # which the precompiled ones are of no use reads them themselves.
    torch_headers = work / "ops" / "torch.h"
    write(torch_headers, "".join(f"#include <torch/csrc/{name}>\n" for name in TORCH_HEADERS))
    precompiled = torch_headers.with_name("torch.h.gch")
    commands.add(precompiled, "cxx", [torch_headers], [*host, *torch, "-xc++-header"])
    core: list[Path] = []
    operators: list[Path] = []
    wanted = compilers.architectures
    for path in library_sources(wanted is not None, wanted is not None and bool(wanted.hopper)):
        relative = path.relative_to(CSRC)
        by_warpgroups = path.match("attention/*_sm90.cu") and "warps" not in path.stem
        by_lanes = arrives_by_lanes() and by_warpgroups
        made = work / relative.with_name(relative.name + (".by_lanes.o" if by_lanes else ".o"))
        (core if is_of_core(path) else operators).append(made)
        if path.suffix == ".cu":
            flags = compilers.kernels(path.stem.endswith("_sm90"))
            if by_lanes:  # which takes registers: some are spilled
                flags = [flag for flag in flags if "warn-spills" not in flag]
                flags += ["-DSPARSE_AUTOTUNE_ARRIVE_BY_LANES"]
            commands.add(made, "nvcc", [path], flags)
        elif relative.parts[0] == "ops":
            flags = [*host, *torch, f"-include{torch_headers}"]
            commands.add(made, "cxx", [path], flags, precompiled)
        elif relative.parts[0] == "c_api":
            commands.add(made, "cxx", [path], [*host, f"-I{ROOT / 'include'}"])
        elif relative.name == "build_info.cpp":
            commands.add(made, "cxx", [path], [*host, *compilers.build_info()])
        else:
            commands.add(made, "cxx", [path], host)
    return core, operators


def install(source: Path, target: Path) -> None:
    """Replaces by rename: a process that has the old file loaded keeps it intact."""
    stamp = source.stat()
    if target.is_file():
        there = target.stat()
        if (there.st_mtime_ns, there.st_size) == (stamp.st_mtime_ns, stamp.st_size):
            return
    temporary = target.with_name(target.name + ".new")
    shutil.copy2(source, temporary)
    os.replace(temporary, target)


setup(
    license="Apache-2.0",
    ext_modules=[Extension(f"{PACKAGE}._tuner", sources=["csrc/bindings/tuner_module.cpp"])],
    cmdclass={"build_ext": BuildNative},
)

"""What the build makes of a machine: CUDA or not, for which GPUs, and in which words it refuses."""

import ctypes
import dataclasses
import pathlib
import sys
import sysconfig
import types

import pytest

ROOT = pathlib.Path(__file__).parents[1]
if not (ROOT / "setup.py").is_file():
    pytest.skip("installed without its sources", allow_module_level=True)
sys.path.insert(0, str(ROOT))
import build_cuda  # noqa: E402
import build_gpu  # noqa: E402
from build_cuda import (  # noqa: E402
    Cuda,
    choose_architectures,
    detect_cuda,
    missing_toolkit,
    parse_architectures,
)
from build_gpu import Gpus, find_gpus  # noqa: E402
from build_toolchain import check_toolchain  # noqa: E402

TORCH = ("13.0", "2.11.0")


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No CUDA in the environment, from PyPI or on PATH; returns a folder for programs."""
    for name in ("CUDA_HOME", "CUDA_PATH", "SPARSE_AUTOTUNE_CUDA", "CXX", "TORCH_CUDA_ARCH_LIST"):
        monkeypatch.delenv(name, raising=False)
    find_spec = build_cuda.find_spec
    no_nvidia = lambda name: None if name == "nvidia" else find_spec(name)  # noqa: E731
    monkeypatch.setattr(build_cuda, "find_spec", no_nvidia)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def program(path, says, status=0, stream=1):
    """A compiler that only says something; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&{stream}\nexit {status}\n")
    path.chmod(0o755)
    return path


# CUDA or not


def test_no_nvcc(bare, monkeypatch):
    found = detect_cuda(*TORCH)
    assert found.nvcc is None
    assert found.reason.startswith("no nvcc was found in CUDA_HOME (not set) or on PATH")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert "CUDA_HOME (/nowhere)" in detect_cuda(*TORCH).reason
    monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", "1")
    with pytest.raises(Exception, match=r"^SPARSE_AUTOTUNE_CUDA=1 was set, but no nvcc was found"):
        detect_cuda(*TORCH)


def test_nvcc_of_cuda_home_before_that_of_path(bare, monkeypatch):
    on_path = program(bare / "nvcc", "Cuda compilation tools, release 12.4, V12.4.1")
    assert detect_cuda(*TORCH) == Cuda(on_path, "12.4", "")
    monkeypatch.setenv("CUDA_HOME", str(bare / "no toolkit"))
    assert detect_cuda(*TORCH).nvcc == on_path
    other = program(bare / "tool kit" / "bin" / "nvcc", "release 13.0, V13.0.1")
    monkeypatch.setenv("CUDA_HOME", str(bare / "tool kit"))
    assert detect_cuda(*TORCH) == Cuda(other, "13.0", "")


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("release 11.8, V11.8.89", "nvcc 11.8 is older than 12.0, the oldest with C++20; "),
        ("hello", "nvcc --version prints no release"),
    ],
)
def test_nvcc_that_will_not_do(says, reason, bare, monkeypatch):
    program(bare / "nvcc", says)
    assert reason in detect_cuda(*TORCH).reason
    monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", "1")
    with pytest.raises(Exception, match=r"^SPARSE_AUTOTUNE_CUDA=1 was set, but ") as raised:
        detect_cuda(*TORCH)
    assert reason in str(raised.value)


def test_a_torch_without_cuda(bare, monkeypatch):
    program(bare / "nvcc", "release 13.0, V13.0.1")
    assert detect_cuda(None, "2.11.0+cpu").reason == "torch 2.11.0+cpu is not a CUDA build"
    monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", "1")
    assert detect_cuda(None, "2.11.0+cpu").version == "13.0"


def test_cuda_left_out_or_misspelt(bare, monkeypatch):
    program(bare / "nvcc", "release 13.0, V13.0.1")
    monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", "0")
    assert detect_cuda(*TORCH).reason == "SPARSE_AUTOTUNE_CUDA=0 was set at build time"
    monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", "yes")
    with pytest.raises(
        Exception, match=r"^SPARSE_AUTOTUNE_CUDA must be 0, 1 or native, got 'yes'$"
    ):
        detect_cuda(*TORCH)


# For this machine's GPU


class Driver:
    """libcuda.so.1 of a machine with GPUs of these compute capabilities."""

    def __init__(self, *capabilities, init=0, cuda=13020):
        self._capabilities, self._init, self._cuda = capabilities, init, cuda

    def _write(self, pointer, value):
        pointer._obj.value = value
        return 0

    def cuInit(self, flags):  # noqa: N802
        return self._init

    def cuDriverGetVersion(self, version):  # noqa: N802
        return self._write(version, self._cuda)

    def cuDeviceGetCount(self, count):  # noqa: N802
        return self._write(count, len(self._capabilities))

    def cuDeviceGet(self, device, ordinal):  # noqa: N802
        return self._write(device, 100 + ordinal)

    def cuDeviceGetAttribute(self, value, attribute, device):  # noqa: N802
        major, minor = self._capabilities[device - 100]
        return self._write(value, {75: major, 76: minor}[attribute])


@pytest.fixture
def machine(bare, monkeypatch):
    """Gives this machine a driver, and SPARSE_AUTOTUNE_CUDA=native; returns the folder on PATH."""

    def with_driver(driver):
        def load(name):
            assert name == "libcuda.so.1"
            if driver is None:
                raise OSError("cannot open shared object file")
            return driver

        monkeypatch.setattr(build_gpu, "ctypes", types.SimpleNamespace(**vars(ctypes)))
        monkeypatch.setattr(build_gpu.ctypes, "CDLL", load)
        monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", "native")
        return bare

    return with_driver


def nvcc_of(folder, release="13.0", knows="sm_80 sm_90 sm_100"):
    """One that says which GPUs it knows."""
    path = program(folder / "nvcc", "")
    says_release = f'--version) echo "release {release}, V1";;'
    path.write_text(f'#!/bin/sh\ncase "$1" in {says_release} *) echo {knows};; esac\n')
    return path


def test_gpus_of_the_driver(machine):
    machine(Driver((9, 0), (8, 6), (9, 0)))
    assert find_gpus() == Gpus(((8, 6), (9, 0)), (13, 2), "")


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (None, "NVIDIA's driver (libcuda.so.1) is not installed"),
        (Driver((9, 0), init=100), "NVIDIA's driver finds no usable GPU (cuInit: error 100)"),
        (Driver(), "NVIDIA's driver shows no GPU"),
        (object(), "NVIDIA's driver does not answer: 'object' object has no attribute"),
    ],
)
def test_no_gpu_no_cuda_though_nvcc_is_there(driver, reason, machine, monkeypatch):
    nvcc = nvcc_of(machine(driver))
    found = detect_cuda(*TORCH)
    assert found.nvcc is None
    assert found.reason.startswith(reason)
    assert missing_toolkit() == []
    for everything in ("1", ""):
        monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", everything)
        assert detect_cuda(*TORCH) == Cuda(nvcc, "13.0", "")


@pytest.mark.parametrize(
    ("capabilities", "text", "portable", "hopper"),
    [
        ([(9, 0)], "9.0a", ["90"], True),
        ([(8, 9)], "8.9", ["89"], False),
        ([(7, 5), (8, 0), (9, 0)], "8.0;9.0a", ["80", "90"], True),
        ([(10, 0)], "10.0", ["100"], False),
        ([(13, 0)], "8.0+PTX;9.0a", ["80", "90", "compute_80"], True),  # unknown to this nvcc
    ],
)
def test_the_gpu_here_is_built_for(capabilities, text, portable, hopper, machine, capsys):
    nvcc_of(machine(Driver(*capabilities)), knows="sm_80 sm_89 sm_90 sm_100")
    chosen = choose_architectures(detect_cuda(*TORCH))
    assert chosen.text == text
    codes = [option.rpartition("code=")[2].removeprefix("sm_") for option in chosen.portable]
    assert codes == portable
    assert bool(chosen.hopper) is hopper
    assert f"for {text}: " in capsys.readouterr().out


def test_a_list_of_architectures_goes_before_the_gpu(machine, monkeypatch, capsys):
    nvcc_of(machine(Driver((9, 0))))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.6")
    assert choose_architectures(detect_cuda(*TORCH)).text == "8.6"
    assert "for 8.6: as TORCH_CUDA_ARCH_LIST says" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("driver", "torch", "reason"),
    [
        (Driver((7, 5)), TORCH, "need compute capability 8.0 or newer, the GPU here has 7.5"),
        (
            Driver((9, 0), cuda=12040),
            TORCH,
            "needs CUDA 13.0, the driver supports 12.4",
        ),
        (Driver((9, 0)), (None, "2.11.0+cpu"), "torch 2.11.0+cpu is not a CUDA build"),
    ],
)
def test_a_gpu_that_is_of_no_use(driver, torch, reason, machine):
    nvcc_of(machine(driver))
    found = detect_cuda(*torch)
    assert found.nvcc is None
    assert reason in found.reason


# nvcc from PyPI


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """The folder `nvidia` of two environments on sys.path, as isolated builds have them."""
    folders = [tmp_path / name / "nvidia" for name in ("overlay", "normal")]
    for folder in folders:
        folder.mkdir(parents=True)
    spec = types.SimpleNamespace(submodule_search_locations=[str(folder) for folder in folders])
    find_spec = build_cuda.find_spec
    there = lambda name: spec if name == "nvidia" else find_spec(name)  # noqa: E731
    monkeypatch.setattr(build_cuda, "find_spec", there)
    return folders


def test_nvcc_from_pypi(bare, packages):
    assert detect_cuda(*TORCH).nvcc is None
    (packages[0] / "cu13" / "include").mkdir(parents=True)
    nvcc = nvcc_of(packages[1] / "cu13" / "bin", "13.2")
    assert detect_cuda(*TORCH) == Cuda(nvcc, "13.2", "")
    toolkit = nvcc_of(bare)
    assert detect_cuda(*TORCH) == Cuda(toolkit, "13.0", "")
    nvcc_of(bare, "11.5")  # Ubuntu 22.04's own
    assert detect_cuda(*TORCH) == Cuda(nvcc, "13.2", "")


def test_what_is_missing_is_named(machine, monkeypatch):
    folder = machine(Driver((9, 0)))
    toolkit = "cuda-toolkit[cccl,cudart,cusparse,nvcc]==13.2.*"
    monkeypatch.setitem(sys.modules, "torch", torch_for("13.2"))
    assert missing_toolkit() == [toolkit]
    if not pathlib.Path("/usr/local/cuda/bin/nvcc").is_file():
        assert detect_cuda("13.2", "2.15.0").reason.endswith(f"pip install '{toolkit}' brings one")
    monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", "0")
    assert missing_toolkit() == []
    monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", "")
    for cuda in ("12.8", None):  # the packages for CUDA 12 hold no nvcc
        monkeypatch.setitem(sys.modules, "torch", torch_for(cuda))
        assert missing_toolkit() == []
    monkeypatch.setitem(sys.modules, "torch", torch_for("13.2"))
    nvcc_of(folder)
    assert missing_toolkit() == []


def test_a_forced_build_asks_for_the_toolkit_without_a_gpu(machine, monkeypatch):
    machine(None)
    monkeypatch.setitem(sys.modules, "torch", torch_for("13.0"))
    assert missing_toolkit() == []
    monkeypatch.setenv("SPARSE_AUTOTUNE_CUDA", "1")
    assert missing_toolkit() == ["cuda-toolkit[cccl,cudart,cusparse,nvcc]==13.0.*"]


def test_pip_is_told_what_is_missing(machine, monkeypatch):
    machine(Driver((9, 0)))
    monkeypatch.setitem(sys.modules, "torch", torch_for("13.2"))
    import build_backend

    monkeypatch.setattr(build_backend.build_meta, "get_requires_for_build_wheel", lambda _: ["a"])
    monkeypatch.setattr(build_backend.build_meta, "get_requires_for_build_editable", lambda _: [])
    assert build_backend.get_requires_for_build_wheel() == ["a", *missing_toolkit()]
    assert build_backend.get_requires_for_build_editable() == missing_toolkit() != []
    assert build_backend.build_wheel is build_backend.build_meta.build_wheel


def torch_for(cuda):
    """A torch that says it was built for that."""
    module = types.ModuleType("torch")
    module.version = types.SimpleNamespace(cuda=cuda)
    module.__spec__ = types.SimpleNamespace()
    return module


# Architectures


@pytest.mark.parametrize(
    ("text", "portable", "hopper"),
    [
        ("8.0+PTX;9.0a", ["80,sm_80", "80,sm_90", "80,compute_80"], True),
        ("9.0", ["90,sm_90"], True),
        ("8.6 8.9, 12.0+PTX", ["86,sm_86", "86,sm_89", "86,sm_120", "120,compute_120"], False),
        ("10.0a", ["100,sm_100"], False),
    ],
)
def test_architectures(text, portable, hopper):
    found = parse_architectures(text)
    words = [f"-gencode=arch=compute_{pair.replace(',', ',code=')}" for pair in portable]
    assert found.portable == words
    assert found.hopper == (["-gencode=arch=compute_90a,code=sm_90a"] if hopper else [])


def test_architectures_too_old_are_left_out():
    found = parse_architectures("5.2 7.5+PTX 8.0 9.0+PTX")
    assert found == dataclasses.replace(
        parse_architectures("8.0;9.0+PTX"), left_out=["5.2", "7.5+PTX"]
    )


@pytest.mark.parametrize(
    "text", ["7.5", "7.0 7.5+PTX", "8.0;Ampere", "90", "sm_90", "native", "8.0;;", ";"]
)
def test_architectures_refused(text):
    with pytest.raises(Exception, match=r"^TORCH_CUDA_ARCH_LIST: .*, got '"):
        parse_architectures(text)


# What cannot compile


def test_no_compiler(bare, tmp_path):
    with pytest.raises(Exception, match=r"^no C\+\+ compiler: g\+\+ is not on PATH \(install g"):
        check_toolchain("g++", Cuda(None, "", "no"), None, tmp_path)


def test_a_compiler_that_is_too_old(bare, tmp_path):
    program(bare / "g++", "g++: error: unrecognized option -std=c++20", 1, 2)
    with pytest.raises(Exception, match=r"^g\+\+ cannot compile C\+\+20; .*: g\+\+: error: unrec"):
        check_toolchain("g++", Cuda(None, "", "no"), None, tmp_path)


def test_no_python_headers(bare, tmp_path, monkeypatch):
    program(bare / "g++", "")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(Exception, match=r" has no Python\.h \(install Python's headers: python3"):
        check_toolchain("g++", Cuda(None, "", "no"), None, tmp_path)


def test_an_nvcc_that_compiles_nothing(bare, tmp_path):
    program(bare / "g++", "")
    nvcc = program(bare / "nvcc", "nvcc fatal : Unsupported gpu architecture compute_120", 1, 2)
    with pytest.raises(Exception, match=r"^nvcc 12\.4 with g\+\+ cannot .*architecture compute_12"):
        check_toolchain("g++", Cuda(nvcc, "12.4", ""), parse_architectures("12.0"), tmp_path)

"""The shape of the code and of what is built: who may include whom, what a library shows."""

import pathlib
import re
import shutil
import subprocess

import pytest

import sparse_autotune
from sparse_autotune import _tuner
from sparse_autotune.ops import LIBRARY

ROOT = pathlib.Path(__file__).parents[1]
CSRC = ROOT / "csrc"
SOURCES = sorted(p for p in CSRC.rglob("*") if p.suffix in (".h", ".cuh", ".cpp", ".cu"))
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)

pytestmark = pytest.mark.skipif(not CSRC.is_dir(), reason="installed without its sources")


def includes(path):
    return INCLUDE.findall(path.read_text())


def layer(path):
    return path.relative_to(CSRC).parts[0]


def test_there_is_something_to_look_at():
    assert len(SOURCES) > 50
    assert any("torch/csrc/stable/library.h" in includes(path) for path in SOURCES)


def test_only_operators_include_torch():
    wrong = {
        str(path.relative_to(CSRC)): name
        for path in SOURCES
        for name in includes(path)
        if layer(path) != "ops" and re.match(r"(torch|ATen|c10|caffe2)/", name)
    }
    assert not wrong


def test_operators_use_the_stable_abi_alone():
    """One build for every torch: no header whose symbols change from one to the next."""
    stable = ("torch/csrc/stable/", "torch/csrc/inductor/aoti_torch/c/", "torch/headeronly/")
    wrong = {
        str(path.relative_to(CSRC)): name
        for path in SOURCES
        for name in includes(path)
        if re.match(r"(torch|ATen|c10|caffe2)/", name) and not name.startswith(stable)
    }
    assert not wrong


def test_python_stays_in_the_bindings():
    wrong = {
        str(path.relative_to(CSRC)): name
        for path in SOURCES
        for name in includes(path)
        if layer(path) != "bindings" and ("pybind11" in name or name == "Python.h")
    }
    assert not wrong


# Which layers a layer may include, apart from itself and the headers that all share.
ALLOWED = {
    "kernels": {"kernels"},
    "libraries": {"libraries", "kernels"},
    "plan": {"plan", "kernels"},
    "autotune": {"autotune", "plan", "kernels"},
    "ops": {"ops", "autotune", "plan", "kernels", "libraries"},
    "bindings": {"bindings", "autotune", "ops", "plan"},
}


def test_layers():
    wrong = []
    for path in SOURCES:
        if path.parent == CSRC:
            continue
        for name in includes(path):
            if (CSRC / name).is_file() and "/" in name:
                allowed = ALLOWED[layer(path)]
                if layer(path) == "autotune" and path.stem == "api":
                    allowed = allowed | {"libraries"}  # it reports what each layer has found
                if name.split("/")[0] not in allowed:
                    wrong.append((str(path.relative_to(CSRC)), name))
    assert not wrong


def test_bindings_include_no_torch_at_any_depth():
    """One build of them serves every torch."""
    seen, waiting = set(), [p for p in SOURCES if layer(p) == "bindings"]
    while waiting:
        path = waiting.pop()
        for name in includes(path):
            assert not re.match(r"(torch|ATen|c10|caffe2)/", name), path
            if (CSRC / name).is_file() and name not in seen:
                seen.add(name)
                waiting.append(CSRC / name)
    assert "variant.h" in seen


def test_the_tuner_knows_no_variant_by_name():
    families = {v["family"] for v in _tuner.variants()}
    wrong = {
        (str(path.relative_to(CSRC)), family)
        for path in SOURCES
        if layer(path) in ("autotune", "plan")
        for family in families - {"reference", "dense"}  # words of prose too
        if re.search(rf"\b{family}\b", path.read_text())
    }
    assert not wrong


def test_every_variant_file_is_in_the_registry():
    """Each file with a variant registers its family, named after the file, and nobody else does."""
    cuda = _tuner.build_info()["cuda"]
    families = {}
    for path in SOURCES:
        named = {name.split("/")[0] for name in re.findall(r'"(\w+/\w+)"', path.read_text())}
        if not named or layer(path) not in ("kernels", "libraries", "ops"):
            continue
        relative = path.relative_to(CSRC)
        for_cuda = path.suffix == ".cu" or path.stem.endswith("_cuda") or layer(path) == "libraries"
        if for_cuda and not cuda:
            continue
        stem = path.stem.removesuffix("_cuda") if path.suffix == ".cpp" else path.stem
        family = f"cpu_{stem}" if relative.parts[:2] == ("kernels", "cpu") else stem
        assert len(named) == 1, f"{relative} names the families {sorted(named)}"
        assert named <= {family, stem}, f"{relative} holds the family {named}"
        families[named.pop()] = "cuda" if for_cuda else "cpu"
    assert families == {v["family"]: v["device"] for v in _tuner.variants()}


def test_names_of_variants():
    names = [v["name"] for v in _tuner.variants()]
    assert names == sorted(set(names)) == sparse_autotune.variants()
    for name in names:
        assert re.fullmatch(r"[a-z][a-z0-9_]*/[a-z0-9_]+", name), name
    for v in _tuner.variants():
        assert v["name"].split("/")[0] == v["family"]


# What is built


def binutils(tool, *arguments):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    return subprocess.run(
        [tool, *map(str, arguments)], capture_output=True, text=True, check=True
    ).stdout


def symbols(*options):
    """(kind, demangled name) of the operator library's dynamic symbols."""
    lines = binutils("nm", "-D", "-C", "--without-symbol-versions", *options, LIBRARY).splitlines()
    split = [re.match(r"(?:[0-9a-f]+)?\s+(\w) (.*)", line) for line in lines]
    return [match.groups() for match in split if match]


def test_exported_symbols():
    """Only what the Python module needs: two copies of anything else might meet in a process."""
    strong = [name for kind, name in symbols("--defined-only") if kind in "TDBRG"]
    ours = ("sparse_autotune::api::", "sparse_autotune::Launcher::")
    assert strong and not [name for name in strong if not name.startswith(ours)]
    # The standard library's templates, which its headers make visible.
    shared = [name for kind, name in symbols("--defined-only") if kind not in "TDBRG"]
    standard = re.compile(r"\b(std|__gnu_cxx)::")
    assert not [name for name in shared if not standard.search(name)]
    assert not [name for name in shared if "sparse_autotune" in name]


def test_undefined_symbols():
    """Nothing of Python, of the CUDA runtime and driver, or of the unstable part of torch."""
    names = [name for _, name in symbols("--undefined-only")]
    assert any(name.startswith("aoti_torch_") for name in names)
    wrong = re.compile(r"_?Py[A-Z_]|cuda[A-Z]|cu[A-Z]|cublas|cusparse|at::|c10::|torch::")
    assert not [name for name in names if wrong.match(name)]


def test_needed_libraries():
    """Vendor libraries, CUDA and an OpenMP of our own are not among them."""
    text = binutils("readelf", "-d", LIBRARY)
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", text))
    system = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "libdl.so.2",
              "librt.so.1", "libpthread.so.0"}  # fmt: skip
    needed = {name for name in needed if not name.startswith("ld-linux")}
    assert needed - system == {"libtorch_cpu.so", "libc10.so"}
    assert not re.search(r"RPATH|RUNPATH", text), "a path of the building machine"


def test_the_python_module_needs_no_torch():
    text = binutils("readelf", "-d", _tuner.__file__)
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", text))
    assert not [name for name in needed if "torch" in name or "c10" in name or "cu" in name]
    assert "libsparse_autotune.so" in needed
    assert re.findall(r"(?:RPATH|RUNPATH).*\[(.+)\]", text) == ["$ORIGIN"]


def test_one_version():
    match = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert match is not None
    assert _tuner.build_info()["version"] == match.group(1)
    newest = re.search(r"^## \[?([0-9][\w.]*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest.group(1) == match.group(1)


def test_public_names():
    """Those of the documented interface, each with a docstring."""
    documented = {"matmul", "linear", "sampled_matmul", "BsrTensor", "random_bsr", "benchmark",
                  "BenchmarkReport", "variants", "tune", "cache", "tuning_count", "settings",
                  "show_config"}  # fmt: skip
    assert documented <= set(sparse_autotune.__all__)
    for name in sparse_autotune.__all__:
        assert getattr(sparse_autotune, name).__doc__, name
    assert (pathlib.Path(sparse_autotune.__file__).parent / "py.typed").is_file()

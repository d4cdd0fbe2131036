"""What importing gives, and what it does not cost; `show_config` tells the rest."""

import ast
import inspect
import os
import pathlib
import re
import shutil
import sys
import types

import pytest
import torch
from interpreters import end_of_python, run_python

import sparse_autotune
from sparse_autotune import _tuner, cache, settings, show_config
from sparse_autotune.configuration import why_no_gpu

PACKAGE = pathlib.Path(sparse_autotune.__file__).parent
PUBLIC = {
    *("BlockMask", "attention"),
    *("BenchmarkReport", "BsrTensor", "VariantRecord", "benchmark", "cache", "linear", "matmul"),
    *("GridReport", "benchmark_grid"),
    *("random_bsr", "settings", "show_config", "tune", "tuning_count", "variants"),
    *("PolynomialDensity", "SparseLinear", "override_torch", "prune_", "prune_and_regrow_"),
    *(
        "RegisteredVariant",
        "VariantProblem",
        "prewarm",
        "Advice",
        "AttentionProblem",
        "BlockSizeAdvice",
        "advise",
        "register_cudnn_bsa",
        "register_flash_attention_4",
        "register_flex_attention",
        "register_variant",
        "set_process_group",
    ),
    *("TuneFileReport", "regrow_", "sampled_matmul", "set_pattern_", "sparsify_", "tune_file"),
}


def config(capsys):
    """The lines of show_config by their first word or two."""
    show_config()
    text = capsys.readouterr().out
    return text, dict(re.findall(r"^(\w+(?: \d+| variants)?) +(.*)$", text, re.MULTILINE))


# Names


def test_public_names():
    assert set(sparse_autotune.__all__) == PUBLIC
    assert sparse_autotune.__all__ == sorted(sparse_autotune.__all__)
    for name in PUBLIC:
        assert getattr(sparse_autotune, name) is not None
    names = set(vars(sparse_autotune)) - PUBLIC
    modules = {name for name in names if inspect.ismodule(getattr(sparse_autotune, name))}
    assert {name for name in names - modules if not name.startswith("_")} <= {"annotations"}
    assert sparse_autotune.__version__ == _tuner.build_info()["version"]


def test_public_functions_are_documented_and_typed():
    for name in PUBLIC - {"cache", "settings"}:
        thing = getattr(sparse_autotune, name)
        assert inspect.getdoc(thing), name
        if inspect.isfunction(thing):
            signature = inspect.signature(thing)
            assert signature.return_annotation is not inspect.Signature.empty, name
            for parameter in signature.parameters.values():
                assert parameter.annotation is not inspect.Parameter.empty, (name, parameter)
                if len(signature.parameters) > 1:
                    words = rf"^ *{parameter.name}: "
                    assert re.search(words, thing.__doc__, re.MULTILINE), (name, parameter)
    for name in cache.__all__:
        assert inspect.getdoc(getattr(cache, name)), name


def test_it_is_typed():
    assert (PACKAGE / "py.typed").exists()


def test_the_stub_of_the_compiled_module_is_complete():
    """The same names, and for each function the same parameters."""
    stub = ast.parse((PACKAGE / "_tuner.pyi").read_text())
    nodes = [n for n in stub.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    present = {name for name in vars(_tuner) if not name.startswith("_")}
    assert {node.name for node in nodes} == present
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            continue
        arguments = node.args.args + node.args.kwonlyargs
        shown = getattr(_tuner, node.name).__doc__.splitlines()[0]
        inside = shown[shown.index("(") + 1 : shown.rindex(") ->")]
        parameters = re.findall(r"(?:^|, )(\w+): ", re.sub(r"\[.*?\]", "", inside))
        assert [a.arg for a in arguments] == parameters, shown


# Cost


def test_import_is_lean(tmp_path):
    """No extra is imported, CUDA is not touched, nothing is written, nothing is said.

    CUDA not even where it is torch's default device.
    """
    code = """
import sys, torch
torch.set_default_device("cuda")
before = set(sys.modules)
import sparse_autotune
new = {name.split(".")[0] for name in set(sys.modules) - before}
extras = {"rich", "pandas", "matplotlib", "tqdm", "scipy", "IPython", "triton"}
print(sorted(new & extras), torch.cuda.is_initialized(), threads := len(sys._current_frames()))
"""
    printed = run_python(code, tmp_path / "cache", verbose="1")
    assert printed == "[] False 1\n"
    assert list(tmp_path.iterdir()) == []


def test_nothing_brings_the_compiler(tmp_path):
    """torch._dynamo takes seconds to import; who never compiles does not pay."""
    code = """
import sys, sparse_autotune, torch
a = sparse_autotune.random_bsr(4, 4, 2, density=1).requires_grad_()
sparse_autotune.matmul(a, torch.ones(4, 3)).sum().backward()
print("torch._dynamo" in sys.modules, "torch._inductor" in sys.modules)
"""
    assert run_python(code, tmp_path, mode="off") == "False False\n"


def test_a_tree_that_is_not_built_says_so(tmp_path):
    """As does one that was built for another Python."""
    (tmp_path / "sparse_autotune").mkdir()
    for file in PACKAGE.glob("*.py"):
        shutil.copy(file, tmp_path / "sparse_autotune")
    (tmp_path / "sparse_autotune" / "_tuner.cpython-39-x86_64-linux-gnu.so").touch()
    code = "import sys; sys.path.insert(0, sys.argv[1]); import sparse_autotune"
    done = end_of_python(code, tmp_path, tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: sparse_autotune is not built for {sys.executable}: ")
    assert f"{tmp_path}/sparse_autotune has no _tuner" in last


def test_a_torch_that_is_too_old_is_named(tmp_path):
    """Else the loader names a symbol."""
    code = "import torch; torch.__version__ = '2.9.1+cpu'; import sparse_autotune"
    done = end_of_python(code, tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == "ImportError: sparse_autotune needs torch >= 2.10, 2.9.1+cpu is installed"


@pytest.mark.parametrize(
    ("variable", "value"),
    [("mode", "sometimes"), ("budget_s", "-1"), ("variant", "fastest")],
)
def test_a_bad_environment_variable_fails_the_import(variable, value, monkeypatch):
    """With one clear sentence; `Settings` is made at import."""
    name = "SPARSE_AUTOTUNE" + ("" if variable == "mode" else f"_{variable.upper()}")
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{name} must be .*; got '{value}'$"):
        type(settings)()


# show_config


def test_show_config(capsys):
    text, facts = config(capsys)
    build = _tuner.build_info()
    assert text.startswith(f"sparse_autotune {build['version']}, kernels {build['kernel_hash']}\n")
    assert facts["torch"].startswith(torch.__version__)
    assert facts["python"].startswith(sys.version.split()[0])
    cpu = _tuner.device_info(-1)
    assert facts["cpu"] == f"{cpu['name']}, {cpu['isa']}, {torch.get_num_threads()} threads"
    assert facts["cache"] == str(cache.path())
    assert repr(settings) in text
    assert set(facts["cpu variants"].split(", ")) == {
        v["family"] for v in _tuner.variants() if v["device"] == "cpu"
    }


def test_show_config_with_a_path_that_is_no_text(capsys, tmp_path):
    """Python shows bytes that no encoding has as lone surrogates, which a terminal refuses."""
    with settings.override(cache_dir=tmp_path / os.fsdecode(b"caf\xe9")):
        show_config()
    assert r"caf\udce9" in capsys.readouterr().out


def test_show_config_says_that_amx_was_refused(capsys, monkeypatch):
    found = _tuner.device_info(-1)
    monkeypatch.setattr(
        _tuner, "device_info", lambda *_, **__: {**found, "amx_refused": "the kernel said no"}
    )
    _, facts = config(capsys)
    assert facts["amx"] == "off: the kernel said no"


def test_show_config_says_why_there_is_no_gpu(capsys):
    _, facts = config(capsys)
    build = _tuner.build_info()
    assert (why_no_gpu() is None) == (build["cuda"] and torch.cuda.is_available())
    if not build["cuda"]:
        assert facts["cuda"] == f"off, left out of this build: {build['cuda_reason']}"
        assert len(build["cuda_reason"]) > 10
    elif not torch.cuda.is_available():
        assert facts["cuda"].startswith(build["cuda_version"])
        reason = facts["gpu"] if torch.version.cuda is None else facts["gpu 0"]
        assert re.match(r"off: .{10}", reason)


@pytest.mark.gpu
def test_show_config_on_a_gpu(capsys):
    _, facts = config(capsys)
    major, minor = torch.cuda.get_device_capability()
    assert facts["gpu 0"].startswith(f"{torch.cuda.get_device_name()}, sm_{major}{minor}, ")
    assert re.search(r"driver for CUDA \d+\.\d+$", facts["gpu 0"])
    assert re.match(r"\d+\.\d+|off: ", facts["cusparse"])


class Elsewhere(types.SimpleNamespace):
    """torch.version as other builds of torch have it."""


@pytest.mark.parametrize(
    ("hip", "words"), [("6.4", "a ROCm build"), (None, "a CPU-only build")], ids=["rocm", "cpu"]
)
def test_show_config_of_another_torch(hip, words, capsys, monkeypatch):
    monkeypatch.setattr(torch, "version", Elsewhere(cuda=None, hip=hip))
    _, facts = config(capsys)
    if _tuner.build_info()["cuda"]:
        assert words in facts["gpu"]
    assert ("ROCm 6.4" if hip else "no CUDA") in facts["torch"]


def test_a_gpu_that_is_off_is_none(monkeypatch):
    """For the demo, the benchmarks and the tests: torch sees one, but no product runs on it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(_tuner, "device_info", lambda ordinal: {"unavailable": "no CUDA here"})
    assert why_no_gpu() == "no CUDA here"
    monkeypatch.setattr(_tuner, "device_info", lambda ordinal: {"unavailable": ""})
    assert why_no_gpu() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert why_no_gpu() == "torch sees no usable GPU"


def test_show_config_names_missing_libraries(capsys, monkeypatch):
    missing = [{"name": "cusparse", "version": "", "unavailable": "libcusparse.so is not loaded"}]
    monkeypatch.setattr(_tuner, "libraries", lambda: missing)
    monkeypatch.setattr(_tuner, "build_info", lambda: {**BUILD, "cuda": True})
    monkeypatch.setattr(torch, "version", Elsewhere(cuda="13.0", hip=None))
    _, facts = config(capsys)
    assert facts["cusparse"] == "off: libcusparse.so is not loaded"


BUILD = _tuner.build_info()


def test_a_build_without_cuda_says_why(capsys, monkeypatch):
    reason = "nvcc was not found"
    monkeypatch.setattr(
        _tuner, "build_info", lambda: {**BUILD, "cuda": False, "cuda_reason": reason}
    )
    _, facts = config(capsys)
    assert facts["cuda"] == f"off, left out of this build: {reason}"
    assert "gpu 0" not in facts

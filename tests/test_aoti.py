"""The AOTInductor package of examples/aoti, run from Python and by its C++ program without Python.

Of the two slow parts, making the package and compiling the program, one runs beside the other.
"""

import os
import pathlib
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from interpreters import end_of_python

from sparse_autotune import random_bsr
from sparse_autotune.operators.library import LIBRARY

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "aoti"
# What only calls the operators need not be optimised, and compiles in less time so.
QUICK = {"AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O0", "CXXFLAGS": "-O0"}

pytestmark = pytest.mark.slow

# Nothing of this package is in it.
LINEAR_ALONE = """
import sys, torch
model, x = torch.nn.Linear(16, 16).requires_grad_(False), torch.randn(2, 16)
program = torch.export.export(model, (x,))
package = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1])
torch.testing.assert_close(torch._inductor.aoti_load_package(package)(x), model(x))
"""


def skip_where_torch_fails(returncode, folder):
    """After a process that failed: skips where a package of torch alone ends so, too.

    It does where CXX links libstdc++ statically: torch's packages then look up locales of another
    copy of it.
    """
    if returncode == 0:
        return
    alone = end_of_python(LINEAR_ALONE, folder, folder / "linear.pt2")
    if alone.returncode == returncode:
        why = (alone.stderr.splitlines() or [""])[-1] if returncode > 0 else f"signal {-returncode}"
        compiler = os.environ.get("CXX", "g++")
        pytest.skip(f"with {compiler} a package of torch.nn.Linear alone fails, too: {why}")


def made(tmp_path_factory, *options):
    """The example's program and, in `folder`, what its script wrote."""
    for name in ("aoti_compile_and_package", "aoti_load_package"):
        if not hasattr(torch._inductor, name):
            pytest.fail(f"torch {torch.__version__} has no torch._inductor.{name}")
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.fail(f"no C++ compiler: {os.environ.get('CXX', 'g++')}")
    folder = tmp_path_factory.mktemp("aoti")
    program = folder / "program"
    environment = {
        **os.environ,
        **QUICK,
        "PYTHON": sys.executable,
        "SPARSE_AUTOTUNE_CACHE_DIR": str(folder / "cache"),
    }
    commands = (
        [str(EXAMPLE / "build.sh"), str(program)],
        [sys.executable, str(EXAMPLE / "export.py"), *options, str(folder)],
    )
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = [subprocess.Popen(command, env=environment, **output) for command in commands]
    texts = [process.communicate(timeout=600)[0] for process in running]
    for command, process, text in zip(commands, running, texts, strict=True):
        skip_where_torch_fails(process.returncode, folder)
        assert process.returncode == 0, f"{command}\n{text}"
    return SimpleNamespace(folder=folder, program=program)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return made(tmp_path_factory, "--device", "cpu")


def run(example, *, library=LIBRARY, expected="expected.pt", **environment):
    """The program, with nothing of Python's in its environment."""
    arguments = (library, example.folder / "model.pt2", example.folder / expected)
    return subprocess.run(
        [str(example.program), *map(str, arguments)],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def batches_agree(done, count):
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == count and all(line.endswith(": ok") for line in lines), done.stdout


def test_from_python(example):
    """One package, sizes that the program meets and others; each element within its bound."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        import export
    finally:
        sys.path.remove(str(EXAMPLE))
    torch.manual_seed(0)
    model = export.make_model("cpu", torch.float32)
    package = torch._inductor.aoti_load_package(str(example.folder / "model.pt2"))
    for size in (1, 2, 3, 64, 100):
        x = torch.randn(size, export.IN_FEATURES)
        expected, bound = export.expected_of(model, x)
        for y in (package(x), model(x)):
            assert y.shape == expected.shape and y.dtype == torch.float32
            assert bool(((y.double() - expected).abs() <= bound).all())
        assert bound.max() < 1e-3 * expected.abs().max()  # or it would allow anything


def test_the_program(example):
    """Without a bundle it races what it meets; with that of the export script it does not."""
    done = run(example)
    batches_agree(done, 2)
    assert "sparse_autotune: winner" in done.stderr
    done = run(example, SPARSE_AUTOTUNE_BUNDLE=str(example.folder / "bundle"))
    batches_agree(done, 2)
    assert "sparse_autotune:" not in done.stderr


def test_the_program_loads_no_python(example):
    done = run(
        example, LD_DEBUG="files", LD_DEBUG_OUTPUT=str(example.folder / "ld"),
        SPARSE_AUTOTUNE_BUNDLE=str(example.folder / "bundle"),
    )  # fmt: skip
    batches_agree(done, 2)
    (log,) = example.folder.glob("ld.*")
    loaded = {
        pathlib.Path(line.split("calling init: ")[1].strip()).name
        for line in log.read_text().splitlines()
        if "calling init: " in line
    }
    assert "libsparse_autotune.so" in loaded and "libtorch_cpu.so" in loaded
    assert not [name for name in loaded if "python" in name or name.startswith("_tuner")]


def test_the_program_notices(example):
    """A wrong element, a NaN, a missing operator library: each makes it fail and say why."""
    x, expected, bound, *_ = torch.load(example.folder / "expected.pt")
    for wrong in (expected[1, 2] + 2 * bound[1, 2], float("nan")):
        spoilt = expected.clone()
        spoilt[1, 2] = wrong
        torch.save([x, spoilt, bound], example.folder / "spoilt.pt")
        done = run(example, expected="spoilt.pt", SPARSE_AUTOTUNE_VERBOSE="0")
        assert done.returncode == 1 and "WRONG" in done.stdout, done.stdout + done.stderr
    done = run(example, library="libm.so.6")
    assert done.returncode == 2 and "schema for sparse_autotune::bsr_matmul" in done.stderr


class TinyProducts(torch.nn.Module):
    """x @ A @ B @ C, whose patterns Inductor writes into one memory in turn: few entries each."""

    def __init__(self, device):
        super().__init__()
        self.matrices = [random_bsr(16, 16, 4, density=0.5, device=device) for _ in range(3)]
        for i, a in enumerate(self.matrices):
            for name, tensor in zip(("crow", "col", "values"), a._parts, strict=False):
                self.register_buffer(f"{name}_{i}", tensor.clone())

    def forward(self, x):
        for i in range(3):
            parts = (getattr(self, f"{name}_{i}") for name in ("crow", "col", "values"))
            x = torch.ops.sparse_autotune.bsr_matmul(*parts, 16, 16, x, sparse_right=True)
        return x


def check_tiny_products(device, path):
    model = TinyProducts(device)
    x = torch.randn(5, 16, device=device)
    expected = x.double()
    for a in model.matrices:
        assert len(a.crow_indices) <= 8 and len(a.col_indices) <= 8
        expected = expected @ a.to_dense().double()
    package = torch._inductor.aoti_load_package(
        torch._inductor.aoti_compile_and_package(
            torch.export.export(model, (x,)),
            package_path=path,
            inductor_configs={"aot_inductor.compile_wrapper_opt_level": "O0"},
        )
    )
    for _ in range(3):
        torch.testing.assert_close(package(x).double(), expected, rtol=1e-4, atol=1e-3)
    print("right")


def test_tiny_patterns_are_told_apart(device, tmp_path):
    """They change under one address and one version from product to product.

    In a process of its own: torch loads machine code here, which may end the process.
    """
    code = "import sys, test_aoti; test_aoti.check_tiny_products(*sys.argv[1:])"
    done = end_of_python(code, tmp_path, device, tmp_path / "tiny.pt2", verbose="0")
    skip_where_torch_fails(done.returncode, tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["right"]), done.stderr


@pytest.mark.gpu
def test_on_a_gpu(tmp_path_factory):
    example = made(tmp_path_factory, "--device", "cuda", "--dtype", "bfloat16")
    done = run(example, SPARSE_AUTOTUNE_BUNDLE=str(example.folder / "bundle"))
    batches_agree(done, 2)
    assert "sparse_autotune:" not in done.stderr

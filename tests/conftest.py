"""What every test gets: a cache of its own, default settings, fixed seeds, the marker `gpu`."""

import functools
import gc
import logging
import os
import pathlib
import tempfile
import zlib

import pytest

# Before the package is imported anywhere: a developer's settings must not decide what is tested,
# and a test must not touch a developer's cache.
for _name in [name for name in os.environ if name.startswith("SPARSE_AUTOTUNE")]:
    del os.environ[_name]
_cache = tempfile.TemporaryDirectory(prefix="sparse_autotune_tests_")
os.environ["SPARSE_AUTOTUNE_CACHE_DIR"] = _cache.name
os.environ["SPARSE_AUTOTUNE_VERBOSE"] = "0"
# Tests meet many signatures; who wins is no test's business.
os.environ["SPARSE_AUTOTUNE_BUDGET_S"] = "0.02"
# Threads that wait for work would do so at the cost of other processes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# NumPy's do so all the same. The references' small products take a third of the time without them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Else each process that uses Inductor compiles or starts programs to learn whether the compiler
# knows the vectors of this processor: half of what a first graph takes.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

import numpy as np  # noqa: E402
import side_by_side  # noqa: E402
import torch  # noqa: E402
from counted_calls import CountedCalls  # noqa: E402
from hypothesis import settings  # noqa: E402

import sparse_autotune  # noqa: E402
from sparse_autotune import configuration  # noqa: E402

# What the tolerances assume; by default cuBLAS may add partial sums in the half type.
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

# For each phase of each test pytest hands its handlers to every logger that does not propagate:
# torch has some forty of them.
for _logger in list(logging.Logger.manager.loggerDict.values()):
    if isinstance(_logger, logging.Logger) and _logger.name.partition(".")[0] == "torch":
        _logger.propagate = True

why_no_gpu = functools.cache(configuration.why_no_gpu)

settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("fixed")


def _part(text: str) -> tuple[int, int]:
    index, count = map(int, text.split("/"))
    if not 0 <= index < count:
        raise ValueError(f"--part must be I/N with 0 <= I < N, got {text}")
    return index, count


def pytest_addoption(parser):
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="fail, instead of skipping the tests marked gpu, where they cannot run",
    )
    parser.addoption(
        "--part",
        metavar="I/N",
        type=_part,
        help="run the I-th of N parts (from 0), as one of N processes beside each other",
    )
    side_by_side.add_options(parser)


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes many seconds or many GiB")
    reason = why_no_gpu()
    if config.getoption("--require-gpu") and reason is not None:
        raise pytest.UsageError(f"--require-gpu: {reason}")
    if config.getoption("--helper-in") is None:
        config.pluginmanager.register(RunningTest())
    # At least two threads: what is cut into parts for them is tested in every process.
    threads = max(2, torch.get_num_threads() // side_by_side.configure(config))
    if threads < torch.get_num_threads():
        torch.set_num_threads(threads)


class RunningTest:
    """A file that is there while a test runs: after a crash .ci/run says whose name it holds."""

    _file = pathlib.Path(__file__).parent.parent / "build" / "running_test"

    def pytest_runtest_logstart(self, nodeid):
        self._file.parent.mkdir(exist_ok=True)
        self._file.write_text(f"{nodeid}\n")

    def pytest_runtest_logfinish(self):
        self._file.unlink(missing_ok=True)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    """Where tests marked `gpu` cannot run, makes one of each kind: five of six tests are such, and
    to make them all takes half a minute and 1.5 GB."""
    if why_no_gpu() is None:
        return
    definition = metafunc.definition
    throughout = definition.get_closest_marker("gpu") is not None

    def needs_gpu(value):
        return throughout or any(mark.name == "gpu" for mark in getattr(value, "marks", ()))

    for i, mark in enumerate(definition.own_markers):
        if mark.name != "parametrize" or not callable(mark.kwargs.get("ids", str)):
            continue
        names, values = mark.args
        values = list(values)
        kept = [value for value in values if not needs_gpu(value)]
        kept += [value for value in values if needs_gpu(value)][:1]
        definition.own_markers[i] = pytest.mark.parametrize(names, kept, **mark.kwargs).mark


@pytest.hookimpl(trylast=True)  # of what -m and -k have left
def pytest_collection_modifyitems(config, items):
    """Leaves out tests marked `gpu` where they cannot run, without a line for each."""
    if why_no_gpu() is not None:
        without = [item for item in items if item.get_closest_marker("gpu") is not None]
        items[:] = [item for item in items if item.get_closest_marker("gpu") is None]
        config.hook.pytest_deselected(items=without)
    if config.getoption("--part") is not None:
        index, count = config.getoption("--part")
        others = [item for i, item in enumerate(items) if i % count != index]
        items[:] = items[index::count]  # neighbours take about as long as each other
        config.hook.pytest_deselected(items=others)


def pytest_collection_finish():
    """What is there by now stays: nothing of it is looked through again for cycles."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """Else what Triton's extension module holds is never freed, and it says so at the exit."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter, config):
    reason = why_no_gpu()
    if reason is not None:
        terminalreporter.write_line(f"LEFT OUT: tests marked gpu: {reason}", yellow=True)


@pytest.fixture(autouse=True)
def _fixed_seeds(request):
    """Seeds that depend on the test's name alone, so a test run by itself sees the same data."""
    seed = zlib.crc32(request.node.nodeid.encode())
    # torch.manual_seed formats a stack for each kind of accelerator that it has not started: a
    # quarter of the time of a small test.
    torch.default_generator.manual_seed(seed)
    if why_no_gpu() is None:
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed)


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch):
    """An empty cache directory for one test, in this process and those it starts."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("SPARSE_AUTOTUNE_CACHE_DIR", str(directory))
    monkeypatch.setattr(sparse_autotune.settings, "cache_dir", str(directory))
    return directory


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Each device in turn."""
    return request.param


@pytest.fixture
def no_races(monkeypatch):
    """The heuristic chooses: nothing but what is asked for runs."""
    monkeypatch.setattr(sparse_autotune.settings, "mode", "off")


@pytest.fixture
def calls(no_races, monkeypatch):
    """Which operators the dispatcher is asked for."""
    return CountedCalls(monkeypatch)


@pytest.fixture
def drops(monkeypatch):
    """Records what the library is told to forget, and still forgets it."""
    gc.collect()  # what failed or cyclic references kept of other tests is forgotten before
    calls = []
    for name in ("disown_indices", "drop_frozen"):
        real = getattr(sparse_autotune._tuner, name)

        def record(*pointers, name=name, real=real):
            calls.append((name, *pointers))
            real(*pointers)

        monkeypatch.setattr(sparse_autotune._tuner, name, record)
    return calls


@pytest.fixture
def fresh_dynamo():
    """No compiled code of other tests, none left for them, and Dynamo's counters at 0."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def as_the_tolerance_assumes(no_races, request):
    """No race, and TF32 where the case says so."""
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = case is not None and case.tf32
    yield
    matmul.allow_tf32 = before

"""Many threads, forked workers, inference mode, default devices."""

import gc
import sys
import threading

import pytest
import torch
from interpreters import run_python
from parallel import in_fork, run_threads
from problem import DTYPES, FP32, FP64, Problem, name_of
from reference import assert_close, close, make

import sparse_autotune
from sparse_autotune import BsrTensor, linear, matmul, random_bsr


def test_failures_are_seen():
    """Of threads and of forked processes."""
    with pytest.raises(ZeroDivisionError):
        run_threads(lambda: None, lambda: 1 / 0)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        in_fork(lambda: 1 / 0)


def cases(count, **changes):
    return [
        make.__wrapped__(Problem(f"thread-{i}", 96, 160, 24 + 9 * i, density=0.4, **changes))
        for i in range(count)
    ]


def test_one_kind_of_problem_met_by_many_threads_at_once(fresh_cache):
    """One of them races; the others do not wait for it and get the right result too."""
    (operands,) = cases(1)
    races = sparse_autotune.tuning_count()

    def work():
        for _ in range(20):
            assert_close(operands.call(), operands)

    run_threads(*[work] * 8)
    assert sparse_autotune.tuning_count() == races + 1


def test_many_kinds_of_problems_at_once(fresh_cache):
    """Races, hits and plans of many threads; each kind is raced sooner or later, once."""
    operands = cases(6)
    races = sparse_autotune.tuning_count()

    def work(first):
        def loop():
            for i in range(30):
                one = operands[(first + i) % len(operands)]
                assert_close(one.call(), one)

        return loop

    run_threads(*(work(i) for i in range(6)))
    for one in operands:
        assert_close(one.call(), one)
    signatures = {entry.signature for entry in sparse_autotune.cache.entries()}
    assert sparse_autotune.tuning_count() - races == len(signatures)


def test_plans_come_and_go_in_many_threads():
    """Matrices are made, used and dropped everywhere at once."""

    def work():
        generator = torch.Generator().manual_seed(threading.get_ident() % 1000)
        b = torch.randn(64, 12, generator=generator, dtype=FP64)
        for _ in range(60):
            a = random_bsr(48, 64, 16, density=0.5, dtype=FP64, generator=generator)
            torch.testing.assert_close(matmul(a, b), a.to_dense() @ b)

    with sparse_autotune.settings.override(mode="off"):
        run_threads(*[work] * 6)


def test_freezing_while_others_multiply():
    """A product never sees a copy that thaw() has just dropped."""
    (operands,) = cases(1)
    stop = threading.Event()

    def multiply():
        while not stop.is_set():
            assert_close(operands.call("dense"), operands)

    def freeze():
        try:
            for _ in range(300):
                operands.a.freeze()
                assert_close(operands.call("dense"), operands)
                operands.a.thaw()
        finally:
            stop.set()

    run_threads(freeze, multiply, multiply)


def test_settings_and_caches_change_while_others_multiply(fresh_cache):
    operands = cases(3)
    stop = threading.Event()

    def multiply():
        while not stop.is_set():
            for one in operands:
                assert_close(one.call(), one)

    def change():
        try:
            for i in range(18):
                with sparse_autotune.settings.override(
                    mode=("off", "on", "readonly")[i % 3], exact_nonfinite=bool(i % 2)
                ):
                    assert_close(operands[0].call(), operands[0])
                sparse_autotune.cache.clear()
                operands[i % 3].a.invalidate()
                gc.collect()
        finally:
            stop.set()

    run_threads(change, multiply, multiply)


def test_first_use_of_the_package_by_many_threads(tmp_path):
    """In a new process: nothing has been set up when they begin."""
    code = """
import threading, torch, sparse_autotune
a = sparse_autotune.random_bsr(64, 96, 16, density=0.5)
b = torch.randn(96, 20)
want, start, right = a.to_dense() @ b, threading.Barrier(8), []
def work():
    start.wait()
    right.append(torch.allclose(sparse_autotune.matmul(a, b), want, atol=1e-4))
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
print(right.count(True), sparse_autotune.tuning_count())
"""
    assert run_python(code, tmp_path, verbose="1").split() == ["8", "1"]


# Forked processes


def test_forked_worker(fresh_cache):
    """What the parent knows is known; what it does not is raced; results are right."""
    known, unknown = cases(2)
    assert_close(known.call(), known)

    def work():
        races = sparse_autotune.tuning_count()
        assert_close(known.call(), known)
        assert sparse_autotune.tuning_count() in (races, races + 1)  # threads are in the key
        assert_close(unknown.call(), unknown)
        races = sparse_autotune.tuning_count()
        assert_close(unknown.call(), unknown)
        assert sparse_autotune.tuning_count() == races
        fresh = random_bsr(64, 64, 16, density=0.5, dtype=FP64).freeze()
        b = torch.randn(64, 8, dtype=FP64)
        torch.testing.assert_close(matmul(fresh, b), fresh.to_dense() @ b)
        gc.collect()

    in_fork(work)
    in_fork(lambda: in_fork(work))
    assert_close(unknown.call(), unknown)


def test_fork_while_other_threads_multiply():
    """Whatever lock a thread holds at that moment, no child waits for it."""
    operands = make.__wrapped__(Problem("tiny", 4, 4, 2, (2, 2), pattern="full"))
    operands.a.freeze()
    stop = threading.Event()

    def multiply():
        while not stop.is_set():
            operands.call()
            operands.call("dense")

    def fork():
        try:
            for _ in range(30):
                in_fork(lambda: assert_close(operands.call(), operands))
        finally:
            stop.set()

    with sparse_autotune.settings.override(mode="off"):
        run_threads(fork, multiply, multiply)


def test_fork_while_other_threads_attend(tmp_path):
    """In a new process, whose forks are fast enough to meet threads that hold a lock."""
    code = """
import os, signal, threading, torch, sparse_autotune
torch.set_num_threads(1)
q = torch.randn(1, 1, 1, 8)
attend = lambda: sparse_autotune.attention(q, q, q, is_causal=True)
expected, over = attend(), threading.Event()
def work():
    while not over.is_set():
        attend()
threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads:
    thread.start()
ends = []
for _ in range(200):
    if not (child := os.fork()):
        signal.alarm(20)
        os._exit(not torch.equal(attend(), expected))
    ends.append(os.waitpid(child, 0)[1])
    if ends[-1]:
        break
over.set()
print(*set(ends))
"""
    assert run_python(code, tmp_path, mode="off") == "0\n"


class Products(torch.utils.data.Dataset):
    """A dataset whose items are products."""

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return matmul(self.a, self.b * index)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_data_loader_workers(start):
    a, b = random_bsr(48, 64, 16, density=0.5), torch.randn(64, 10)
    matmul(a, b)
    loader = torch.utils.data.DataLoader(
        Products(a, b),
        batch_size=4,
        num_workers=1 + (start == "fork"),
        multiprocessing_context=start,
    )
    got = torch.cat(list(loader))
    want = torch.stack([a.to_dense() @ b * i for i in range(12)])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


# Modes of torch


def test_inference_mode(fresh_cache):
    """Operands and results of either side of the mode, in any order."""
    (operands,) = cases(1)
    with torch.inference_mode():
        assert_close(operands.call(), operands)
        inside = matmul(operands.a, operands.b)
        assert inside.is_inference()
        a = random_bsr(48, 96, 16, density=0.5)
        b = torch.randn(96, 7)
        within = matmul(a, b)
        out = torch.empty_like(within)
        matmul(a, b, out=out)
        assert torch.equal(out, within)
    torch.testing.assert_close(matmul(a, b), within)
    close(matmul(a, inside), a.to_dense() @ inside)
    assert_close(operands.call(), operands)
    out = torch.empty_like(b[:48])
    matmul(a, b, out=out)
    torch.testing.assert_close(out, within)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inputs_that_require_grad_where_no_gradient_is_kept(mode):
    a = random_bsr(48, 96, 16, density=0.5)
    a.values.requires_grad_()
    b, bias = torch.randn(96, 7, requires_grad=True), torch.randn(48, requires_grad=True)
    with mode():
        result = matmul(a, b, bias=bias)
        turned = linear(b.T, a, bias)
    assert not result.requires_grad and not turned.requires_grad
    want = a.to_dense().detach() @ b.detach() + bias.detach()[:, None]
    close(result.clone(), want)
    close(turned.clone(), want.T)


@pytest.fixture(params=["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def default_device(request):
    torch.set_default_device(request.param)
    yield request.param
    torch.set_default_device(None)


def test_default_device(default_device, fresh_cache):
    """What the library allocates lies where the operands are, not on the default device."""
    a = random_bsr(48, 96, 16, density=0.5, device="cpu")
    b = torch.randn(96, 7, device="cpu")
    dense = a.to_dense()
    assert dense.device.type == a.to_torch().device.type == "cpu"
    for variant in ("auto", *sparse_autotune.variants(a, b)):
        result = matmul(a, b, variant=variant)
        assert result.device.type == "cpu"
        close(result, dense @ b)
    empty = BsrTensor.from_dense(torch.zeros(4, 4, device="cpu"), 2)
    assert matmul(empty, b[:4]).device.type == "cpu"
    assert sparse_autotune.tune(a, b).best is not None
    if default_device == "cuda":
        assert random_bsr(16, 16, 8, density=1).device.type == "cuda"


def test_default_dtype(fresh_cache):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        (operands,) = cases(1, dtype=FP32)
        assert_close(operands.call(), operands)
        assert random_bsr(16, 16, 8, density=1).dtype == torch.float32
    finally:
        torch.set_default_dtype(before)


def test_number_of_threads(fresh_cache):
    """It may change at any time; it is part of what is remembered."""
    (operands,) = cases(1)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 1):
            torch.set_num_threads(threads)
            assert_close(operands.call(), operands)
    finally:
        torch.set_num_threads(before)
    assert len(sparse_autotune.cache.entries()) == 3


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_threads_do_not_change_a_tiled_result(dtype):
    """So large that threads take over parts of each other's work."""
    case = Problem("threads", 2048, 128, 200, pattern="skewed", density=0.5, dtype=dtype)
    operands = make.__wrapped__(case)
    names = [name for name in sparse_autotune.variants(operands.a, operands.b) if "tiled/" in name]
    if not names:
        pytest.skip("no level of cpu_tiled runs on this processor")
    before = torch.get_num_threads()
    for name in names:
        results = []
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            try:
                out = torch.full(case.result_shape, torch.nan, dtype=dtype)
                results.append(operands.call(name, out))
            finally:
                torch.set_num_threads(before)
        assert all(torch.equal(results[0], result) for result in results), name
        assert_close(results[0], operands)


if sys.version_info >= (3, 12):
    pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")

"""Kernels of others on a GPU: timed as in CUDA graphs where one can hold them, else eagerly."""

import threading
import time

import pytest
import torch
from plans import replayed
from records import entrants, make_winner
from test_gpu import close, dense_product

from sparse_autotune import (
    _tuner,
    benchmark,
    matmul,
    random_bsr,
    register_variant,
    settings,
    tune,
    tuning_count,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_cache")]


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch):
    """First launches load each kernel's code, and the host may have other work."""
    monkeypatch.setattr(settings, "budget_s", 1.0)


def problem():
    a = random_bsr(512, 384, 32, density=0.3, device="cuda")
    return a, torch.randn(384, 64, device="cuda")


class Gathered:
    """Dense products of the blocks, added to their block rows; counts its calls."""

    waits, captures = False, True  # for the GPU; what is said of it
    host_s = 0.0  # of a call, besides

    def __init__(self):
        self.calls = 0

    def __call__(self, crow_indices, col_indices, values, b, *, out, **_):
        self.calls += 1
        time.sleep(self.host_s)
        nnzb, block_m, block_k = values.shape
        every = torch.arange(out.shape[0] // block_m, device=out.device)
        known = {} if self.waits else {"output_size": nnzb}
        rows = every.repeat_interleave(crow_indices.diff(), **known)
        products = values @ b.unflatten(0, (-1, block_k))[col_indices]
        out.unflatten(0, (-1, block_m)).zero_().index_add_(0, rows, products)


class Waiting(Gathered):
    waits, captures = True, False


class Elsewhere(Gathered):
    """On a stream of its own, which no capture of the current one sees."""

    captures = False

    def __init__(self):
        super().__init__()
        self.stream = torch.cuda.Stream()

    def __call__(self, *operands, **keywords):
        with torch.cuda.stream(self.stream):
            super().__call__(*operands, **keywords)
        self.stream.synchronize()


@pytest.fixture
def register():
    """As `register_variant` of plain products; what a test registers ends with it."""
    handles = []

    def call(fn, name="mine"):
        def supports(p):
            plain = not (p.transpose or p.bias or p.activation)
            return (plain and p.dtype == torch.float32) or "plain float32 products only"

        handles.append(
            register_variant(
                name,
                fn,
                supports=supports,
                deterministic=False,
                captures=fn.captures,
                device="cuda",
            )
        )
        return fn

    yield call
    for handle in handles:
        handle.unregister()


def test_one_that_a_graph_can_hold(register):
    fn = register(Gathered())
    fn.host_s = 2e-3
    a, b = problem()
    close(matmul(a, b), dense_product(a, b))
    mine = entrants()["mine/1"]
    assert mine["status"] in ("ok", "eliminated") and mine["captures"]
    for _ in range(4):  # a host with other work may launch after what the kernels wait behind
        if mine["median_us"] < mine["host_us"]:
            break
        tune(a, b)
        mine = entrants()["mine/1"]
    assert mine["host_us"] >= 2000
    assert 0 < mine["median_us"] < mine["host_us"], "the kernels' time has no part of the host's"
    before = torch.cuda.memory_allocated()
    tune(a, b)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before
    report = benchmark(a, b, variants=["mine", "cublas_dense"])
    (record,) = [r for r in report.records if r.name == "mine/1"]
    assert record.captures and record.eager_us >= 2000 > record.median_us
    assert "; eager " in report.table() and "no CUDA graph" not in report.table()


@pytest.mark.parametrize("kind", [Waiting, Elsewhere])
def test_one_that_no_graph_can_hold(kind, register):
    fn = register(kind())
    a, b = problem()
    close(matmul(a, b), dense_product(a, b))
    mine = entrants()["mine/1"]
    assert mine["status"] in ("ok", "eliminated") and not mine["captures"]
    assert fn.calls > 1 and mine["median_us"] > 0
    report = benchmark(a, b, variants=["mine", "cublas_dense"])
    assert report.captured_winner.startswith("cublas_dense/")
    (record,) = [r for r in report.records if r.name == "mine/1"]
    assert record.status == "ok" and not record.captures
    assert "no CUDA graph can hold it, timed eagerly" in report.table()
    close(replayed(lambda: matmul(a, b, variant="cublas_dense")), dense_product(a, b))


def test_a_race_breaks_no_capture(register):
    """Of another thread, in torch's default mode."""
    register(Waiting())
    register(Gathered(), "other")
    a, b = problem()
    matmul(a, b, variant="simt")
    races, stop = [], threading.Event()

    def race():
        while not stop.is_set() or not races:
            report = benchmark(a, b, variants=["mine", "other", "cublas_dense"], num_runs=2)
            races.append({r.name: (r.status, r.captures) for r in report.records})

    thread = threading.Thread(target=race)
    thread.start()
    try:
        for _ in range(20):
            close(replayed(lambda: matmul(a, b, variant="simt")), dense_product(a, b))
    finally:
        stop.set()
        thread.join()
    for found in races:
        assert found["mine/1"] == ("ok", False) and found["other/1"] == ("ok", True)


@pytest.mark.parametrize("mine_is", ["eager", "in graphs"])
def test_calls_inside_of_a_capture_have_a_winner_of_their_own(mine_is, register):
    fn = register(Gathered())
    a, b = problem()
    expected = dense_product(a, b)
    matmul(a, b)
    ours = next(name for name, e in entrants().items() if e["median_us"] and name != "mine/1")
    make_winner(*(("mine/1", ours) if mine_is == "eager" else (ours, "mine/1")))
    races = tuning_count()

    def calls(call):
        before = fn.calls
        result = call()
        return fn.calls - before, result

    for _ in range(3):
        count, result = calls(lambda: matmul(a, b))
        close(result, expected)
        assert count == (mine_is == "eager")
        count, result = calls(lambda: replayed(lambda: matmul(a, b)))
        assert count == (mine_is == "in graphs")
        close(result, expected)
    assert tuning_count() == races


def test_a_capture_finds_its_frozen_copy():
    """Of its own winner, made by the calls before it."""
    a, b = problem()
    a.freeze()
    matmul(a, b)
    timed = [name for name, e in entrants().items() if e["median_us"]]
    simt, dense = (
        next(name for name in timed if name.startswith(family))
        for family in ("simt/", "cublas_dense/")
    )
    make_winner(simt, dense)
    other = a.clone()
    other.freeze()
    before = _tuner.memory(0)["frozen_bytes"]
    close(matmul(other, b), dense_product(other, b))
    assert _tuner.memory(0)["frozen_bytes"] > before
    close(replayed(lambda: matmul(other, b)), dense_product(other, b))


def test_torchs_triton_kernel(register):
    """Wired as `examples/register_variant.py` has it."""
    pytest.importorskip("triton")
    from torch.sparse._triton_ops import bsr_dense_addmm

    def triton_bsr(crow_indices, col_indices, values, b, *, out, **_):
        a = torch.sparse_bsr_tensor(crow_indices, col_indices, values, (out.shape[0], b.shape[0]))
        bsr_dense_addmm(out, a, b, beta=0, alpha=1, out=out)

    handle = register_variant(
        "triton_bsr",
        triton_bsr,
        supports=lambda p: (
            (p.dtype == torch.bfloat16 and not (p.transpose or p.bias or p.activation))
            or "plain bfloat16 products only"
        ),
        captures=True,
    )
    try:
        a = random_bsr(1024, 768, 32, density=0.2, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(768, 256, device="cuda").bfloat16()
        close(matmul(a, b, variant="triton_bsr"), dense_product(a, b))
        close(matmul(a, b), dense_product(a, b))
        mine = entrants()["triton_bsr/1"]
        assert mine["status"] in ("ok", "eliminated") and mine["error"] <= 1
        assert mine["captures"], mine["reason"]
        matmul(a, b, variant="triton_bsr")
        close(replayed(lambda: matmul(a, b, variant="triton_bsr")), dense_product(a, b))
    finally:
        handle.unregister()

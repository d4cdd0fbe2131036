"""What a GPU adds: streams, graphs, several devices, and memory that outlives its use."""

import dataclasses
import gc
import math

import pytest
import torch
from interpreters import run_python
from parallel import run_threads
from problems import BF16, FP32, Problem
from reference import assert_close, make

import sparse_autotune
from sparse_autotune import BsrTensor, _tuner, linear, matmul, random_bsr
from sparse_autotune.checks import legality

pytestmark = pytest.mark.gpu

NAMES = [v["name"] for v in _tuner.variants() if (v["device"], v["op"]) == ("cuda", "matmul")]
VARIANTS = ("auto", *NAMES)
DETERMINISTIC = {v["name"]: v["deterministic"] for v in _tuner.variants()}
# Of clock cycles: a tenth of a second or so.
LONG = 200_000_000


@pytest.fixture(autouse=True)
def _no_races(monkeypatch):
    monkeypatch.setattr(sparse_autotune.settings, "mode", "off")


def case(name="gpu", dtype=BF16, **changes):
    return Problem(f"{name}-{dtype}-{changes}", 192, 256, 136, (64, 64), dtype, **changes)


def operands_for(variant, problem, device="cuda"):
    """A problem's tensors; skips where the variant is not legal for it."""
    operands = make(problem, device)
    if variant != "auto":
        why = legality(operands.a, operands.b, operands.bias, problem.activation)[variant]
        if why is not None:
            pytest.skip(f"{variant} is not legal: {why}")
    return operands


def dense_product(a, b):
    return (a.to_dense().double() @ b.double()).to(b.dtype)


def close(x, y):
    torch.testing.assert_close(x, y, rtol=2e-2 if x.dtype == BF16 else 1e-4, atol=1e-3)


# Streams


@pytest.mark.parametrize("frozen", [False, True], ids=["thawed", "frozen"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_side_stream(variant, frozen):
    """What the stream's earlier work writes is what the product reads."""
    operands = operands_for(variant, case(bias=True, activation="relu"))
    late = [t.clone() for t in (operands.a.values, operands.b, operands.bias)]
    values, b, bias = (torch.full_like(t, math.nan) for t in late)
    a = BsrTensor(operands.a.crow_indices, operands.a.col_indices, values, operands.a.shape)
    a.prepare()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        for tensor, content in zip((values, b, bias), late, strict=True):
            tensor.copy_(content)
        if frozen:
            a.freeze()
        result = matmul(a, b, bias=bias, activation="relu", variant=variant)
    stream.synchronize()
    assert_close(result, operands)


def test_indices_written_by_the_current_stream():
    """Until then they break the rules of BSR."""
    operands = make(case(), "cuda")
    content = [operands.a.crow_indices.clone(), operands.a.col_indices.clone()]
    crow, col = (torch.full_like(t, -7) for t in content)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        crow.copy_(content[0]), col.copy_(content[1])
        result = matmul(BsrTensor(crow, col, operands.a.values, operands.a.shape), operands.b)
    stream.synchronize()
    assert_close(result, operands)


@pytest.mark.parametrize("frozen", [False, True], ids=["thawed", "frozen"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_known_product_does_not_wait_for_the_gpu(variant, frozen):
    operands = operands_for(variant, case())
    a = operands.a.detach()
    if frozen:
        a.freeze()
    for _ in range(2):
        matmul(a, operands.b, variant=variant)
    torch.cuda.synchronize()
    torch.cuda._sleep(10 * LONG)
    result = matmul(a, operands.b, variant=variant)
    assert not torch.cuda.current_stream().query(), "the call waited for the work before it"
    assert_close(result, operands)


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_streams_share_a_matrix(variant):
    """Launches at the same time must not share scratch memory."""
    operands = operands_for(variant, case(bias=True))
    inputs = [operands.b * 2.0**i for i in range(6)]
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    results = []
    for i in range(36):
        with torch.cuda.stream(streams[i % 3]):
            scale = i % 6
            bias = operands.bias * 2.0**scale
            result = matmul(operands.a, inputs[scale], bias=bias, variant=variant)
            results.append(result * 2.0**-scale)
    torch.cuda.synchronize()
    for result in results:
        assert_close(result, operands)


@pytest.mark.parametrize("variant", ["auto", "cublas_dense/mm", "cusparse_blocked_ell/alg1"])
def test_dropped_while_work_is_queued(variant):
    """Plan, copies and workspace stay until the kernels that read them are done."""
    operands = operands_for(variant, case())
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    a = BsrTensor(operands.a.crow_indices, operands.a.col_indices, operands.a.values.clone(),
                  operands.a.shape).freeze()  # fmt: skip
    matmul(a, operands.b, variant=variant)
    torch.cuda._sleep(LONG)
    result = matmul(a, operands.b, variant=variant)
    shape = a.values.shape
    a.thaw()
    del a
    gc.collect()
    with torch.cuda.stream(torch.cuda.Stream()):
        # The same sizes, and so perhaps the same memory, with other content.
        other = BsrTensor(operands.a.crow_indices, operands.a.col_indices,
                          torch.full(shape, math.nan, dtype=BF16, device="cuda"),
                          operands.a.shape).freeze()  # fmt: skip
        matmul(other, operands.b, variant=variant)
        torch.cuda.current_stream().synchronize()
    assert_close(result, operands)


def test_threads_with_streams_of_their_own(fresh_cache):
    """New patterns, races and hits, all at once."""

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for n in (24, 40, 300):
                a = random_bsr(256, 192, 32, density=0.3, device="cuda")
                b = torch.randn(192, n, device="cuda")
                for _ in range(5):
                    close(matmul(a, b), dense_product(a, b))

    with sparse_autotune.settings.override(mode="on"):
        run_threads(*[work] * 4)


# A second device


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("variant", VARIANTS)
def test_second_gpu(variant):
    """While the first is the current one, and stays it."""
    operands = operands_for(variant, case(bias=True), "cuda:1")
    here = make.__wrapped__(operands.problem, "cuda:0")
    for _ in range(3):
        assert_close(operands.call(variant), operands)
        assert_close(here.call(variant), here)
        assert torch.cuda.current_device() == 0
    side = torch.cuda.Stream(1)
    side.wait_stream(torch.cuda.current_stream(1))
    with torch.cuda.stream(side):
        result = operands.call(variant)
    side.synchronize()
    assert_close(result, operands)
    out = torch.empty_like(result)
    operands.call(variant, out=out)
    assert_close(out, operands)
    assert torch.cuda.current_device() == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_race_and_frozen_copies_on_the_second_gpu(fresh_cache):
    operands = make.__wrapped__(case(), "cuda:1")
    with sparse_autotune.settings.override(mode="on"):
        assert_close(operands.call(), operands)
        assert sparse_autotune.tune(operands.a, operands.b).best is not None
    operands.a.freeze()
    for _ in range(2):
        assert_close(operands.call("cublas_dense"), operands)
    operands.a.thaw()
    assert torch.cuda.current_device() == 0
    with pytest.raises(RuntimeError, match="b must be on the device of a: a is on cuda:1"):
        matmul(operands.a, operands.b.to("cuda:0"))


# CUDA graphs


def captured(call):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


@pytest.mark.parametrize("frozen", [False, True], ids=["thawed", "frozen"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_capture_after_a_warm_call(variant, frozen):
    """Replays read the operands' memory as it is then, frozen values apart."""
    operands = operands_for(variant, case(dtype=FP32))
    a, b = operands.a.clone(), operands.b.clone()
    if frozen:
        a.freeze()
    matmul(a, b, variant=variant)
    graph, result = captured(lambda: matmul(a, b, variant=variant))
    for scale in (1.0, -2.0, 0.5):
        b.copy_(operands.b * scale)
        result.fill_(math.nan)
        graph.replay()
        assert_close(result / scale, operands)
    if not frozen:
        a.values.mul_(4)
        graph.replay()
        assert_close(result / 2, operands)


@pytest.mark.parametrize("product", ["matmul", "linear", "out", "batch", "fused"])
def test_capture_of_every_kind_of_product(product):
    a = random_bsr(128, 192, 32, density=0.4, device="cuda")
    b, bias = torch.randn(192, 40, device="cuda"), torch.randn(128, device="cuda")
    many, x = torch.randn(5, 192, 7, device="cuda"), b.T.contiguous()
    out = torch.empty(40, 128, device="cuda").T
    expected = dense_product(a, b)
    call, expected = {
        "matmul": (lambda: matmul(a, b), expected),
        "linear": (lambda: linear(x, a, bias), expected.T + bias),
        "out": (lambda: matmul(a, b, out=out), expected),
        "batch": (lambda: matmul(a, many), a.to_dense() @ many),
        "fused": (
            lambda: matmul(a, b, bias=bias, activation="silu"),
            torch.nn.functional.silu(expected + bias[:, None]),
        ),
    }[product]
    call()
    graph, result = captured(call)
    result.fill_(math.nan)
    graph.replay()
    close(result, expected)


NEVER_SEEN = """
import sys, warnings, torch, sparse_autotune as sa
warm = sys.argv[1] == "warm"
if warm:
    other = sa.random_bsr(256, 256, 64, density=0.5, device="cuda", dtype=torch.bfloat16)
    sa.matmul(other, torch.randn(256, 64, device="cuda", dtype=torch.bfloat16))
a = sa.random_bsr(192, 256, 32, density=0.4, device="cuda", dtype=torch.bfloat16)
b = torch.randn(256, 72, device="cuda", dtype=torch.bfloat16)
want = (a.to_dense().double() @ b.double()).float()
torch.cuda.synchronize()
races, graph = sa.tuning_count(), torch.cuda.CUDAGraph()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with torch.cuda.graph(graph):
        torch.cuda.set_sync_debug_mode("error")
        first = sa.matmul(a, b)
        second = sa.matmul(a, b)
        torch.cuda.set_sync_debug_mode("default")
for result in (first, second):
    result.fill_(float("nan"))
graph.replay()
ours = [str(w.message) for w in caught if "sparse_autotune" in str(w.message)]
print(torch.allclose(first.float(), want, rtol=2e-2, atol=5e-2), torch.equal(first, second),
      sa.tuning_count() - races, len(ours), all("prepare()" in text for text in ours))
b.mul_(2)
graph.replay()
print(torch.allclose(first.float(), 2 * want, rtol=2e-2, atol=1e-1))
eager = sa.matmul(a, b)
print(torch.allclose(eager.float(), 2 * want, rtol=2e-2, atol=1e-1), sa.tuning_count() - races)
"""


@pytest.mark.parametrize("process", ["fresh", "warm"])
def test_capture_of_a_pattern_never_seen(process, tmp_path):
    """No error, no synchronisation, no race; one warning; the next eager call races as ever."""
    text = run_python(NEVER_SEEN, tmp_path, process)
    assert text.splitlines() == ["True True 0 1 True", "True", "True 1"], text


def test_capture_of_a_prepared_pattern_of_a_kind_never_raced(fresh_cache):
    a = random_bsr(192, 320, 32, density=0.4, device="cuda").prepare()
    b = torch.randn(320, 24, device="cuda")
    races = sparse_autotune.tuning_count()
    with sparse_autotune.settings.override(mode="on"):
        graph, result = captured(lambda: matmul(a, b))
    result.fill_(math.nan)
    graph.replay()
    close(result, dense_product(a, b))
    assert sparse_autotune.tuning_count() == races


def test_prepare_and_tune_refuse_to_run_inside_a_capture():
    """They would have to wait; the capture goes on."""
    a, b = random_bsr(64, 64, 32, density=1, device="cuda"), torch.randn(64, 8, device="cuda")
    other = random_bsr(64, 64, 32, density=1, device="cuda")

    def call():
        with pytest.raises(RuntimeError, match="captured"):
            other.prepare()
        with pytest.raises(RuntimeError, match="captured"):
            sparse_autotune.tune(a, b)
        return matmul(a, b)

    graph, result = captured(call)
    graph.replay()
    close(result, dense_product(a, b))


@pytest.mark.parametrize("variant", ["auto", "cublas_dense/mm", "cusparse_blocked_ell/alg1"])
def test_a_graph_keeps_what_it_reads(variant):
    """Frozen copies stay, though the matrix is thawed, until the graph is gone."""
    operands = operands_for(variant, case(dtype=FP32))
    a = operands.a.detach().freeze()
    gc.collect()
    torch.cuda.synchronize()
    before = _tuner.memory(0)["frozen_bytes"]
    matmul(a, operands.b, variant=variant)
    graph, result = captured(lambda: matmul(a, operands.b, variant=variant))
    a.thaw()
    other = BsrTensor(a.crow_indices, a.col_indices, torch.full_like(a.values, math.nan),
                      a.shape).freeze()  # fmt: skip
    matmul(other, operands.b, variant=variant)
    result.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert_close(result, operands)
    other.thaw()
    del graph
    gc.collect()
    torch.cuda.synchronize()
    # The release is taken note of by the next use of any copy.
    third = operands.a.detach().freeze()
    matmul(third, operands.b, variant=variant)
    third.thaw()
    assert _tuner.memory(0)["frozen_bytes"] <= before  # less where earlier tests' copies went too


def test_two_patterns_of_equal_size_in_one_captured_place():
    """The graph reads the indices' memory; the first one's plan must not serve the second."""
    crow = torch.tensor([0, 1, 2], device="cuda")
    patterns = [torch.tensor(columns, device="cuda") for columns in ([0, 1], [1, 0])]
    values, b = torch.randn(2, 32, 32, device="cuda"), torch.randn(64, 24, device="cuda")
    col = patterns[0].clone()
    a = BsrTensor(crow, col, values, (64, 64))
    for columns in (patterns[1], patterns[0]):
        col.copy_(columns)
        close(matmul(a, b), dense_product(a, b))
    graph, result = captured(lambda: matmul(a, b))
    for columns in patterns:
        col.copy_(columns)
        graph.replay()
        close(result, dense_product(a, b))


def test_capture_while_another_thread_builds_plans_and_races(fresh_cache):
    """In torch's default mode of capture, an unsafe call of any thread breaks it."""
    a, b = random_bsr(128, 128, 32, density=0.5, device="cuda"), torch.randn(128, 24, device="cuda")
    others = [random_bsr(128, 128, 32, density=0.5, device="cuda") for _ in range(4)]
    expected = dense_product(a, b)
    matmul(a, b)
    results = []

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        # torch's own allocator must not need cudaMalloc: a live tensor keeps its segment's rest.
        kept = torch.empty(1 << 8, device="cuda")

    def work():
        with torch.cuda.stream(stream):
            for other in others:
                other.prepare()
                results.append(matmul(other, b))
            sparse_autotune.tune(others[0], b)

    def call():
        first = matmul(a, b)
        run_threads(work)
        return first + matmul(a, b)

    with sparse_autotune.settings.override(mode="on"):
        graph, result = captured(call)
    del kept
    graph.replay()
    torch.cuda.synchronize()
    close(result, 2 * expected)
    for other, got in zip(others, results, strict=True):
        close(got, dense_product(other, b))


# The rest of a day


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference(mode, fresh_cache):
    with sparse_autotune.settings.override(mode="on"), mode():
        a = random_bsr(128, 192, 32, density=0.4, device="cuda")
        b = torch.randn(192, 24, device="cuda")
        for _ in range(3):
            close(matmul(a, b), dense_product(a, b))


def test_a_race_gives_its_memory_back(fresh_cache):
    a = random_bsr(1024, 1024, 64, density=0.3, device="cuda", dtype=BF16)
    b = torch.randn(1024, 512, device="cuda", dtype=BF16)
    sparse_autotune.tune(a, b)  # builds what variants read of the pattern, which the plan keeps
    torch.cuda.synchronize()
    before, torchs = _tuner.memory(0), torch.cuda.memory_allocated()
    report = sparse_autotune.tune(a, b)
    assert report.best is not None
    torch.cuda.synchronize()
    after = _tuner.memory(0)
    assert after["pool_used"] == before["pool_used"]
    assert after["pool_reserved"] <= before["pool_reserved"]
    assert torch.cuda.memory_allocated() == torchs


def test_every_variant_wins_or_says_why(fresh_cache):
    """Of a race over all of them: nothing fails on this device."""
    for dtype in (BF16, FP32):
        operands = make(dataclasses.replace(case(dtype=dtype), name=f"all-{dtype}"), "cuda")
        report = sparse_autotune.benchmark(operands.a, operands.b, budget_s=1.0)
        assert {r.name for r in report.records} == set(NAMES)
        for record in report.records:
            assert record.status == "ok" or record.reason, record
            assert record.status in ("ok", "unsupported", "skipped"), record


FORK = """
import os, torch, sparse_autotune as sa
a = sa.random_bsr(64, 96, 16, density=0.5)
b = torch.randn(96, 20)
sa.matmul(a.cuda(), b.cuda())
torch.cuda.synchronize()
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    right = torch.allclose(sa.matmul(a, b), a.to_dense() @ b, atol=1e-4)
    os._exit(0 if right else 1)
print(os.waitpid(child, 0)[1])
sa.matmul(a.cuda(), b.cuda())
torch.cuda.synchronize()
print("fine")
"""


def test_cpu_products_in_a_worker_forked_after_cuda_was_used(tmp_path):
    """CUDA cannot be used there, not even asked; the CPU can."""
    assert run_python(FORK, tmp_path, timeout=120).split() == ["0", "fine"]

"""What a GPU adds: streams, several devices, and memory that outlives its use."""

import dataclasses
import gc
import math

import pytest
import torch
from interpreters import run_python
from machine import built
from parallel import run_threads
from plans import check_that_a_race_gives_its_memory_back
from problem import BF16, FP32, FP64, Problem
from reference import assert_close, make

import sparse_autotune
from sparse_autotune import BsrTensor, matmul, random_bsr
from sparse_autotune.errors import legality
from sparse_autotune.tuning import announcements

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_races")]

VARIANTS = ("auto", *built("cuda"))
# Of clock cycles: a tenth of a second or so.
LONG = 200_000_000


def case(name="gpu", dtype=BF16, **changes):
    return Problem(f"{name}-{dtype}-{changes}", 192, 256, 136, (64, 64), dtype, **changes)


# What else a problem may be, for variants that do not take it.
OTHERWISE = (
    {"dtype": FP32}, {"dtype": FP64, "n": 144}, {"n": 133}, {"n": 16}, {"dtype": FP32, "n": 16},
    *(
        {"n": n, "block": block, "b_layout": b_layout}
        for n in (136, 72, 40, 24, 16, 8)
        for block in ((32, 32), (16, 16), (64, 64), (16, 32), (32, 16), (8, 8), (4, 4))
        for b_layout in ("row", "column")
    ),
    {"dtype": FP64, "n": 144, "block": (16, 16)}, {"dtype": FP64, "n": 1, "block": (4, 4)},
    {"dtype": FP64, "n": 16, "block": (4, 4)}, {"batch": (3,)},
    {"dtype": FP64, "n": 16, "block": (2, 2), "pattern": "skewed"},
    # More block rows than a group has.
    *({"m": 576, "block": block} for block in ((32, 32), (16, 16), (16, 32), (32, 16))),
    {"n": 264}, {"m": 384, "n": 133, "block": (128, 128)},
    {"m": 896, "k": 2688, "n": 264, "block": (128, 128), "pattern": "skewed"},
)  # fmt: skip


def operands_for(variant, problem, device="cuda"):
    """The tensors of a problem, or of one like it that the variant takes."""
    for changes in ({}, *OTHERWISE):
        name = f"{problem.name}-{changes}"
        operands = make(dataclasses.replace(problem, **{"name": name, **changes}), device)
        if variant == "auto":
            return operands
        why = legality(operands.a, operands.b, operands.bias, problem.activation)[variant]
        if why is None:
            return operands
        if "compute capability" in why:
            pytest.skip(f"{variant} is not legal: {why}")
    raise AssertionError(f"{variant} takes none of these problems: {why}")


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
    torch.cuda._sleep(2 * LONG)
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
        assert torch.cuda.current_device() == 0
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
    check_that_a_race_gives_its_memory_back(lambda: sparse_autotune.tune(a, b))


def test_who_finds_no_memory_asks_torch_for_some(fresh_cache, monkeypatch):
    """A race, here, that wants a dense copy of two terabytes; the product needs no race."""
    asked = []
    monkeypatch.setattr(announcements, "reclaim", asked.append)
    announcements.install()
    try:
        crow = torch.zeros((1 << 14) + 1, dtype=torch.int64, device="cuda")
        crow[-1] = 1
        a = BsrTensor(crow, crow[:1].clone(), torch.randn(1, 64, 64, device="cuda", dtype=BF16),
                      (1 << 20, 1 << 20))  # fmt: skip
        b = torch.randn(1 << 20, 8, device="cuda", dtype=BF16)
        with sparse_autotune.settings.override(mode="on", tuning_bytes=1 << 43):
            result = matmul(a, b)
    finally:
        monkeypatch.undo()
        announcements.install()
    assert set(asked) == {0}
    close(result[-64:], (a.values[0].double() @ b[:64].double()).to(BF16))
    assert not result[:-64].any()


def test_every_variant_wins_or_says_why(fresh_cache):
    """Of a race over all of them: nothing fails on this device."""
    for dtype in (BF16, FP32):
        operands = make(dataclasses.replace(case(dtype=dtype), name=f"all-{dtype}"), "cuda")
        report = sparse_autotune.benchmark(operands.a, operands.b, budget_s=1.0)
        assert {r.name for r in report.records} == set(built("cuda"))
        for record in report.records:
            assert record.status == "ok" or record.reason, record
            assert record.status in ("ok", "unsupported", "skipped"), record


FORK = """
import os, sys, torch, sparse_autotune as sa
crow = torch.tensor([0, 4, 4, 5]); col = torch.tensor([0, 1, 2, 3, 2])
values, b = torch.randn(5, 64, 64), torch.randn(256, 136)
a = sa.BsrTensor(crow, col, values, (192, 256))
def on_gpu():
    sa.matmul(a.to(torch.bfloat16).cuda(), b.bfloat16().cuda(), variant=sys.argv[1])
    torch.cuda.synchronize()
on_gpu()
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    right = torch.allclose(sa.matmul(a, b), a.to_dense() @ b, atol=1e-3)
    os._exit(0 if right else 1)
print(os.waitpid(child, 0)[1])
on_gpu()
print("fine")
"""


@pytest.mark.parametrize("variant", ["auto", "wgmma_sm90/m64_n128"])
def test_cpu_products_in_a_worker_forked_after_cuda_was_used(variant, tmp_path):
    """CUDA cannot be used there, not even asked; the CPU can. Orders of rows are the GPU's."""
    operands_for(variant, case())
    assert run_python(FORK, tmp_path, variant, timeout=120).split() == ["0", "fine"]


# The dense operand


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("block", "grid"),
    [
        ((1, 1), (37, 9001)),
        ((1, 1), (3, 40000)),
        ((1, 8), (5, 6000)),
        ((3, 5), (70, 4001)),  # lines that are no multiples of 16 bytes
        ((8, 8), (40, 1500)),
        ((4, 3), (200, 32)),
        ((64, 96), (5, 9)),
        ((256, 256), (3, 5)),
    ],
)
def test_the_dense_operand_has_every_block(block, grid, index_dtype):
    """Rows of no block and full ones, of one element and of many."""
    shape = (block[0] * grid[0], block[1] * grid[1])
    for dtype in (torch.float16, FP32, torch.float64):
        a = random_bsr(*shape, block, density=min(1 / grid[0] + 0.03, 1), pattern="one_dense_row",
                       dtype=dtype, device="cuda")  # fmt: skip
        a = BsrTensor(a.crow_indices.to(index_dtype), a.col_indices.to(index_dtype), a.values,
                      shape)  # fmt: skip
        # Each column by itself: the product is a row of A, or part of one.
        chosen = torch.randperm(shape[1], device="cuda")[:200]
        b = torch.zeros(shape[1], len(chosen), dtype=dtype, device="cuda")
        b[chosen, torch.arange(len(chosen), device="cuda")] = 1
        result = matmul(a, b, variant="cublas_dense/mm")
        torch.testing.assert_close(result, a.to_dense()[:, chosen], rtol=0, atol=0)


def test_the_dense_product_of_a_batch_takes_one_call():
    a = random_bsr(96, 160, 16, density=0.3, device="cuda")
    b = torch.randn(5, 160, 24, device="cuda")
    assert "cublas_dense/bmm" in sparse_autotune.variants(a, b)
    assert "cublas_dense/bmm" not in sparse_autotune.variants(a, b[0])
    close(matmul(a, b, variant="cublas_dense/bmm"), a.to_dense() @ b)


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_sums_in_fp32_whatever_torch_allows(dtype):
    """Long sums of few outputs: cuBLAS cuts them into parts, which torch lets it round."""
    a = random_bsr(64, 65536, 64, density=0.9, dtype=dtype, device="cuda")
    b = torch.randn(65536, 64, device="cuda").to(dtype)
    exact = a.to_dense().double() @ b.double()
    error = (matmul(a, b, variant="cublas_dense/fp32_sums").double() - exact).abs()
    assert bool((error <= torch.finfo(dtype).eps * exact.abs() + 0.05).all())

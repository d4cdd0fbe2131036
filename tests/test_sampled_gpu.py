"""Sampled products on a GPU: streams, CUDA graphs, a second device, TF32, memory."""

import math

import pytest
import torch
from machine import DETERMINISTIC, built
from plans import check_that_a_race_gives_its_memory_back
from problem import BF16, FP32
from reference import assert_close
from sampled_problems import SampledProblem, make_sampled

from sparse_autotune import BsrTensor, benchmark, random_bsr, sampled_matmul, tune
from sparse_autotune.errors import legality

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_races")]

VARIANTS = ("auto", *built("cuda", "sampled_matmul"))


def operands_for(variant, device="cuda"):
    """Large enough for every variant's fast path, in the layout of a linear layer's backward."""
    for dtype in (FP32, BF16):
        problem = SampledProblem("gpu", 256, 384, 136, (64, 64), dtype, x_layout="column")
        operands = make_sampled(problem, device)
        why = operands.legality()
        if variant == "auto" or why[variant] is None:
            return operands
    pytest.skip(f"{variant}: {why[variant]}")


@pytest.mark.parametrize("variant", VARIANTS)
def test_side_stream(variant):
    """What the stream's earlier work writes is what the product reads."""
    operands = operands_for(variant)
    operands.a.prepare()
    x, y = torch.full_like(operands.x, math.nan), torch.full_like(operands.b, math.nan)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        x.copy_(operands.x)
        y.copy_(operands.b)
        result = sampled_matmul(x, y, operands.a, variant=variant)
    stream.synchronize()
    assert_close(result.values, operands)


@pytest.mark.parametrize("variant", VARIANTS)
def test_capture_after_a_warm_call(variant):
    """Replays read the operands' memory as it is then."""
    operands = operands_for(variant)
    x = operands.x.clone()
    sampled_matmul(x, operands.b, operands.a, variant=variant)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = sampled_matmul(x, operands.b, operands.a, variant=variant)
    for scale in (1.0, -2.0, 0.5):
        x.copy_(operands.x * scale)
        result.values.fill_(math.nan)
        graph.replay()
        assert_close(result.values / scale, operands)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_bits_a_hundred_times(variant):
    """Of sums long enough to be cut into parts, with other results in memory in between."""
    for block, dtype in ((32, BF16), (64, BF16), (32, FP32)):
        problem = SampledProblem("long", 512, 768, 2056, (block, block), dtype, pattern="skewed",
                                 x_layout="column")  # fmt: skip
        operands = make_sampled(problem, "cuda")
        why = operands.legality()
        if variant == "auto" or why[variant] is None:
            break
    else:
        pytest.skip(f"{variant}: {why[variant]}")
    if not DETERMINISTIC.get(variant, True):
        pytest.skip(f"{variant} does not promise it")
    first = operands.call(variant)
    assert_close(first, operands)
    bits = {2: torch.int16, 4: torch.int32}[first.element_size()]
    for _ in range(100):
        assert torch.equal(operands.call(variant).view(bits), first.view(bits))


@pytest.mark.parametrize("variant", VARIANTS)
def test_second_gpu(variant):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    operands = operands_for(variant, "cuda:1")
    assert torch.cuda.current_device() == 0
    result = operands.call(variant)
    assert torch.cuda.current_device() == 0
    assert result.device == torch.device("cuda:1")
    assert_close(result, operands)


def test_a_race_gives_its_memory_back(fresh_cache):
    x, y = torch.randn(1024, 512, device="cuda"), torch.randn(512, 1024, device="cuda")
    pattern = random_bsr(1024, 1024, 64, density=0.25, device="cuda")
    check_that_a_race_gives_its_memory_back(lambda: tune(x, y, pattern=pattern))


def test_the_report_tells_what_the_dense_product_takes():
    x, y = torch.randn(512, 64, device="cuda"), torch.randn(64, 768, device="cuda")
    pattern = random_bsr(512, 768, 32, density=0.25, device="cuda")
    report = benchmark(x, y, pattern=pattern, num_runs=1)
    (dense,) = [r for r in report.records if r.name == "sampled_cublas_dense/mm"]
    assert dense.memory_bytes == 512 * 768 * 4
    assert all(r.memory_bytes == 0 for r in report.records if r.family == "sampled_simt")


def test_more_rows_than_the_dense_product_takes_at_once():
    """Its scratch is bounded: a matrix larger than that goes through it in parts."""
    rows, cols, n = 16384, 8192, 8  # 256 MiB of bf16
    pattern = random_bsr(rows, cols, 64, density=0.02, device="cuda", dtype=BF16)
    x = torch.randn(rows, n, device="cuda").to(BF16)
    y = torch.randn(n, cols, device="cuda").to(BF16)
    dense = sampled_matmul(x, y, pattern, variant="sampled_cublas_dense").values
    simple = sampled_matmul(x, y, pattern, variant="sampled_simt/tile32").values
    assert bool(dense.isfinite().all())
    torch.testing.assert_close(dense, simple, rtol=1e-2, atol=1e-2)


def test_more_than_2_to_the_31_elements_of_an_operand():
    """Offsets of x beyond 2^31 elements, in every variant that takes them."""
    free, _ = torch.cuda.mem_get_info()
    if free < 24 << 30:
        pytest.skip(f"needs 24 GiB of GPU memory, {free >> 30} are free")
    n, block = 2**25, 64
    x = torch.empty(2 * block, n, device="cuda", dtype=BF16)
    x[:block].fill_(math.nan)  # a stored block is in the second block row alone
    x[block:] = 0
    x[block:, -1] = torch.arange(block, device="cuda")
    y = torch.zeros(block, n, device="cuda", dtype=BF16)
    y[:, -1] = 1
    crow, col = (torch.tensor(i, device="cuda") for i in ([0, 0, 1], [0]))
    stored = torch.empty(1, block, block, device="cuda", dtype=BF16)
    pattern = BsrTensor(crow, col, stored, (2 * block, block))
    want = torch.arange(block, device="cuda", dtype=BF16)[:, None].expand(block, block)
    for name, why in legality(x, y.T, pattern=pattern).items():
        if why is None:
            result = sampled_matmul(x, y.T, pattern, variant=name).values[0]
            assert torch.equal(result, want), name
            del result


@pytest.mark.parametrize("dtype", [FP32, torch.float64, BF16])
@pytest.mark.parametrize("pattern", ["one_dense_row", "power_law", "half_empty", "uniform"])
@pytest.mark.parametrize("block", [(1, 1), (3, 3), (5, 7), (8, 2), (24, 40)])
def test_pieces_of_many_regions(block, pattern, dtype):
    """Regions of all sizes, some with many more blocks than there are threads, and with none."""
    rows, cols = 331 * block[0], 417 * block[1]
    a = random_bsr(rows, cols, block, density=0.02, pattern=pattern, device="cuda")
    x = torch.randn(2, 75, rows, device="cuda").to(dtype).mT
    y = torch.randn(2, 75, cols, device="cuda").to(dtype)
    result = sampled_matmul(x, y, a, variant="sampled_pieces").values
    exact = sampled_matmul(x.double(), y.double(), a, variant="sampled_simt/tile32").values
    assert bool(result.isfinite().all())
    relative = {BF16: 2.0**-8, FP32: 1e-5, torch.float64: 1e-14}[dtype]
    torch.testing.assert_close(result.double(), exact, rtol=relative, atol=100 * relative)

"""`sampled_matmul` as a user meets it: results, empty products, plans, tuning, bad arguments."""

import pytest
import torch
from machine import DETERMINISTIC, built
from problem import DTYPES, INDEX_DTYPES
from reference import assert_close
from refusals import check_refused
from sampled_problems import SampledProblem, make_sampled

from sparse_autotune import (
    BsrTensor,
    _tuner,
    benchmark,
    cache,
    matmul,
    random_bsr,
    sampled_matmul,
    settings,
    tune,
    tuning_count,
    variants,
)
from sparse_autotune.errors import legality

M, K, N = 32, 48, 21


def problem(device="cpu", dtype=torch.float32, block=(8, 16)):
    pattern = random_bsr(M, K, block, density=0.5, device=device, dtype=dtype)
    x = torch.randn(M, N, device=device).to(dtype)
    return x, torch.randn(N, K, device=device).to(dtype), pattern


def expected_of(x, y, pattern):
    """The dense product where blocks are stored, zeros elsewhere."""
    ones = torch.ones_like(pattern.values, dtype=torch.float64)
    stored = BsrTensor(pattern.crow_indices, pattern.col_indices, ones, pattern.shape).to_dense()
    product = x.double() @ y.double()
    return product.reshape(-1, *product.shape[-2:]).sum(0) * stored


def assert_right(result, x, y, pattern):
    assert (result.to_dense() - expected_of(x, y, pattern)).abs().max() < 1e-4


# Results


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
def test_exact_in_every_dtype(dtype, index_dtype, device, no_races):
    """Of small integers; also of transposes, of both, and on a native pattern."""
    pattern = random_bsr(24, 40, (4, 8), density=0.4, device=device)
    crow, col = (t.to(index_dtype) for t in (pattern.crow_indices, pattern.col_indices))
    pattern = BsrTensor(crow, col, pattern.values, pattern.shape)
    x = torch.randint(-2, 3, (2, 24, 7), device=device).to(dtype)
    y = torch.randint(-2, 3, (2, 7, 40), device=device).to(dtype)
    expected = expected_of(x.cpu(), y.cpu(), pattern.cpu())
    for layout in (lambda t: t, lambda t: t.mT.contiguous().mT):
        got = sampled_matmul(layout(x), layout(y), pattern)
        assert type(got) is BsrTensor and got.dtype == dtype
        assert got.crow_indices is crow and got.col_indices is col
        assert torch.equal(got.to_dense().double().cpu(), expected)
    turned = sampled_matmul(y.mT, x.mT, pattern.t())
    assert turned.is_transposed and torch.equal(turned.to_dense().double().cpu(), expected.T)
    native = sampled_matmul(x, y, pattern.to_torch())
    assert torch.equal(native.to_dense().double().cpu(), expected)


def test_it_is_the_gradient_of_matmul(device):
    """Of sum(weights * (A @ B)) with respect to the values of A, as autograd has it."""
    _, _, a = problem(device, torch.float64)
    b = torch.randn(K, N, device=device, dtype=torch.float64)
    weights = torch.randn(M, N, device=device, dtype=torch.float64)
    leaf = a.values.clone().requires_grad_()
    dense = BsrTensor(a.crow_indices, a.col_indices, leaf, a.shape).to_dense()
    (gradient,) = torch.autograd.grad((weights * (dense @ b)).sum(), leaf)
    result = sampled_matmul(weights, b.T, a)
    assert torch.allclose(result.values, gradient, rtol=1e-12, atol=1e-12)


def test_only_the_indices_of_the_pattern_count(device):
    """Neither its values nor their dtype; the result has the dtype of x."""
    x, y, pattern = problem(device)
    pattern.values.fill_(float("nan"))
    half = pattern.values.half()
    other = BsrTensor(pattern.crow_indices, pattern.col_indices, half, pattern.shape)
    for like in (pattern, other, pattern.to_torch()):
        result = sampled_matmul(x, y, like)
        assert result.dtype == torch.float32
        assert result.block_size == (8, 16)
        assert_right(result, x, y, pattern)


def test_the_result_multiplies_on_the_same_plan():
    x, y, pattern = problem()
    result = sampled_matmul(x, y, pattern)
    before = _tuner.memory()["plans"]
    dense = torch.randn(K, 5)
    assert torch.allclose(matmul(result, dense), result.to_dense() @ dense, atol=1e-4)
    matmul(pattern, dense)
    assert _tuner.memory()["plans"] == before


@pytest.mark.parametrize("grid", [(0, 2), (2, 0), (2, 2)])
def test_empty_patterns(grid, device):
    crow = torch.zeros(grid[0] + 1, dtype=torch.int64, device=device)
    col = torch.zeros(0, dtype=torch.int64, device=device)
    rows, cols = grid[0] * 8, grid[1] * 16
    pattern = BsrTensor(crow, col, torch.zeros(0, 8, 16, device=device), (rows, cols))
    x, y = torch.ones(rows, 5, device=device), torch.ones(5, cols, device=device)
    before = tuning_count()
    result = sampled_matmul(x, y, pattern)
    assert result.values.shape == (0, 8, 16)
    assert result.shape == (rows, cols)
    # Leading dimensions that fold into nothing, and that a copy of nothing would not arrange.
    x, y = (torch.ones(2, 3, *t.shape, device=device).transpose(0, 1) for t in (x, y))
    assert sampled_matmul(x, y, pattern).values.shape == (0, 8, 16)
    assert tuning_count() == before


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (3, 0, 4), (0, 3, 4)])
def test_empty_sums_are_zero(shape, device):
    """No terms: n is 0, or a leading dimension is."""
    _, _, pattern = problem(device)
    *lead, n = shape
    x, y = torch.ones(*lead, M, n, device=device), torch.ones(*lead, n, K, device=device)
    before = tuning_count()
    result = sampled_matmul(x, y, pattern)
    assert result.values.shape == pattern.values.shape
    assert bool((result.values == 0).all())
    assert tune(x, y, pattern=pattern).best is None
    assert tuning_count() == before


def test_operands_that_overlap_themselves_and_each_other(device):
    memory = torch.randn(M + N + K, device=device)
    pattern = problem(device)[2]
    x, y = memory.as_strided((M, N), (1, 1)), memory.as_strided((N, K), (1, 1))
    assert_right(sampled_matmul(x, y, pattern), x, y, pattern)


def test_lazily_negated_operands(device):
    x, y, pattern = problem(device)
    negated = torch.complex(torch.zeros_like(x), x).conj().imag
    assert negated.is_neg()
    assert_right(sampled_matmul(negated, y, pattern), negated, y, pattern)


def test_an_infinity_reaches_its_row_alone(device):
    """No variant multiplies something else into an element, whatever it computes besides."""
    x, y, pattern = problem(device)
    x[3, 2] = float("inf")
    stored = expected_of(torch.ones_like(x), torch.ones_like(y), pattern)[3] != 0
    for name in variants(x, y, pattern=pattern):
        dense = sampled_matmul(x, y, pattern, variant=name).to_dense()
        assert bool(torch.cat([dense[:3], dense[4:]]).isfinite().all()), name
        assert not bool(dense[3][stored].isfinite().any()), name


def test_the_pattern_is_read_anew_after_an_edit(device):
    x, y, _ = problem(device)
    crow = torch.tensor([0, 2, 2, 3, 3], device=device)
    col = torch.tensor([0, 2, 1], device=device)
    pattern = BsrTensor(crow, col, torch.ones(3, 8, 16, device=device), (M, K))
    assert_right(sampled_matmul(x, y, pattern), x, y, pattern)
    col[0] = 1
    assert_right(sampled_matmul(x, y, pattern), x, y, pattern)
    col[1] = 3
    words = r"pattern.col_indices must lie in \[0, 3\)"
    check_refused(ValueError, words, sampled_matmul, x, y, pattern)


def test_deterministic_results_do_not_change(device):
    x, y, pattern = problem(device)
    for name in variants(x, y, pattern=pattern):
        first = sampled_matmul(x, y, pattern, variant=name).values
        for _ in range(5 if DETERMINISTIC[name] else 0):
            assert torch.equal(sampled_matmul(x, y, pattern, variant=name).values, first), name


def test_threads_do_not_change_a_tiled_result():
    case = SampledProblem("threads", 1024, 1024, 136, (32, 32), pattern="skewed")
    operands = make_sampled(case)
    names = variants(operands.x, operands.b, pattern=operands.a)
    before = torch.get_num_threads()
    for name in (name for name in names if name.startswith("sampled_tiled/")):
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            try:
                results.append(operands.call(name))
            finally:
                torch.set_num_threads(before)
        assert all(torch.equal(results[0], result) for result in results), name
        assert_close(results[0], operands)


# Tuning


def test_a_sampled_product_has_a_race_of_its_own(fresh_cache, device):
    x, y, pattern = problem(device)
    before = tuning_count()
    matmul(pattern, y.T)
    assert_right(sampled_matmul(x, y, pattern), x, y, pattern)
    assert tuning_count() == before + 2
    sampled_matmul(x, y, pattern)
    assert tuning_count() == before + 2
    ops = {v["name"]: v["op"] for v in _tuner.variants()}
    winners = {entry.signature.split("_32x48")[0]: ops[entry.winner] for entry in cache.entries()}
    assert winners == {"matmul": "matmul", "sampled_matmul": "sampled_matmul"}


def test_variants_lists_those_of_the_operation(device):
    x, y, pattern = problem(device)
    ops = {v["name"]: v["op"] for v in _tuner.variants()}
    sampled, products = variants(x, y, pattern=pattern), variants(pattern, y.T.contiguous())
    assert {ops[name] for name in sampled} == {"sampled_matmul"}
    assert {ops[name] for name in products} == {"matmul"}
    assert set(variants()) >= {*sampled, *products}


def test_tune_and_benchmark(fresh_cache, device):
    x, y, pattern = problem(device)
    report = tune(x.T.contiguous().T, y, pattern=pattern)
    assert report.best is not None
    assert report.problem.startswith("sampled 32x48x21 bs8x16")
    assert [entry.winner for entry in cache.entries()] == [report.winner]
    every = benchmark(x, y, pattern=pattern, num_runs=2)
    legal = set(variants(x, y, pattern=pattern))
    assert {r.name for r in every.records} == set(built(device, "sampled_matmul"))
    assert {r.name for r in every.records if r.status == "ok"} == legal
    flops = 2 * pattern.nnzb * 8 * 16 * N
    for record in every.records:
        if record.status == "ok":
            assert record.tflops == pytest.approx(flops / record.median_us / 1e6)
            assert 0 <= record.error <= 1
    assert len(cache.entries()) == 1


def test_a_race_touches_no_operand(device):
    x, y, pattern = problem(device)
    x.fill_(float("nan"))
    kept = [t.clone() for t in (y, pattern.values, pattern.col_indices)]
    assert tune(x, y, pattern=pattern).best is not None
    for t, old in zip((y, pattern.values, pattern.col_indices), kept, strict=True):
        assert torch.equal(t, old)
    assert bool(x.isnan().all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_races_of_every_kind_have_a_winner(dtype, device, monkeypatch):
    """Its operands are made like the user's: blocks, layouts, batches, alignments."""
    monkeypatch.setattr(settings, "budget_s", 0.05)
    cases = (
        SampledProblem("race", dtype=dtype),
        SampledProblem("race-offset", dtype=dtype, x_layout="offset", y_layout="offset_column"),
        SampledProblem("race-batch", dtype=dtype, batch=(3,), pattern="empty_rows"),
        SampledProblem("race-shared", dtype=dtype, batch=(3,), x_layout="expanded"),
        SampledProblem("race-small", 40, 48, 9, (5, 3), dtype, torch.int32),
        SampledProblem("race-tall", 600, 512, 40, (300, 128), dtype, pattern="full"),
    )
    for case in cases:
        operands = make_sampled(case, device)
        report = tune(operands.x, operands.b, pattern=operands.a)
        assert report.best is not None, report
        assert not [r for r in report.records if r.status == "failed"], report.table(configs=True)


def test_a_setting_forces_the_operation_that_it_names(fresh_cache):
    x, y, pattern = problem()
    dense = y.T.contiguous()
    before = tuning_count()
    with settings.override(variant="sampled_reference"):
        sampled_matmul(x, y, pattern)
        assert tuning_count() == before
        matmul(pattern, dense)  # has no variant of that name: its race stays
        assert tuning_count() == before + 1
    with settings.override(variant="reference"):
        matmul(pattern, dense)
        assert_right(sampled_matmul(x, y, pattern), x, y, pattern)
        assert tuning_count() == before + 2


# Bad arguments


@pytest.fixture
def arguments(device, no_races):
    return problem(device)


def refused(error, words, *arguments, **keywords):
    check_refused(error, words, sampled_matmul, *arguments, **keywords)


def test_wrong_shapes(arguments):
    x, y, pattern = arguments
    words = r"columns of x must match the rows of y: x has shape \(32, 20\), y \(21, 48\)"
    refused(ValueError, words, x[:, 1:], y, pattern)
    words = r"x must have the rows of pattern: x has shape \(31, 21\).*pattern \(32, 48\)"
    refused(ValueError, words, x[1:], y, pattern)
    words = r"y must have the columns of pattern.*y \(21, 47\), pattern \(32, 48\)"
    refused(ValueError, words, x, y[:, 1:], pattern)
    refused(ValueError, r"x must have at least 2 dimensions.*\(21,\)", x[0], y, pattern)
    refused(ValueError, r"y must have at least 2 dimensions.*\(\)", x, y[0, 0], pattern)
    words = "leading dimensions of x and y must be equal"
    for lead in ((2, 1), (1, 2), (2, 3)):
        refused(ValueError, words, x.expand(lead[0], -1, -1), y.expand(lead[1], -1, -1), pattern)
    refused(ValueError, words, x[None], y, pattern)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_wrong_dtypes(dtype, arguments):
    x, y, pattern = arguments
    words = f"y must have the dtype of x: x has torch.float32, y {dtype}"
    refused(TypeError, words, x, y.to(dtype), pattern)
    if not dtype.is_floating_point:
        words = f"x must be float16, bfloat16, float32 or float64, got {dtype}"
        refused(TypeError, words, x.to(dtype), y.to(dtype), pattern)


def test_wrong_types(arguments):
    x, y, pattern = arguments
    refused(TypeError, "pattern must be a BSR matrix, got a dense tensor", x, y, x)
    refused(TypeError, "pattern must be a torch.sparse_bsr tensor or a BsrTensor", x, y, None)
    refused(TypeError, "x must be a dense torch.Tensor, got .*BsrTensor", pattern, y, pattern)
    native = pattern.to_torch()
    refused(TypeError, r"y must be dense \(strided\), got layout", x, native, pattern)


@pytest.mark.parametrize("where", ["x", "y"])
def test_wrong_devices(where, arguments):
    x, y, pattern = arguments
    moved = {"x": x, "y": y}
    moved[where] = moved[where].to("meta")
    words = f"{where} must be on the device of pattern: pattern is on c.*, {where} on meta"
    refused(RuntimeError, words, moved["x"], moved["y"], pattern)


def test_index_content(arguments):
    x, y, pattern = arguments
    broken = pattern.crow_indices.clone()
    broken[0] = 1
    bad = BsrTensor(broken, pattern.col_indices, pattern.values, pattern.shape)
    refused(ValueError, "pattern.crow_indices must start at 0, got 1", x, y, bad)


def test_wrong_variants(arguments):
    x, y, pattern = arguments
    words = "variant must be one of auto, .*; got 'fastest'"
    refused(ValueError, words, x, y, pattern, variant="fastest")
    words = "'reference' is not legal.*computes matmul, not sampled_matmul"
    refused(ValueError, words, x, y, pattern, variant="reference")
    with pytest.raises(ValueError, match="computes sampled_matmul, not matmul"):
        matmul(pattern, y.T, variant="sampled_reference")


def test_a_batch_as_the_pattern(fresh_cache):
    """Its indices are those of one matrix."""
    x, y, pattern = problem()
    values = torch.randn(3, *pattern.values.shape)
    batch = BsrTensor(pattern.crow_indices, pattern.col_indices, values, pattern.shape)
    assert torch.equal(sampled_matmul(x, y, batch).values, sampled_matmul(x, y, pattern).values)
    assert variants(x, y, pattern=batch) == variants(x, y, pattern=pattern)
    assert tune(x, y, pattern=batch).signature == tune(x, y, pattern=pattern).signature
    assert legality(x, y, pattern=batch) == legality(x, y, pattern=pattern)


def test_questions_about_what_the_operation_does_not_have():
    x, y, pattern = problem()
    for keywords in ({"bias": torch.ones(M)}, {"activation": "relu"}, {"linear": True}):
        for ask in (variants, tune, benchmark):
            with pytest.raises(ValueError, match=f"{next(iter(keywords))} must be"):
                ask(x, y, pattern=pattern, **keywords)
    with pytest.raises(ValueError, match="out must be None"):
        tune(x, y, pattern=pattern, out=x)
    with pytest.raises(ValueError, match="y must have the columns"):
        variants(x, y[:, 1:], pattern=pattern)
    with pytest.raises(ValueError, match="x must have the rows"):
        tune(x[1:], y, pattern=pattern)

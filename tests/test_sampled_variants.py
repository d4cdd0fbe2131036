"""Every sampled product with variants of the device, forced: right, or refused and why."""

import re

import numpy as np
import pytest
import torch
from covering import by_family, check_each, each_covered
from machine import assert_legal_somewhere, built, each_built, reasons_until_settled
from problem import BF16, DTYPES, HALF
from reference import assert_close, poisoned
from sampled_problems import (
    AS_LARGE_AS_A_GPU,
    SAMPLED_CASES,
    SAMPLED_TF32_CASES,
    SampledProblem,
    blocks_of,
    make_sampled,
)

from sparse_autotune import BsrTensor, sampled_matmul

pytestmark = pytest.mark.usefixtures("as_the_tolerance_assumes")


def check(operands, variant):
    # The next allocation of this size is likely to get this memory.
    poisoned(*operands.reference.shape, dtype=operands.problem.dtype, device=operands.b.device)
    pattern = operands.a
    result = sampled_matmul(operands.x, operands.b, pattern, variant=variant)
    assert type(result) is BsrTensor
    assert_close(result.values, operands)
    assert result.values.is_contiguous()
    if type(pattern) is BsrTensor:
        assert result.crow_indices is pattern.crow_indices
        assert result.col_indices is pattern.col_indices
    else:
        assert torch.equal(result.crow_indices, pattern.crow_indices())
        assert torch.equal(result.col_indices, pattern.col_indices())
    assert result.shape == pattern.shape


COMBINATIONS = each_covered(SAMPLED_CASES, each_built("sampled_matmul"), AS_LARGE_AS_A_GPU)


@pytest.mark.parametrize(("case", "device", "names"), by_family(COMBINATIONS))
def test_case(case, device, names):
    operands = make_sampled(case, device)
    reasons = {"auto": None, **operands.legality()}

    def check_or_refusal(variant):
        if (reason := reasons[variant]) is None:
            check(operands, variant)
            return
        assert reason.strip()
        if case.pattern == "empty":
            return  # nothing is launched, so nothing is refused
        with pytest.raises(ValueError, match=re.escape(reason)):
            operands.call(variant)

    check_each(names, check_or_refusal)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", built("cuda", "sampled_matmul"))
@pytest.mark.parametrize("case", SAMPLED_TF32_CASES, ids=str)
def test_tf32_case(case, variant):
    operands = make_sampled(case, "cuda")
    if operands.legality()[variant] is None:
        check(operands, variant)


def test_every_variant_is_legal_for_some_case(device):
    """Together with `test_case`: no variant goes untested, but for what the machine lacks."""
    run = [combination.values for combination in COMBINATIONS]
    reasons = reasons_until_settled(run, device, lambda case: make_sampled(case, device).legality())
    assert set(reasons) == set(built(device, "sampled_matmul"))
    assert_legal_somewhere(reasons)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_judge_refuses_mistakes(dtype):
    """It accepts a right result, but neither one wrong element nor one missing term."""
    operands = make_sampled(SampledProblem(f"judged-{dtype}", 64, 96, 33, dtype=dtype))
    x, y, pattern = operands.x, operands.b, operands.a
    ones = torch.ones_like(pattern.values)
    marked = BsrTensor(pattern.crow_indices, pattern.col_indices, ones, pattern.shape).to_dense()
    mask = marked[::16, ::16].bool().numpy()

    def stored(product):
        return torch.from_numpy(blocks_of(product.double().numpy(), mask, (16, 16))).to(dtype)

    right = stored(x.double() @ y.double())
    assert_close(right, operands)
    at = np.unravel_index(np.argmax(np.abs(operands.reference)), right.shape)
    for wrong in (0.0, float("nan"), float("inf"), -right[at], right[at] * 1.02):
        result = right.clone()
        result[at] = wrong
        with pytest.raises(AssertionError, match="1 of"):
            assert_close(result, operands)
    with pytest.raises(AssertionError, match="elements of"):
        assert_close(stored(x[:, 1:].double() @ y[1:].double()), operands)
    if dtype in (HALF, BF16):  # sums must be accumulated in fp32
        total = torch.zeros(64, 96, dtype=dtype)
        for i in range(33):
            total += x[:, i : i + 1] * y[i : i + 1]
        with pytest.raises(AssertionError, match="elements of"):
            assert_close(stored(total), operands)

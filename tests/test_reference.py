"""The judge of all other tests: it accepts a correct product and catches small mistakes."""

import math

import numpy as np
import pytest
import torch
from problem import BF16, DTYPES, FP32, FP64, HALF, Problem
from reference import PoisonedOut, assert_close, make


def problem(dtype, **changes):
    return Problem(f"judged-{dtype}-{changes}", 64, 96, 33, (16, 16), dtype, density=0.5, **changes)


def dense_product(operands, dtype=torch.float64):
    """The product by torch, at first in `dtype`, rounded to the problem's dtype."""
    p = operands.problem
    result = operands.a.to_dense().to(dtype) @ operands.b.to(dtype)
    if p.bias:
        result = result + operands.bias.to(dtype)[:, None]
    if p.activation:
        approximate = "tanh" if p.activation == "gelu_tanh" else "none"
        result = {
            "relu": torch.relu,
            "silu": torch.nn.functional.silu,
        }.get(p.activation, lambda x: torch.nn.functional.gelu(x, approximate=approximate))(result)
    return result.to(p.dtype)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_accepts_a_correct_product(dtype, activation):
    operands = make(problem(dtype, bias=activation is not None, activation=activation))
    assert_close(dense_product(operands), operands)
    # As accurate as promised, and no more: accumulated in fp32 where that is the rule.
    assert_close(dense_product(operands, FP64 if dtype == FP64 else FP32), operands)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_refuses_mistakes(dtype):
    operands = make(problem(dtype))
    right = dense_product(operands)
    i, j = np.unravel_index(np.argmax(np.abs(operands.reference)), right.shape)
    for wrong in (0.0, math.nan, math.inf, -right[i, j], right[i, j] * 1.02):
        result = right.clone()
        result[i, j] = wrong
        with pytest.raises(AssertionError, match="1 of 2112 elements"):
            assert_close(result, operands)
    for result in (right[:-1], right.double() if dtype != FP64 else right.float(), right[None]):
        with pytest.raises(AssertionError):
            assert_close(result, operands)


def test_refuses_one_missing_term():
    """Of the 48 or so products in a sum, leaving out any is seen nearly always."""
    operands = make(problem(FP32))
    dense, b = operands.a.to_dense(), operands.b
    found = []
    for k in dense.any(0).nonzero().flatten().tolist():
        left_out = dense.clone()
        left_out[:, k] = 0
        got = (left_out.double() @ b.double()).numpy()
        wrong = np.abs(got - operands.reference) > operands.tolerance
        found.append(wrong[dense[:, k].numpy() != 0].mean())
    assert np.mean(found) > 0.99


@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
def test_refuses_accumulation_in_a_half_type(dtype):
    operands = make(problem(dtype))
    dense, b = operands.a.to_dense(), operands.b
    total = torch.zeros(64, 33, dtype=dtype)
    for k in range(dense.shape[1]):
        total += dense[:, k : k + 1] * b[k : k + 1]
    with pytest.raises(AssertionError, match="elements of"):
        assert_close(total, operands)


@pytest.mark.parametrize(
    "layout", ["row", "column", "padded", "padded_column", "offset", "scattered"]
)
def test_poisoned_out_sees_writes_around_it(layout):
    operands = make(problem(FP32, out_layout=layout))
    out = PoisonedOut(operands)
    assert out.tensor.shape == (64, 33) and bool(out.tensor.isnan().all())
    out.assert_only_out_written()
    out.tensor.zero_()
    out.assert_only_out_written()
    outside = torch.ones(out._memory.numel(), dtype=torch.bool)
    outside.as_strided(out.tensor.shape, out.tensor.stride(), out.tensor.storage_offset())[:] = (
        False
    )
    for position in outside.nonzero().flatten()[[0, 100, 127, -129, -128, -1]].tolist():
        out = PoisonedOut(operands)
        out._memory[position] = 1.0
        with pytest.raises(AssertionError, match="outside of out"):
            out.assert_only_out_written()

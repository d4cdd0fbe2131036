"""Activations of the CPU variants against fp64: far out, too, and where results are small."""

import math

import pytest
import torch

import sparse_autotune as sa

EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}
ONE = torch.ones(1, 1, 1)


def expected(x, activation):
    """In fp64, without adding a small number to a large one."""
    x = x.double()
    if activation == "relu":
        return torch.where(x < 0, 0.0, x)
    if activation == "gelu":
        return 0.5 * x * torch.special.erfc(-x / math.sqrt(2))
    if activation == "gelu_tanh":
        x3 = x + 0.044715 * x * x * x
        return x / (1 + torch.exp(-2 * math.sqrt(2 / math.pi) * x3))
    return x / (1 + torch.exp(-x))


def activated(x, activation, variant):
    """`activation(x)` by the product with the 1 x 1 matrix of a one."""
    index = torch.tensor([0, 1]), torch.tensor([0])
    a = sa.BsrTensor(*index, ONE.to(x.dtype), (1, 1))
    return sa.matmul(a, x[None], activation=activation, variant=variant)[0]


def variants_of(x):
    index = torch.tensor([0, 1]), torch.tensor([0])
    return sa.variants(sa.BsrTensor(*index, ONE.to(x.dtype), (1, 1)), x[None])


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("dtype", EPS, ids=str)
def test_errors_are_a_few_units_in_the_last_place(dtype, activation):
    x = torch.linspace(-9, 20, 40_003, dtype=dtype)
    want = expected(x, activation)
    for variant in variants_of(x):
        error = (activated(x, activation, variant).double() - want).abs()
        assert (error <= 2 * EPS[dtype] * x.double().abs()).all(), variant
        if variant != "reference/fp64":  # adds 1 to the erf
            assert (error <= 150 * EPS[dtype] * want.abs()).all(), variant


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("dtype", [*EPS, torch.float16, torch.bfloat16], ids=str)
def test_extremes(dtype, activation):
    inf, nan = math.inf, math.nan
    x = torch.tensor([inf, nan, 0.0, 1e4, -1e4, -200, -100, -50, 1e-7], dtype=dtype)
    want = expected(x, activation).to(dtype)
    for variant in variants_of(x):
        got = activated(x, activation, variant)
        assert torch.equal(got.isnan(), want.isnan()), variant
        torch.testing.assert_close(got, want, rtol=0.01, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("count", [1, 2, 3, 15, 16, 17, 31, 33, 47, 49])
def test_an_element_does_not_depend_on_its_neighbours(count):
    x = torch.linspace(-3, 3, 64)
    for variant in variants_of(x[:count].clone()):
        whole = activated(x, "gelu", variant)
        assert torch.equal(activated(x[:count].clone(), "gelu", variant), whole[:count]), variant

"""Gradients of products, and sampled products, that are computed directly: see test_dispatch.py."""

import pytest
import torch
from problem import DTYPES, FP32, FP64
from reference import close
from test_dispatch import FORMS, Listener

from sparse_autotune import BsrTensor, matmul, random_bsr, sampled_matmul
from sparse_autotune._torch import direct

pytestmark = pytest.mark.filterwarnings("ignore:.*Sparse BSR tensor support is in beta")


class Values(torch.Tensor):
    """Somebody's own kind of tensor."""


@pytest.fixture
def together(calls, monkeypatch):
    """Of each attempt to compute both gradients by one call, whether it did."""
    found = []

    def directly(*given):
        both = real(*given)
        found.append(both is not None)
        return both

    real = direct.gradients
    monkeypatch.setattr(direct, "gradients", directly)
    return found


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_come_together(calls, together, device, form, activation):
    """Directly from the second time on; what two operators compute, which whoever listens meets."""
    a = random_bsr(64, 64, 16, density=0.5, device=device).requires_grad_()
    x, bias = (torch.randn(*s, 64, device=device, requires_grad=True) for s in ((12,), ()))

    def gradients():
        y = FORMS[form](a, x, bias=bias, activation=activation)
        return torch.autograd.grad(y, (a.values, x, bias), torch.ones_like(y))

    count, first = calls.during(gradients)
    assert count == 3 and together == [False]
    count, second = calls.during(gradients)
    assert count == 0 and together == [False, True]
    assert all(map(torch.equal, second, first))
    with Listener() as listener:
        listened = gradients()
    assert together == [False, True, False]
    assert "sparse_autotune.bsr_sampled_matmul.default" in listener.heard
    close(listened, first, 1e-5)


def test_gradients_that_must_come_apart_do(together):
    """One alone, and those that are differentiated again."""
    a = random_bsr(64, 64, 16, density=0.5).requires_grad_()
    b = torch.randn(64, 12, requires_grad=True)
    y = matmul(a, b)
    upstream = torch.randn(64, 12)
    both = torch.autograd.grad(y, (a.values, b), upstream, retain_graph=True)
    assert together == [False]
    together.clear()
    for matrix, operand, leaf in ((a.detach(), b, 1), (a, b.detach(), 0)):
        (alone,) = torch.autograd.grad(matmul(matrix, operand), (a.values, b)[leaf], upstream)
        assert torch.equal(alone, both[leaf])
    again = torch.autograd.grad(y, (a.values, b), upstream, retain_graph=True, create_graph=True)
    (of_values,) = torch.autograd.grad(again[1].sum(), a.values)
    assert of_values.abs().sum() > 0
    assert all(map(torch.equal, again, both))
    assert not any(together)


def test_gradients_that_operators_compute(calls, together, device):
    """Of upstream gradients that must be copied first, and of other kinds of tensors."""
    a = random_bsr(64, 64, 16, density=0.5, device=device).requires_grad_()
    b = torch.randn(64, 12, device=device, requires_grad=True)
    plain = torch.randn(64, 12, device=device)
    for upstream in (plain.as_subclass(Values), plain[:1, :1].expand(64, 12)):
        expected = a.detach().to_dense().mT @ upstream.as_subclass(torch.Tensor)
        for _ in range(2):
            y = matmul(a, b)
            count, got = calls.during(
                lambda y=y, upstream=upstream: torch.autograd.grad(y, (a.values, b), upstream)
            )
            assert count == 2
            close(got[1].as_subclass(torch.Tensor), expected)
    assert together == [False] * 4


# x and y of a product that has the pattern's shape, 64 x 48.
SAMPLES = {
    "rows": lambda x, y: (x, y),
    "columns": lambda x, y: (x.mT.contiguous().mT, y.mT.contiguous().mT),
    "wide": lambda x, y: (torch.cat([x, x], 1)[:, :12], torch.cat([y, y], 1)[:, :48]),
    "one_term": lambda x, y: (x[:, :1], y[:1]),
    "leading_dimensions": lambda x, y: (
        x.mT.reshape(3, 4, 64).mT, y.reshape(3, 4, 48),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sample", SAMPLES)
def test_sampled_products_are_direct(calls, device, sample, transposed, dtype):
    """The operator's bits without the operator."""
    a = random_bsr(64, 48, (16, 8), density=0.5, device=device, dtype=dtype)
    x, y = (torch.randn(*shape, device=device, dtype=dtype) for shape in ((64, 12), (12, 48)))
    x, y = SAMPLES[sample](x, y)
    if transposed:
        a, x, y = a.t(), y.mT, x.mT
    for expected in (1, 0, 0):
        count, result = calls.during(lambda: sampled_matmul(x, y, a))
        assert count == expected
        if expected == 1:
            first = result
    assert type(result) is BsrTensor and result.shape == a.shape
    assert result.crow_indices is a.crow_indices and result.col_indices is a.col_indices
    assert torch.equal(result.values, first.values) and result.values.is_contiguous()
    with Listener() as listener:
        listened = sampled_matmul(x, y, a)
    assert "sparse_autotune.bsr_sampled_matmul.default" in listener.heard
    assert torch.equal(listened.values, first.values)
    inside = (result.to_dense() != 0).double()
    total = x.double() @ y.double()
    total = total.sum(0) if total.dim() == 3 else total
    close(result.to_dense().double(), total * inside, 1e-4 if dtype in (FP32, FP64) else 0.06)


def test_sampled_products_by_native_patterns_are_direct(calls, device):
    a = random_bsr(64, 48, (16, 8), density=0.5, device=device)
    x, y = torch.randn(64, 12, device=device), torch.randn(12, 48, device=device)
    native = a.to_torch()
    for pattern, factors in ((native, (x, y)), (native.mT, (y.T, x.T))):
        expected = sampled_matmul(*factors, a.t() if pattern is not native else a)
        sampled_matmul(*factors, pattern)
        count, result = calls.during(lambda p=pattern, f=factors: sampled_matmul(*f, p))
        assert count == 0
        assert result.is_transposed == expected.is_transposed
        assert torch.equal(result.values, expected.values)


def test_sampled_products_with_gradients_are_direct(calls, device):
    """Below their Function; the gradients are products."""
    a = random_bsr(64, 48, 16, density=0.5, device=device)
    x, y = torch.randn(64, 12, device=device), torch.randn(12, 48, device=device)
    upstream = torch.randn_like(a.values)

    def gradients():
        factors = x.clone().requires_grad_(), y.clone().requires_grad_()
        return torch.autograd.grad(sampled_matmul(*factors, a).values, factors, upstream)

    count, first = calls.during(gradients)
    assert count == 3
    count, second = calls.during(gradients)
    assert count == 0 and all(map(torch.equal, first, second))
    dense = BsrTensor(a.crow_indices, a.col_indices, upstream, a.shape).to_dense()
    close(second, (dense @ y.T, x.T @ dense))


def test_sampled_products_that_the_operator_has_to_see(calls):
    """Scattered terms, tensors of other kinds; other shapes and dtypes, which it refuses."""
    a = random_bsr(64, 48, 16, density=0.5)
    x, y = torch.randn(64, 12), torch.randn(12, 48)
    expected = sampled_matmul(x, y, a).values
    scattered = torch.randn(3, 2, 64, 5).transpose(0, 1), torch.randn(3, 2, 5, 48).transpose(0, 1)
    for left, right in (scattered, (x.as_subclass(Values), y), (x, y.cfloat().conj().imag)):
        first = sampled_matmul(left, right, a).values
        count, again = calls.during(lambda x=left, y=right: sampled_matmul(x, y, a).values)
        assert count == 1 and torch.equal(first, again)
    for left, right in ((x[:48], y), (x, y[:, :32]), (x[:, :6], y), (x[None], y), (x, y.double())):
        for _ in range(2):
            with pytest.raises((TypeError, ValueError)):
                sampled_matmul(left, right, a)
    a.col_indices.copy_(a.col_indices.clone())
    for by_operator in (1, 0):
        count, result = calls.during(lambda: sampled_matmul(x, y, a).values)
        assert count == by_operator and torch.equal(result, expected)
    double = x.double(), y.double()
    for by_operator in (1, 0):
        count, result = calls.during(lambda: sampled_matmul(*double, a).values)
        assert count == by_operator
        close(result.float(), expected)

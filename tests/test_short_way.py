"""When the short way of plain calls is looked for, and what has none: see test_dispatch.py."""

import pytest
import torch
from problem import DTYPES, FP32, FP64
from reference import close
from test_dispatch import FORMS, CountedCalls, Listener

import sparse_autotune
from sparse_autotune import autograd, forms, launching, matmul, random_bsr, sampled_matmul


@pytest.fixture
def calls(no_races, monkeypatch):
    return CountedCalls(monkeypatch)


class Values(torch.Tensor):
    """Somebody's own kind of tensor."""


def test_it_is_looked_for_from_the_second_product_on(calls, device, monkeypatch):
    """The first makes the plan; whoever shares that plan may look for a way at once."""
    found = []
    real = launching.ShortWay
    monkeypatch.setattr(launching, "ShortWay", lambda *a: (found.append(1), real(*a))[1])
    a = random_bsr(64, 64, 16, density=0.5, device=device)
    b = torch.randn(64, 12, device=device)
    for product, (ways, by_operator) in enumerate([(0, 1), (1, 0), (1, 0)]):
        count, result = calls.during(lambda: matmul(a, b))
        assert len(found) == ways, product
        if device == "cpu":
            assert count == by_operator, product
        close(result, a.to_dense() @ b)
    for other in (a.t(), a.detach(), 2 * a):
        found.clear()
        matmul(other, b)
        assert len(found) == 1
    layer = sparse_autotune.SparseLinear(64, 48, 16, 0.5, device=device).requires_grad_(False)
    found.clear()
    for ways in (0, 1, 1):
        layer(b.T)
        assert len(found) == ways
    sparse_autotune.prune_(layer, 0.25)  # other indices
    for ways in (1, 2, 2):
        layer(b.T)
        assert len(found) == ways


def refused(crow, col, values, shape):
    parts = launching.Components(crow, col, values, *shape)
    return launching.find_short_way(parts) is None


def test_what_makes_up_no_matrix_has_none(device):
    """`BsrTensor` refuses these, but its tensors may change their shapes afterwards."""
    crow, col = torch.tensor([0, 1, 2], device=device), torch.tensor([0, 1], device=device)
    values = torch.randn(2, 16, 32, device=device)
    assert not refused(crow, col, values, (32, 64))
    assert not refused(crow.int(), col.int(), values.requires_grad_(), (32, 64))
    values = values.detach()
    wide = torch.randn(2, 16, 64, device=device)[..., ::2]
    for parts in (
        (crow, col, values, (48, 64)),
        (crow, col, values, (32, 65)),
        (crow, col, values, (-32, 64)),
        (crow[:2], col, values, (32, 64)),
        (crow, col[:1], values, (32, 64)),
        (crow.int(), col, values, (32, 64)),
        (crow.short(), col.short(), values, (32, 64)),
        (crow.float(), col.float(), values, (32, 64)),
        (crow[None], col, values, (32, 64)),
        (crow, col, values[0], (32, 64)),
        (crow, col, values[None], (32, 64)),
        (crow, col, values[:, :0], (32, 64)),
        (crow, col, values.int(), (32, 64)),
        (crow, col, values.cfloat(), (32, 64)),
        (crow, col, wide, (32, 64)),
        (crow, torch.tensor([0, 9, 1], device=device)[::2], values, (32, 64)),
        (crow, col, values.to("meta"), (32, 64)),
        (crow, col.to_sparse(), values, (32, 64)),
        (crow, col, values.as_subclass(Values), (32, 64)),
        (crow, col, values.cfloat().conj().imag, (32, 64)),
    ):
        assert refused(*parts), parts
    with torch.inference_mode():
        assert refused(crow, col, values.clone(), (32, 64))
    if device == "cuda":
        assert refused(crow.cpu(), col.cpu(), values, (32, 64))


def test_zeros_without_memory(calls):
    """The dispatcher gives torch's unstored zeros, which forward-mode derivatives make, memory."""
    a, b = random_bsr(64, 64, 16, density=0.5), torch.randn(64, 12)
    for _ in range(2):
        expected = matmul(a, b)
    zeros, no_bias = torch._efficientzerotensor((64, 12)), torch._efficientzerotensor((64,))
    assert torch.equal(matmul(a, zeros), torch.zeros(64, 12))
    assert torch.equal(matmul(a, b, bias=no_bias), expected)
    no_values = torch._efficientzerotensor(tuple(a.values.shape))
    nothing = sparse_autotune.BsrTensor(a.crow_indices, a.col_indices, no_values, a.shape)
    for _ in range(2):
        assert torch.equal(matmul(nothing, b), torch.zeros(64, 12))


@pytest.fixture
def together(no_races, monkeypatch):
    """One entry for each time that one operator computed both gradients."""
    calls, real = [], autograd.gradients_below_autograd
    monkeypatch.setattr(
        autograd, "gradients_below_autograd", lambda *given: (calls.append(1), real(*given))[1]
    )
    return calls


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_come_together_where_there_is_a_way(together, device, form, activation):
    """What two operators compute, which the first backward and whoever listens meet."""
    a = random_bsr(64, 64, 16, density=0.5, device=device).requires_grad_()
    x, bias = (torch.randn(*s, 64, device=device, requires_grad=True) for s in ((12,), ()))

    def gradients():
        y = FORMS[form](a, x, bias=bias, activation=activation)
        return torch.autograd.grad(y, (a.values, x, bias), torch.ones_like(y))

    first = gradients()
    assert not together
    second = gradients()
    assert len(together) == 1
    with Listener() as listener:
        listened = gradients()
    assert len(together) == 1
    assert "sparse_autotune.bsr_sampled_matmul.default" in listener.heard
    close(second, first, 1e-5)
    close(listened, first, 1e-5)


def test_gradients_that_must_come_apart_do(together):
    """One alone, those that are differentiated again, and those of other kinds of tensors."""
    a = random_bsr(64, 64, 16, density=0.5).requires_grad_()
    b = torch.randn(64, 12, requires_grad=True)
    matmul(a, b)
    y = matmul(a, b)
    upstream = torch.randn(64, 12)
    both = torch.autograd.grad(y, (a.values, b), upstream, retain_graph=True)
    assert len(together) == 1
    together.clear()
    for matrix, operand, leaf in ((a.detach(), b, 1), (a, b.detach(), 0)):
        (alone,) = torch.autograd.grad(matmul(matrix, operand), (a.values, b)[leaf], upstream)
        assert torch.equal(alone, both[leaf])
    again = torch.autograd.grad(y, (a.values, b), upstream, retain_graph=True, create_graph=True)
    (of_values,) = torch.autograd.grad(again[1].sum(), a.values)
    assert of_values.abs().sum() > 0
    other = torch.autograd.grad(matmul(a, b), (a.values, b), upstream.as_subclass(Values))
    for ours in (again, other):
        assert all(map(torch.equal, ours, both))
    assert not together


@pytest.fixture
def sampled_calls(no_races, monkeypatch):
    """One entry for each time that the dispatcher was asked for a sampled product."""
    found, real = [], forms.bsr_sampled_matmul
    monkeypatch.setattr(
        forms, "bsr_sampled_matmul", lambda *a, **k: (found.append(1), real(*a, **k))[1]
    )
    return found


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
def test_sampled_products_take_it(sampled_calls, device, sample, transposed, dtype):
    """The operator's bits without the operator."""
    a = random_bsr(64, 48, (16, 8), density=0.5, device=device, dtype=dtype)
    x, y = (torch.randn(*shape, device=device, dtype=dtype) for shape in ((64, 12), (12, 48)))
    x, y = SAMPLES[sample](x, y)
    if transposed:
        a, x, y = a.t(), y.mT, x.mT
    for product in range(3):
        sampled_calls.clear()
        with torch.no_grad():
            result = sampled_matmul(x, y, a)
        if device == "cpu":
            assert len(sampled_calls) == (product == 0)
        if product == 0:
            first = result
    assert type(result) is sparse_autotune.BsrTensor and result.shape == a.shape
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


def test_sampled_products_that_the_operator_has_to_see(sampled_calls):
    """Gradients, a dtype that is not the pattern's, scattered terms, other shapes and indices."""
    a = random_bsr(64, 48, 16, density=0.5)
    x, y = torch.randn(64, 12), torch.randn(12, 48)
    for _ in range(2):
        expected = sampled_matmul(x, y, a).values
    sampled_calls.clear()
    sampled_matmul(x.requires_grad_(), y, a).values.sum().backward()
    assert len(sampled_calls) == 1 and x.grad is not None
    x = x.detach()
    scattered = torch.randn(3, 2, 64, 5).transpose(0, 1), torch.randn(3, 2, 5, 48).transpose(0, 1)
    for left, right in ((x.double(), y.double()), scattered):
        sampled_calls.clear()
        assert torch.equal(
            sampled_matmul(left, right, a).values, sampled_matmul(left, right, a).values
        )
        assert len(sampled_calls) == 2
    for left, right in ((x[:48], y), (x, y[:, :32]), (x[:, :6], y), (x[None], y), (x, y.double())):
        with pytest.raises((TypeError, ValueError)):
            sampled_matmul(left, right, a)
    a.col_indices.copy_(a.col_indices.clone())
    assert torch.equal(sampled_matmul(x, y, a).values, expected)

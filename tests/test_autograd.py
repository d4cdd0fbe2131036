"""Derivatives, against finite differences in fp64 and dense autograd, and who gets in their way."""

import copy

import pytest
import torch
from problem import DTYPES
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from sparse_autotune import BsrTensor, linear, matmul, random_bsr, sampled_matmul
from sparse_autotune.operators.forms import ACTIVATIONS

pytestmark = pytest.mark.usefixtures("no_races")


def activated(z, name):
    if name in ("gelu", "gelu_tanh"):
        return torch.nn.functional.gelu(z, approximate="tanh" if name == "gelu_tanh" else "none")
    return z if name is None else getattr(torch.nn.functional, name)(z)


# Finite differences. `side` is where the dense operand's partner stands.


class Case:
    """A product as a function of values, dense operand and bias."""

    def __init__(self, form, shape, device="cpu"):
        self.form = form
        self.a = random_bsr(4, 6, (2, 3), density=0.75, dtype=torch.float64, device=device)
        rows, cols = (6, 4) if "t" in form.split("_") else (4, 6)
        inner, self.outer = (rows, cols) if form.startswith("right") else (cols, rows)
        if form == "linear":
            inner, self.outer = 6, 4
        shape = [inner if size == "k" else size for size in shape]
        self.dense = torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)
        self.bias = torch.randn(self.outer, dtype=torch.float64, device=device, requires_grad=True)
        self.values = self.a.values.clone().requires_grad_()

    def matrix(self, values):
        a = BsrTensor(self.a.crow_indices, self.a.col_indices, values, self.a.shape)
        return a.t() if "t" in self.form.split("_") else a

    def __call__(self, values, dense, bias=None, activation=None):
        a = self.matrix(values)
        if self.form == "linear":
            return linear(dense, a, bias, activation=activation)
        if self.form.startswith("right"):
            return matmul(dense, a, bias=bias, activation=activation)
        return matmul(a, dense, bias=bias, activation=activation)

    def dense_result(self, values, dense, bias=None, activation=None):
        a = self.matrix(values).to_dense()
        if self.form == "linear":
            return activated(torch.nn.functional.linear(dense, a, bias), activation)
        if self.form.startswith("right"):
            z = dense @ a
            return activated(z if bias is None else z + bias, activation)
        z = a @ dense
        along = bias if dense.dim() == 1 or bias is None else bias[:, None]
        return activated(z if bias is None else z + along, activation)


LEFT_SHAPES = {"matrix": ("k", 2), "vector": ("k",), "batch": (2, "k", 2)}
RIGHT_SHAPES = {"matrix": (2, "k"), "vector": ("k",), "batch": (2, 2, "k")}


@pytest.mark.parametrize("shape", LEFT_SHAPES)
@pytest.mark.parametrize("form", ["left", "left_t", "right", "right_t", "linear"])
def test_finite_differences(form, shape, device):
    shapes = LEFT_SHAPES if form.startswith("left") else RIGHT_SHAPES
    case = Case(form, shapes[shape], device)
    arguments = (case.values, case.dense, case.bias)
    assert gradcheck(case, arguments)
    assert gradgradcheck(case, arguments)


@pytest.mark.parametrize("activation", list(ACTIVATIONS)[1:])
def test_finite_differences_of_activations(activation, device):
    """Through `matmul`, and through the operator called by itself."""
    case = Case("left", ("k", 1), device)
    arguments = (case.values, case.dense, case.bias)

    def through_operator(values, dense, bias):
        parts = (case.a.crow_indices, case.a.col_indices, values, 4, 6, dense, bias)
        return torch.ops.sparse_autotune.bsr_matmul(*parts, activation=ACTIVATIONS[activation])

    for function in (lambda *tensors: case(*tensors, activation), through_operator):
        assert gradcheck(function, arguments)
        assert gradgradcheck(function, arguments)


@pytest.mark.parametrize("shape", [(), (2,)], ids=["matrix", "batch"])
def test_finite_differences_of_sampled_products(shape, device):
    pattern = random_bsr(4, 6, (2, 3), density=0.75, dtype=torch.float64, device=device)
    x = torch.randn(*shape, 4, 2, dtype=torch.float64, device=device, requires_grad=True)
    y = torch.randn(*shape, 2, 6, dtype=torch.float64, device=device, requires_grad=True)
    for function, arguments in (
        (lambda x, y: sampled_matmul(x, y, pattern).values, (x, y)),
        (lambda x, y: sampled_matmul(y.mT, x.mT, pattern.t()).values, (x, y)),
    ):
        assert gradcheck(function, arguments)
        assert gradgradcheck(function, arguments)


@pytest.mark.parametrize("wanted", [0, 1])
def test_one_gradient_of_a_sampled_product(wanted):
    pattern = random_bsr(4, 6, (2, 3), density=0.75, dtype=torch.float64)
    factors = [torch.randn(4, 2, dtype=torch.float64), torch.randn(2, 6, dtype=torch.float64)]
    factors[wanted].requires_grad_()
    assert gradcheck(lambda x, y: sampled_matmul(x, y, pattern).values, factors)


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_forward_mode(activation):
    """Alone and over reverse mode; by default torch would give a silent zero."""
    case = Case("left_t", ("k", 1))
    function = lambda *tensors: case(*tensors, activation)  # noqa: E731
    arguments = (case.values, case.dense, case.bias)
    assert gradcheck(function, arguments, check_forward_ad=True)
    assert gradgradcheck(function, arguments, check_fwd_over_rev=True)


def test_forward_mode_of_sampled_products():
    pattern = random_bsr(4, 6, (2, 3), density=0.75, dtype=torch.float64)
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    function = lambda x, y: sampled_matmul(x, y, pattern).values  # noqa: E731
    assert gradcheck(function, (x, y), check_forward_ad=True)
    assert gradgradcheck(function, (x, y), check_fwd_over_rev=True)


@pytest.mark.parametrize("which", ["values", "dense", "bias"])
def test_a_tangent_without_gradients(which):
    case = Case("right", (2, "k"))
    tensors = {"values": case.values, "dense": case.dense, "bias": case.bias}
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    with forward_ad.dual_level():
        tensors[which] = forward_ad.make_dual(tensors[which], torch.randn_like(tensors[which]))
        got = forward_ad.unpack_dual(case(**tensors, activation="silu"))
        expected = forward_ad.unpack_dual(case.dense_result(**tensors, activation="silu"))
        torch.testing.assert_close(got.primal, expected.primal)
        torch.testing.assert_close(got.tangent, expected.tangent)


# Against dense autograd, in every dtype


@pytest.mark.parametrize("block", [(1, 1), (4, 8), (16, 16), (7, 5)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_are_those_of_the_dense_product(dtype, block, device):
    """Small signed integers: every product and sum is exact in every dtype."""
    m, k, n = 3 * block[0] * 4, 2 * block[1] * 4, 24
    a = random_bsr(m, k, block, density=0.4, dtype=dtype, device=device)
    small = lambda *shape: torch.randint(-2, 3, shape, device=device).to(dtype)  # noqa: E731
    values = small(*a.values.shape).requires_grad_()
    b, bias = small(k, n).requires_grad_(), small(m).requires_grad_()
    a = BsrTensor(a.crow_indices, a.col_indices, values, a.shape)
    upstream = small(m, n)
    got = torch.autograd.grad(matmul(a, b, bias=bias), (values, b, bias), upstream)

    wide = [t.detach().double().cpu().requires_grad_() for t in (values, b, bias)]
    dense = BsrTensor(a.crow_indices.cpu(), a.col_indices.cpu(), wide[0], a.shape).to_dense()
    result = dense @ wide[1] + wide[2][:, None]
    expected = torch.autograd.grad(result, wide, upstream.double().cpu())
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == dtype and ours.is_contiguous()
        assert torch.equal(ours.double().cpu(), theirs)


def test_layouts_of_the_gradient(device):
    """Column-major, expanded and strided ones, of dense operands in each layout."""
    a = random_bsr(8, 12, (2, 3), density=0.5, dtype=torch.float64, device=device)
    dense = a.to_dense()
    for lay in (lambda t: t, lambda t: t.mT.contiguous().mT, lambda t: t.repeat(1, 2)[:, ::2]):
        b = lay(torch.randn(12, 6, dtype=torch.float64, device=device)).detach().requires_grad_()
        for upstream in (
            torch.ones((), dtype=torch.float64, device=device).expand(8, 6),
            torch.randn(6, 8, dtype=torch.float64, device=device).t(),
            torch.randn(8, 12, dtype=torch.float64, device=device)[:, ::2],
        ):
            (got,) = torch.autograd.grad(matmul(a, b), b, upstream)
            torch.testing.assert_close(got, dense.t() @ upstream)


def test_only_what_is_asked_for(device):
    """A gradient for each input alone; nothing is saved that no gradient needs."""
    case = Case("left", ("k", 3), device)
    tensors = {"values": case.values, "dense": case.dense, "bias": case.bias}
    for wanted in tensors:
        given = {name: t.detach().requires_grad_(name == wanted) for name, t in tensors.items()}
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: saved.append(t) or t, lambda t: t
        ):
            result = case(**given)
        addresses = {t.data_ptr() for t in saved if t.is_floating_point()}
        needed = {"values": {"dense"}, "dense": {"values"}, "bias": set()}[wanted]
        assert addresses == {given[name].data_ptr() for name in needed}
        upstream = torch.randn_like(result)
        (got,) = torch.autograd.grad(result, given[wanted], upstream)
        again = {name: t.detach().requires_grad_(name == wanted) for name, t in tensors.items()}
        (expected,) = torch.autograd.grad(case.dense_result(**again), again[wanted], upstream)
        torch.testing.assert_close(got, expected)


def test_native_matrices(device):
    """Gradients reach the tensors that a torch.sparse_bsr tensor was made of."""
    a = random_bsr(8, 12, (2, 3), density=0.5, dtype=torch.float64, device=device)
    values = a.values.clone().requires_grad_()
    b = torch.randn(12, 5, dtype=torch.float64, device=device, requires_grad=True)

    def native(values):
        return torch.sparse_bsr_tensor(a.crow_indices, a.col_indices, values, a.shape)

    upstream = torch.randn(8, 5, dtype=torch.float64, device=device)
    got = torch.autograd.grad(matmul(native(values), b), (values, b), upstream)
    dense = BsrTensor(a.crow_indices, a.col_indices, values, a.shape).to_dense()
    expected = torch.autograd.grad(dense @ b, (values, b), upstream)
    torch.testing.assert_close(got, expected)


def test_one_matrix_used_twice(device):
    """Gradients of both uses add up."""
    a = random_bsr(6, 6, 3, density=0.75, dtype=torch.float64, device=device).requires_grad_()
    x = torch.randn(6, 2, dtype=torch.float64, device=device)
    matmul(a.t(), matmul(a, x)).sum().backward()
    values = a.values.detach().clone().requires_grad_()
    dense = BsrTensor(a.crow_indices, a.col_indices, values, a.shape).to_dense()
    (dense.t() @ (dense @ x)).sum().backward()
    torch.testing.assert_close(a.values.grad, values.grad)


# Changes behind a graph's back


@pytest.mark.parametrize("what", ["values", "crow_indices", "col_indices", "dense"])
def test_a_change_under_a_live_graph_raises(what):
    case = Case("left", ("k", 2))
    result = case(case.values, case.dense)
    changed = getattr(case if what in ("values", "dense") else case.a, what)
    with torch.no_grad():
        changed.mul_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_frozen_matrix_cannot_be_trained():
    a = random_bsr(8, 8, 4, density=0.5).freeze()
    b = torch.randn(8, 3, requires_grad=True)
    matmul(a, b).sum().backward()
    torch.testing.assert_close(b.grad, a.to_dense().sum(0)[:, None].expand(8, 3))
    with pytest.raises(RuntimeError, match=r"frozen.*thaw\(\)"):
        a.requires_grad_()
    a.values.requires_grad_()
    with pytest.raises(RuntimeError, match=r"require grad.*detach"):
        matmul(a, b)


def test_no_grad_and_inference_mode():
    a, b = random_bsr(8, 8, 4, density=0.5).requires_grad_(), torch.randn(8, 3)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert not matmul(a, b).requires_grad
            assert not linear(b.T, a).requires_grad
    assert matmul(a, b).requires_grad


# torch.func


def test_transforms():
    case = Case("left", ("k", 2))
    values, b = case.values.detach(), case.dense.detach()
    loss = lambda b: case(values, b).sin().sum()  # noqa: E731
    dense_loss = lambda b: case.dense_result(values, b).sin().sum()  # noqa: E731
    matmul(case.a, b)
    for transform in (
        lambda f: torch.func.grad(f)(b),
        lambda f: torch.func.grad(lambda b: torch.func.grad(f)(b).sin().sum())(b),
        lambda f: torch.func.jacrev(f)(b),
        lambda f: torch.func.jacfwd(f)(b),
        lambda f: torch.func.hessian(f)(b),
        lambda f: torch.func.jvp(f, (b,), (torch.ones_like(b),))[1],
        lambda f: torch.func.grad(lambda b: torch.func.jvp(f, (b,), (b,))[1])(b),
    ):
        torch.testing.assert_close(transform(loss), transform(dense_loss))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_tangents_of_tangents(activation):
    case = Case("linear", (5, "k"))
    values, x = case.values.detach(), case.dense.detach()
    along = torch.randn_like(values), torch.randn_like(x)

    def second(function):
        first = lambda *at: torch.func.jvp(function, at, along)[1]  # noqa: E731
        return torch.func.jvp(first, (values, x), along)

    got, expected = (
        second(lambda v, x, f=f: f(v, x, activation=activation)) for f in (case, case.dense_result)
    )
    torch.testing.assert_close(got, expected)


def test_tangents_of_tangents_of_sampled_products():
    pattern = random_bsr(4, 6, (2, 3), density=1, dtype=torch.float64)
    at = torch.randn(4, 5, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)

    def second(function):
        return torch.func.jvp(lambda *at: torch.func.jvp(function, at, at)[1], at, at)

    got = second(lambda x, y: sampled_matmul(x, y, pattern).to_dense())
    torch.testing.assert_close(got, second(torch.matmul))


def test_gradients_of_each_sample():
    case = Case("left", ("k", 2))
    values, batch = case.values.detach(), torch.randn(3, 6, 2, dtype=torch.float64)

    def per_sample(function):
        gradient = torch.func.grad(lambda v, b: function(v, b).sin().sum(), argnums=(0, 1))
        return torch.func.vmap(gradient, in_dims=(None, 0))(values, batch)

    torch.testing.assert_close(per_sample(case), per_sample(case.dense_result))


@pytest.mark.parametrize("form", ["left", "left_t", "right", "right_t", "linear"])
@pytest.mark.parametrize("batched", ["dense", "bias", "values", "all"])
def test_vmap(form, batched):
    for shape in LEFT_SHAPES if form.startswith("left") else RIGHT_SHAPES:
        shapes = LEFT_SHAPES if form.startswith("left") else RIGHT_SHAPES
        case = Case(form, shapes[shape])
        tensors = [t.detach() for t in (case.values, case.dense, case.bias)]
        names = ("values", "dense", "bias")
        dims = [(1 if name == "dense" else 0) if batched in (name, "all") else None
                for name in names]  # fmt: skip
        tensors = [
            t if dim is None else torch.stack([t, 2 * t, -t], dim)
            for t, dim in zip(tensors, dims, strict=True)
        ]
        results = [torch.vmap(f, in_dims=tuple(dims))(*tensors) for f in (case, case.dense_result)]
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("batched", ["dense", "values"])
def test_vmap_over_nothing(batched):
    case = Case("linear", (5, "k"))
    dims = (None, 1) if batched == "dense" else (0, None)
    values, x = (
        t.detach() if dim is None else t.detach().unsqueeze(dim).narrow(dim, 0, 0)
        for t, dim in zip((case.values, case.dense), dims, strict=True)
    )
    assert torch.vmap(case, in_dims=dims)(values, x).shape == (0, 5, 4)
    pattern = random_bsr(4, 4, 2, density=1)
    product = torch.vmap(lambda x: sampled_matmul(x, x.mT, pattern).values)
    assert product(torch.empty(0, 4, 3)).shape == (0, 4, 2, 2)


def test_a_copy_keeps_its_gradient():
    a = random_bsr(8, 8, 4, density=0.5).requires_grad_()
    b = copy.deepcopy(a)
    assert b.requires_grad and b.values is not a.values
    (3 * a @ torch.ones(8, 2)).sum().backward()
    torch.testing.assert_close(a.values.grad, torch.full_like(a.values, 6))
    assert b.values.grad is None

"""Gradients through torch's functions of a BsrTensor: those of the dense tensor."""

import pytest
import torch
from problem import FP64
from torch.autograd import gradcheck, gradgradcheck
from whole_matrices import BLOCK, K, M, densified, pattern_of, same

from sparse_autotune import BsrTensor

pytestmark = pytest.mark.usefixtures("no_races")

F = torch.nn.functional


def differentiable(name, transposed, sign=None):
    """A function that makes the matrix of its values, one for the dense matrix, and values."""
    crow, col, places = pattern_of(name)
    values = torch.randn(len(places), *BLOCK, dtype=FP64)
    values = values if sign is None else sign * values.abs()

    def matrix(values):
        a = BsrTensor(crow, col, values, (M, K))
        return a.t() if transposed else a

    def dense(values):
        whole = densified(values, places)
        return whole.t() if transposed else whole

    return matrix, dense, values.requires_grad_()


def dense_of(result):
    return result.to_dense() if isinstance(result, BsrTensor) else result


DIFFERENTIABLE = {
    "scaled": lambda a, factor: 3 * a * factor,
    "scaled by a tensor": lambda a, factor: factor * a,
    "divided by a tensor": lambda a, factor: a / factor,
    "negated": lambda a, factor: -a * factor,
    "magnitudes": lambda a, factor: abs(a) * factor,
    "sum of matrices": lambda a, factor: torch.add(a, factor * a, alpha=2),
    "difference": lambda a, factor: a * factor - a,
    "product of elements": lambda a, factor: a * (factor * a),
    "sum": lambda a, factor: (factor * a).sum(),
    "sum of columns": lambda a, factor: (factor * a).sum(0).square(),
    "sum of rows": lambda a, factor: torch.sum(a, 1, keepdim=True).square() * factor,
    "norm": lambda a, factor: (factor * a).norm(),
    "another norm": lambda a, factor: torch.linalg.vector_norm(a, 3) * factor,
    "amax": lambda a, factor: a.amax() * factor,
    "amax of columns": lambda a, factor: a.amax(0) * factor,
    "amax of rows": lambda a, factor: torch.amax(factor * a, 1, keepdim=True),
    "product": lambda a, factor: torch.matmul(factor * a, torch.ones(a.shape[1], 2, dtype=FP64)),
    "addmm": lambda a, factor: torch.addmm(
        factor, a, torch.ones(a.shape[1], 2, dtype=FP64), beta=2, alpha=3
    ),
    "linear": lambda a, factor: F.linear(factor.expand(2, a.shape[1]), a),
}
# Torch has no second derivatives of these.
ONCE = {name for name in DIFFERENTIABLE if name.startswith("amax")}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("pattern", ["empty rows", "full row and column", "full"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name, pattern, transposed):
    """Those of finite differences, and those that autograd has for the dense matrix."""
    for sign in (None, -1) if name in ONCE else (None,):
        matrix, dense, values = differentiable(pattern, transposed, sign)
        factor = torch.tensor(1.5, dtype=FP64, requires_grad=True)

        def function(values, factor, of=matrix):
            return dense_of(DIFFERENTIABLE[name](of(values), factor))

        assert gradcheck(function, (values, factor))
        got, expected = function(values, factor), function(values, factor, dense)
        torch.testing.assert_close(got, expected)
        upstream = torch.randn_like(got)
        torch.testing.assert_close(
            torch.autograd.grad(got, (values, factor), upstream),
            torch.autograd.grad(expected, (values, factor), upstream),
        )
        if name not in ONCE and pattern == "empty rows":
            # Along random directions, as each pair of elements takes ten times as long.
            assert gradgradcheck(function, (values, factor), fast_mode=True)


@pytest.mark.parametrize("name", [name for name in DIFFERENTIABLE if name != "norm"])
def test_gradients_without_a_stored_block(name):
    """What there is to differentiate is the rest of the product or sum, and all of it is finite."""
    matrix, dense, values = differentiable("no stored block", False)
    factor = torch.tensor(1.5, dtype=FP64, requires_grad=True)
    got, expected = (dense_of(DIFFERENTIABLE[name](of(values), factor)) for of in (matrix, dense))
    same(got, expected)
    ours, theirs = (
        torch.autograd.grad(result.sum(), (values, factor), allow_unused=True)
        for result in (got, expected)
    )
    assert ours[0] is None or ours[0].shape == (0, *BLOCK)
    same(torch.zeros_like(factor) if ours[1] is None else ours[1],
         torch.zeros_like(factor) if theirs[1] is None else theirs[1])  # fmt: skip


def test_gradients_of_two_matrices_on_one_pattern():
    matrix, _, values = differentiable("empty rows", True)
    others = torch.randn_like(values).requires_grad_()
    for function in (torch.add, torch.sub, torch.mul):
        assert gradcheck(
            lambda v, w, f=function: f(matrix(v), matrix(w)).to_dense(), (values, others)
        )

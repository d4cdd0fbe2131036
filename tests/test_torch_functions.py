"""Products, scaling and arithmetic by torch's functions and methods: as of a dense tensor."""

import math

import numpy as np
import pytest
import torch
from problem import BF16, FP32
from whole_matrices import BLOCK, EACH_DTYPE, K, M, N, each, make, pattern_of, same, whole

from sparse_autotune import BsrTensor

pytestmark = pytest.mark.usefixtures("no_races")

F = torch.nn.functional


# Products. `x` stands on the right of the matrix, `y` on its left, `c` is added; on the right what
# torch is asked for of the dense matrix, where that takes another call.

PRODUCTS = {
    "a @ x": lambda a, x, y, c: a @ x,
    "y @ a": lambda a, x, y, c: y @ a,
    "a @ vector": lambda a, x, y, c: a @ x[:, 0],
    "vector @ a": lambda a, x, y, c: y[0] @ a,
    "a @ batch": lambda a, x, y, c: a @ torch.stack([x, -x]),
    "batch @ a": lambda a, x, y, c: torch.stack([y, -y]) @ a,
    "torch.matmul": lambda a, x, y, c: torch.matmul(a, x),
    "torch.matmul from the left": lambda a, x, y, c: torch.matmul(y, a),
    "torch.matmul by name": lambda a, x, y, c: torch.matmul(other=x, input=a),
    "x.matmul": lambda a, x, y, c: y.matmul(a),
    "a.matmul": lambda a, x, y, c: a.matmul(x),
    "torch.mm": lambda a, x, y, c: torch.mm(a, mat2=x),
    "torch.mm from the left": lambda a, x, y, c: torch.mm(y, a),
    "x.mm": lambda a, x, y, c: y.mm(a),
    "a.mm": lambda a, x, y, c: a.mm(x),
    "torch.mv": lambda a, x, y, c: torch.mv(a, x[:, 0]),
    "a.mv": lambda a, x, y, c: a.mv(x[:, 0]),
    "torch.addmm": lambda a, x, y, c: torch.addmm(c, a, x),
    "torch.addmm scaled": lambda a, x, y, c: torch.addmm(c, a, x, beta=0.5, alpha=-2),
    "torch.addmm of a row": lambda a, x, y, c: torch.addmm(c[0], a, x),
    "torch.addmm of a column": lambda a, x, y, c: torch.addmm(c[:, :1], a, x, beta=2),
    "torch.addmm of one value": lambda a, x, y, c: torch.addmm(c[0, 0], a, x, alpha=3),
    "torch.addmm from the left": lambda a, x, y, c: torch.addmm(y[:, :1], y, a, alpha=2),
    "torch.addmm of a row from the left": lambda a, x, y, c: torch.addmm(x[:, 0], y, a),
    "c.addmm": lambda a, x, y, c: c.addmm(a, x, alpha=3),
    "linear": lambda a, x, y, c: F.linear(x.t(), a),
    "linear with a bias": lambda a, x, y, c: F.linear(x.t(), a, c[:, 0]),
    "linear of a batch": lambda a, x, y, c: F.linear(x.t().expand(2, N, -1), a, bias=c[:, 1]),
    "linear of a vector": lambda a, x, y, c: F.linear(x[:, 0], weight=a),
}
PRODUCTS_OF_SPARSE = {
    "mm": (lambda a, x, y, c: torch.sparse.mm(a, x), lambda a, x, y, c: a @ x),
    "mm from the left": (lambda a, x, y, c: torch.sparse.mm(y, a), lambda a, x, y, c: y @ a),
    "addmm": (
        lambda a, x, y, c: torch.sparse.addmm(c, a, x, beta=2, alpha=-1),
        lambda a, x, y, c: 2 * c - a @ x,
    ),
}


@EACH_DTYPE
@pytest.mark.parametrize("name", [*PRODUCTS, *PRODUCTS_OF_SPARSE])
def test_products(name, dtype, device):
    ours, theirs = PRODUCTS_OF_SPARSE.get(name) or (PRODUCTS[name],) * 2
    for a, dense in each(dtype, device):
        rows, cols = a.shape
        others = whole(cols, N, like=a), whole(N, rows, like=a), whole(rows, N, like=a)
        got = ours(a, *others)
        assert type(got) is torch.Tensor and got.is_contiguous()
        same(got, theirs(dense, *others))


@pytest.mark.parametrize("function", [torch.matmul, torch.mm, torch.mv])
def test_products_into_out(function, device):
    a, dense = make("empty rows", device=device)
    x = whole(K, N, like=a)
    x = x[:, 0] if function is torch.mv else x
    out = torch.full_like(dense @ x, math.nan)
    assert function(a, x, out=out) is out
    same(out, dense @ x)


def test_beta_zero_does_not_read_its_input():
    a, dense = make("empty rows")
    x = whole(K, N, like=a)
    same(torch.addmm(torch.full((M, N), math.nan), a, x, beta=0), dense @ x)


def test_what_the_function_does_not_take_is_refused():
    """Shapes that `matmul` takes, and the function that was called does not."""
    a, _ = make("empty rows")
    batch = BsrTensor(a.crow_indices, a.col_indices, torch.stack([a.values] * 2), a.shape)
    x, y, c = torch.ones(K, N), torch.ones(N, M), torch.ones(M, N)
    for name, call in (
        ("mm", lambda: torch.mm(a, x[:, 0])),
        ("mm", lambda: torch.mm(y.expand(2, N, M), a)),
        ("mm", lambda: torch.mm(batch, x)),
        ("mm", lambda: torch.sparse.mm(a, x[:, 0])),
        ("mv", lambda: torch.mv(a, x)),
        ("mv", lambda: torch.mv(batch, x[:, 0])),
        ("addmm", lambda: torch.addmm(c, a, x[:, 0])),
        ("addmm", lambda: torch.addmm(c, batch, x)),
    ):
        with pytest.raises(ValueError, match=f"^{name} multiplies operands of .* use matmul"):
            call()
    with pytest.raises(ValueError, match="columns of a must match the rows of b"):
        torch.mm(a, y)
    with pytest.raises(RuntimeError, match=r"must match the (existing )?size"):
        torch.addmm(torch.ones(3, N), a, x)
    for call in (lambda: a @ a.t(), lambda: torch.mm(a, a.t()), lambda: torch.matmul(a, a.t())):
        with pytest.raises(TypeError, match=r"b must be a dense .*got .*BsrTensor.*to_dense\(\)"):
            call()
    with pytest.raises(TypeError, match=r"x must be a dense .*BsrTensor.*to_dense\(\)"):
        F.linear(a, a)


# Scaling and arithmetic. `b` has the pattern of `a`, `factor` is a tensor of no dimension.

ELEMENTWISE = {
    "2 * a": lambda a, b, factor: 2 * a,
    "a * 0.5": lambda a, b, factor: a * 0.5,
    "a * True": lambda a, b, factor: a * True,
    "a / 2": lambda a, b, factor: a / 2,
    "a * factor": lambda a, b, factor: a * factor,
    "factor * a": lambda a, b, factor: factor * a,
    "a / factor": lambda a, b, factor: a / factor,
    "factor of another dtype": lambda a, b, factor: a * factor.double() + a * factor.int(),
    "torch.mul of a number": lambda a, b, factor: torch.mul(a, 3),
    "torch.mul of a tensor": lambda a, b, factor: torch.mul(factor, a),
    "torch.div": lambda a, b, factor: torch.div(a, 4),
    "torch.true_divide": lambda a, b, factor: torch.true_divide(a, factor),
    "-a": lambda a, b, factor: -a,
    "a.neg": lambda a, b, factor: a.neg(),
    "torch.neg": lambda a, b, factor: torch.neg(a),
    "torch.negative": lambda a, b, factor: torch.negative(a),
    "abs(a)": lambda a, b, factor: abs(a),
    "a.abs": lambda a, b, factor: a.abs(),
    "torch.abs": lambda a, b, factor: torch.abs(a),
    "torch.absolute": lambda a, b, factor: torch.absolute(a),
    "a + b": lambda a, b, factor: a + b,
    "a - b": lambda a, b, factor: a - b,
    "a * b": lambda a, b, factor: a * b,
    "torch.add": lambda a, b, factor: torch.add(a, b),
    "torch.add scaled": lambda a, b, factor: torch.add(a, b, alpha=3),
    "torch.sub scaled": lambda a, b, factor: torch.sub(a, other=b, alpha=-2),
    "torch.subtract": lambda a, b, factor: torch.subtract(a, b),
    "torch.mul": lambda a, b, factor: torch.mul(a, b),
    "all together": lambda a, b, factor: (3 * a - b / 2) * b + factor * -a,
    "torch.clone": lambda a, b, factor: torch.clone(a),
    "torch.detach": lambda a, b, factor: torch.detach(a),
}


@EACH_DTYPE
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_scaling_and_arithmetic(name, dtype, device):
    function = ELEMENTWISE[name]
    for a, dense in each(dtype, device):
        b = a._with_values(a.values.flip(0))
        dense_b = b.to_dense()
        factor = torch.tensor(2.0, dtype=dtype, device=device)
        got, expected = function(a, b, factor), function(dense, dense_b, factor)
        assert type(got) is BsrTensor and got.is_transposed is a.is_transposed
        assert got.block_size == BLOCK
        if name != "torch.clone":
            assert got.crow_indices is a.crow_indices and got.col_indices is a.col_indices
            assert got._plan_owner is a._plan_owner
        assert got.dtype == expected.dtype
        same(got.to_dense(), expected)


def test_arithmetic_on_equal_indices_in_other_tensors(device):
    a, dense = make("empty rows", device=device)
    other = BsrTensor(a.crow_indices.clone(), a.col_indices.clone(), a.values.flip(0), a.shape)
    got = a + other
    assert got.crow_indices is a.crow_indices
    same(got.to_dense(), dense + other.to_dense())


def test_arithmetic_of_two_dtypes():
    (a, dense), (b, dense_b) = make("full"), make("full", BF16)
    for function in (torch.add, torch.sub, torch.mul):
        got, expected = function(b, a), function(dense_b, dense)
        assert got.dtype == expected.dtype == FP32
        same(got.to_dense(), expected)


def test_arithmetic_of_other_patterns_is_refused():
    a, _ = make("empty rows")
    others = {
        "other pattern": make("full")[0],
        "its transpose": a.t(),
        "other shape": BsrTensor(a.crow_indices, a.col_indices, a.values, (M, 2 * K)),
        "a batch": BsrTensor(a.crow_indices, a.col_indices, a.values[None], (M, K)),
    }
    crow, col, _ = pattern_of("empty rows")
    others["as many blocks elsewhere"] = BsrTensor(crow, 3 - col.flip(0), a.values, (M, K))
    for other in others.values():
        for name, function in (
            ("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul", lambda a, b: a * b),
            ("add", torch.add), ("sub", torch.sub), ("mul", torch.mul),
        ):  # fmt: skip
            words = f"^{name} takes BsrTensors of one shape, block size and pattern, .*to_dense"
            with pytest.raises(ValueError, match=words):
                function(a, other)


def test_numbers_of_numpy():
    a, dense = make("empty rows")
    for number in (np.float32(2), np.float64(2), np.int64(2)):
        for got in (number * a, a * number):
            assert type(got) is BsrTensor and got.dtype == FP32
            same(got.to_dense(), 2 * dense)
    with pytest.raises(TypeError, match=r"^mul of .*numpy\.ndarray.*to_dense"):
        np.ones((M, K), np.float32) * a


def test_results_are_not_frozen():
    a, dense = make("full")
    a.freeze()
    for function in ELEMENTWISE.values():
        got = function(a, a, torch.tensor(2.0))
        assert "frozen" not in repr(got)
        same(got.to_dense(), function(dense, dense, torch.tensor(2.0)))


def test_scaling_and_arithmetic_of_batches():
    a, _ = make("full row and column")
    batch = BsrTensor(a.crow_indices, a.col_indices, whole(3, *a.values.shape, like=a), (M, K))
    other = batch._with_values(batch.values.flip(0))
    for matrices in ((batch, other), (batch.t(), other.t())):
        dense = [matrix.to_dense() for matrix in matrices]
        for function in ELEMENTWISE.values():
            got = function(*matrices, torch.tensor(2.0))
            assert type(got) is BsrTensor and got.shape == matrices[0].shape
            same(got.to_dense(), function(*dense, torch.tensor(2.0)))


# Among modes and subclasses of torch


def test_under_modes_of_functions():
    """Which hear of the function first, and pass it on."""
    heard = []

    class Listening(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            heard.append(func)
            return func(*args, **(kwargs or {}))

    a, dense = make("empty rows")
    x = whole(K, N, like=a)
    with Listening():
        got = torch.matmul(a, x), torch.add(a, a), torch.sum(a, 0)
        with pytest.raises(TypeError, match="exp takes no BsrTensor"):
            torch.exp(a)
    assert {torch.matmul, torch.add, torch.sum, torch.exp} <= set(heard)
    same(got[0], dense @ x)
    same(got[1].to_dense(), 2 * dense)
    same(got[2], dense.sum(0))
    with torch.device("cpu"):
        same(torch.mm(a, x), dense @ x)


def test_parameters_as_operands():
    a, dense = make("empty rows")
    x = torch.nn.Parameter(whole(K, N, like=a))
    factor = torch.nn.Parameter(torch.tensor(2.0))
    (torch.matmul(factor * a, x)).sum().backward()
    same(x.grad, 2 * dense.sum(0)[:, None].expand(K, N))
    same(factor.grad, (dense @ x).sum().detach())

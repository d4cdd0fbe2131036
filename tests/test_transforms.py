"""`torch.func` over functions of a BsrTensor: derivatives are BsrTensors on the same indices."""

import pytest
import torch
from problem import FP64
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from sparse_autotune import BsrTensor, linear, matmul, random_bsr, sampled_matmul

pytestmark = pytest.mark.usefixtures("no_races")

M, K, N, BLOCK = 4, 6, 2, (2, 3)


def make(transposed=False):
    """A matrix with an absent block."""
    crow, col = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0])
    a = BsrTensor(crow, col, torch.randn(3, *BLOCK, dtype=FP64), (M, K))
    return a.t() if transposed else a


def tensor(*shape):
    return torch.randn(*shape, dtype=FP64)


def blocks_of(dense, a):
    """(…, nnzb, 2, 3): of a tensor (…, rows, cols), or of gradients, those that `a` stores."""
    dense = dense.mT if a.is_transposed else dense
    found, crow = [], a.crow_indices.tolist()
    for row in range(len(crow) - 1):
        for col in a.col_indices[crow[row] : crow[row + 1]].tolist():
            top, left = row * BLOCK[0], col * BLOCK[1]
            found.append(dense[..., top : top + BLOCK[0], left : left + BLOCK[1]])
    return torch.stack(found, -3)


def check(got, expected, a):
    """`expected` is the derivative with respect to the dense matrix."""
    assert type(got) is BsrTensor and got.is_transposed is a.is_transposed
    assert got.block_size == BLOCK and got.shape[-2:] == a.shape[-2:]
    assert torch.equal(got.crow_indices, a.crow_indices)
    assert torch.equal(got.col_indices, a.col_indices)
    torch.testing.assert_close(got.values, blocks_of(expected, a))


def sparse_mm(a, x):
    """Torch's own of dense tensors has few derivatives."""
    return torch.sparse.mm(a, x) if isinstance(a, BsrTensor) else a @ x


# Of a matrix or its dense tensor and of x, which has as many rows as the matrix has columns.
FUNCTIONS = {
    "a @ x": lambda a, x: a @ x,
    "x @ a": lambda a, x: x.t() @ a.t(),
    "vector": lambda a, x: a @ x[:, 0],
    "torch.mm": lambda a, x: torch.mm(a, x),
    "torch.sparse.mm": lambda a, x: sparse_mm(a, x),
    "torch.addmm": lambda a, x: torch.addmm(x[0], a, x, alpha=2),
    "linear": lambda a, x: torch.nn.functional.linear(x.t(), a),
    "scaled": lambda a, x: (x[0, 0] * a) @ x,
    "arithmetic": lambda a, x: (a * a + a / 2 - a) @ x,
    "twice": lambda a, x: a.t() @ (a @ x),
    "sum": lambda a, x: (x[0, 0] * a).sum(0),
    "norm": lambda a, x: a.norm() * x,
    "amax": lambda a, x: a.amax(1) * x[0, 0],
}
EACH = pytest.mark.parametrize("name", FUNCTIONS)
TURNED = pytest.mark.parametrize("transposed", [False, True])


def problem(name, transposed):
    a = make(transposed)
    return FUNCTIONS[name], a, a.to_dense(), tensor(a.shape[1], N)


def loss_of(function):
    return lambda a, x: function(a, x).sin().sum()


@TURNED
@EACH
def test_grad(name, transposed):
    function, a, dense, x = problem(name, transposed)
    loss = loss_of(function)
    of_matrix, of_x = grad(loss, (0, 1))(dense, x)
    check(grad(loss)(a, x), of_matrix, a)
    torch.testing.assert_close(grad(loss, 1)(a, x), of_x)
    both = grad(loss, (0, 1))(a, x)
    check(both[0], of_matrix, a)
    torch.testing.assert_close(both[1], of_x)
    assert both[0].crow_indices is a.crow_indices and both[0].col_indices is a.col_indices
    value, (first, _) = torch.func.grad_and_value(loss, (0, 1))(a, x)[::-1]
    torch.testing.assert_close(value, loss(dense, x))
    check(first, of_matrix, a)


def test_functions_of_this_package():
    a, x = make(), tensor(K, N)
    dense, bias = a.to_dense(), tensor(M)
    for ours, theirs in (
        (lambda a, x, bias: matmul(a, x, bias=bias, activation="gelu"),
         lambda a, x, bias: torch.nn.functional.gelu(a @ x + bias[:, None])),
        (lambda a, x, bias: linear(x.t(), a, bias, activation="relu"),
         lambda a, x, bias: torch.relu(x.t() @ a.t() + bias)),
        (lambda a, x, bias: matmul(x.t(), a.t(), bias=bias), lambda a, x, bias: (a @ x).t() + bias),
        (lambda a, x, bias: a.to_dense() @ x + bias[:, None],
         lambda a, x, bias: a @ x + bias[:, None]),
    ):  # fmt: skip
        got, expected = (
            grad(lambda *at, f=f: f(*at).sin().sum(), (0, 1, 2))(matrix, x, bias)
            for f, matrix in ((ours, a), (theirs, dense))
        )
        check(got[0], expected[0], a)
        torch.testing.assert_close(got[1:], expected[1:])


def test_grad_of_a_tree():
    a, x = make(), tensor(K, N)
    parameters = {"up": a, "down": [a.t(), torch.zeros(K, 1, dtype=FP64)]}

    def loss(parameters, x):
        down, bias = parameters["down"]
        return (down @ (parameters["up"] @ x).sin() + bias).cos().sum()

    def dense(value):
        return value.to_dense() if isinstance(value, BsrTensor) else value

    of_dense = {"up": dense(a), "down": [dense(a.t()), parameters["down"][1]]}
    got, expected = grad(loss)(parameters, x), grad(loss)(of_dense, x)
    check(got["up"], expected["up"], a)
    check(got["down"][0], expected["down"][0], a.t())
    torch.testing.assert_close(got["down"][1], expected["down"][1])


def test_grad_is_what_a_step_subtracts():
    """Gradients on the same index tensors: arithmetic compares none, and the plan serves both."""
    a, x = make(), tensor(K, N)
    loss = loss_of(FUNCTIONS["a @ x"])
    step = a - 0.1 * grad(loss)(a, x)
    assert step.crow_indices is a.crow_indices and loss(step, x) < loss(a, x)


@pytest.mark.parametrize("state", ["requires grad", "frozen", "no_grad"])
def test_grad_of_matrices_in_other_states(state):
    a, x = make(), tensor(K, N)
    expected = grad(loss_of(FUNCTIONS["a @ x"]))(a.to_dense(), x)
    if state == "requires grad":
        a.requires_grad_()
    elif state == "frozen":
        a.freeze()
    with torch.set_grad_enabled(state != "no_grad"):
        got = grad(loss_of(FUNCTIONS["a @ x"]))(a, x)
    check(got, expected, a)
    assert got.requires_grad is a.requires_grad and "frozen" not in repr(got)


@TURNED
@EACH
def test_vjp(name, transposed):
    function, a, dense, x = problem(name, transposed)
    result, back = vjp(function, a, x)
    expected, dense_back = vjp(function, dense, x)
    torch.testing.assert_close(result, expected)
    upstream = torch.randn_like(result)
    (of_a, of_x), (of_dense, of_dense_x) = back(upstream), dense_back(upstream)
    check(of_a, of_dense, a)
    torch.testing.assert_close(of_x, of_dense_x)


@TURNED
@EACH
def test_jacrev(name, transposed):
    function, a, dense, x = problem(name, transposed)
    of_matrix, of_x = jacrev(function, (0, 1))(dense, x)
    check(jacrev(function)(a, x), of_matrix, a)
    torch.testing.assert_close(jacrev(function, 1)(a, x), of_x)
    both = jacrev(function, (0, 1))(a, x)
    check(both[0], of_matrix, a)
    torch.testing.assert_close(both[1], of_x)


# Forward mode takes derivatives by tensors alone, hence these with respect to `x`.


@EACH
def test_forward_mode(name):
    function, a, dense, x = problem(name, False)
    along = torch.randn_like(x)
    torch.testing.assert_close(jacfwd(function, 1)(a, x), jacfwd(function, 1)(dense, x))
    torch.testing.assert_close(
        jvp(lambda x: function(a, x), (x,), (along,)),
        jvp(lambda x: function(dense, x), (x,), (along,)),
    )


@EACH
def test_hessian_of_the_dense_operand(name):
    function, a, dense, x = problem(name, False)
    loss = loss_of(function)
    expected = hessian(loss, 1)(dense, x)
    torch.testing.assert_close(hessian(loss, 1)(a, x), expected)
    torch.testing.assert_close(jacrev(jacrev(loss, 1), 1)(a, x), expected)


# Torch has no second derivatives of amax.
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "amax"])
def test_second_derivatives_of_a_matrix(name):
    function, a, dense, x = problem(name, False)
    loss = loss_of(function)
    along = tensor(*a.values.shape)

    def directional(matrix):
        gradient = grad(loss)(matrix, x)
        if isinstance(gradient, BsrTensor):
            return (gradient.values * along).sum()
        return (blocks_of(gradient, a) * along).sum()

    check(grad(directional)(a), grad(directional)(dense), a)


# vmap


@pytest.mark.parametrize("argnums", [0, 1, (0, 1)], ids=str)
def test_gradients_of_each_sample(argnums):
    a, many = make(), tensor(5, K, N)
    loss = loss_of(FUNCTIONS["a @ x"])
    got = vmap(grad(loss, argnums), in_dims=(None, 0))(a, many)
    expected = vmap(grad(loss, argnums), in_dims=(None, 0))(a.to_dense(), many)
    got, expected = ((r,) if argnums in (0, 1) else r for r in (got, expected))
    for ours, theirs in zip(got, expected, strict=True):
        if isinstance(ours, BsrTensor):
            assert ours.shape == (5, M, K)
            check(ours, theirs, a)
            torch.testing.assert_close(ours.unbind()[2].values, ours.values[2])
        else:
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("product", [lambda a, x: a @ x, torch.matmul, matmul])
@TURNED
def test_a_product_with_many(product, transposed):
    a = make(transposed)
    many = tensor(5, a.shape[1], N)
    torch.testing.assert_close(vmap(lambda x: product(a, x))(many), a.to_dense() @ many)


def batch_of(a, count=5):
    return a._with_values(tensor(count, *a.values.shape))


@pytest.mark.parametrize("dims", [(0, None), (0, 0), (None, 0)], ids=str)
@EACH
@TURNED
def test_vmap_over_matrices(name, dims, transposed):
    a = make(transposed)
    matrices = a if dims[0] is None else batch_of(a)
    x = tensor(a.shape[1], N) if dims[1] is None else tensor(5, a.shape[1], N)
    got = vmap(FUNCTIONS[name], in_dims=dims)(matrices, x)
    expected = vmap(FUNCTIONS[name], in_dims=dims)(matrices.to_dense(), x)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dims", [(0, None), (0, 0)], ids=str)
@EACH
def test_vmap_over_gradients_of_matrices(name, dims):
    batch = batch_of(make())
    x = tensor(K, N) if dims[1] is None else tensor(5, K, N)
    loss = loss_of(FUNCTIONS[name])
    got = vmap(grad(loss), in_dims=dims)(batch, x)
    expected = vmap(grad(loss), in_dims=dims)(batch.to_dense(), x)
    assert got.shape == (5, M, K)
    check(got, expected, batch)


def test_vmap_that_returns_matrices():
    batch, x, y = batch_of(make()), tensor(5, M, N), tensor(5, N, K)
    for function in (lambda a: 2 * a, lambda a: -a, lambda a: a + a, lambda a: a * a, abs):
        got, expected = vmap(function)(batch), function(batch.to_dense())
        check(got, expected, batch)
        torch.testing.assert_close(got.to_dense(), expected)
    pattern = make()
    got = vmap(lambda x, y: sampled_matmul(x, y, pattern))(x, y)
    assert got.shape == (5, M, K)
    check(got, x @ y, pattern)


def test_leaves_of_a_batch():
    """Each has the batch as its first dimension, and together they are the batch again."""
    from torch.utils import _pytree as pytree

    for batch in (batch_of(make()), batch_of(make(True))):
        leaves, spec = pytree.tree_flatten(batch)
        assert [tuple(leaf.shape) for leaf in leaves] == [(5, 3), (5, 3), (5, 3, 2, 3)]
        assert leaves[0].data_ptr() == batch.crow_indices.data_ptr()
        again = pytree.tree_unflatten(leaves, spec)
        assert again.shape == batch.shape and again.is_transposed is batch.is_transposed
        assert again.crow_indices.shape == (3,) and again.values is batch.values
        torch.testing.assert_close(again.to_dense(), batch.to_dense())
        third = pytree.tree_map(lambda leaf: leaf[2], batch)
        assert third.shape == batch.shape[1:]
        torch.testing.assert_close(third.to_dense(), batch.to_dense()[2])


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled():
    a, x = make(), tensor(K, N)
    for argnums in (0, 1):
        function = grad(loss_of(FUNCTIONS["a @ x"]), argnums)
        got = torch.compile(function, backend="aot_eager", fullgraph=True)(a, x)
        if argnums == 0:
            check(got, function(a.to_dense(), x), a)
        else:
            torch.testing.assert_close(got, function(a.to_dense(), x))


def test_a_large_matrix_stays_block_sparse():
    """Nothing of the size of the dense matrix is made for a gradient."""
    size = 1 << 20
    crow = torch.zeros(size // 32 + 1, dtype=torch.int64)
    crow[-1] = 2
    a = BsrTensor(crow, torch.tensor([0, 9]), torch.randn(2, 32, 32), (size, size))
    x = torch.randn(size, 2)
    got = grad(lambda a: (a @ x).sum())(a)
    expected = torch.stack([x[:32], x[9 * 32 : 10 * 32]]).sum(-1)[:, None].expand(2, 32, 32)
    torch.testing.assert_close(got.values, expected)


def test_random_matrices():
    """Of any pattern, an empty one among them."""
    for density in (0.0, 0.3, 1.0):
        a = random_bsr(12, 15, BLOCK, density=density, dtype=FP64)
        x = tensor(15, N)
        for matrix, factor in ((a, x), (a.t(), tensor(12, N))):
            loss = loss_of(FUNCTIONS["a @ x"])
            got, expected = (
                grad(loss, (0, 1))(matrix, factor),
                grad(loss, (0, 1))(matrix.to_dense(), factor),
            )
            if a.nnzb:
                check(got[0], expected[0], matrix)
            assert got[0].nnzb == a.nnzb
            torch.testing.assert_close(got[1], expected[1])

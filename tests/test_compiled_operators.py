"""`a @ x`, torch's functions and arithmetic of a BsrTensor inside of torch.compile, fullgraph.

The matrices are square and have no symmetry, so that each product has its own result: Dynamo by
itself would take `a @ x` for `x @ a`.
"""

import operator

import pytest
import torch
from interpreters import run_python
from reference import close
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from sparse_autotune import BsrTensor, linear, matmul, random_bsr, sampled_matmul

pytestmark = pytest.mark.usefixtures("no_races", "fresh_dynamo")

F = torch.nn.functional
SIZE = 24


def problem():
    a, x = random_bsr(SIZE, SIZE, (4, 6), density=0.4), torch.randn(SIZE, SIZE)
    dense = a.to_dense()
    products = dense @ x, x @ dense, dense.t() @ x, x @ dense.t()
    assert all((one - other).abs().max() > 1 for one in products for other in products
               if one is not other)  # fmt: skip
    return a, dense, x


class Module(torch.nn.Module):
    """The matrix as an attribute."""

    def __init__(self, function, a):
        super().__init__()
        self.function, self.a = function, a

    def forward(self, x):
        return self.function(self.a, x)


# How compiled code comes by the matrix: each takes a function, how it is compiled, and operands.
WAYS = {
    "argument": lambda f, compiled, a, x: compiled(f)(a, x),
    "closure": lambda f, compiled, a, x: compiled(lambda x: f(a, x))(x),
    "module attribute": lambda f, compiled, a, x: compiled(Module(f, a))(x),
    "in a tree": lambda f, compiled, a, x: compiled(lambda p: f(p["a"][0], p["x"]))(
        {"a": [a], "x": x}
    ),
}
EACH_WAY = pytest.mark.parametrize("way", WAYS)


def compiled(function):
    return torch.compile(function, backend="aot_eager", fullgraph=True)


PRODUCTS = {
    "a @ x": lambda a, x: a @ x,
    "x @ a": lambda a, x: x @ a,
    "a.t() @ x": lambda a, x: a.t() @ x,
    "x @ a.mT": lambda a, x: x @ a.mT,
    "a @ vector": lambda a, x: a @ x[0],
    "vector @ a": lambda a, x: x[0] @ a,
    "a @ batch": lambda a, x: a @ torch.stack([x, -x]),
    "both": lambda a, x: (a @ x) @ a - x @ (a @ x).t(),
    "in place": lambda a, x: operator.imatmul(x.clone(), a),
    "operator.matmul": lambda a, x: operator.matmul(a, x) + operator.matmul(x, a).t(),
    "Tensor.__matmul__": lambda a, x: x.__matmul__(a),
    "torch.matmul": lambda a, x: torch.matmul(a, x),
    "torch.matmul from the left": lambda a, x: torch.matmul(x, a),
    "methods": lambda a, x: a.matmul(x) + a.mm(x.t()) + x.matmul(a) + x.mm(a).t(),
    "torch.mm": lambda a, x: torch.mm(a, x) - torch.mm(x, a).t(),
    "torch.mv": lambda a, x: torch.mv(a, x[0]),
    "torch.addmm": lambda a, x: torch.addmm(x, a, x, beta=2, alpha=-3),
    "torch.addmm of a row": lambda a, x: torch.addmm(x[0], x, a),
    "linear": lambda a, x: F.linear(x, a, x[0]),
    "with others": lambda a, x: (a @ x).relu() @ x + x.sin() @ a,
}
# What gives a matrix or a reduction; both kinds know `sum`, `norm` and the like as methods.
OTHERS = {
    "scaled": lambda a, x: (2 * a, a * 0.5, a / 4, a * x[0, 0], x[0, 0] * a),
    "signs": lambda a, x: (-a, abs(a), a.neg(), torch.neg(a), torch.abs(a)),
    "arithmetic": lambda a, x: (a + a, a - 3 * a, a * a, torch.add(a, a, alpha=2)),
    "of a transpose": lambda a, x: (2 * a.t() - a.t() / 2, (3 * a.t()) @ x),
    "sums": lambda a, x: (a.sum(), a.sum(0), a.sum(1, keepdim=True), torch.sum(a, (0, 1))),
    "norms": lambda a, x: (a.norm(), torch.norm(a, 1), torch.linalg.vector_norm(a, 3)),
    "amax": lambda a, x: (a.amax(), a.amax(0), torch.amax(a, 1, keepdim=True)),
    "copies": lambda a, x: (a.clone(), a.detach(), torch.clone(a), a.t()),
    "sizes": lambda a, x: x[: a.dim() * len(a) // (a.size(1) * a.ndim)] * a.numel(),
    "a product of all that": lambda a, x: (2 * a + a * a) @ x * a.norm() + a.sum(0),
}


def dense_of(result):
    if isinstance(result, tuple):
        return tuple(map(dense_of, result))
    return result.to_dense() if isinstance(result, BsrTensor) else result


def in_two_ways(names):
    """As an argument each, and one of the other ways in turn.

    How a matrix gets into a graph and what is done with it there have little to do with each other,
    and each graph takes a quarter of a second.
    """
    others = [way for way in WAYS if way != "argument"]
    return pytest.mark.parametrize(
        ("name", "way"),
        [
            *((name, "argument") for name in names),
            *((name, others[i % len(others)]) for i, name in enumerate(names)),
        ],
    )


@in_two_ways([*PRODUCTS, *OTHERS])
def test_it_is_that_of_the_dense_matrix(name, way):
    function = {**PRODUCTS, **OTHERS}[name]
    a, dense, x = problem()
    got = WAYS[way](function, compiled, a, x)
    close(dense_of(got), function(dense, x), 1e-3)
    if name in ("scaled", "signs", "arithmetic"):
        assert all(type(one) is BsrTensor for one in got)
    assert not counters["graph_break"]


@EACH_WAY
def test_gradients(way):
    a, dense, x = problem()
    a.requires_grad_()
    x.requires_grad_()

    def loss(a, x):
        return ((2 * a - a / 2) @ x - x @ a + a.sum(0)).sin().sum() + a.norm()

    got = torch.autograd.grad(WAYS[way](loss, compiled, a, x), (a.values, x))
    expected = torch.autograd.grad(loss(a, x), (a.values, x))
    close(got, expected, 1e-3)
    values = a.values.detach().clone().requires_grad_()
    dense = a._with_values(values).to_dense()
    close(got, torch.autograd.grad(loss(dense, x), (values, x)), 1e-3)


def test_one_graph_for_any_number_of_columns():
    """And for any values; a transpose needs another."""
    a, dense, _ = problem()
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(lambda a, x: a @ x, backend=counter, fullgraph=True, dynamic=True)
    for n in (3, 5, 40):
        x = torch.randn(SIZE, n)
        close(function(a, x), dense @ x, 1e-3)
        close(function(3 * a, x), 3 * dense @ x, 1e-3)
        close(function(a.clone(), x), dense @ x, 1e-3)
    assert counter.frame_count == 1
    close(function(a.t(), x), dense.t() @ x, 1e-3)
    assert counter.frame_count == 2


def test_batches():
    a, _, x = problem()
    batch = a._with_values(torch.randn(3, *a.values.shape))
    close(compiled(lambda a, x: a @ x)(batch, x), batch.to_dense() @ x, 1e-3)
    close(compiled(lambda a, x: x @ a)(batch, x), x @ batch.to_dense(), 1e-3)
    close(compiled(lambda a: 2 * a - a)(batch).to_dense(), batch.to_dense())


@EACH_WAY
def test_inductor(way):
    a, dense, x = problem()

    def function(a, x):
        return (a @ x).relu() - x @ a + (2 * a).sum(0)

    got = WAYS[way](function, lambda f: torch.compile(f, fullgraph=True), a, x)
    close(got, function(dense, x), 1e-3)


def test_what_dynamo_leaves_to_eager_mode():
    """It takes torch.sparse.mm for an operator, and cannot foresee what depends on elements."""
    a, dense, x = problem()
    for function, expected in (
        (lambda a, x: torch.sparse.mm(a, x) + 1, dense @ x + 1),
        (lambda a, x: torch.sparse.mm(x, a) + 1, x @ dense + 1),
        (lambda a, x: torch.sparse.addmm(x, a, x), x + dense @ x),
        (lambda a, x: a.to_dense() @ x, dense @ x),
        (lambda a, x: a @ x if torch.equal(a, 1 * a) else x, dense @ x),
        (lambda a, x: a @ x if torch.allclose(a, 2 * a) else x @ a, x @ dense),
    ):
        torch._dynamo.reset()
        close(torch.compile(function, backend="aot_eager")(a, x), expected, 1e-3)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_what_is_refused(fullgraph):
    """With the same words; within a full graph they are Dynamo's reason."""
    a, _, x = problem()
    for words, function in (
        ("exp takes no BsrTensor", lambda a, x: torch.exp(a)),
        ("cat takes no BsrTensor", lambda a, x: torch.cat([a, a])),
        ("add of .* and .*to_dense", lambda a, x: a + 1),
        ("add of .* and .*to_dense", lambda a, x: x + a),
        ("mul of .* and .*to_dense", lambda a, x: a * x),
        ("div of .* and .*to_dense", lambda a, x: 1 / a),
        ("mm multiplies operands", lambda a, x: torch.mm(a, x[0])),
    ):
        torch._dynamo.reset()
        call = torch.compile(function, backend="eager", fullgraph=fullgraph)
        kinds = torch._dynamo.exc.Unsupported if fullgraph else (TypeError, ValueError)
        with pytest.raises(kinds, match=None if fullgraph else words):
            call(a, x)


# Dynamo's table of reflected operators is mended at the first product that it meets.

FIRST = """
import torch, sparse_autotune as sa
import torch._functorch.aot_autograd  # once for all, after the package
from parallel import in_fork

sa.settings.mode = "off"
torch.manual_seed(1)
a, x = sa.random_bsr(24, 24, (4, 6), density=0.4), torch.randn(24, 24)
dense = a.to_dense()

class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = a
    def forward(self, x):
        return self.a @ x

WAYS = {
    "argument": (lambda a, x: a @ x, (a, x)),
    "closure": (lambda x: a @ x, (x,)),
    "module attribute": (Module(), (x,)),
    "the other one": (lambda a, x: x @ a, (a, x)),
}

def first(way, backend, fullgraph):
    function, arguments = WAYS[way]
    got = torch.compile(function, backend=backend, fullgraph=fullgraph)(*arguments)
    left, right = (x, dense) if way == "the other one" else (dense, x)
    torch.testing.assert_close(got, left @ right, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(got, right @ left, rtol=0.1, atol=0.1)

for way in WAYS:
    in_fork(lambda: first(way, "aot_eager", True))
    print(way)
in_fork(lambda: first("argument", "eager", False))
print("argument")
"""


def test_the_first_product_of_a_process(tmp_path):
    """Of several, which a process with the compiler's modules forks before any product."""
    assert run_python(FIRST, tmp_path).splitlines() == [
        *("argument", "closure", "module attribute", "the other one", "argument")
    ]


def test_other_operands_are_not_touched():
    """Products of tensors, and of a user's own class as Dynamo has them without this package."""
    a, _, x = problem()
    y = torch.randn_like(x)
    compiled(lambda a, x: a @ x)(a, x)
    for function in (lambda x, y: x @ y, lambda x, y: x.__rmatmul__(y), operator.matmul):
        torch._dynamo.reset()
        close(compiled(function)(x, y), function(x, y), 1e-3)

    class Twice:
        def __matmul__(self, x):
            return 2 * x

        def __rmatmul__(self, x):
            return 3 * x

    for function in (lambda x, other: other @ x, lambda x, other: x @ other):
        torch._dynamo.reset()
        got = torch.compile(function, backend="aot_eager")(x, Twice())
        close(got, function(x, Twice()))


# Autocast


def under_autocast(function):
    def wrapped(a, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return function(a, x)

    return wrapped


AUTOCAST = {
    "a @ x": lambda a, x: a @ x,
    "x @ a": lambda a, x: x @ a,
    "of a half type": lambda a, x: matmul(a, x.bfloat16()),
    "linear": lambda a, x: linear(x, a, x[0], activation="gelu"),
    "torch's linear": lambda a, x: F.linear(x, a),
    "sampled": lambda a, x: sampled_matmul(x, x, a).values,
    "twice": lambda a, x: (a @ x).float() @ a,
}


@in_two_ways(AUTOCAST)
def test_autocast_inside(name, way):
    function = AUTOCAST[name]
    a, _, x = problem()
    got = WAYS[way](under_autocast(function), compiled, a, x)
    expected = under_autocast(function)(a, x)
    assert got.dtype == expected.dtype == torch.bfloat16
    close(got, expected)


@EACH_WAY
def test_autocast_outside(way):
    a, _, x = problem()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, expected = WAYS[way](lambda a, x: a @ x, compiled, a, x), a @ x
    assert got.dtype == expected.dtype == torch.bfloat16
    close(got, expected)


def test_autocast_for_a_part():
    a, _, x = problem()
    a.requires_grad_()
    x.requires_grad_()

    def function(a, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            lower = a @ x
        return lower, a @ x

    for got, expected in zip(compiled(function)(a, x), function(a, x), strict=True):
        assert got.dtype == expected.dtype
        close(got, expected)
        upstream = torch.randn_like(got)
        ours, theirs = (
            torch.autograd.grad(result, (a.values, x), upstream, retain_graph=True)
            for result in (got, expected)
        )
        assert [g.dtype for g in ours] == [torch.float32] * 2
        close(ours, theirs)


def test_autocast_is_not_baked_in():
    a, _, x = problem()
    function = compiled(lambda a, x: a @ x)
    for enabled in (False, True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            got, expected = function(a, x), a @ x
        assert got.dtype == expected.dtype == (torch.bfloat16 if enabled else torch.float32)
        close(got, expected)

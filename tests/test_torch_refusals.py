"""What torch's functions cannot do with a BsrTensor: TypeError says what to use instead."""

import pytest
import torch
from test_torch_functions import ELEMENTWISE
from whole_matrices import K, M, make, same

from sparse_autotune import BsrTensor, conversions

pytestmark = pytest.mark.usefixtures("no_races")

F = torch.nn.functional


def unsupported():
    """By torch's name of it, a call with a matrix `a` and a dense tensor `d` of its shape."""
    names = (
        "exp", "log", "sqrt", "square", "relu", "sigmoid", "tanh", "sign", "cos", "isnan", "max",
        "min", "mean", "argmax", "median", "prod", "std", "flatten", "ravel",
        "zeros_like", "ones_like", "empty_like", "rand_like", "nonzero", "count_nonzero", "trace",
        "diagonal", "tril", "svd", "pinverse", "is_nonzero",
    )  # fmt: skip
    calls = {name: lambda a, d, name=name: getattr(torch, name)(a) for name in names}
    calls |= {
        "logsumexp": lambda a, d: torch.logsumexp(a, 0),
        "softmax": lambda a, d: torch.softmax(a, 0),
        "log_softmax": lambda a, d: F.log_softmax(a, 0),
        "cat": lambda a, d: torch.cat([a, a]),
        "stack": lambda a, d: torch.stack([a, a]),
        "dropout": lambda a, d: F.dropout(a),
        "gelu": lambda a, d: F.gelu(a),
        "embedding": lambda a, d: F.embedding(torch.tensor([0]), a),
        "cumsum": lambda a, d: torch.cumsum(a, 0),
        "pow": lambda a, d: torch.pow(a, 2),
        "eq": lambda a, d: torch.eq(a, a),
        "isclose": lambda a, d: torch.isclose(a, a),
        "where": lambda a, d: torch.where(d > 0, a, 0.0),
        "maximum": lambda a, d: torch.maximum(a, d),
        "transpose": lambda a, d: torch.transpose(a, 0, 1),
        "reshape": lambda a, d: torch.reshape(a, (-1,)),
        "topk": lambda a, d: torch.topk(a, 2),
        "bmm": lambda a, d: torch.bmm(a, a),
        "einsum": lambda a, d: torch.einsum("ij,jk->ik", a, d.t()),
        "addmv": lambda a, d: torch.addmv(d[:, 0], a, d[0]),
        "clamp": lambda a, d: torch.clamp(a, min=0),
        "copy_": lambda a, d: d.copy_(a),
        "add_": lambda a, d: d.add_(a),
        "masked_fill": lambda a, d: torch.masked_fill(a, d > 0, 0.0),
        "index_select": lambda a, d: torch.index_select(a, 0, torch.tensor([0])),
        "linalg_solve": lambda a, d: torch.linalg.solve(a, d),
        "sparse_sum": lambda a, d: torch.sparse.sum(a),
    }
    return calls


@pytest.fixture
def no_densifying(monkeypatch):
    """Nothing of the package makes a dense matrix of blocks."""

    def refused(*_):
        raise AssertionError("densified")

    monkeypatch.setattr(conversions, "to_dense", refused)


@pytest.mark.usefixtures("no_densifying")
@pytest.mark.parametrize("name", unsupported())
def test_what_no_matrix_of_blocks_has(name):
    a, dense = make("empty rows")
    for matrix, d in ((a, dense), (a.t(), dense.t())):
        with pytest.raises(TypeError, match=rf"{name} takes no BsrTensor: use a\.to_dense\(\)"):
            unsupported()[name](matrix, d)


@pytest.mark.usefixtures("no_densifying")
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("add", lambda a, d: a + 1),
        ("add", lambda a, d: 1 + a),
        ("add", lambda a, d: torch.add(a, 1)),
        ("add", lambda a, d: a + torch.tensor(1.0)),
        ("add", lambda a, d: a + d),
        ("add", lambda a, d: d + a),
        ("add", lambda a, d: torch.add(d, a)),
        ("add", lambda a, d: d.add(a)),
        ("sub", lambda a, d: a - 1),
        ("sub", lambda a, d: 1 - a),
        ("sub", lambda a, d: a - d),
        ("sub", lambda a, d: d - a),
        ("sub", lambda a, d: torch.sub(a, d)),
        ("mul", lambda a, d: a * d),
        ("mul", lambda a, d: d * a),
        ("mul", lambda a, d: a * d[0]),
        ("mul", lambda a, d: torch.mul(d, a)),
        ("mul", lambda a, d: d.mul(a)),
        ("mul", lambda a, d: a * 1j),
        ("mul", lambda a, d: a * torch.tensor(1j)),
        ("mul", lambda a, d: "2" * a),
        ("mul", lambda a, d: a * None),
        ("div", lambda a, d: 1 / a),
        ("div", lambda a, d: torch.tensor(1.0) / a),
        ("div", lambda a, d: a / a),
        ("div", lambda a, d: a / d),
        ("div", lambda a, d: d / a),
        ("div", lambda a, d: torch.div(d, a)),
    ],
)
def test_arithmetic_that_would_need_absent_blocks(name, call):
    a, dense = make("empty rows")
    for matrix, d in ((a, dense), (a.t(), dense.t())):
        with pytest.raises(TypeError, match=rf"^{name} of .* and .*to_dense\(\)"):
            call(matrix, d)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("div", lambda a: torch.div(a, 2, rounding_mode="floor")),
        ("mul", lambda a: torch.mul(a, 2, out=torch.ones(M, K))),
        ("addmm", lambda a: torch.addmm(torch.ones(2), a, torch.ones(K, 2), out=torch.ones(M, 2))),
        ("vector_norm", lambda a: torch.linalg.vector_norm(a, dim=0)),
        ("mm", lambda a: torch.sparse.mm(a, torch.ones(K, 2), "sum")),
    ],
)
def test_options_that_are_not_offered(name, call):
    """As what is not offered at all: torch's name of the function, and what to use."""
    with pytest.raises(TypeError, match=rf"(?<!_)\b{name}\b.*to_dense\(\)"):
        call(make("empty rows")[0])


def test_python_has_no_word_for_the_rest():
    a, dense = make("empty rows")
    for call in (
        lambda: a**2, lambda: 2**a, lambda: a // 2, lambda: a % 2, lambda: +a, lambda: a < 1,
        lambda: a > dense, lambda: a[0], lambda: list(a), lambda: a & a, lambda: ~a,
    ):  # fmt: skip
        with pytest.raises(TypeError):
            call()
    for name in ("exp", "mean", "softmax", "item", "numpy"):
        assert not hasattr(a, name)


def test_nothing_is_densified():
    """A matrix whose dense tensor no machine has room for."""
    size, block = 1 << 22, 32
    crow = torch.zeros(size // block + 1, dtype=torch.int64)
    crow[-1] = 3
    col = torch.tensor([0, 7, size // block - 1])
    values = torch.randint(-2, 3, (3, block, block)).float()
    for a in (BsrTensor(crow, col, values, (size, size)),
              BsrTensor(crow, col, values, (size, size)).t()):  # fmt: skip
        other, factor = a._with_values(-values), torch.tensor(2.0)
        for name, function in ELEMENTWISE.items():
            assert function(a, other, factor).nnzb == 3, name
        vector = torch.ones(size)
        total = values.sum()
        same((a @ vector).sum(), total)
        same((torch.matmul(vector, a)).sum(), total)
        same(F.linear(vector, a).sum(), total)
        for dim in (0, 1):
            assert a.sum(dim).shape == a.amax(dim).shape == (size,)
            same(a.sum(dim).sum(), total)
        same(a.sum(), total)
        same(a.amax(), values.amax())
        torch.testing.assert_close(a.norm(), values.norm())
        assert torch.equal(a, a.clone()) and torch.allclose(a, a.clone())
        assert not torch.equal(a, other)
        torch.testing.assert_close(a, a.clone())
        assert a.numel() == size * size
        for name, call in unsupported().items():
            if name not in ("where", "maximum", "masked_fill", "addmv", "einsum", "copy_", "add_"):
                with pytest.raises(TypeError, match="takes no BsrTensor"):
                    call(a, vector)

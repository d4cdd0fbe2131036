"""Forward-mode derivatives where compiled code meets a level of them: right, never dropped."""

import pytest
import torch
from reference import close
from torch.autograd import forward_ad

import sparse_autotune as sa
from sparse_autotune import BsrTensor, linear, matmul, random_bsr, sampled_matmul


@pytest.fixture(autouse=True)
def _no_races():
    torch._dynamo.reset()
    with sa.settings.override(mode="off"):
        yield
    torch._dynamo.reset()


def _functions():
    a = random_bsr(24, 24, 8, density=0.5, dtype=torch.float64)
    layer = sa.SparseLinear(24, 16, 8, 0.5, dtype=torch.float64)
    return {
        "matmul": lambda x: matmul(a, x),
        "gelu": lambda x: matmul(a, x, activation="gelu"),
        "relu": lambda x: linear(x.mT, a, activation="relu"),
        "sampled": lambda x: sampled_matmul(x, x.mT, a).values,
        "layer": lambda x: layer(x.mT),
    }


def _with_tangent(function, x):
    with forward_ad.dual_level():
        result = function(forward_ad.make_dual(x, x.detach().cos()))
        return forward_ad.unpack_dual(result)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", _functions())
def test_a_level_inside_of_a_graph(name, backend):
    """The graph enters it without telling torch.autograd.forward_ad."""
    function, x = _functions()[name], torch.randn(24, 5, dtype=torch.float64)
    got = torch.compile(lambda x: _with_tangent(function, x), backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(tuple(got), tuple(_with_tangent(function, x)))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_jvp_inside_of_a_graph(backend):
    """Compiled code enters the level of these without telling torch.autograd.forward_ad."""
    a, x = random_bsr(16, 24, 8, density=0.5), torch.randn(5, 24)

    def tangent(x, function):
        return torch.func.jvp(lambda x: function(x).sin().sum(), (x,), (x.cos(),))[1]

    def ours(x):
        x = x.exp()
        return linear(x, a).sum() + sampled_matmul(x.mT[:16], x[:, :24], a).values + x.sum()

    def dense(x):
        x = x.exp()
        mask = BsrTensor(a.crow_indices, a.col_indices, torch.ones_like(a.values), a.shape)
        kept = (x.mT[:16] @ x)[mask.to_dense() > 0]
        return (x @ a.to_dense().T).sum() + kept + x.sum()

    got = torch.compile(lambda x: tangent(x, ours), backend=backend, fullgraph=True)(x)
    close(got, tangent(x, dense))


@pytest.mark.filterwarnings("error:Dynamo does not know how to trace")
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(
    ("name", "backend"), [("matmul", "eager"), *((name, "aot_eager") for name in _functions())]
)
def test_a_level_around_compiled_code(name, backend, trained):
    function = _functions()[name]
    x = torch.randn(24, 5, dtype=torch.float64, requires_grad=trained)
    expected = tuple(_with_tangent(function, x))
    compiled = torch.compile(function, backend=backend)
    torch.testing.assert_close(compiled(x), expected[0])
    torch.testing.assert_close(tuple(_with_tangent(compiled, x)), expected)
    torch.testing.assert_close(compiled(x), expected[0])


def test_a_level_around_a_full_graph_raises():
    function = _functions()["matmul"]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    x = torch.randn(24, 5, dtype=torch.float64)
    compiled(x)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        _with_tangent(compiled, x)


def test_a_tracer_records_no_question():
    a, x = random_bsr(24, 24, 8, density=0.5), torch.randn(24, 5)
    traced = torch.fx.experimental.proxy_tensor.make_fx(lambda x: matmul(a, x))(x)
    called = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert called == [torch.ops.sparse_autotune.bsr_matmul.default]

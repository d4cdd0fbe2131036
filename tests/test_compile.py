"""torch.compile: no graph break, no recompilation, nothing measured.

The backend is "aot_eager", which traces forward and backward as Inductor has it, except where the
generated code is the point.
"""

import warnings

import pytest
import torch
from functorch.compile import make_boxed_func
from reference import close
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

import sparse_autotune
from sparse_autotune import (
    BsrTensor,
    SparseLinear,
    cache,
    linear,
    matmul,
    operands,
    prune_,
    random_bsr,
    sampled_matmul,
    settings,
)
from sparse_autotune.operators import precision

pytestmark = pytest.mark.usefixtures("no_races", "fresh_dynamo")

OPS = torch.ops.sparse_autotune


def compiled(function, **options):
    """Fullgraph, and how many graphs were made of it."""
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, backend=counter, fullgraph=True, **options), counter


# Products


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
def test_a_product_with_gradients(activation):
    """One graph for every number of columns; gradients of matrix, dense operand and bias."""
    a = random_bsr(16, 24, 4, density=0.5).requires_grad_()
    bias = torch.randn(16, requires_grad=True)
    function, counter = compiled(
        lambda a, b, bias: matmul(a, b, bias=bias, activation=activation), dynamic=True
    )
    for n in (3, 5, 64):
        b = torch.randn(24, n, requires_grad=True)
        upstream = torch.randn(16, n)
        inputs = (a.values, b, bias)
        got = function(a, b, bias)
        expected = matmul(a, b, bias=bias, activation=activation)
        close(got, expected)
        close(
            torch.autograd.grad(got, inputs, upstream),
            torch.autograd.grad(expected, inputs, upstream),
        )
    assert counter.frame_count == 1
    assert not counters["graph_break"]


def test_every_form():
    a, x = random_bsr(24, 24, 4, density=0.5), torch.randn(24, 24)
    dense = a.to_dense()

    def every(a, x):
        return (
            matmul(a, x), matmul(a.t(), x), matmul(x, a), matmul(x, a.mT), linear(x, a),
            matmul(a, x[0]), sampled_matmul(x, x, a).values, matmul(2 * a, x),
        )  # fmt: skip

    function, counter = compiled(every)
    expected = (
        dense @ x, dense.t() @ x, x @ dense, x @ dense.t(), x @ dense.t(), dense @ x[0],
        sampled_matmul(x, x, a).values, 2 * dense @ x,
    )  # fmt: skip
    close(function(a, x), expected)
    assert counter.frame_count == 1


def test_out():
    a, x = random_bsr(16, 24, 4, density=0.5), torch.randn(24, 5)
    out = torch.full((16, 5), float("nan"))
    function, _ = compiled(lambda a, x, out: matmul(a, x, out=out) * 2)
    close(function(a, x, out), 2 * a.to_dense() @ x)
    close(out, a.to_dense() @ x)


@pytest.mark.filterwarnings("error:Dynamo does not know how to trace")
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a, x: matmul(a, x) + 1, lambda a, x: a.to_dense() @ x + 1),
        (lambda a, x: matmul(x, a) + 1, lambda a, x: x @ a.to_dense() + 1),
        (lambda a, x: linear(x, a) + 1, lambda a, x: x @ a.to_dense().t() + 1),
        (lambda a, x: sampled_matmul(x, x, a).values, lambda a, x: sampled_matmul(x, x, a).values),
    ],
)
def test_native_tensors_fall_back(function, expected):
    """Dynamo refuses sparse arguments before any code of ours runs: a graph break, and right."""
    a, x = random_bsr(24, 24, 4, density=0.5), torch.randn(24, 24)
    close(torch.compile(function, backend="aot_eager")(a.to_torch(), x), expected(a, x))


def test_matrices_made_in_a_graph():
    """Of components, of another matrix, of a dense one: used, with gradients, and returned."""
    a, x = random_bsr(24, 32, 4, density=0.5), torch.randn(24, 24)
    weights = torch.randn(32, 32, requires_grad=True)
    keep = torch.rand(8, 8) < 0.5

    def made(crow, col, values, x, weights):
        of_parts = BsrTensor(crow, col, values, (24, 32))
        of_others = BsrTensor(of_parts.crow_indices.int(), of_parts.col_indices.int(),
                              3 * of_parts.clone().values, of_parts.shape).t()  # fmt: skip
        of_dense = BsrTensor.from_dense(weights, 4, keep=keep)
        return matmul(of_dense, matmul(of_others, matmul(x, of_parts))), of_others

    function, counter = compiled(made)
    for _ in range(2):
        values = torch.randn_like(a.values, requires_grad=True)
        inputs = (a.crow_indices, a.col_indices, values)
        got, returned = function(*inputs, x, weights)
        dense = BsrTensor(*inputs, a.shape).to_dense()
        mask = keep.repeat_interleave(4, 0).repeat_interleave(4, 1)
        expected = (weights * mask) @ ((3 * dense).T @ (x @ dense))
        close(got, expected)
        upstream = torch.randn_like(got)
        ours, theirs = (
            torch.autograd.grad(result, (values, weights), upstream) for result in (got, expected)
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-2)
        assert type(returned) is BsrTensor and returned.is_transposed
        close(returned.to_dense(), 3 * dense.T)
        close(returned @ x, 3 * dense.T @ x)
    assert counter.frame_count == 1


def test_frozen_matrices():
    a, x = random_bsr(16, 24, 4, density=0.5).freeze(), torch.randn(24, 5)
    function, _ = compiled(matmul)
    close(function(a, x), a.to_dense() @ x)


def test_determinism_is_not_baked_in():
    """The switch is a constant of the graph, so changing it must make another."""
    a, x = random_bsr(16, 24, 4, density=0.5), torch.randn(24, 5)
    asked = []

    def backend(graph, inputs):
        asked.extend(
            node.kwargs.get("deterministic", False)
            for node in graph.graph.nodes
            if node.target is OPS.bsr_matmul.default
        )
        return graph.forward

    function = torch.compile(matmul, backend=backend, fullgraph=True)
    function(a, x)
    torch.use_deterministic_algorithms(True)
    try:
        function(a, x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert asked == [False, True]


def test_tf32_is_not_baked_in(device, monkeypatch):
    """Whichever of torch's switches is turned between calls, forward and backward ask for it."""
    if device == "cpu":  # where nothing is computed in TF32: as if the tensors were on a GPU
        monkeypatch.setattr(operands, "allow_tf32", lambda values: precision._tf32())
    asked = []

    def noted(graph, inputs):
        asks = [
            node.kwargs.get("allow_tf32", False)
            for node in graph.graph.nodes
            if node.target is OPS.bsr_matmul.default
        ]

        def run(*arguments):
            asked.extend(asks)
            return graph.forward(*arguments)

        return make_boxed_func(run)

    layer = SparseLinear(24, 32, 4, 0.5, device=device)
    function = torch.compile(layer, backend=aot_autograd(fw_compiler=noted), fullgraph=True)
    x = torch.randn(5, 24, device=device, requires_grad=True)
    switches = torch.backends.cuda.matmul
    try:
        for expected, turn in (
            (False, lambda: setattr(switches, "allow_tf32", False)),
            (True, lambda: setattr(switches, "allow_tf32", True)),
            (False, lambda: torch.set_float32_matmul_precision("highest")),
            (True, lambda: torch.set_float32_matmul_precision("high")),
            (False, lambda: setattr(switches, "fp32_precision", "ieee")),
            (True, lambda: setattr(switches, "fp32_precision", "tf32")),
        ):
            turn()
            for _ in range(2):
                asked.clear()
                function(x).sum().backward()
                assert asked == [expected] * 2
    finally:
        switches.fp32_precision = "ieee"
        torch.set_float32_matmul_precision("highest")


def test_nothing_is_measured_while_tracing(monkeypatch):
    monkeypatch.setattr(sparse_autotune.settings, "mode", "on")
    a = random_bsr(48, 80, 16, density=0.5)
    before = sparse_autotune.tuning_count()
    during = []

    def backend(graph, inputs):
        during.append(sparse_autotune.tuning_count())
        return graph.forward

    torch.compile(matmul, backend=backend, fullgraph=True)(a, torch.randn(80, 37))
    assert during == [before]


# The module


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = SparseLinear(24, 32, 4, 0.5)
        self.down = SparseLinear(32, 24, (8, 4), 0.5, bias=False)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def test_one_graph_for_any_number_of_blocks():
    layer = SparseLinear(24, 32, 4, 1.0)
    x = torch.randn(3, 24)
    static = {"force_parameter_static_shapes", "force_nn_module_property_static_shapes"}
    with torch._dynamo.config.patch(dict.fromkeys(static, False)):
        function, counter = compiled(layer)
        for density in (0.9, 0.5, 0.3, 0.1):
            loss = function(x).square().sum()
            loss.backward()
            close(loss, (x @ layer.weight.to_dense().t() + layer.bias).square().sum())
            prune_(layer, density)
    assert counter.frame_count == 2


def test_a_training_step():
    """Compiled and eager training agree; no graph break; one graph for every batch size."""
    torch.manual_seed(1)
    eager = Network()
    twin = Network()
    twin.load_state_dict(eager.state_dict())
    step, counter = compiled(lambda x: twin(x).square().mean(), dynamic=True)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (eager, twin)]
    for batch in (3, 8, 5):
        x = torch.randn(batch, 7, 24)
        losses = eager(x).square().mean(), step(x)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        close(losses[1], losses[0])
    close(list(twin.parameters()), list(eager.parameters()))
    assert counter.frame_count == 1
    assert not counters["graph_break"]


OF = {
    "xv": {OPS.bsr_matmul.default, OPS.bsr_sampled_matmul.default},
    "x": {OPS.bsr_matmul.default},
    "v": {OPS.bsr_sampled_matmul.default},
}
FORMS = ("a @ x", "a.T @ x", "x @ a", "x @ a.T", "a @ vector", "batch")
ACTIVATIONS = (None, "relu", "gelu")


# Every two of the three meet: a Latin square for each three forms.
@pytest.mark.parametrize(
    ("form", "activation", "of"),
    [
        (form, ACTIVATIONS[(i + j) % 3], of)
        for i, form in enumerate(FORMS)
        for j, of in enumerate(OF)
    ],
)
def test_a_backward_has_an_operator_for_each_gradient(form, activation, of):
    """That is wanted, and no other; they are those of eager mode."""
    met = []

    def noted(graph, inputs):
        met.append({n.target for n in graph.graph.nodes if "sparse_autotune" in str(n.target)})
        return make_boxed_func(graph.forward)

    a = random_bsr(24, 24, (4, 6), density=0.5).requires_grad_("v" in of)
    shape = {"a @ vector": (24,), "batch": (3, 24, 5)}.get(form, (24, 24))
    x = torch.randn(shape, requires_grad="x" in of)
    matrix = a.t() if ".T" in form else a

    def function(matrix, x):
        operands = (x, matrix) if form.startswith("x") else (matrix, x)
        return matmul(*operands, activation=activation)

    aot = aot_autograd(fw_compiler=noted)
    inputs = [t for t in (a.values, x) if t.requires_grad]
    got = torch.compile(function, backend=aot, fullgraph=True)(matrix, x)
    upstream = torch.randn_like(got)
    ours = torch.autograd.grad(got, inputs, upstream)
    expected = function(matrix, x)
    assert met == [{OPS.bsr_matmul.default}, OF[of]]
    close(got, expected)
    close(ours, torch.autograd.grad(expected, inputs, upstream))


@pytest.mark.parametrize("products_before", [0, 2])
def test_compiled_autograd(products_before):
    """Dynamo traces the backward of what ran eagerly, by the operator or by the short way."""
    model, x = Network(), torch.randn(5, 24, requires_grad=True)
    inputs = (x, *model.parameters())
    for _ in range(products_before):
        model(x)
    loss = model(x).square().sum()
    expected = torch.autograd.grad(loss, inputs, retain_graph=True)
    compiler = torch.compile(backend="aot_eager", fullgraph=True)
    with torch._dynamo.compiled_autograd._enable(compiler):
        got = torch.autograd.grad(loss, inputs)
    close(got, expected)


def test_inductor():
    """Generated code round the operator, forward and backward."""
    model, x = Network(), torch.randn(5, 24)
    loss = torch.compile(lambda x: model(x).square().sum(), fullgraph=True)(x)
    loss.backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    expected = model(x).square().sum()
    expected.backward()
    close(loss, expected)
    close(got, [p.grad for p in model.parameters()])


def test_inductor_with_out():
    """It traces the operator once more for itself, and wants to find the operator alone."""
    a, x = random_bsr(16, 24, 4, density=0.5), torch.randn(24, 5)
    out = torch.full((16, 5), float("nan"))
    function = torch.compile(lambda a, x, out: matmul(a, x, out=out))
    with torch.compiler.config.patch(force_disable_caches=True):
        function(a, x, out)
    close(out, a.to_dense() @ x)


def test_a_race_while_dynamo_watches(tmp_path):
    """It leaves this `out` to eager mode, but looks at whatever Python runs there."""
    a, x, out = random_bsr(16, 24, 4, density=0.5), torch.randn(24, 5), torch.zeros(16, 8)
    cache.environment.cache_clear()
    with (
        settings.override(mode="on", cache_dir=tmp_path),
        warnings.catch_warnings(record=True) as given,
    ):
        torch.compile(lambda out: matmul(a, x, out=out[:, :5]), backend="eager")(out)
        assert cache.entries()
    assert not [str(w.message) for w in given if "does not know how to trace" in str(w.message)]
    close(out[:, :5], a.to_dense() @ x)


def test_autocast():
    model, x = Network(), torch.randn(5, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model.up(x)
        got = compiled(model.up)[0](x)
    assert got.dtype == expected.dtype == torch.bfloat16
    close(got, expected)

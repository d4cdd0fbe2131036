"""CUDA graphs around compiled models (mode="reduce-overhead") and around transposes."""

import copy

import pytest
import torch
from problem import BF16

from sparse_autotune import BsrTensor, SparseLinear, linear, matmul, random_bsr

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_races", "fresh_dynamo")]


def close(got, expected, tolerance=2e-2):
    torch.testing.assert_close(
        got.double(),
        expected.double(),
        rtol=tolerance,
        atol=tolerance * expected.abs().max().item(),
    )


def model():
    torch.manual_seed(0)
    layers = (
        SparseLinear(256, 512, 64, 0.3, device="cuda", dtype=BF16),
        torch.nn.GELU(approximate="tanh"),
        SparseLinear(512, 256, 64, 0.3, device="cuda", dtype=BF16),
    )
    return torch.nn.Sequential(*layers)


def test_training_steps():
    """Forward and backward of many steps, each with other inputs: those of an eager twin."""
    net = model()
    twin = copy.deepcopy(net)
    step = torch.compile(net, mode="reduce-overhead", fullgraph=True)
    for i in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.randn(128, 256, device="cuda", dtype=BF16)
        upstream = torch.randn(128, 256, device="cuda", dtype=BF16)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        got, expected = step(ours), twin(theirs)
        close(got, expected)
        got.backward(upstream)
        expected.backward(upstream)
        close(ours.grad, theirs.grad)
        for name, parameter in net.named_parameters():
            close(parameter.grad, dict(twin.named_parameters())[name].grad)
        net.zero_grad()
        twin.zero_grad()
        if i == 3:  # values change in place between replays, as an optimizer changes them
            with torch.no_grad():
                for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
                    mine.mul_(0.5)
                    other.mul_(0.5)


def test_two_patterns_of_equal_size_in_turn():
    """A graph holds addresses: with another matrix it must not go on with the first's pattern."""
    generator = torch.Generator("cuda").manual_seed(0)
    matrices = [
        random_bsr(512, 512, 64, density=0.25, dtype=BF16, device="cuda", generator=generator)
        for _ in range(2)
    ]
    assert matrices[0].nnzb == matrices[1].nnzb
    assert not torch.equal(matrices[0].col_indices, matrices[1].col_indices)
    function = torch.compile(
        lambda a, x: matmul(a, x) + linear(x, a), mode="reduce-overhead", fullgraph=True
    )
    for i in range(10):
        torch.compiler.cudagraph_mark_step_begin()
        a = matrices[i % 2]
        x = torch.randn(512, 512, device="cuda", dtype=BF16)
        dense = a.to_dense().double()
        close(function(a, x), dense @ x.double() + x.double() @ dense.T)


@pytest.mark.parametrize("prepared", [False, True])
def test_capture_of_a_transpose(prepared):
    """The transposed pattern of one never seen is made inside the graph, every time it runs."""
    a = random_bsr(512, 256, 64, density=0.3, dtype=BF16, device="cuda")
    b, x = (torch.randn(512, 128, device="cuda", dtype=BF16) for _ in range(2))
    matmul(random_bsr(512, 256, 64, density=0.3, dtype=BF16, device="cuda").t(), b)  # warms up
    if prepared:
        matmul(a.t(), b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        left, right = matmul(a.t(), b), matmul(x.T, a)
    for _ in range(3):
        b.copy_(torch.randn_like(b))
        x.copy_(torch.randn_like(x))
        a.values.copy_(torch.randn_like(a.values))
        left.fill_(torch.nan)
        right.fill_(torch.nan)
        graph.replay()
        dense = a.to_dense().double()
        close(left, dense.T @ b.double())
        close(right, x.T.double() @ dense)


def test_a_graph_keeps_a_transposed_pattern():
    """Other plans may push it out of the cache, and its matrix may go: the graph still reads it."""
    a = random_bsr(512, 256, 64, density=0.3, dtype=BF16, device="cuda")
    b = torch.randn(512, 128, device="cuda", dtype=BF16)
    expected = a.to_dense().double().T @ b.double()
    matmul(a.t(), b)
    parts = (a.crow_indices, a.col_indices, a.values)  # what a graph reads must live, as ever
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = matmul(a.t(), b)
    del a
    filler = [torch.full((1 << 20,), 7, dtype=torch.int32, device="cuda") for _ in range(8)]
    result.fill_(torch.nan)
    graph.replay()
    close(result, expected)
    assert isinstance(BsrTensor(*parts, (512, 256)), BsrTensor) and len(filler) == 8

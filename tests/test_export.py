"""torch.export: programs that hold the operators, with shapes left open and with derivatives."""

import pytest
import torch
from reference import close
from test_compile import OPS, Network

from sparse_autotune import BsrTensor, SparseLinear, matmul, random_bsr, sampled_matmul

pytestmark = pytest.mark.usefixtures("no_races", "fresh_dynamo")


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict, tmp_path):
    model, x = Network(), torch.randn(4, 24)
    batch = torch.export.Dim("batch", min=2, max=4096)
    program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch}}, strict=strict)
    targets = [node.target for node in program.graph.nodes]
    assert targets.count(OPS.bsr_matmul.default) == 2
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for size in (2, 33):
        x = torch.randn(size, 24)
        close(loaded(x), model(x))


@pytest.mark.parametrize("strict", [True, False])
def test_a_decomposed_export_has_derivatives(strict):
    layer = SparseLinear(32, 24, 8, 0.5)
    pattern = random_bsr(24, 24, 8, density=0.5)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            y = self.layer(x)
            return sampled_matmul(y.mT, y, pattern).values

    x = torch.randn(5, 32)
    program = torch.export.export(Model(), (x,), strict=strict).run_decompositions()
    module = program.module()
    expected = torch.autograd.grad(Model()(x).sum(), layer.parameters())
    got = torch.autograd.grad(module(x).sum(), module.parameters())
    close(got, expected)


def test_export_of_a_matrix_argument():
    class Product(torch.nn.Module):
        def forward(self, a, x):
            return matmul(a, x)

    a, x = random_bsr(16, 24, 4, density=0.5), torch.randn(24, 5)
    program = torch.export.export(Product(), (a, x), strict=False)
    other = BsrTensor(a.crow_indices, a.col_indices, -a.values, a.shape)
    close(program.module()(other, x), -a.to_dense() @ x)


def test_export_of_a_constant_matrix():
    """A matrix that nobody multiplied before has no memory that an eager call could look at."""

    class Product(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = random_bsr(16, 24, 4, density=0.5)

        def forward(self, x):
            return matmul(self.a, x)

    model, x = Product(), torch.randn(24, 5)
    close(torch.export.export(model, (x,), strict=False).module()(x), model.a.to_dense() @ x)


@pytest.mark.parametrize("strict", [False, True])
def test_export_of_a_frozen_layer(strict):
    layer = SparseLinear(24, 32, 4, 0.5).requires_grad_(False).freeze()
    program = torch.export.export(layer, (torch.randn(3, 24),), strict=strict)
    (node,) = (n for n in program.graph.nodes if n.target is OPS.bsr_matmul.default)
    assert node.kwargs["frozen"]

"""torch.jit.trace and torch.fx: programs that hold the operators, or the module."""

import io

import pytest
import torch
from reference import close

from sparse_autotune import SparseLinear, linear, matmul, random_bsr, sampled_matmul

pytestmark = [
    pytest.mark.usefixtures("no_races"),
    pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = SparseLinear(24, 24, 8, 0.5)
        self.last = SparseLinear(24, 32, 8, 0.5)
        self.pattern = random_bsr(24, 24, 8, density=0.5)

    def forward(self, x):
        x = self.first(x)
        y = linear(x, self.pattern, activation="gelu") + matmul(x, self.pattern)
        return self.last(y), sampled_matmul(y.mT, x, self.pattern).values


@pytest.mark.parametrize("trained", [True, False])
def test_jit_trace(trained):
    model, x = Model().requires_grad_(trained), torch.randn(5, 24)
    traced = torch.jit.trace(model, x)
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    loaded, x = torch.jit.load(file), torch.randn(9, 24)
    close(loaded(x), model(x))
    if trained:
        parameters = dict(loaded.named_parameters())
        sum(y.square().sum() for y in loaded(x)).backward()
        sum(y.square().sum() for y in model(x)).backward()
        for name, expected in model.named_parameters():
            close(parameters[name].grad, expected.grad, 1e-3)


def test_fx_keeps_the_layer_whole():
    """As it keeps torch.nn.Linear."""
    model = torch.nn.Sequential(SparseLinear(24, 32, 8, 0.5), torch.nn.ReLU())
    traced, x = torch.fx.symbolic_trace(model), torch.randn(5, 24)
    assert [node.op for node in traced.graph.nodes] == [
        "placeholder", "call_module", "call_module", "output",
    ]  # fmt: skip
    torch.testing.assert_close(traced(x), model(x))
    with pytest.raises(TypeError, match=r"x must be a dense torch.Tensor, got torch\.fx"):
        torch.fx.symbolic_trace(model[0])

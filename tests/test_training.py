"""Training a block-sparse model is training the dense one with weights masked to the pattern."""

import copy

import pytest
import torch

from sparse_autotune import BsrTensor, SparseLinear, sparsify_

pytestmark = pytest.mark.usefixtures("no_races")

STEPS = 200


class MaskedLinear(torch.nn.Linear):
    """The dense layer with the weight of a SparseLinear, masked in every forward."""

    def __init__(self, sparse):
        options = {"device": sparse.values.device, "dtype": sparse.values.dtype}
        super().__init__(
            sparse.in_features, sparse.out_features, sparse.bias is not None, **options
        )
        ones = torch.ones_like(sparse.values)
        shape = (sparse.out_features, sparse.in_features)
        mask = BsrTensor(sparse.crow_indices, sparse.col_indices, ones, shape).to_dense()
        self.register_buffer("mask", mask.detach())
        with torch.no_grad():
            self.weight.copy_(sparse.weight.to_dense())
            if self.bias is not None:
                self.bias.copy_(sparse.bias)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight * self.mask, self.bias)


def masked_twin(model):
    twin = copy.deepcopy(model)
    for name, layer in list(twin.named_modules()):
        if isinstance(layer, SparseLinear):
            parent, _, child = name.rpartition(".")
            setattr(twin.get_submodule(parent), child, MaskedLinear(layer))
    return twin


def mlp():
    return torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(approximate="tanh"), torch.nn.Linear(64, 32)
    )


class Transformer(torch.nn.Module):
    """One causal block, its four projections and two feed-forward layers sparse."""

    def __init__(self, width=32, heads=2, vocabulary=24):
        super().__init__()
        self.heads = heads
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        x = x + self.down(torch.nn.functional.silu(self.up(self.norms[1](x))))
        return self.head(self.norms[2](x))


def losses(model, batches, loss_of):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    curve = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        curve.append(float(loss.detach()))
    return torch.tensor(curve)


def regression(model, batch):
    x, target = batch
    return (model(x) - target).square().mean()


def next_token(model, tokens):
    logits = model(tokens[:, :-1]).float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def problem(kind, device, dtype):
    """A sparsified model, its batches and its loss."""
    torch.manual_seed(0)
    if kind == "mlp":
        model, loss_of = mlp(), regression
        teacher = torch.randn(32, 32) / 32**0.5
        inputs = torch.randn(STEPS, 16, 32)
        batches = [(x.to(device, dtype), (x @ teacher).to(device, dtype)) for x in inputs]
        sparsify_(model, 8, 0.5)
    else:
        model, loss_of = Transformer(), next_token
        starts = torch.randint(24, (STEPS, 4, 1))
        batches = list(((starts + 5 * torch.arange(13)) % 24).to(device))
        sparsify_(model, 8, 0.5, filter=lambda name, layer: name != "head")
    return model.to(device, dtype), batches, loss_of


@pytest.mark.parametrize("kind", ["mlp", "transformer"])
def test_fp32_on_the_cpu(kind):
    model, batches, loss_of = problem(kind, "cpu", torch.float32)
    twin = masked_twin(model)
    ours, theirs = losses(model, batches, loss_of), losses(twin, batches, loss_of)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert ours[-10:].mean() < 0.7 * ours[:10].mean()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["mlp", "transformer"])
def test_on_a_gpu(kind, dtype):
    model, batches, loss_of = problem(kind, "cuda", dtype)
    twin = masked_twin(model)
    ours, theirs = losses(model, batches, loss_of), losses(twin, batches, loss_of)
    if dtype == torch.float32:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    else:
        late = ours[-50:].mean(), theirs[-50:].mean()
        torch.testing.assert_close(*late, rtol=0.02, atol=0)
    assert ours[-10:].mean() < 0.7 * ours[:10].mean()

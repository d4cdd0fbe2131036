"""A decoder of Hugging Face transformers, small and random, its linear layers made sparse."""

import copy

import pytest
import torch
from reference import close
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from sparse_autotune import BsrTensor, SparseLinear, sparsify_

pytestmark = pytest.mark.usefixtures("no_races", "fresh_dynamo")

transformers = pytest.importorskip(
    "transformers", reason="transformers (dependency group test) is not installed"
)

BLOCK, DENSITY, VOCABULARY = 16, 0.5, 96


def dense_decoder():
    """A Llama of two layers with grouped queries; nothing is downloaded."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return transformers.LlamaForCausalLM(config)


def make_sparse(model):
    return sparsify_(model, BLOCK, DENSITY, filter=lambda name, layer: name != "lm_head")


def sparse_decoder():
    model = dense_decoder()
    make_sparse(model)
    return model


def sequences(count):
    """Each token is the one before it plus five."""
    return (torch.randint(VOCABULARY, (count, 1)) + 5 * torch.arange(12)) % VOCABULARY


def loss_of(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def train(model, steps, loss_of=loss_of):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, sequences(8))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return torch.tensor(losses)


def test_every_projection_is_replaced():
    model = dense_decoder()
    linear = {name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    replaced = make_sparse(model)
    assert set(replaced) == linear - {"lm_head"}
    assert len(replaced) == 2 * 7  # q, k, v, o; gate, up, down
    assert all(isinstance(model.get_submodule(name), SparseLinear) for name in replaced)


def test_full_density_is_the_dense_decoder():
    """In its logits, and in the gradient of every projection."""
    dense = dense_decoder()
    sparse = copy.deepcopy(dense)
    sparsify_(sparse, BLOCK, 1.0)
    tokens = sequences(3)
    ours, theirs = (model(input_ids=tokens, labels=tokens) for model in (sparse, dense))
    close(ours.logits, theirs.logits)
    ours.loss.backward()
    theirs.loss.backward()
    for name, layer in sparse.named_modules():
        if isinstance(layer, SparseLinear):
            weight = layer.weight
            got = BsrTensor(
                weight.crow_indices, weight.col_indices, layer.values.grad, weight.shape
            )
            expected = dense.get_submodule(name).weight.grad
            torch.testing.assert_close(got.to_dense(), expected, rtol=1e-3, atol=1e-6, msg=name)


def test_training():
    model = sparse_decoder()
    before = {name: values.clone() for name, values in model.named_parameters()}
    losses = train(model, 40)
    assert losses[-5:].mean() < 0.6 * losses[:5].mean()
    assert losses.isfinite().all()
    for name, values in model.named_parameters():
        assert not torch.equal(values, before[name]), name


def test_compiled_training():
    """Forward and backward in one graph, and the gradients of eager."""
    model = sparse_decoder()
    twin = copy.deepcopy(model)
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(loss_of, backend=backend, fullgraph=True)
    tokens = sequences(4)
    got, expected = compiled(model, tokens), loss_of(twin, tokens)
    got.backward()
    expected.backward()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    ours, theirs = dict(model.named_parameters()), dict(twin.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        assert values.grad.norm() > 0, name
        torch.testing.assert_close(values.grad, theirs[name].grad, rtol=1e-3, atol=1e-5, msg=name)
    model.zero_grad()
    losses = train(model, 25, compiled)
    assert losses[-5:].mean() < 0.8 * losses[:5].mean()
    # The batch of another size makes one more graph, of any size.
    assert backend.frame_count <= 2
    assert not counters["graph_break"]


def test_state(tmp_path):
    """Saved as tensors alone; loaded into a decoder with other values and other patterns."""
    model = sparse_decoder()
    train(model, 3)
    path = tmp_path / "state.pt"
    torch.save(model.state_dict(), path)
    fresh = sparse_decoder()
    tokens = sequences(3)
    with torch.no_grad():
        expected = model(input_ids=tokens).logits
        assert not torch.allclose(fresh(input_ids=tokens).logits, expected, rtol=0.1)
        loaded = fresh.load_state_dict(torch.load(path, weights_only=True))
        assert not loaded.missing_keys and not loaded.unexpected_keys
        close(fresh(input_ids=tokens).logits, expected, 0)


def test_generation():
    """Greedy, token by token with a cache, as the model that sees whole sequences goes on."""
    model = sparse_decoder().eval()
    train(model, 5)
    tokens = sequences(2)[:, :4]
    found = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=4, do_sample=False,
        use_cache=True, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    whole = tokens
    with torch.no_grad():
        for _ in range(4):
            following = model(input_ids=whole).logits[:, -1].argmax(-1, keepdim=True)
            whole = torch.cat([whole, following], 1)
    assert torch.equal(found, whole)

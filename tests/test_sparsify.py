"""Sparse layers from dense ones: criteria, `SparseLinear.from_linear` and `sparsify_`."""

import pytest
import torch
import torch.nn.utils.prune
from reference import close

from sparse_autotune import SparseLinear, sparsify_

pytestmark = pytest.mark.usefixtures("no_races")


def test_from_linear_by_magnitude():
    dense = torch.nn.Linear(6, 4)
    with torch.no_grad():
        dense.weight.fill_(0.1)
        dense.weight[2:, 3:] = -5.0
        dense.weight[0, 0] = 2.0
    layer = SparseLinear.from_linear(dense, (2, 3), 0.5)
    assert torch.equal(layer.weight.to_dense()[:2, :3], dense.weight[:2, :3])
    assert torch.equal(layer.weight.to_dense()[2:, 3:], dense.weight[2:, 3:])
    assert layer.nnzb == 2 and torch.equal(layer.bias, dense.bias)
    assert layer.bias is not dense.bias
    layer.values.data.zero_()
    assert dense.weight.abs().sum() > 0


def test_from_linear_by_mask_and_by_score():
    dense = torch.nn.Linear(6, 4, bias=False).double().eval().requires_grad_(False)
    mask = torch.tensor([[True, False], [True, True]])
    layer = SparseLinear.from_linear(dense, (2, 3), criterion=mask)
    spread = mask.repeat_interleave(2, 0).repeat_interleave(3, 1)
    assert torch.equal(layer.weight.to_dense(), dense.weight * spread)
    assert not layer.values.requires_grad and not layer.training and layer.bias is None
    seen = []

    def score(weight):
        seen.append(weight)
        return torch.tensor([[1, 4], [3, 2]])

    layer = SparseLinear.from_linear(dense, (2, 3), 0.5, score)
    assert torch.equal(seen[0], dense.weight)
    assert layer.col_indices.tolist() == [1, 0] and layer.crow_indices.tolist() == [0, 1, 2]


def test_an_already_pruned_model():
    """Each layer keeps the blocks that hold a non-zero, NaN among them, however small."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 6))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].weight[1, 2], model[0].weight[3, 3] = 1e-30, float("nan")
        model[2].weight[:, 2:] = 0
    expected = [m.weight.clone() for m in (model[0], model[2])]
    last = SparseLinear.from_linear(model[2], (2, 1), 0.5, "nonzero")  # as many as there are
    assert sparsify_(model, (2, 1), criterion="nonzero") == ["0", "2"]
    assert [model[0].nnzb, model[2].nnzb, last.nnzb] == [2, 6, 6]
    for layer, dense in zip((model[0], model[2], last), [*expected, expected[1]], strict=True):
        torch.testing.assert_close(layer.weight.to_dense(), dense, rtol=0, atol=0, equal_nan=True)


BAD_CRITERIA = {
    "name": (TypeError, "criterion must be 'magnitude', 'nonzero'.*got 'magnitud'", "magnitud"),
    "mask shape": (ValueError, r"per block, shape \(2, 2\); got \(4, 6\)", torch.ones(4, 6).bool()),
    "mask dtype": (TypeError, "criterion must be a bool mask", torch.ones(2, 2)),
    "mask density": (ValueError, "the criterion keeps 4 blocks, but density 0.5 asks for 2 of 4",
                     torch.ones(2, 2).bool()),
    "nonzero density": (ValueError, "keeps 4 blocks, but density 0.5 asks for 2 of 4", "nonzero"),
    "score mask": (TypeError, "one score per block as a tensor of numbers, got torch.bool",
                   lambda w: torch.ones(2, 2).bool()),
    "score shape": (ValueError, r"shape \(2, 2\); got \(4, 6\)", lambda w: w),
    "score NaN": (ValueError, "returned NaN", lambda w: torch.full((2, 2), float("nan"))),
    "score kind": (TypeError, "tensor of numbers, got builtins.list", lambda w: [[1, 2], [3, 4]]),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_CRITERIA)
def test_bad_criteria(kind):
    error, words, criterion = BAD_CRITERIA[kind]
    with pytest.raises(error, match=words):
        SparseLinear.from_linear(torch.nn.Linear(6, 4), (2, 3), 0.5, criterion)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4))
    with pytest.raises(error, match=f"0: .*{words}"):
        sparsify_(model, (2, 3), 0.5, criterion=criterion)
    assert type(model[0]) is torch.nn.Linear


def test_from_linear_wants_a_linear_and_a_density():
    with pytest.raises(ValueError, match="density must be given, unless criterion is 'nonzero' or"):
        SparseLinear.from_linear(torch.nn.Linear(6, 4), (2, 3))
    with pytest.raises(TypeError, match=r"linear must be a torch\.nn\.Linear, got ReLU"):
        SparseLinear.from_linear(torch.nn.ReLU(), (2, 3), 0.5)


def test_sparsify():
    block = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    model = torch.nn.ModuleDict({"body": block, "head": torch.nn.Linear(16, 7)})
    x = torch.randn(3, 5, 16)
    expected = model["body"](x)
    replaced = sparsify_(model, 8, 1.0, filter=lambda name, layer: name != "head")
    # The projection inside of attention is read by its owner, not called.
    assert replaced == ["body.linear1", "body.linear2"]
    assert type(model["body"].linear1) is SparseLinear and type(model["head"]) is torch.nn.Linear
    close(model["body"](x), expected)
    with pytest.raises(ValueError, match="head: the block size must divide"):
        sparsify_(model, 8, 0.5)


def test_layers_called_by_name():
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 4)), torch.randn(3, 8)
    sparsify_(model, 2, 0.5)
    assert torch.equal(model[0](input=x), model(x))


def test_sparsify_takes_hooks_along():
    """Called as before, until their handles are removed."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    called = []

    def note(name):
        return lambda *arguments, **keywords: called.append(name)

    old = model[0]
    handles = [
        old.register_forward_pre_hook(note("before"), with_kwargs=True),
        old.register_forward_hook(note("after"), always_call=True),
        old.register_full_backward_pre_hook(note("before backward")),
        old.register_full_backward_hook(note("after backward")),
    ]
    sparsify_(model, 2, 0.5)
    assert type(model[0]) is SparseLinear
    for expected in (["before", "after", "before backward", "after backward"], []):
        called.clear()
        model(torch.randn(3, 8, requires_grad=True)).sum().backward()
        assert called == expected
        for handle in handles:
            handle.remove()


def test_sparsify_refuses_shared_weights_and_keeps_shared_layers():
    tied = torch.nn.ModuleDict({"in": torch.nn.Embedding(16, 8), "out": torch.nn.Linear(8, 16)})
    tied["out"].weight = tied["in"].weight
    with pytest.raises(ValueError, match=r"out.weight is shared.*filter"):
        sparsify_(tied, 4, 0.5)
    layer = torch.nn.Linear(8, 8)
    model = torch.nn.Sequential(layer, torch.nn.ReLU(), layer)
    assert sparsify_(model, 4, 0.5) == ["0", "2"]
    assert model[0] is model[2]
    with pytest.raises(ValueError, match="from_linear"):
        sparsify_(layer, 4, 0.5)


@pytest.mark.parametrize("padded", [False, True])
def test_fused_inference_of_torch(padded):
    """In eval mode without gradients torch's encoders read the weights of their linear layers."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    mask = torch.tensor([[False, False, True], [False, False, False]]) if padded else None
    x = torch.randn(2, 3, 16)
    assert len(sparsify_(model, 8, 0.5)) == 4
    expected = model(x, src_key_padding_mask=mask).detach()
    with torch.no_grad():
        got = model(x, src_key_padding_mask=mask)
    close(got, expected)


def test_sparsify_refuses_weights_without_values_of_their_own():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    torch.nn.utils.prune.l1_unstructured(model[0], "weight", 0.5)
    with pytest.raises(ValueError, match=r"0.weight is no parameter.*prune.remove"):
        sparsify_(model, 4, 0.5)
    torch.nn.utils.prune.remove(model[0], "weight")
    assert sparsify_(model, 4, 0.5) == ["0"]
    with pytest.raises(ValueError, match=r"0: linear is on the meta device"):
        sparsify_(torch.nn.Sequential(torch.nn.Linear(8, 8, device="meta")), 4, 0.5)


def test_sparsify_refuses_what_is_no_model_or_filter():
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got builtins\.list"):
        sparsify_([torch.nn.Linear(8, 8)], 4, 0.5)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    with pytest.raises(TypeError, match=r"filter must be callable or None, got builtins\.str"):
        sparsify_(model, 4, 0.5, filter="0")
    assert type(model[0]) is torch.nn.Linear

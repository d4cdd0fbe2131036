"""SparseLinear: as torch.nn.Linear behaves wherever modules go, on the blocks it stores."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from reference import close
from torch.utils.checkpoint import checkpoint

import sparse_autotune
from sparse_autotune import BsrTensor, SparseLinear, sparsify_

pytestmark = pytest.mark.usefixtures("no_races")


def twin(layer):
    """The dense layer with the same weight, zeros where no block is stored."""
    dense = torch.nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    dense.to(device=layer.values.device, dtype=layer.values.dtype)
    with torch.no_grad():
        dense.weight.copy_(layer.weight.to_dense())
        if layer.bias is not None:
            dense.bias.copy_(layer.bias)
    return dense


def test_forward_and_backward(device):
    for bias, block in ((True, 4), (False, (8, 2))):
        layer = SparseLinear(24, 32, block, 0.4, bias, device=device)
        dense = twin(layer)
        x = torch.randn(2, 5, 24, device=device, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        close(layer(x), dense(y))
        upstream = torch.randn(2, 5, 32, device=device)
        layer(x).backward(upstream)
        dense(y).backward(upstream)
        close(x.grad, y.grad)
        kept = BsrTensor(
            layer.crow_indices, layer.col_indices, torch.ones_like(layer.values), (32, 24)
        ).to_dense()
        stored = BsrTensor(layer.crow_indices, layer.col_indices, layer.values.grad, (32, 24))
        close(stored.to_dense(), dense.weight.grad * kept)
        if bias:
            close(layer.bias.grad, dense.bias.grad)


def test_a_new_layer():
    torch.manual_seed(0)
    layer = SparseLinear(64, 32, (8, 16), 0.5, dtype=torch.float64)
    assert layer.values.shape == (8, 8, 16) and layer.values.dtype == torch.float64
    assert layer.density == 0.5 and layer.nnzb == 8
    assert layer.weight.shape == (32, 64) and layer.weight.values is layer.values
    BsrTensor(*layer.weight._parts[:3], (32, 64), check=True)
    bound = 1 / 32**0.5  # half of 64 inputs are stored
    assert 0.9 * bound < layer.values.abs().max() <= bound
    other = SparseLinear(64, 32, (8, 16), 0.5, dtype=torch.float64)
    assert not torch.equal(other.values, layer.values)
    assert {name for name, _ in layer.named_parameters()} == {"values", "bias"}
    assert {name for name, _ in layer.named_buffers()} == {"crow_indices", "col_indices"}
    assert "block_size=(8, 16), density=0.5" in repr(layer)
    empty = SparseLinear(64, 32, 8, 0.0)
    assert torch.equal(empty(torch.randn(3, 64)), empty.bias.expand(3, 32))


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (ValueError, "block size must divide", (24, 30, 4, 0.5)),
        (ValueError, r"density must lie in \[0, 1\], got 1.5", (24, 32, 4, 1.5)),
        (ValueError, r"density must lie in \[0, 1\], got 'half'", (24, 32, 4, "half")),
        (TypeError, "block_size must be an int", (24, 32, "4x4", 0.5)),
        (TypeError, "in_features must be an int, got 24.0", (24.0, 32, 4, 0.5)),
        (ValueError, "out_features must not be negative, got -32", (24, -32, 4, 0.5)),
    ],
)
def test_bad_layers(error, words, arguments):
    with pytest.raises(error, match=words):
        SparseLinear(*arguments)
    with pytest.raises(TypeError, match="dtype must be float16"):
        SparseLinear(24, 32, 4, 0.5, dtype=torch.int8)


def test_density_of_numpy():
    assert SparseLinear(24, 32, 4, np.float32(0.5)).nnzb == 24


def test_bad_input_is_explained():
    layer = SparseLinear(24, 32, 4, 0.5)
    with pytest.raises(ValueError, match=r"in_features.*\(3, 25\), weight \(32, 24\)"):
        layer(torch.randn(3, 25))
    for no_tensor in (None, torch.ones(3, 24).numpy()):
        with pytest.raises(TypeError, match=r"x must be a dense torch\.Tensor"):
            layer(no_tensor)
    with pytest.raises(TypeError, match="x must have the dtype of weight"):
        layer(torch.randn(3, 24).double())


# State


def test_state_dict_with_another_number_of_blocks():
    source, target = SparseLinear(24, 32, 4, 0.3), SparseLinear(24, 32, 4, 0.6)
    parameter = target.values
    target(torch.randn(2, 24)).sum().backward()
    result = target.load_state_dict(source.state_dict())
    assert not result.missing_keys and not result.unexpected_keys
    assert target.values is parameter and target.values.grad is None
    x = torch.randn(3, 24)
    assert torch.equal(target(x), source(x))
    target(x).sum().backward()
    assert target.values.grad.shape == source.values.shape
    frozen = SparseLinear(24, 32, 4, 0.6).requires_grad_(False).freeze()
    frozen.load_state_dict(source.state_dict())  # which ends the promise about other values
    assert torch.equal(frozen(x), source(x))
    for assign in (True, False):
        model = torch.nn.Sequential(SparseLinear(24, 32, 4, 0.6))
        state = {f"0.{name}": tensor for name, tensor in source.state_dict().items()}
        model.load_state_dict(state, assign=assign)
        assert torch.equal(model(x), source(x))


def test_state_dicts_that_do_not_fit():
    source = SparseLinear(24, 32, 4, 0.3)
    for other in (SparseLinear(24, 16, 4, 0.3), SparseLinear(24, 32, 8, 0.3)):
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(RuntimeError, match=r"this layer needs \(\d+,\), \(nnzb,\) and \(nnzb"):
            other.load_state_dict(source.state_dict())
        for name, tensor in other.state_dict().items():
            assert torch.equal(tensor, before[name])
    state = source.state_dict()
    del state["col_indices"]
    with pytest.raises(RuntimeError, match=r"Missing key.*col_indices"):
        SparseLinear(24, 32, 4, 0.3).load_state_dict(state)


def test_state_is_strided_and_loads_safely(tmp_path):
    layer = SparseLinear(24, 32, 4, 0.3)
    assert all(t.layout == torch.strided and t.is_contiguous() for t in layer.state_dict().values())
    torch.save(layer.state_dict(), tmp_path / "state.pt")
    other = SparseLinear(24, 32, 4, 0.5)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    x = torch.randn(3, 24)
    assert torch.equal(other(x), layer(x))


@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("density", [0.3, 0.7, 0.0])
def test_safetensors(density, index_dtype, tmp_path):
    """A sparsified model through a file, into one with other patterns and numbers of blocks."""
    safetensors = pytest.importorskip(
        "safetensors.torch", reason="safetensors (dependency group test) is not installed"
    )
    path = tmp_path / "model.safetensors"

    def make():
        model = torch.nn.Sequential(
            torch.nn.Linear(24, 32), torch.nn.GELU(), torch.nn.Linear(32, 24, bias=False)
        )
        sparsify_(model, (8, 4), 0.5)
        return model

    source, target = make(), make()
    for layer in (source[0], source[2]):
        rows, cols = layer._grid()
        sparse_autotune.set_pattern_(layer, torch.rand(rows, cols) < density)
        layer.crow_indices = layer.crow_indices.to(index_dtype)
        layer.col_indices = layer.col_indices.to(index_dtype)
        torch.nn.init.normal_(layer.values)
    x = torch.randn(5, 24)
    expected = source(x)
    safetensors.save_file(source.state_dict(), path, metadata={"format": "pt"})
    for load in (
        lambda model: model.load_state_dict(safetensors.load_file(path)),
        lambda model: model.load_state_dict(safetensors.load_file(path), assign=True),
        lambda model: safetensors.load_model(model, path),
    ):
        target(x)  # with the pattern from before
        load(target)
        assert torch.equal(target(x), expected)
        for name, tensor in target.state_dict().items():
            assert torch.equal(tensor, source.state_dict()[name]), name
        target(x).square().sum().backward()
        assert all(p.grad.shape == p.shape for p in target.parameters())
        target = make()


def test_copies():
    layer = SparseLinear(24, 32, 4, 0.3)
    x = torch.randn(3, 24)
    expected = layer(x)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    for other in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(buffer, weights_only=False),
        copy.deepcopy(layer.requires_grad_(False).freeze()),
    ):
        assert torch.equal(other(x), expected)
        assert other.values.data_ptr() != layer.values.data_ptr()
        other.values.data.zero_()
        other.thaw()
    assert torch.equal(layer(x), expected)


def test_meta_device():
    layer = SparseLinear(24, 32, 4, 0.5, device="meta")
    assert layer.values.is_meta and layer.crow_indices.is_meta
    assert layer(torch.randn(3, 24, device="meta")).shape == (3, 32)
    made = layer.to_empty(device="cpu")
    made.reset_parameters()
    close(made(torch.eye(24)), twin(made)(torch.eye(24)))
    source = SparseLinear(24, 32, 4, 0.25)
    layer = SparseLinear(24, 32, 4, 0.5, device="meta")
    layer.load_state_dict(source.state_dict(), assign=True)
    assert torch.equal(layer(torch.eye(24)), source(torch.eye(24)))


def test_type_leaves_the_indices_alone():
    layer, x = SparseLinear(24, 32, 4, 0.5), torch.randn(3, 24)
    expected = layer(x).double()
    layer.type(torch.float64)
    assert layer.values.dtype == torch.float64 and layer.crow_indices.dtype == torch.int64
    close(layer(x.double()), expected, 1e-5)


def test_fake_tensors():
    """A model made to look at its shapes and its memory alone."""
    with torch._subclasses.fake_tensor.FakeTensorMode():
        layer = SparseLinear(24, 32, 4, 0.5)
        matrix = sparse_autotune.random_bsr(16, 32, 4, density=0.2)
        y = sparse_autotune.linear(layer(torch.randn(3, 24)), matrix)
        y.sum().backward()
    assert layer.values.grad.shape == (24, 4, 4) and y.shape == (3, 16)


def test_conversion(device):
    layer = SparseLinear(24, 32, 4, 0.5).to(device)
    x = torch.randn(3, 24, device=device)
    expected = layer(x)
    for convert, dtype in (("half", torch.float16), ("bfloat16", torch.bfloat16)):
        other = getattr(copy.deepcopy(layer), convert)()
        assert other.values.dtype == other.bias.dtype == dtype
        assert other.crow_indices.dtype == torch.int64
        close(other(x.to(dtype)), expected.to(dtype), 0.05)
    close(copy.deepcopy(layer).double()(x.double()), expected.double())
    with pytest.raises(TypeError, match="values must be float16"):
        layer.to(torch.float8_e4m3fn)
    assert torch.equal(layer(x), expected)  # nothing was converted


# What training does


def test_autocast(device):
    layer = SparseLinear(24, 32, 4, 0.5, device=device)
    x = torch.randn(3, 24, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        result = layer(x)
        expected = twin(layer)(x)
    assert result.dtype == expected.dtype == torch.bfloat16
    close(result, expected, 0.02)
    result.float().sum().backward()
    assert layer.values.grad.dtype == torch.float32
    layer(x)  # and outside of it as before


def test_autocast_leaves_other_types_alone():
    """torch converts neither float64 nor integers."""
    layer = SparseLinear(24, 32, 4, 0.5, dtype=torch.float64)
    x = torch.randn(3, 24, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.float64
        for other in (x, x.long()):
            with pytest.raises(TypeError, match=r"^x must"):
                layer.float()(other)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    layer = SparseLinear(24, 24, 4, 0.5)
    x = torch.randn(3, 24, requires_grad=True)
    layer(layer(x)).sum().backward()
    expected = x.grad, layer.values.grad
    x.grad = layer.values.grad = None
    checkpoint(lambda x: layer(layer(x)), x, use_reentrant=reentrant).sum().backward()
    close((x.grad, layer.values.grad), expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_under_autocast(reentrant):
    """The recomputation ends by an exception, in which the layer must see no mistake of its own."""
    layer = SparseLinear(24, 24, 4, 0.5)
    gradients = []
    for run in (lambda f, x: f(x), lambda f, x: checkpoint(f, x, use_reentrant=reentrant)):
        x = torch.ones(3, 24, requires_grad=True)
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            run(lambda x: layer(layer(x)), x).sum().backward()
        gradients.append((x.grad, layer.values.grad))
    for got, expected in zip(*gradients, strict=True):
        assert torch.equal(got, expected)


def test_functional_call_and_per_sample_gradients():
    layer = SparseLinear(12, 8, 4, 0.5).double()
    x = torch.randn(3, 12, dtype=torch.float64)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    got = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(3):
        layer.zero_grad()
        layer(x[i]).square().sum().backward()
        for name, parameter in layer.named_parameters():
            close(got[name][i], parameter.grad)


# Inference


def test_freezing():
    layer = SparseLinear(24, 32, 4, 0.5)
    x = torch.randn(3, 24)
    expected = layer(x)
    with pytest.raises(RuntimeError, match="require grad"):
        layer.freeze()
    close(layer(x), expected)
    layer.requires_grad_(False)
    assert layer.freeze() is layer and layer.prepare() is layer
    close(layer(x), expected)
    doubled = layer.double()  # a new promise, of other values
    close(doubled(x.double()), expected.double())
    layer.values.mul_(2)
    with pytest.raises(RuntimeError, match=r"frozen.*thaw\(\)"):
        layer(x.double())
    assert layer.thaw() is layer
    close(layer(x.double()) - layer.bias, 2 * (expected.double() - layer.bias))
    layer.freeze().values.requires_grad_()
    with pytest.raises(RuntimeError, match="require grad"):
        layer(x.double())


def test_freezing_values_that_replaced_frozen_ones():
    layer = SparseLinear(24, 32, 4, 0.5).requires_grad_(False).freeze()
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    layer.load_state_dict(state, assign=True)
    layer.freeze().values.mul_(2)
    with pytest.raises(RuntimeError, match=r"frozen.*thaw\(\)"):
        layer(torch.randn(3, 24))


def test_values_that_stand_in_for_frozen_ones_are_not_frozen():
    """Copies of the layer's own values must not serve them."""
    layer = SparseLinear(24, 32, 4, 0.5).requires_grad_(False).freeze()
    x = torch.randn(3, 24)
    others = {"values": 3 * layer.values}
    expected = layer(x)
    for _ in range(3):
        got = torch.func.functional_call(layer, others, (x,))
        close(got - layer.bias, 3 * (expected - layer.bias))
        close(layer(x), expected)


def test_prepare_checks_the_indices():
    layer = SparseLinear(24, 32, 4, 0.5)
    layer.col_indices[0] = 6
    with pytest.raises(ValueError, match=r"col_indices must lie in \[0, 6\)"):
        layer.prepare()
    with pytest.raises(ValueError, match=r"col_indices must lie in \[0, 6\)"):
        layer(torch.randn(3, 24))


def test_plans_go_with_the_layer(drops):
    layer = SparseLinear(24, 32, 4, 0.5)
    layer(torch.randn(3, 24))
    plan = ("disown_indices", layer.crow_indices.data_ptr(), layer.col_indices.data_ptr())
    assert plan not in drops
    del layer
    assert plan in drops

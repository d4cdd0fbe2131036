"""Tensors whose memory was given back, as sharding does between uses: refused, never read."""

import pytest
import torch

from sparse_autotune import BsrTensor, SparseLinear, matmul, random_bsr, sampled_matmul

pytestmark = pytest.mark.usefixtures("no_races")


def _tensors(device):
    a = random_bsr(64, 96, 16, density=0.5, device=device)
    tensors = {
        "crow_indices": a.crow_indices,
        "col_indices": a.col_indices,
        "values": a.values,
        "b": torch.randn(3, 96, 8, device=device)[1],
        "bias": torch.randn(64, device=device),
        "out": torch.empty(64, 8, device=device),
    }
    return a, tensors


@pytest.mark.parametrize("calls_before", [0, 3])
@pytest.mark.parametrize("which", ["crow_indices", "col_indices", "values", "b", "bias", "out"])
def test_products(which, calls_before, device):
    a, tensors = _tensors(device)
    b, bias, out = (tensors[name] for name in ("b", "bias", "out"))
    for _ in range(calls_before):
        matmul(a, b, bias=bias, out=out)
    tensors[which].untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="not allocated"):
        matmul(a, b, bias=bias, out=out)


@pytest.mark.parametrize("which", ["crow_indices", "col_indices", "values", "b", "bias", "out"])
def test_views_far_into_memory(which, device):
    """As those that FSDP's first version makes of its flat parameters."""
    a, tensors = _tensors(device)
    memory = tensors[which].new_empty((4 << 20) + tensors[which].numel())
    tensors[which] = memory[4 << 20 :].view_as(tensors[which]).copy_(tensors[which])
    crow, col, values, b, bias, out = tensors.values()
    a = BsrTensor(crow, col, values, a.shape)
    for _ in range(3):
        matmul(a, b, bias=bias, out=out)
    memory.untyped_storage().resize_(0)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="not allocated"):
            matmul(a, b, bias=bias, out=out)


@pytest.mark.parametrize("which", ["x", "y", "col_indices"])
def test_sampled_products(which, device):
    a, tensors = _tensors(device)
    tensors |= {"x": torch.randn(64, 8, device=device), "y": torch.randn(8, 96, device=device)}
    tensors[which].untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="not allocated"):
        sampled_matmul(tensors["x"], tensors["y"], a)


@pytest.mark.parametrize("trained", [True, False])
def test_layers(trained, device):
    layer = SparseLinear(96, 64, 16, 0.5, device=device).requires_grad_(trained)
    x = torch.randn(5, 96, device=device)
    for _ in range(3):
        expected = layer(x)
    kept, size = layer.values.detach().clone(), layer.values.untyped_storage().nbytes()
    layer.values.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="not allocated"):
        layer(x)
    layer.values.untyped_storage().resize_(size)
    with torch.no_grad():
        layer.values.copy_(kept)
    torch.testing.assert_close(layer(x), expected)


def test_empty_tensors_need_no_memory(device):
    empty = random_bsr(64, 96, 16, density=0.0, device=device)
    values = torch.empty(4, 16, 16, device=device)[4:]
    a = BsrTensor(empty.crow_indices, empty.col_indices, values, empty.shape)
    assert not matmul(a, torch.randn(96, 8, device=device)).any()
    assert matmul(a, torch.empty(96, 8, device=device)[:, 8:]).shape == (64, 0)

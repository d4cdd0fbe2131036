"""BsrTensor: construction, copies, transposes, products."""

import copy
import gc
import io
import pickle
import sys

import numpy as np
import pytest
import torch
from small_matrix import SMALL_DENSE, small

import sparse_autotune
from sparse_autotune import BsrTensor, random_bsr


def test_attributes():
    a = small(torch.bfloat16, torch.int32)
    assert a.shape == torch.Size((4, 6))
    assert isinstance(a.shape, torch.Size)
    assert a.block_size == (2, 3)
    assert a.nnzb == 3
    assert a.density == 0.75
    assert a.dtype == torch.bfloat16
    assert a.device == torch.device("cpu")
    assert a.crow_indices.tolist() == [0, 2, 3]
    assert a.crow_indices.dtype == torch.int32


def test_keeps_the_given_tensors():
    crow, col, values = torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1, 2, 2)
    a = BsrTensor(crow, col, values, [2, 2])
    assert a.crow_indices is crow and a.col_indices is col and a.values is values


def test_attributes_cannot_be_assigned():
    a = small()
    with pytest.raises(AttributeError):
        a.values = a.values.clone()
    with pytest.raises(AttributeError):
        a.something_else = 1


def test_repr_is_one_short_line():
    text = repr(random_bsr(4096, 4096, 64, density=0.125, dtype=torch.bfloat16))
    assert text == ("BsrTensor(4096x4096, block 64x64, nnzb 512, density 0.125, bfloat16, cpu)")
    assert repr(small().freeze()).endswith("cpu, frozen)")


def test_equality_is_identity():
    a, b = small(), small()
    assert a == a and a != b
    assert len({a, b}) == 2


def test_final():
    assert not issubclass(BsrTensor, torch.Tensor) and not hasattr(small(), "__dict__")
    if sys.version_info >= (3, 11):  # before, typing.final leaves no mark
        assert BsrTensor.__final__


def test_to():
    a = small()
    assert a.to(torch.float32) is a and a.to("cpu") is a and a.cpu() is a
    b = a.to(torch.float64)
    assert b.dtype == torch.float64 and b.crow_indices is a.crow_indices
    assert torch.equal(b.to_dense(), SMALL_DENSE.double())
    assert a.to(dtype=torch.float16).dtype == torch.float16
    assert a.to("cpu", torch.float16).dtype == torch.float16
    assert a.to(torch.ones(1, dtype=torch.float64)).dtype == torch.float64
    assert a.to(b).dtype == torch.float64 and b.to(b) is b
    assert a.to("cpu", torch.float32, True) is a  # non_blocking, as torch's comes third
    c = a.to("cpu", torch.float32, False, True)
    assert c is not a and c.values.data_ptr() != a.values.data_ptr()
    assert c.crow_indices.data_ptr() != a.crow_indices.data_ptr()
    copied = a.to(torch.float32, False, True)  # both may follow a dtype or a tensor, too
    assert copied is not a and copied.values.data_ptr() != a.values.data_ptr()
    assert a.to(torch.float64, True).dtype == torch.float64
    assert a.to(a, True) is a and a.to(a, True, True) is not a
    assert a.to("meta").device.type == "meta"
    with pytest.raises(TypeError, match=r"values must be float16.*got torch\.int32"):
        a.to(torch.int32)
    with pytest.raises(TypeError, match="takes one dtype"):
        a.to(torch.float16, torch.float32)
    with pytest.raises(TypeError, match="takes one dtype"):
        a.to(b, torch.float32)
    with pytest.raises(TypeError, match=r"takes a dtype after a device, got True"):
        a.to("cpu", True)


@pytest.mark.gpu
def test_cuda():
    a = small()
    b = a.cuda()
    assert b.device == torch.device("cuda", torch.cuda.current_device())
    assert b.crow_indices.device == b.col_indices.device == b.device
    assert b.cuda() is b and a.cuda(0).device.index == 0
    assert torch.equal(b.cpu().to_dense(), SMALL_DENSE)


def test_clone_and_detach():
    a = small()
    a.values.requires_grad_()
    b = a.clone()
    assert b.values.requires_grad
    b.values.sum().backward()
    assert torch.equal(a.values.grad, torch.ones(3, 2, 3))
    assert b.crow_indices.data_ptr() != a.crow_indices.data_ptr()
    c = a.detach()
    assert not c.values.requires_grad
    assert c.values.data_ptr() == a.values.data_ptr() and c.crow_indices is a.crow_indices


def copied(a, way):
    if way == "pickle":
        return pickle.loads(pickle.dumps(a))
    if way == "deepcopy":
        return copy.deepcopy(a)
    file = io.BytesIO()
    torch.save(a, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("way", ["pickle", "deepcopy", "torch.save"])
def test_copies_are_whole_and_thawed(way):
    a = small(torch.bfloat16, torch.int32).freeze()
    b = copied(a, way)
    assert type(b) is BsrTensor and b.crow_indices.dtype == torch.int32
    assert torch.equal(b.to_dense(), a.to_dense())
    assert b.values.data_ptr() != a.values.data_ptr()
    b.values.zero_()
    b.check_frozen()
    assert "frozen" not in repr(b)
    assert torch.equal(a.to_dense(), SMALL_DENSE.bfloat16())


def test_pytree():
    from torch.utils import _pytree as pytree

    a = small()
    leaves, spec = pytree.tree_flatten({"weight": a})
    assert [leaf.data_ptr() for leaf in leaves] == [
        a.crow_indices.data_ptr(), a.col_indices.data_ptr(), a.values.data_ptr(),
    ]  # fmt: skip
    b = pytree.tree_unflatten(leaves, spec)["weight"]
    assert torch.equal(b.to_dense(), SMALL_DENSE) and b.block_size == (2, 3)
    shapes = pytree.tree_map(lambda leaf: tuple(leaf.shape), a)
    assert shapes.values == (3, 2, 3) and shapes.shape == (4, 6)


def test_matmul_operator():
    a, b = small(), torch.randn(6, 5)
    assert torch.equal(a @ b, sparse_autotune.matmul(a, b))
    assert torch.allclose(a @ b, SMALL_DENSE @ b)


def test_dense_at_bsr():
    left = torch.randn(3, 4)
    assert torch.allclose(left @ small(), left @ SMALL_DENSE)
    with pytest.raises(TypeError, match=r"a must be a dense torch\.Tensor, got numpy"):
        np.ones((3, 4)) @ small()


# The transpose


def test_transpose_shares_everything(drops):
    a = small()
    for turned in (a.t(), a.mT, a.T):
        assert turned.shape == (6, 4) and turned.is_transposed and not a.is_transposed
        assert turned.values is a.values and turned.crow_indices is a.crow_indices
        assert turned.block_size == (2, 3) and turned.nnzb == 3 and turned.density == 0.75
        assert torch.equal(turned.to_dense(), SMALL_DENSE.T)
        assert turned.t().shape == a.shape and torch.equal(turned.t().to_dense(), SMALL_DENSE)
        assert "6x4, block 2x3 of a transposed matrix" in repr(turned)
    del turned
    gc.collect()
    assert not drops  # the plan is that of a


def test_products_with_transposes():
    a, x = small(), torch.randn(4, 5)
    assert torch.allclose(a.t() @ x, SMALL_DENSE.T @ x)
    assert torch.allclose(x.T @ a, x.T @ SMALL_DENSE)
    assert torch.allclose(torch.randn(0, 6) @ a.t(), torch.zeros(0, 4))
    assert torch.allclose(sparse_autotune.linear(x.T, a.t()), x.T @ SMALL_DENSE)
    frozen = small().freeze()
    assert not frozen.t()._frozen


@pytest.mark.parametrize("convert", [
    lambda a: a.clone(), lambda a: a.detach(), lambda a: a.to(torch.float64).to(torch.float32),
    copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a)),
    lambda a: BsrTensor.from_torch(a.to_torch()),
    lambda a: torch.utils._pytree.tree_map(lambda t: t, a), lambda a: 1 * a,
])  # fmt: skip
def test_copies_of_a_transpose_are_transposes(convert):
    turned = convert(small().t())
    assert turned.is_transposed and torch.equal(turned.to_dense(), SMALL_DENSE.T)


def test_saving_a_transpose():
    buffer = io.BytesIO()
    torch.save(small().t(), buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=True).to_dense(), SMALL_DENSE.T)


def test_transposes_of_torch_are_not_copied():
    a = small()
    native = a.to_torch().t()
    assert native.layout == torch.sparse_bsc
    turned = BsrTensor.from_torch(native)
    assert turned.is_transposed and turned.values.data_ptr() == a.values.data_ptr()
    assert a.t().to_torch().layout == torch.sparse_bsc
    x = torch.randn(4, 5)
    assert torch.allclose(sparse_autotune.matmul(native, x), SMALL_DENSE.T @ x)
    assert torch.allclose(sparse_autotune.matmul(x.T, native.t()), x.T @ SMALL_DENSE)
    assert np.array_equal(a.t().to_scipy().toarray(), SMALL_DENSE.T.numpy())
    own = SMALL_DENSE.to_sparse_bsc((2, 3))  # no transpose of anything: copied
    assert torch.equal(BsrTensor.from_torch(own).to_dense(), SMALL_DENSE)
    assert torch.allclose(sparse_autotune.matmul(own, torch.eye(6)), SMALL_DENSE)


def test_scaling():
    a = small().requires_grad_()
    factor = torch.tensor(3.0, requires_grad=True)
    for scaled in (a * 2, 2 * a, a * torch.tensor(2.0)):
        assert torch.equal(scaled.to_dense(), 2 * SMALL_DENSE)
        assert scaled.crow_indices is a.crow_indices
    (a * factor).to_dense().sum().backward()
    assert factor.grad == SMALL_DENSE.sum()
    for wrong in ("2", torch.ones(2), None, 1j):
        with pytest.raises(TypeError):
            a * wrong


def test_conversions_of_values():
    assert small().half().dtype == torch.float16
    assert small().double().dtype == torch.float64 and small().float().dtype == torch.float32
    assert small().bfloat16().t().dtype == torch.bfloat16
    a = small()
    assert not a.requires_grad and a.requires_grad_() is a and a.values.requires_grad
    assert not a.requires_grad_(False).requires_grad


@pytest.mark.gpu
def test_pinned_memory():
    a = small().pin_memory()
    assert all(t.is_pinned() for t in (a.crow_indices, a.col_indices, a.values))
    assert torch.equal(a.to("cuda", non_blocking=True).to_dense().cpu(), SMALL_DENSE)


def test_meta_and_fake_tensors():
    a = small().to("meta")
    assert a.nnzb == 3 and a.shape == (4, 6) and a.clone().device.type == "meta"
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        parts = [mode.from_tensor(t) for t in (a.crow_indices, a.col_indices, a.values)]
        fake = BsrTensor(*parts, (4, 6))
        assert fake.values.shape == (3, 2, 3)

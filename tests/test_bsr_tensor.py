"""BsrTensor: construction, copies, frozen values, lifetime of plans."""

import copy
import gc
import io
import pickle

import numpy as np
import pytest
import torch

import sparse_autotune
from sparse_autotune import BsrTensor, _tuner, random_bsr

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def small(dtype=torch.float32, index_dtype=torch.int64, device="cpu"):
    """A 4 x 6 matrix of 2 x 3 blocks: one full row and the last block of the next."""
    values = torch.arange(1.0, 19.0).reshape(3, 2, 3).to(device=device, dtype=dtype)
    crow = torch.tensor([0, 2, 3], dtype=index_dtype, device=device)
    col = torch.tensor([0, 1, 1], dtype=index_dtype, device=device)
    return BsrTensor(crow, col, values, (4, 6))


SMALL_DENSE = torch.tensor(
    [
        [1.0, 2.0, 3.0, 7.0, 8.0, 9.0],
        [4.0, 5.0, 6.0, 10.0, 11.0, 12.0],
        [0.0, 0.0, 0.0, 13.0, 14.0, 15.0],
        [0.0, 0.0, 0.0, 16.0, 17.0, 18.0],
    ]
)


@pytest.fixture
def drops(monkeypatch):
    """Records what the library is told to forget, and still forgets it."""
    calls = []
    for name in ("disown_indices", "drop_frozen"):
        real = getattr(_tuner, name)

        def record(*pointers, name=name, real=real):
            calls.append((name, *pointers))
            real(*pointers)

        monkeypatch.setattr(_tuner, name, record)
    return calls


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
    assert BsrTensor.__final__
    assert not hasattr(BsrTensor, "__torch_function__")


def test_to():
    a = small()
    assert a.to(torch.float32) is a and a.to("cpu") is a and a.cpu() is a
    b = a.to(torch.float64)
    assert b.dtype == torch.float64 and b.crow_indices is a.crow_indices
    assert torch.equal(b.to_dense(), SMALL_DENSE.double())
    assert a.to(dtype=torch.float16).dtype == torch.float16
    assert a.to("cpu", torch.float16).dtype == torch.float16
    assert a.to(torch.ones(1, dtype=torch.float64)).dtype == torch.float64
    c = a.to("cpu", copy=True)
    assert c is not a and c.values.data_ptr() != a.values.data_ptr()
    assert c.crow_indices.data_ptr() != a.crow_indices.data_ptr()
    assert a.to("meta").device.type == "meta"
    with pytest.raises(TypeError, match=r"values must be float16.*got torch\.int32"):
        a.to(torch.int32)
    with pytest.raises(TypeError, match="takes one dtype"):
        a.to(torch.float16, torch.float32)


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
    assert small().bfloat16().t().dtype == torch.bfloat16
    a = small()
    assert not a.requires_grad and a.requires_grad_() is a and a.values.requires_grad
    assert not a.requires_grad_(False).requires_grad


@pytest.mark.gpu
def test_pinned_memory():
    a = small().pin_memory()
    assert all(t.is_pinned() for t in (a.crow_indices, a.col_indices, a.values))
    assert torch.equal(a.to("cuda", non_blocking=True).to_dense().cpu(), SMALL_DENSE)


def test_prepare():
    a = small()
    assert a.prepare() is a
    assert torch.allclose(a @ torch.eye(6), SMALL_DENSE)
    bad = BsrTensor(torch.tensor([0, 2]), torch.tensor([1, 0]), torch.ones(2, 1, 1), (1, 2))
    with pytest.raises(ValueError, match=r"ascend.*row 0 has 1 before 0"):
        bad.prepare()


def test_freeze_and_thaw(drops):
    a = small()
    b = torch.eye(6)
    assert a.freeze() is a and a.freeze() is a
    assert torch.allclose(a @ b, SMALL_DENSE)
    a.values.mul_(2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"frozen.*version was \d+.*\d+ now.*thaw\(\)"):
            a @ b
    with pytest.raises(RuntimeError, match=r"thaw\(\)"):
        sparse_autotune.linear(b, a)
    assert a.thaw() is a
    assert ("drop_frozen", a.values.data_ptr()) in drops
    assert torch.allclose(a @ b, 2 * SMALL_DENSE)
    a.values.mul_(2)
    assert torch.allclose(a @ b, 4 * SMALL_DENSE)
    a.freeze()
    assert torch.allclose(a @ b, 4 * SMALL_DENSE)


def test_thaw_without_freeze(drops):
    assert small().thaw() is not None
    assert not [call for call in drops if call[0] == "drop_frozen"]


def test_freezing_trained_values_raises():
    a = small()
    a.values.requires_grad_()
    with pytest.raises(RuntimeError, match=r"freeze\(\).*require grad.*detach"):
        a.freeze()
    a.detach().freeze()


def test_frozen_copies_differ():
    """Every way to another tensor ends the promise, but for `to` when it changes nothing."""
    a = small().freeze()
    assert a.to(torch.float32) is a
    for other in (a.clone(), a.detach(), a.to(torch.float64), a.to("cpu", copy=True)):
        assert "frozen" not in repr(other)


def test_frozen_inference_tensors_count_as_immutable():
    with torch.inference_mode():
        a = small().freeze()
        b = torch.eye(6)
        assert torch.allclose(a @ b, SMALL_DENSE)
        a.check_frozen()
        a.values.mul_(2)
        a.invalidate()
        assert torch.allclose(a @ b, 2 * SMALL_DENSE)


def test_invalidate_forgets_the_pattern_of_inference_tensors():
    with torch.inference_mode():
        a, b = small(), torch.eye(6)
        assert torch.allclose(a @ b, SMALL_DENSE)
        a.col_indices[2] = 0
        assert a.invalidate() is a
        expected = SMALL_DENSE.clone()
        expected[2:] = expected[2:].roll(3, dims=1)
        assert torch.allclose(a @ b, expected)


def test_in_place_index_edits_are_noticed():
    a, b = small(), torch.eye(6)
    assert torch.allclose(a @ b, SMALL_DENSE)
    a.col_indices[2] = 0
    expected = SMALL_DENSE.clone()
    expected[2:] = expected[2:].roll(3, dims=1)
    assert torch.allclose(a @ b, expected)
    a.col_indices[2] = 5
    with pytest.raises(ValueError, match=r"col_indices.*\[0, 2\).*5 at position 2"):
        a @ b


def test_tensors_replaced_through_data():
    """As `module.half()` does; no version counter shows it."""
    a, b = random_bsr(64, 64, 16, density=0.5), torch.randn(64, 8)

    def check(b):
        for _ in range(3):
            torch.testing.assert_close(
                a @ b, a.to_dense() @ b, rtol=2e-2 if b.dtype == torch.float16 else 1e-4, atol=1e-2
            )

    check(b)
    a.values.data = a.values.data * 2
    check(b)
    a.values.data = a.values.data.half()
    check(b.half())
    with pytest.raises(TypeError, match=r"b must have the dtype of a"):
        a @ b
    a.values.data = a.values.data.double()
    check(b.double())
    a.col_indices.data = (a.col_indices.data + 0).clone()
    kept = a.col_indices.data.clone()
    for row in range(4):
        begin, end = a.crow_indices[row : row + 2].tolist()
        free = sorted(set(range(4)) - set(kept[begin:end].tolist()))
        if free and end > begin:
            moved = kept.clone()
            moved[begin:end] = torch.tensor(sorted({*kept[begin + 1 : end].tolist(), free[0]}))
            a.col_indices.data = moved
            check(b.double())
    a.values.data = torch.ones(1, 16, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"values holds 1 blocks, col_indices"):
        a @ b.double()
    a.values.data = torch.ones(a.nnzb, 8, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"must divide|block rows"):
        a @ b.double()


def test_plan_goes_with_the_last_owner(drops):
    a = small()
    plan = ("disown_indices", a.crow_indices.data_ptr(), a.col_indices.data_ptr())
    view, half = a.detach(), a.to(torch.bfloat16)
    del a
    gc.collect()
    assert plan not in drops
    del view
    gc.collect()
    assert plan not in drops
    del half
    gc.collect()
    assert drops.count(plan) == 1


def test_frozen_copies_go_with_the_matrix(drops):
    a = small().freeze()
    values = a.values
    del a
    gc.collect()
    assert drops.count(("drop_frozen", values.data_ptr())) == 1
    a = small().freeze()
    pointer = a.values.data_ptr()
    a.thaw()
    count = drops.count(("drop_frozen", pointer))
    del a
    gc.collect()
    assert drops.count(("drop_frozen", pointer)) == count


def test_index_memory_is_released_with_the_matrix():
    """A plan keeps its index tensors alive; without an owner it must go."""
    import weakref

    a = random_bsr(64, 64, 16, density=0.5)
    a @ torch.ones(64, 8)
    storage = weakref.ref(a.crow_indices)
    del a
    gc.collect()
    assert storage() is None


def test_meta_and_fake_tensors():
    a = small().to("meta")
    assert a.nnzb == 3 and a.shape == (4, 6) and a.clone().device.type == "meta"
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        parts = [mode.from_tensor(t) for t in (a.crow_indices, a.col_indices, a.values)]
        fake = BsrTensor(*parts, (4, 6))
        assert fake.values.shape == (3, 2, 3)


def test_compiled_left_operand_is_right_or_raises():
    """On square shapes, where the wrong order of operands has the right shape."""
    dense = torch.randn(16, 16)
    a, x = BsrTensor.from_dense(dense, 8), torch.randn(16, 16)
    try:
        result = torch.compile(lambda a, x: a @ x, backend="eager")(a, x)
    except Exception as error:
        print(f"compiled a @ x raises: {type(error).__name__}")
        return
    assert torch.allclose(result, dense @ x, atol=1e-5)

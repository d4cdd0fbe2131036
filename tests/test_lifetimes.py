"""What is kept for a BsrTensor: prepared, frozen, forgotten, and gone with the matrix."""

import gc
import weakref

import pytest
import torch
from small_matrix import SMALL_DENSE, small

import sparse_autotune
from sparse_autotune import BsrTensor, random_bsr


def pointers(a):
    return a.crow_indices.data_ptr(), a.col_indices.data_ptr(), a.values.data_ptr()


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
    assert ("drop_frozen", *pointers(a)) in drops
    assert torch.allclose(a @ b, 2 * SMALL_DENSE)
    a.values.mul_(2)
    a.check_frozen()  # which it is not
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
    drop, parts = ("drop_frozen", *pointers(a)), (a.crow_indices, a.col_indices, a.values)
    del a
    gc.collect()
    assert drops.count(drop) == 1
    a = sparse_autotune.BsrTensor(*parts, SMALL_DENSE.shape).freeze()
    a.thaw()
    assert drops.count(drop) == 2
    del a
    gc.collect()
    assert drops.count(drop) == 2


def test_index_memory_is_released_with_the_matrix():
    """A plan keeps its index tensors alive; without an owner it must go."""
    a = random_bsr(64, 64, 16, density=0.5)
    a @ torch.ones(64, 8)
    storage = weakref.ref(a.crow_indices)
    del a
    gc.collect()
    assert storage() is None

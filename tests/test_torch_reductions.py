"""Sums, norms, comparisons and sizes by torch's functions and methods: as of a dense tensor."""

import math

import pytest
import torch
from problem import BF16, FP32, FP64
from whole_matrices import EACH_DTYPE, K, M, N, each, make, same, whole

from sparse_autotune import BsrTensor, random_bsr

pytestmark = pytest.mark.usefixtures("no_races")

INF = math.inf


# Reductions

DIMS = [None, 0, 1, -1, -2, (0,), [1], (0, 1), (-1, 0), ()]


@EACH_DTYPE
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", DIMS, ids=str)
def test_sums(dim, keepdim, dtype, device):
    for a, dense in each(dtype, device):
        expected = torch.sum(dense, dim, keepdim)
        same(a.sum(dim, keepdim), expected)
        same(torch.sum(a, dim, keepdim=keepdim), expected)
        same(a.sum(dim=dim, keepdim=keepdim, dtype=FP64), expected.double())


def test_sums_without_arguments(device):
    for a, dense in each(device=device):
        same(a.sum(), dense.sum())
        same(torch.sum(a), dense.sum())
        same(torch.sum(a, dtype=FP64), dense.sum(dtype=FP64))


def test_sums_of_many_halves(device):
    """As those of a dense matrix they do not stop growing at the first number without a next."""
    for block in ((1, 1), (2, 1), (2, 4)):
        dense = torch.ones(8, 4096, dtype=BF16, device=device)
        a = BsrTensor.from_dense(dense, block)
        same(a.sum(1), dense.sum(1))
        same(a.t().sum(0), dense.sum(1))


@EACH_DTYPE
@pytest.mark.parametrize("sign", [None, 1, -1])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", DIMS[1:], ids=str)
def test_largest_elements(dim, keepdim, sign, dtype, device):
    """Absent elements are zeros: the largest of a line of negative ones, unless it is full."""
    for a, dense in each(dtype, device, sign=sign):
        expected = torch.amax(dense, dim, keepdim)
        same(a.amax(dim, keepdim), expected)
        same(torch.amax(a, dim, keepdim=keepdim), expected)


def test_largest_elements_without_arguments(device):
    for sign in (None, 1, -1):
        for a, dense in each(device=device, sign=sign):
            same(a.amax(), dense.amax())
            same(torch.amax(a), dense.amax())


def test_nan_is_the_largest_element(device):
    for a, _ in each(device=device):
        if a.nnzb:
            a.values[-1, -1, -1] = math.nan
            dense = a.to_dense()
            for dim in ((), 0, 1):
                got, expected = a.amax(dim), dense.amax(dim)
                assert expected.isnan().sum() == 1
                torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@EACH_DTYPE
def test_norms(dtype, device):
    tolerance = {FP32: 1e-6, FP64: 1e-14, BF16: 2**-8}[dtype]
    for a, dense in each(dtype, device):
        wide = dense.double()
        for function, expected in (
            (lambda a: a.norm(), wide.norm()),
            (lambda a: a.norm("fro"), wide.norm()),
            (lambda a: a.norm(1), wide.norm(1)),
            (lambda a: a.norm(p=3), wide.norm(3)),
            (lambda a: a.norm(INF), wide.norm(INF)),
            (lambda a: torch.norm(a), wide.norm()),
            (lambda a: torch.norm(a, 0.5), wide.norm(0.5)),
            (lambda a: torch.norm(a, p=INF), wide.norm(INF)),
            (torch.linalg.norm, wide.norm()),
            (torch.linalg.matrix_norm, wide.norm()),
            (torch.linalg.vector_norm, wide.norm()),
            (lambda a: torch.linalg.vector_norm(a, 1), wide.norm(1)),
            (lambda a: torch.linalg.vector_norm(a, ord=INF), wide.norm(INF)),
            (lambda a: torch.linalg.norm(a, "fro"), wide.norm()),
        ):
            got = function(a)
            assert got.dtype == dtype and got.shape == () and got.device == a.device
            torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=0)


def test_the_norm_of_a_batch():
    a, _ = make("full")
    batch = BsrTensor(a.crow_indices, a.col_indices, whole(3, *a.values.shape, like=a), (M, K))
    torch.testing.assert_close(batch.norm(), torch.norm(batch.to_dense()))


def test_reductions_that_are_refused():
    a, _ = make("full")
    batch = BsrTensor(a.crow_indices, a.col_indices, torch.stack([a.values] * 2), (M, K))
    for function in (torch.sum, torch.amax):
        for dim in (2, -3, (0, 2)):
            with pytest.raises(IndexError, match="dim must be -2, -1, 0 or 1, got"):
                function(a, dim)
        with pytest.raises(ValueError, match=r"reductions take one matrix, got a batch.*unbind"):
            function(batch, 0)
    nothing = BsrTensor(torch.tensor([0]), a.col_indices[:0], a.values[:0], (0, K))
    with pytest.raises(ValueError, match=r"amax of a matrix without elements, shape \(0, 12\)"):
        nothing.amax()
    same(nothing.sum(0), torch.zeros(K))
    same(nothing.sum(1), torch.zeros(0))
    for wrong in (0, -1, "nuc", math.nan):
        with pytest.raises(ValueError, match="order of a norm must be 'fro' or a positive number"):
            a.norm(wrong)
    for call in (
        lambda: torch.norm(a, dim=0),
        lambda: torch.linalg.norm(a, 2),
        lambda: torch.linalg.matrix_norm(a, "nuc"),
    ):
        with pytest.raises(TypeError, match=r"norm.*to_dense\(\)"):
            call()


# What it is like


def test_what_a_matrix_tells_of_itself(device):
    for a, dense in each(device=device):
        assert a.shape == dense.shape and a.size() == dense.size()
        for dim in (0, 1, -1, -2):
            assert a.size(dim) == dense.size(dim)
        assert a.dim() == a.ndim == dense.dim() == 2
        assert a.numel() == torch.numel(a) == dense.numel()
        assert len(a) == len(dense)
        assert a.is_cuda is dense.is_cuda and a.device == dense.device
        assert a.layout is a.to_torch().layout
        assert a.layout is (torch.sparse_bsc if a.is_transposed else torch.sparse_bsr)
        assert a.grad is None and not torch.is_tensor(a)
        with pytest.raises(IndexError):
            a.size(2)
    batch = BsrTensor(a.crow_indices, a.col_indices, torch.stack([a.values] * 3), (M, K))
    assert batch.dim() == batch.ndim == 3 and len(batch) == batch.size(0) == 3
    assert batch.size() == (3, M, K) and batch.numel() == 3 * M * K


def test_copies_by_functions():
    for a, dense in each():
        a.requires_grad_()
        copied, apart, turned = torch.clone(a), torch.detach(a), torch.t(a)
        assert copied.values is not a.values and copied.requires_grad
        assert apart.values.data_ptr() == a.values.data_ptr() and not apart.requires_grad
        assert turned.is_transposed is not a.is_transposed and turned.values is a.values
        same(turned.to_dense().detach(), dense.t())


def test_the_gradient_is_a_matrix():
    for a, _ in each(FP64):
        a.requires_grad_()
        rows, cols = a.shape
        x, upstream = whole(cols, N, like=a), whole(rows, N, like=a)
        (a @ x).backward(upstream)
        assert type(a.grad) is BsrTensor and a.grad.values is a.values.grad
        assert a.grad.crow_indices is a.crow_indices and a.grad.shape == a.shape
        stored = a._with_values(torch.ones_like(a.values)).to_dense()
        same(a.grad.to_dense(), stored * (upstream @ x.t()))


# Comparisons


def reblocked(dense, like):
    """The dense matrix with every block stored: another pattern than that of `like`."""
    block = like.block_size[::-1] if like.is_transposed else like.block_size
    keep = torch.ones(dense.shape[0] // block[0], dense.shape[1] // block[1]).bool()
    return BsrTensor.from_dense(dense, block, keep=keep.to(dense.device))


@EACH_DTYPE
def test_equal_and_allclose(dtype, device):
    """By elements: absent blocks are zeros, whichever of the two lacks them."""
    for a, dense in each(dtype, device):
        for other in (a, a.clone(), reblocked(dense, a), reblocked(dense.t(), a.t()).t()):
            assert torch.equal(a, other) is torch.equal(other, a) is True
            assert torch.allclose(a, other) is torch.allclose(other, a) is True
        for row, col in ((0, 0), (0, 11), (9, 5)):
            changed = (dense.t() if a.is_transposed else dense).clone()
            changed[row, col] += 1
            changed = changed.t() if a.is_transposed else changed
            other = reblocked(changed, a)
            assert torch.equal(a, other) is torch.equal(other, a) is False
            assert torch.allclose(a, other) is torch.allclose(other, a) is False
            assert torch.allclose(a, other, rtol=0, atol=1) is True


def test_comparisons_beyond_numbers():
    a, dense = make("full")
    near = a._with_values(a.values * 1.001)
    assert not torch.allclose(a, near, atol=0) and torch.allclose(a, near, rtol=1e-2, atol=0)
    for bad in (math.nan, INF):
        a.values[0, 0, 0] = bad
        dense = a.to_dense()
        other = a.clone()
        assert torch.equal(a, other) is torch.equal(dense, dense.clone())
        assert torch.allclose(a, other) is torch.allclose(dense, dense.clone())
        assert torch.allclose(a, other, equal_nan=True) is True


def test_comparisons_of_shapes_and_dtypes():
    (a, dense), (wide, _) = make("full"), make("full", FP64)
    assert torch.equal(a, a.t()) is False
    wide.values.copy_(a.values)
    assert torch.equal(a, wide) is torch.equal(dense, a.to_dense().double())
    with pytest.raises(ValueError, match="allclose compares matrices of one shape, got"):
        torch.allclose(a, a.t())
    with pytest.raises(RuntimeError, match="Float did not match Double"):
        torch.allclose(a, wide)
    square = random_bsr(12, 12, (2, 3), density=0.5)
    words = r"blocks \(2, 3\) and \(3, 2\) cannot be compared block by block: use to_dense\(\)"
    with pytest.raises(TypeError, match=words):
        torch.equal(square, square.t())
    for name, function in (("equal", torch.equal), ("allclose", torch.allclose)):
        for pair in ((a, dense), (dense, a)):
            with pytest.raises(TypeError, match=rf"{name}.*BsrTensor.*to_dense\(\)"):
                function(*pair)


def test_comparisons_of_batches():
    a, _ = make("empty rows")
    batch = BsrTensor(a.crow_indices, a.col_indices, torch.stack([a.values, 2 * a.values]), (M, K))
    for one in (batch, batch.t()):
        assert torch.equal(one, one.clone()) and torch.allclose(one, one.clone())
        assert not torch.equal(one, 2 * one) and not torch.allclose(one, 2 * one)
    torch.testing.assert_close(batch, batch.clone())
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(batch, 2 * batch)


@EACH_DTYPE
def test_assert_close(dtype, device):
    for a, _ in each(dtype, device):
        torch.testing.assert_close(a, a.clone())
        torch.testing.assert_close({"w": [a]}, {"w": [a.clone()]})
        a = a.requires_grad_()
        torch.testing.assert_close(a, a.detach())
        if a.nnzb == 0:
            continue
        near = a._with_values(a.detach().values.clone())
        near.values[-1, 0, 1] += 1
        with pytest.raises(AssertionError, match=r"(?s)values are not close.*absolute difference"):
            torch.testing.assert_close(a, near)
        torch.testing.assert_close(a, near, rtol=0, atol=1)


def test_assert_close_of_what_differs_otherwise():
    (a, dense), (wide, _) = make("full"), make("full", FP64)
    for other, words in ((a.t(), "shape"), (wide, "dtype"), (make("empty rows")[0], "BSR")):
        with pytest.raises(AssertionError, match=words):
            torch.testing.assert_close(a, other)
    with pytest.raises(TypeError, match=r"BsrTensor"):
        torch.testing.assert_close(a, dense)

"""BsrTensor from and to dense tensors, torch.sparse_bsr and SciPy."""

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from problem import DTYPES
from small_matrix import SMALL_DENSE, small

from sparse_autotune import BsrTensor


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_to_dense(dtype, index_dtype, device):
    dense = small(dtype, index_dtype, device).to_dense()
    assert dense.dtype == dtype and dense.device.type == device
    assert torch.equal(dense.cpu(), SMALL_DENSE.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_from_dense(dtype, device):
    a = BsrTensor.from_dense(SMALL_DENSE.to(device, dtype), (2, 3))
    assert a.nnzb == 3 and a.values.is_contiguous() and a.dtype == dtype
    assert torch.equal(a.to_dense().cpu(), SMALL_DENSE.to(dtype))


def test_from_dense_keeps_nan_and_drops_negative_zero():
    dense = torch.zeros(4, 4)
    dense[0, 0], dense[3, 3] = float("nan"), -0.0
    a = BsrTensor.from_dense(dense, 2)
    assert a.crow_indices.tolist() == [0, 1, 1] and a.col_indices.tolist() == [0]


def test_from_dense_keep():
    keep = torch.tensor([[False, True], [True, False]])
    a = BsrTensor.from_dense(SMALL_DENSE, (2, 3), keep=keep)
    expected = SMALL_DENSE.clone()
    expected[:2, :3] = 0
    expected[2:, 3:] = 0
    assert a.nnzb == 2  # the block of zeros is stored
    assert torch.equal(a.to_dense(), expected)


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
def test_from_dense_of_any_strides(layout):
    dense = {
        "transposed": torch.randn(6, 4).t(),
        "strided": torch.randn(8, 18)[::2, ::3],
        "expanded": torch.randn(1, 6).expand(4, 6),
    }[layout]
    assert torch.equal(BsrTensor.from_dense(dense, (2, 3)).to_dense(), dense)


@given(
    grid=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    block=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 99),
)
def test_dense_round_trip(grid, block, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (grid[0] * block[0], grid[1] * block[1])
    dense = torch.randn(shape, generator=generator)
    dense[torch.rand(shape, generator=generator) < 0.8] = 0
    a = BsrTensor.from_dense(dense, block)
    assert a.shape == shape and a.block_size == block
    assert torch.equal(a.to_dense(), dense)


def test_conversions_are_differentiable():
    dense = SMALL_DENSE.clone().requires_grad_()
    a = BsrTensor.from_dense(dense, (2, 3))
    weight = torch.randn(4, 6)
    (a.to_dense() * weight).sum().backward()
    expected = weight.clone()
    expected[2:, :3] = 0  # the block that is not stored
    assert torch.equal(dense.grad, expected)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_torch_round_trip_shares_memory(index_dtype, device):
    a = small(index_dtype=index_dtype, device=device)
    native = a.to_torch()
    assert native.layout == torch.sparse_bsr
    assert torch.equal(native.to_dense().cpu(), SMALL_DENSE)
    back = BsrTensor.from_torch(native)
    for name in ("crow_indices", "col_indices", "values"):
        assert getattr(back, name).data_ptr() == getattr(a, name).data_ptr()
        assert getattr(back, name).dtype == getattr(a, name).dtype


def test_from_torch_with_transposed_blocks():
    native = SMALL_DENSE.t().to_sparse_bsc((3, 2)).t()
    assert native.layout == torch.sparse_bsr and not native.values().is_contiguous()
    assert torch.equal(BsrTensor.from_torch(native).to_dense(), SMALL_DENSE)


def test_to_torch_keeps_the_gradient():
    values = torch.randn(3, 2, 3, requires_grad=True)
    a = BsrTensor(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), values, (4, 6))
    weight = torch.randn(4, 6)
    (a.to_torch().to_dense() * weight).sum().backward()
    assert torch.equal(values.grad[2], weight[2:, 3:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_scipy_round_trip(dtype, index_dtype):
    matrix = small(dtype, index_dtype).to_scipy()
    assert isinstance(matrix, scipy.sparse.bsr_array)
    assert matrix.blocksize == (2, 3)
    assert (matrix.toarray() == SMALL_DENSE.numpy()).all()
    a = BsrTensor.from_scipy(matrix)
    assert a.dtype == dtype and a.block_size == (2, 3)
    assert torch.equal(a.to_dense(), SMALL_DENSE.to(dtype))


@pytest.mark.parametrize("kind", [scipy.sparse.bsr_array, scipy.sparse.bsr_matrix])
def test_from_scipy_sorts_and_sums_duplicates(kind):
    data = np.arange(1.0, 21.0).reshape(5, 2, 2)
    matrix = kind((data, np.array([1, 0, 1, 2, 2]), np.array([0, 3, 3, 5])), shape=(6, 6))
    expected = np.zeros((6, 6))
    expected[0:2, 0:2] = data[1]
    expected[0:2, 2:4] = data[0] + data[2]
    expected[4:6, 4:6] = data[3] + data[4]
    a = BsrTensor.from_scipy(matrix)
    assert a.nnzb == 3 and a.col_indices.tolist() == [0, 1, 2]
    assert a.crow_indices.tolist() == [0, 2, 2, 3]
    assert (a.to_dense().numpy() == expected).all()
    assert (matrix.data == np.arange(1.0, 21.0).reshape(5, 2, 2)).all()  # left as it was


def test_scipy_conversions_copy():
    a = small()
    matrix = a.to_scipy()
    matrix.data[:] = 0
    assert torch.equal(a.to_dense(), SMALL_DENSE)
    matrix = a.to_scipy()
    b = BsrTensor.from_scipy(matrix)
    matrix.data[:] = 0
    assert torch.equal(b.to_dense(), SMALL_DENSE)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8"])
def test_from_scipy_of_any_byte_order(dtype):
    matrix = small().to_scipy()
    matrix.data = matrix.data.astype(dtype)
    matrix.indices, matrix.indptr = matrix.indices.astype(">i4"), matrix.indptr.astype(">i8")
    a = BsrTensor.from_scipy(matrix)
    assert a.dtype == (torch.float32 if dtype.endswith("4") else torch.float64)
    assert torch.equal(a.to_dense(), SMALL_DENSE.to(a.dtype))


def test_from_scipy_with_room_behind_the_last_block():
    matrix = small().to_scipy()
    matrix.data = np.concatenate([matrix.data, np.full((2, 2, 3), np.nan, np.float32)])
    matrix.indices = np.concatenate([matrix.indices, [7, 7]])
    a = BsrTensor.from_scipy(matrix)
    assert a.nnzb == 3 and torch.equal(a.to_dense(), SMALL_DENSE)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (4, 4)])
def test_empty_scipy_matrix(shape):
    rows = shape[0] // 2
    parts = (np.zeros((0, 2, 2)), np.zeros(0, int), np.zeros(rows + 1, int))
    a = BsrTensor.from_scipy(scipy.sparse.bsr_array(parts, shape=shape))
    assert a.nnzb == 0 and a.shape == shape and a.block_size == (2, 2)
    assert a.to_scipy().shape == shape


def test_from_scipy_refuses_other_formats_and_dtypes():
    matrix = small().to_scipy()
    with pytest.raises(TypeError, match=r"CSR.*tobsr\(blocksize"):
        BsrTensor.from_scipy(matrix.tocsr())
    with pytest.raises(TypeError, match=r"float32 or float64, got int64.*astype"):
        BsrTensor.from_scipy(matrix.astype(np.int64))
    with pytest.raises(TypeError, match=r"scipy\.sparse BSR matrix, got numpy\.ndarray"):
        BsrTensor.from_scipy(np.ones((4, 4)))
    with pytest.raises(TypeError, match=r"scipy\.sparse BSR matrix, got .*LinearOperator"):
        BsrTensor.from_scipy(scipy.sparse.linalg.aslinearoperator(matrix))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_to_scipy_refuses_half_types(dtype):
    with pytest.raises(TypeError, match=rf"no sparse matrices of {dtype}.*to\(torch.float32\)"):
        small(dtype).to_scipy()

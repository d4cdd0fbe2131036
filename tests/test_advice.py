"""`BsrTensor.reblock` and `advise`: other block sizes, what they keep, and their times."""

import json
import math

import pytest
import torch
from reference import close

from sparse_autotune import BsrTensor, advise, cache, matmul, random_bsr, settings


@pytest.fixture(autouse=True)
def _quick(fresh_cache, monkeypatch):
    monkeypatch.setattr(settings, "budget_s", 0.02)


def matrix(block=(8, 12), **options):
    return random_bsr(96, 144, block, density=0.3, **options)


# reblock


@pytest.mark.parametrize("block", [4, (4, 6), (8, 12), (16, 24), (12, 8), (6, 9), 1, (96, 144), 3])
@pytest.mark.parametrize("transpose", [False, True])
def test_reblocking_is_exact(block, transpose):
    a = matrix()
    a = a.t() if transpose else a
    b = a.reblock(block)
    assert b.block_size == ((block, block) if isinstance(block, int) else block)
    assert b.shape == a.shape and b.is_transposed == a.is_transposed
    assert torch.equal(b.to_dense(), a.to_dense())
    x = torch.randn(a.shape[1], 5)
    close(matmul(b, x), a.to_dense() @ x)


def test_each_stored_element_stays_stored():
    """Also zeros; and no block is there that holds none of them."""
    a = BsrTensor(
        torch.tensor([0, 1, 1]), torch.tensor([1]), torch.zeros(1, 4, 4), (8, 8)
    )  # one block of zeros
    assert a.reblock(2).nnzb == 4
    assert a.reblock((8, 4)).nnzb == 1
    assert a.reblock(8).nnzb == 1
    pattern = matrix()
    ones = BsrTensor(
        pattern.crow_indices, pattern.col_indices, torch.ones_like(pattern.values), (96, 144)
    )
    for block in ((4, 6), (16, 36)):
        blocks = ones.reblock(block)
        assert (blocks.values.flatten(1).sum(1) > 0).all()
        assert blocks.values.sum() == ones.values.sum()
    assert ones.reblock((4, 6)).nnzb == 4 * ones.nnzb


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_dtypes_of_values_and_indices(dtype, index):
    a = matrix(dtype=dtype)
    a = BsrTensor(a.crow_indices.to(index), a.col_indices.to(index), a.values, (96, 144))
    b = a.reblock(24)
    assert b.dtype == dtype and b.crow_indices.dtype == b.col_indices.dtype == index
    assert torch.equal(b.to_dense(), a.to_dense())


def test_batches_and_empty_matrices():
    a = matrix()
    batch = BsrTensor(a.crow_indices, a.col_indices, torch.stack([a.values, -a.values]), (96, 144))
    assert torch.equal(batch.reblock((4, 24)).to_dense(), batch.to_dense())
    empty = random_bsr(96, 144, (8, 12), density=0.0).reblock(24)
    assert empty.nnzb == 0 and empty.shape == (96, 144)


def test_gradients_come_back_to_the_old_blocks():
    a = matrix(dtype=torch.float64)
    values = a.values.clone().requires_grad_()
    weights = torch.randn(96, 144, dtype=torch.float64)

    def scalar(values, block):
        b = BsrTensor(a.crow_indices, a.col_indices, values, (96, 144))
        return ((b if block is None else b.reblock(block)).to_dense() * weights).sum()

    (expected,) = torch.autograd.grad(scalar(values, None), values)
    for block in (4, 24, (16, 9)):
        (found,) = torch.autograd.grad(scalar(values, block), values)
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("block", "error"), [(7, ValueError), ((8, 5), ValueError), (0, ValueError), ("8", TypeError)]
)
def test_bad_block_sizes(block, error):
    with pytest.raises(error):
        matrix().reblock(block)


# advise


def dense_matrix(rows=64, cols=96):
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(0))


def largest_blocks(dense, block, count):
    """The norm of the blocks of largest norm, by definition."""
    m, k = block
    norms = [
        dense[i : i + m, j : j + k].double().norm().item() ** 2
        for i in range(0, dense.shape[0], m)
        for j in range(0, dense.shape[1], k)
    ]
    return math.sqrt(sum(sorted(norms, reverse=True)[:count]))


@pytest.mark.parametrize("sparse", [False, True])
def test_the_share_that_is_kept(sparse):
    dense = dense_matrix()
    given = BsrTensor.from_dense(dense, 8) if sparse else dense
    advice = advise(given, 16, block_sizes=(16, (8, 32)), density=0.25)
    for size, block in zip(advice.sizes, [(16, 16), (8, 32)], strict=True):
        assert size.block_size == block and size.density == 0.25
        expected = largest_blocks(dense, block, 6) / dense.double().norm().item()
        assert size.kept_norm == pytest.approx(expected, rel=1e-9)
        assert size.padding == 1 and size.median_us > 0 and size.reason == ""
        assert size.winner.split("/")[0] in {"cpu_tiled", "cpu_rows", "dense", "aten_bsr",
                                             "cpu_turned", "reference"}  # fmt: skip
    assert (advice.shape, advice.n, advice.dtype, advice.device) == ((64, 96), 16, "float32", "cpu")
    assert advice.dense_us > 0
    assert cache.entries() == []


def test_without_a_density_nothing_is_lost():
    mask = torch.zeros(64, 96, dtype=torch.bool)
    mask[::16, ::16] = True  # one element in each block of 16
    advice = advise(mask, 4, block_sizes=(8, 16, 32))
    assert [size.density for size in advice.sizes] == [0.25, 1.0, 1.0]
    assert [size.kept_norm for size in advice.sizes] == [1.0] * 3
    assert [size.padding for size in advice.sizes] == [64.0, 256.0, 256.0]


@pytest.mark.parametrize("transpose", [False, True])
def test_of_a_block_sparse_matrix(transpose):
    a = matrix()
    a = a.t() if transpose else a
    block = (48, 16) if transpose else (16, 48)
    (size,) = advise(a, 3, block_sizes=[block]).sizes
    assert size.density == BsrTensor.from_dense(a.to_dense(), block).density
    assert size.kept_norm == pytest.approx(1.0) and size.median_us > 0


def test_a_size_that_does_not_divide():
    small, large = advise(dense_matrix(), 4, block_sizes=(16, 48)).sizes
    assert small.median_us > 0
    assert large.median_us is None and large.reason == "does not divide the matrix"


def test_nothing_to_race():
    (size,) = advise(torch.zeros(64, 96), 4, block_sizes=[16]).sizes
    assert size.density == 0 and size.kept_norm == 1 and size.padding is None
    assert size.median_us is None and "nothing to race" in size.reason


def test_printed_and_as_data():
    advice = advise(dense_matrix(), 4, block_sizes=(16, 48, (8, 32)), density=0.5)
    title, headings, first, second, third = str(advice).splitlines()
    assert title.startswith("64x96x4 float32 on cpu, dense ") and title.endswith(" µs")
    assert headings.split() == [
        "block",
        "density",
        "kept",
        "padding",
        "µs",
        "of",
        "dense",
        "winner",
    ]
    assert first.split()[:2] == ["16", "50.0%"] and first.endswith(advice.sizes[0].winner)
    assert second.split() == ["48", "does", "not", "divide", "the", "matrix"]
    assert third.split()[0] == "8x32"
    data = json.loads(json.dumps(advice.to_dict()))
    assert data["sizes"][0]["winner"] == advice.sizes[0].winner and data["n"] == 4


def test_plotted():
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    pyplot.switch_backend("agg")
    advice = advise(dense_matrix(), 4, block_sizes=(16, 48, (8, 32)), density=0.5)
    _, given = pyplot.subplots()
    ax = advice.plot(given)
    assert ax is given and [text.get_text() for text in ax.texts] == ["16", "8x32"]
    assert ax.collections[0].get_offsets().shape == (2, 2)
    assert advice.plot() is not given
    pyplot.close("all")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "why"),
    [
        ((dense_matrix(), 0), {}, ValueError, "n must be positive; got 0"),
        ((dense_matrix(), 1.5), {}, TypeError, "n must be an int"),
        ((dense_matrix(), 4), {"density": 1.5}, ValueError, "density"),
        ((dense_matrix(), 4), {"block_sizes": [0]}, ValueError, "block_sizes"),
        (([[1.0]], 4), {}, TypeError, "matrix_or_mask must be a dense"),
        ((torch.zeros(4), 4), {}, ValueError, "matrix_or_mask must have 2 dimensions"),
        ((torch.zeros(4, 4).int(), 4), {}, TypeError, "matrix_or_mask"),
    ],
)
def test_advise_refuses(arguments, options, error, why):
    with pytest.raises(error, match=why):
        advise(*arguments, **options)

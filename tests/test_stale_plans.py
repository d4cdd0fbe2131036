"""A plan serves the pattern that it was made of and no other, whoever wrote the indices and how.

Writes through ``.data`` stand for all that no version counter shows: generated code, raw pointers.
On a CPU the library compares the indices themselves. On a GPU it distrusts those of at most eight
entries which nobody owns, since Inductor writes such constants anew in each run.
"""

import pytest
import torch
from reference import close

import sparse_autotune
from sparse_autotune import BsrTensor, linear, matmul, random_bsr, sampled_matmul

pytestmark = [
    pytest.mark.usefixtures("no_races"),
    pytest.mark.filterwarnings("ignore:.*Sparse BSR tensor support is in beta"),
]

OPS = torch.ops.sparse_autotune


def write_unseen(pattern, other):
    """The pattern becomes the other, and no counter shows it."""
    versions = pattern.crow_indices._version, pattern.col_indices._version
    pattern.crow_indices.data.copy_(other.crow_indices)
    pattern.col_indices.data.copy_(other.col_indices)
    assert versions == (pattern.crow_indices._version, pattern.col_indices._version)


def two_patterns(rows, block, device, index_dtype=torch.int64):
    """Matrices with as many blocks each, and other patterns and values."""
    made = []
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        a = random_bsr(rows * block, rows * block, block, density=0.5, generator=generator)
        indices = a.crow_indices.to(index_dtype), a.col_indices.to(index_dtype)
        made.append(BsrTensor(*indices, a.values, a.shape).to(device))
    assert made[0].nnzb == made[1].nnzb
    assert not torch.equal(made[0].col_indices, made[1].col_indices)
    return made


def check_gradients(a, x):
    """Of a @ x, for x itself as the gradient of the product."""
    trained = a.detach().requires_grad_(), x.clone().requires_grad_()
    leaves = trained[0].values, trained[1]
    of_values, of_x = torch.autograd.grad(matmul(*trained), leaves, x)
    of_a = BsrTensor(a.crow_indices, a.col_indices, of_values, a.shape).to_dense()
    close(of_a, (x @ x.T) * mask(a))
    close(of_x, a.to_dense().T @ x)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("rows", [3, 8, 300])
def test_indices_written_unseen_on_a_cpu(rows, index_dtype):
    """By every way to a product, directly from the second call on, and to its gradients."""
    a, b = two_patterns(rows, 4, "cpu", index_dtype)
    x = torch.randn(rows * 4, rows * 4)
    few = x[:, :7].contiguous()
    for other in (b, a.clone(), b):
        for _ in range(2):
            dense = a.to_dense()
            close(matmul(a, x), dense @ x)
            close(matmul(a.t(), x), dense.T @ x)
            close(linear(x, a), x @ dense.T)
            close(matmul(x, a), x @ dense)
            close(matmul(a, few, variant="reference"), dense @ few)
            close(matmul(a, few.expand(3, -1, -1)), dense @ few.expand(3, -1, -1))
            close(matmul(a.to_torch(), few), dense @ few)
            check_gradients(a, few)
            sampled = sampled_matmul(x, x, a)
            close(sampled.to_dense(), (x @ x) * (sampled.to_dense() != 0))
        write_unseen(a, other)


def test_invalid_indices_written_unseen_on_a_cpu():
    a = random_bsr(40, 40, 4, density=0.5)
    x = torch.randn(40, 7)
    matmul(a, x)
    a.col_indices.data[3] = 10
    for _ in range(2):
        with pytest.raises(ValueError, match=r"col_indices must lie in \[0, 10\)"):
            matmul(a, x)


def test_frozen_values_on_another_pattern():
    """A copy that a variant keeps of frozen values has the pattern in it, too."""
    a, b = two_patterns(6, 4, "cpu")
    a.freeze()
    x = torch.randn(24, 9)
    for other in (b, a.clone()):
        for _ in range(2):
            close(matmul(a, x, variant="dense"), a.to_dense() @ x)
        write_unseen(a, other)


@pytest.mark.parametrize("shape", [(3, 64), (3, 16), (20, 16)], ids=str)
def test_tiny_indices_that_nobody_owns(device, shape):
    """As generated code hands them to the operators: one memory, one pattern after the other."""
    rows, block = shape
    made = []
    for last in (0, 1, 2):  # at most eight blocks, in few rows or in many
        keep = torch.zeros(rows, 4, dtype=torch.bool)
        keep[0, last], keep[rows - 1, 3], keep[1, 1:3] = True, True, True
        made.append(BsrTensor.from_dense(torch.randn(rows * block, 4 * block), block, keep=keep))
    x, y = torch.randn(4 * block, 24), torch.randn(rows * block, 24)
    crow, col = (torch.empty_like(t, device=device) for t in made[0]._parts[:2])
    for a in (*made, *made):
        crow.data.copy_(a.crow_indices)
        col.data.copy_(a.col_indices)
        parts = (crow, col, a.values.to(device), *a.shape)
        for _ in range(2):
            close(OPS.bsr_matmul(*parts, x.to(device)).cpu(), a.to_dense() @ x)
            got = OPS.bsr_matmul(*parts, y.to(device), transpose=True)
            close(got.cpu(), a.to_dense().T @ y)
            got = OPS.bsr_matmul(*parts, x.T.to(device), sparse_right=True, transpose=True)
            close(got.cpu(), x.T @ a.to_dense().T)
            got = OPS.bsr_sampled_matmul(*parts[:2], *a.shape, block, block, y.to(device),
                                         x.T.to(device))  # fmt: skip
            close(BsrTensor(*a._parts[:2], got.cpu(), a.shape).to_dense(), (y @ x.T) * mask(a))


def mask(a):
    return BsrTensor(*a._parts[:2], torch.ones_like(a.values), a.shape).to_dense()


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("entries", ["few", "many"])
def test_indices_computed_by_compiled_code(entries):
    """Inductor reuses the memory of one computed pattern for the next."""
    rows = {"few": 3, "many": 30}[entries]
    matrices = [random_bsr(rows * 4, rows * 4, 4, density=0.4) for _ in range(4)]
    parts = [t for a in matrices for t in a._parts[:3]]

    def chain(x, *parts):
        for i in range(0, len(parts), 3):
            crow, col, values = parts[i : i + 3]
            # Memory of the generated code's own, written when the product before is over.
            zero = (0 * x.sum()).to(crow.dtype)
            crow, col = crow + zero, col + zero
            x = OPS.bsr_matmul(crow, col, values, rows * 4, rows * 4, x, sparse_right=True)
        return x

    x = torch.randn(5, rows * 4)
    expected = x.double()
    for a in matrices:
        expected = expected @ a.to_dense().double()
    got = torch.compile(chain, fullgraph=True)(x, *parts)
    scale = expected.abs().max().item()
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4 * scale)


def test_owners_are_counted():
    """A plan lasts as long as any matrix on its indices, and no longer."""
    a = random_bsr(40, 40, 4, density=0.5)
    x = torch.randn(40, 7)
    plans = sparse_autotune._tuner.memory()["plans"]
    other = BsrTensor(a.crow_indices, a.col_indices, a.values, a.shape)
    matmul(a, x)
    assert sparse_autotune._tuner.memory()["plans"] == plans + 1
    del a
    assert sparse_autotune._tuner.memory()["plans"] == plans + 1
    close(matmul(other, x), other.to_dense() @ x)
    del other
    assert sparse_autotune._tuner.memory()["plans"] == plans

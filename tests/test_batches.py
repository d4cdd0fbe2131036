"""Batches of matrices on one pattern: `values` with a leading dimension."""

import copy
import io

import pytest
import torch
from problem import DTYPES, FP64
from reference import close

import sparse_autotune
from sparse_autotune import BsrTensor, linear, matmul, random_bsr, sampled_matmul

pytestmark = pytest.mark.usefixtures("no_races")

M, K, N, BLOCK, COUNT = 8, 12, 5, (4, 3), 3


def make(device="cpu", dtype=torch.float32):
    """A batch, and its matrices as one dense tensor, by other code."""
    pattern = random_bsr(M, K, BLOCK, density=0.5, dtype=dtype, device=device)
    values = torch.randn(COUNT, *pattern.values.shape, dtype=dtype, device=device)
    a = BsrTensor(pattern.crow_indices, pattern.col_indices, values, (M, K))
    dense = torch.zeros(COUNT, M, K, dtype=dtype, device=device)
    crow = a.crow_indices.tolist()
    for row in range(M // BLOCK[0]):
        for at in range(crow[row], crow[row + 1]):
            r, c = row * BLOCK[0], int(a.col_indices[at]) * BLOCK[1]
            dense[:, r : r + BLOCK[0], c : c + BLOCK[1]] = values[:, at]
    return a, dense


def tensor(a, *shape):
    return torch.randn(*shape, dtype=a.dtype, device=a.device)


# The product, and what it is of the dense matrices; shapes of the other operand.
FORMS = {
    "left": (matmul, lambda d, x: d @ x, [(COUNT, K, N), (K, N)]),
    "left_of_a_vector": (matmul, lambda d, x: d @ x, [(K,)]),
    "left_transposed": (lambda a, x: matmul(a.t(), x), lambda d, x: d.mT @ x,
                        [(COUNT, M, N), (M, N), (M,)]),
    "right": (lambda a, x: matmul(x, a), lambda d, x: x @ d, [(COUNT, N, M), (N, M), (M,)]),
    "right_transposed": (lambda a, x: matmul(x, a.mT), lambda d, x: x @ d.mT,
                         [(COUNT, N, K), (N, K)]),
    "linear": (lambda a, x: linear(x, a), lambda d, x: x @ d.mT, [(COUNT, N, K), (N, K), (K,)]),
    "at": (lambda a, x: a @ x, lambda d, x: d @ x, [(COUNT, K, N)]),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_products(form, device):
    a, dense = make(device)
    product, of_dense, shapes = FORMS[form]
    for shape in shapes:
        x = tensor(a, *shape)
        got, expected = product(a, x), of_dense(dense, x)
        assert got.shape == expected.shape == (COUNT, *expected.shape[1:])
        close(got, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_is_the_product_of_its_matrix(dtype, device):
    a, _ = make(device, dtype)
    x, bias = tensor(a, COUNT, K, N), tensor(a, M)
    for variant in ("auto", {"cpu": "reference", "cuda": "simt"}[device]):
        options = {"bias": bias, "activation": "gelu", "variant": variant}
        got = matmul(a, x, **options)
        expected = [matmul(one, each, **options) for one, each in zip(a.unbind(), x, strict=True)]
        assert torch.equal(got, torch.stack(expected))
    got = linear(x.mT, a, bias, activation="relu")
    expected = [
        linear(e.mT, one, bias, activation="relu") for one, e in zip(a.unbind(), x, strict=True)
    ]
    assert torch.equal(got, torch.stack(expected))


@pytest.mark.parametrize("form", FORMS)
def test_gradients(form, device):
    a, dense = make(device, FP64)
    product, of_dense, shapes = FORMS[form]
    for shape in shapes:
        x = tensor(a, *shape).requires_grad_()
        values = a.values.clone().requires_grad_()

        def of_values(values, x, product=product):
            return product(BsrTensor(a.crow_indices, a.col_indices, values, a.shape[1:]), x)

        assert torch.autograd.gradcheck(of_values, (values, x))
        # Along random directions, as each pair of elements takes ten times as long.
        assert torch.autograd.gradgradcheck(of_values, (values, x), fast_mode=True)
        upstream = torch.randn_like(of_values(values, x))
        ours = torch.autograd.grad(of_values(values, x), x, upstream)
        theirs = torch.autograd.grad(of_dense(dense, x), x, upstream)
        torch.testing.assert_close(ours, theirs)


def test_what_a_batch_is(device):
    a, dense = make(device)
    assert a.shape == (COUNT, M, K) and a.t().shape == (COUNT, K, M)
    assert a.values.shape == (COUNT, a.nnzb, *BLOCK) and a.block_size == BLOCK
    assert f"BsrTensor({COUNT}x{M}x{K}, block 4x3" in repr(a)
    torch.testing.assert_close(a.to_dense(), dense)
    torch.testing.assert_close(a.t().to_dense(), dense.mT)
    assert len(a.unbind()) == COUNT
    for one, matrix in zip(a.t().unbind(), dense, strict=True):
        assert one.values.data_ptr() in {v.data_ptr() for v in a.values}
        assert one._plan_owner is a._plan_owner
        torch.testing.assert_close(one.to_dense(), matrix.T)
    buffer = io.BytesIO()
    torch.save(a, buffer)
    buffer.seek(0)
    for other in (a.clone(), copy.deepcopy(a), torch.load(buffer, weights_only=True)):
        assert other.shape == a.shape and torch.equal(other.values, a.values)
    torch.testing.assert_close((2 * a).to(FP64).to_dense(), 2 * dense.double())
    a.prepare()
    x, y = tensor(a, M, N), tensor(a, N, K)
    sampled = sampled_matmul(x, y, a)
    assert torch.equal(sampled.values, sampled_matmul(x, y, a.unbind()[0]).values)


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled(device):
    a, dense = make(device)
    a.requires_grad_()
    x = tensor(a, COUNT, K, N)
    for product in (matmul, lambda a, x: linear(x.mT, a).mT):
        function = torch.compile(product, backend="aot_eager", fullgraph=True)
        got = function(a, x)
        close(got, dense @ x)
        upstream = torch.randn_like(got)
        ours = torch.autograd.grad(got, a.values, upstream)
        theirs = torch.autograd.grad(product(a, x), a.values, upstream)
        close(ours, theirs)


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (ValueError, r"a is a batch of 3 matrices: b must be one matrix or vector, or have 3.*"
         r"\(2, 12, 5\)", lambda a: matmul(a, torch.ones(2, K, N))),
        (ValueError, r"only leading dimension; got shape \(2, 3, 12, 5\)",
         lambda a: matmul(a, torch.ones(2, 3, K, N))),
        (ValueError, r"b is a batch of 3 matrices: a must",
         lambda a: matmul(torch.ones(2, N, M), a)),
        (ValueError, r"weight is a batch of 3 matrices: x must",
         lambda a: linear(torch.ones(2, N, K), a)),
        (ValueError, r"a has shape \(8, 12\), b \(31, 5\)",
         lambda a: matmul(a, torch.ones(31, N))),
        (ValueError, r"x has shape \(5, 31\), weight \(8, 12\)",
         lambda a: linear(torch.ones(3, N, 31), a)),
        (TypeError, "b must have the dtype of a", lambda a: matmul(a, torch.ones(K, N).double())),
        (TypeError, "b must be a dense torch.Tensor", lambda a: matmul(a, a)),
        (ValueError, "bias must have one value per row",
         lambda a: matmul(a, torch.ones(K, N), bias=torch.ones(COUNT, M))),
        (ValueError, "activation must be one of",
         lambda a: matmul(a, torch.ones(K, N), activation="tanh")),
        (ValueError, "variant must be one of", lambda a: matmul(a, torch.ones(K, N), variant="x")),
        (ValueError, "out must be None where the block-sparse operand is a batch",
         lambda a: matmul(a, torch.ones(K, N), out=torch.ones(COUNT, M, N))),
        (ValueError, r"a\.values must have shape.*a batch: take its matrices.*unbind",
         lambda a: sparse_autotune.benchmark(a, torch.ones(K, N))),
        (ValueError, "a batch: take its matrices", lambda a: a.to_torch()),
        (ValueError, "a batch: take its matrices", lambda a: a.to_scipy()),
        (RuntimeError, "a batch cannot be frozen", lambda a: a.freeze()),
        (ValueError, r"unbind\(\) takes a batch apart", lambda a: a.unbind()[0].unbind()),
    ],
)  # fmt: skip
def test_what_is_refused(error, words, call):
    with pytest.raises(error, match=words):
        call(make()[0])


def test_bad_indices_are_named():
    a, _ = make()
    a.col_indices[1] = 99
    with pytest.raises(ValueError, match=r"a.col_indices must lie in \[0, 4\)"):
        matmul(a, torch.ones(K, N))

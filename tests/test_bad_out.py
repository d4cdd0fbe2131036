"""A wrong `out`: never resized, never overlapping, never written when refused."""

import pytest
import torch
from reference import poisoned
from refusals import K, M, N, check_refused, matrix

from sparse_autotune import matmul, random_bsr

pytestmark = pytest.mark.usefixtures("no_races")


@pytest.mark.parametrize(
    "shape", [(M, N + 1), (M + 1, N), (M * N,), (M, N, 1), (1, M, N), (0,), (N, M)], ids=str
)
def test_out_shape(shape, device):
    out = poisoned(*shape, device=device)
    words = r"out is never resized: it must have shape \(8, 5\), got " + str(shape)[:2].replace(
        "(", r"\("
    )
    check_refused(ValueError, words, matmul, matrix(device), torch.ones(K, N, device=device),
                  out=out)  # fmt: skip
    assert out.shape == shape


def test_out_shape_of_batches_and_vectors(device):
    a = matrix(device)
    batched = torch.ones(2, K, N, device=device)
    check_refused(ValueError, r"shape \(2, 8, 5\), got \(8, 5\)", matmul, a, batched,
                  out=poisoned(M, N, device=device))  # fmt: skip
    check_refused(ValueError, r"shape \(8,\), got \(8, 1\)", matmul, a,
                  torch.ones(K, device=device), out=poisoned(M, 1, device=device))  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32], ids=str)
def test_out_dtype(dtype, device):
    out = torch.zeros(M, N, device=device, dtype=dtype)
    words = f"out must have the dtype of a: a has torch.float32, out {dtype}"
    check_refused(TypeError, words, matmul, matrix(device), torch.ones(K, N, device=device),
                  out=out)  # fmt: skip


def test_out_overlaps_itself(device):
    a, b = matrix(device), torch.ones(K, N, device=device)
    memory = poisoned(M * N, device=device)
    words = "elements of out must not share memory.*strides"
    for out in (
        memory[:N].expand(M, N),
        memory[:M, None].expand(M, N),
        memory[:1].expand(M, N),
        memory.as_strided((M, N), (1, 1)),
        memory.as_strided((M, N), (N - 1, 1)),
        memory.as_strided((M, N), (1, M - 1)),
    ):
        check_refused(RuntimeError, words, matmul, a, b, out=out)
    assert bool(memory.isnan().all())


def test_an_empty_out_overlaps_nothing(device):
    a, b = matrix(device), torch.ones(3, 0, K, N, device=device)
    out = torch.empty(1, device=device).as_strided((3, 0, M, N), (0, 0, 0, 0))
    assert matmul(a, b, out=out) is out


def test_out_overlaps_an_input(device):
    a, size = random_bsr(4, 4, 2, density=1, device=device), 4
    b = torch.eye(4, device=device)
    bias = torch.ones(16, device=device)
    words = "out must not overlap an input, but its memory does overlap that of {}"
    check_refused(RuntimeError, words.format("b"), matmul, a, b, out=b)
    check_refused(RuntimeError, words.format("b"), matmul, a, b, out=b.T)
    check_refused(RuntimeError, words.format("a"), matmul, a, b, out=a.values.view(4, 4))
    check_refused(RuntimeError, words.format("bias"), matmul, a, b, bias=bias[12:],
                  out=bias.view(4, 4))  # fmt: skip
    memory = torch.zeros(2 * size * size, device=device)
    first = memory[: size * size].view(4, 4).copy_(b)
    shifted = memory[size * size - 1 : -1].view(4, 4)
    check_refused(RuntimeError, words.format("b"), matmul, a, first, out=shifted)
    beside = memory[size * size :].view(4, 4)
    assert torch.allclose(matmul(a, first, out=beside), a.to_dense())


@pytest.mark.parametrize("name", ["crow_indices", "col_indices"])
def test_out_overlaps_the_indices(name, device):
    a = random_bsr(4, 4, (1, 2), density=1, device=device, dtype=torch.float64)
    out = getattr(a, name).view(torch.float64)[:4].view(4, 1)
    words = rf"out must not overlap an input.*a\.{name}"
    check_refused(RuntimeError, words, matmul, a,
                  torch.ones(4, 1, device=device, dtype=torch.float64), out=out)  # fmt: skip

"""Matrices of small whole numbers, and the same as dense tensors.

Their products, sums and scaled ones are exact in every dtype, so that results must equal those of
the dense matrix, which is made by other code.
"""

import pytest
import torch
from problem import BF16, FP32, FP64

from sparse_autotune import BsrTensor

BLOCK = (2, 3)
M, K, N = 10, 12, 5
MASKS = {
    "empty rows": [[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]],
    "full row and column": [[1, 1, 1, 1], [0, 0, 1, 0], [1, 0, 1, 0], [0, 1, 1, 0], [0, 0, 1, 0]],
    "full": [[1] * 4] * 5,
    "no stored block": [[0] * 4] * 5,
}
DTYPES = (FP32, FP64, BF16)
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def whole(*shape, like):
    """Whole numbers from -2 to 2, of a matrix' dtype and device."""
    return torch.randint(-2, 3, shape, device=like.device).to(like.dtype)


def pattern_of(name, device="cpu"):
    """The index tensors of a mask, and where each stored block stands."""
    mask = torch.tensor(MASKS[name], device=device).bool()
    places = mask.nonzero().tolist()
    crow = torch.tensor([0, *mask.sum(1).cumsum(0).tolist()], device=device)
    return crow, torch.tensor([c for _, c in places], dtype=torch.int64, device=device), places


def densified(values, places):
    """The blocks where they belong, by other code; differentiable."""
    dense = values.new_zeros(M, K)
    for block, (row, col) in zip(values, places, strict=True):
        top, left = row * BLOCK[0], col * BLOCK[1]
        right, below = K - left - BLOCK[1], M - top - BLOCK[0]
        dense = dense + torch.nn.functional.pad(block, (left, right, top, below))
    return dense


def make(name, dtype=FP32, device="cpu", transposed=False, sign=None):
    """A matrix of this pattern, and the same as a dense tensor."""
    crow, col, places = pattern_of(name, device)
    values = torch.randint(-2, 3, (len(places), *BLOCK), device=device).to(dtype)
    values = values if sign is None else sign * values.abs()
    a, dense = BsrTensor(crow, col, values, (M, K)), densified(values, places)
    return (a.t(), dense.t()) if transposed else (a, dense)


def each(dtype=FP32, device="cpu", **options):
    """Every pattern, as it is and transposed."""
    for name in MASKS:
        for transposed in (False, True):
            yield make(name, dtype, device, transposed, **options)


def same(got, expected):
    """No element differs, nor shape, dtype, device or layout."""
    torch.testing.assert_close(got, expected, rtol=0, atol=0)

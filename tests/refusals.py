"""What tests of bad input share: a matrix, and what a refusal must be like."""

import pytest
import torch

from sparse_autotune import matmul, random_bsr

M, K, N = 8, 12, 5


def matrix(device="cpu", dtype=torch.float32):
    """M x K in 2 x 3 blocks, several in each row."""
    return random_bsr(M, K, (2, 3), density=0.75, device=device, dtype=dtype)


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).clone()


def check_refused(error, words, function, *arguments, **keywords):
    """Raises `error` with `words`; no argument and no `out` changes; the next call is right."""
    tensors = [t for t in (*arguments, *keywords.values()) if type(t) is torch.Tensor]
    strided = [t for t in tensors if t.layout == torch.strided and not t.is_meta]
    before = [bits(t) for t in strided]
    with pytest.raises(error, match=words) as raised:
        function(*arguments, **keywords)
    assert type(raised.value) is error
    for tensor, old in zip(strided, before, strict=True):
        assert torch.equal(bits(tensor), old)
    a, b = random_bsr(4, 4, 2, density=1), torch.eye(4)
    assert torch.equal(matmul(a, b), a.to_dense())

"""A matrix small enough to see, as blocks and dense."""

import torch

from sparse_autotune import BsrTensor


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

"""`Problem`: one product that a test asks for, and what it may be made of."""

import dataclasses

import torch

HALF = torch.float16
BF16 = torch.bfloat16
FP32 = torch.float32
FP64 = torch.float64
DTYPES = (HALF, BF16, FP32, FP64)
INDEX_DTYPES = (torch.int32, torch.int64)
BLOCKS = (
    (1, 1), (2, 3), (4, 4), (7, 5), (8, 8), (16, 16), (16, 48), (17, 17), (24, 8), (32, 16),
    (32, 32), (48, 80), (64, 32), (64, 64), (64, 128), (128, 64), (128, 128),
)  # fmt: skip
PATTERNS = (
    "uniform", "full", "first_block", "last_block", "empty_rows", "one_dense_row", "skewed",
    "diagonal", "even", "empty",
)  # fmt: skip
LAYOUTS = ("row", "column", "padded", "padded_column", "offset", "offset_column", "scattered")
DENSE_LEFT = ("linear", "right", "right_transposed")
STORED_TRANSPOSED = ("transposed", "right")


@dataclasses.dataclass(frozen=True)
class Problem:
    """One product A @ B. For `linear` and `right`, b is x = B^T and n its number of rows.

    For `transposed` (S^T @ b) and `right` (x @ S) the matrix S that is stored is A^T;
    `right_transposed` is x @ S^T, with A itself stored.
    """

    name: str
    m: int = 96
    k: int = 160
    n: int | None = 37  # None: b is a vector
    block: tuple[int, int] = (16, 16)
    dtype: torch.dtype = torch.float32
    index_dtype: torch.dtype = torch.int64
    pattern: str = "uniform"
    density: float = 0.3
    b_layout: str = "row"
    out_layout: str = "row"
    batch: tuple[int, ...] = ()
    bias: bool = False
    activation: str | None = None
    op: str = "matmul"
    native: bool = False  # a is a torch.sparse_bsr tensor
    tf32: bool = False

    def __str__(self):
        return self.name

    @property
    def result_shape(self):
        if self.op in DENSE_LEFT:
            return (*self.batch, self.m) if self.n is None else (*self.batch, self.n, self.m)
        return (self.m,) if self.n is None else (*self.batch, self.m, self.n)


def name_of(dtype):
    return str(dtype).removeprefix("torch.")

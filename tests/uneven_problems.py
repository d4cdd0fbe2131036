"""Products of which some rows are so long that kernels cut them or share them out.

Like those of `problems.py`, of which they are a part, every variant must get them right.
"""

from problem import BF16, FP32, FP64, Problem, name_of


def _shared_rows():
    """Rows that a thread block shares out among its warps, several of them, among as many short
    ones as keep a card busy; in strips of rows; and one that is cut beside them."""
    for i, dtype in enumerate((FP32, FP64, BF16)):
        yield Problem(f"shared_rows-{name_of(dtype)}", 2400, 700, 100, (1, 1), dtype,
                      pattern="skewed", op=("matmul", "linear", "transposed")[i], bias=True,
                      activation="relu")  # fmt: skip
        yield Problem(f"shared_strips-{name_of(dtype)}", 12 * 1100, 5 * 150, 24, (12, 5), dtype,
                      pattern="skewed", bias=i == 1)  # fmt: skip
        yield Problem(f"cut_row-{name_of(dtype)}", 2 * 2300, 2 * 4000, 20, (2, 2), dtype,
                      pattern="one_dense_row", bias=i == 0, activation="silu")  # fmt: skip


def _cut_rows():
    """fp32 in blocks of multiples of four: one row that is cut, or all, with sums of parts in rows
    of C and in columns."""
    for i, op in enumerate(("matmul", "linear", "transposed", "right")):
        yield Problem(f"cut_rows-{op}", 32 * 6, 32 * 200, (33, 130)[i % 2], (32, 32), op=op,
                      pattern=("one_dense_row", "skewed")[i // 2], bias=i != 1,
                      activation=(None, "gelu", "relu", "silu")[i])  # fmt: skip
    yield Problem("cut_rows-batch", 16 * 3, 16 * 300, 40, (16, 16), batch=(3,), density=0.7,
                  out_layout="column", bias=True, activation="gelu")  # fmt: skip


UNEVEN_CASES = (*_shared_rows(), *_cut_rows())

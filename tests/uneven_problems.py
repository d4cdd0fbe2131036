"""Products of which some rows are so long that kernels cut them or share them out.

Like those of `problems.py`, of which they are a part, every variant must get them right.
"""

from problem import BF16, FP32, FP64, INDEX_DTYPES, Problem, name_of


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


def _merged_rows():
    """Shares of stored blocks and row ends: rows over many of them beside rows without a block, in
    one strip of columns and in several, with every layout and kind of index."""
    forms = (
        (2, "matmul", "row", "row"), (5, "matmul", "column", "row"), (16, "linear", "row", "row"),
        (37, "transposed", "row", "column"), (68, "matmul", "row", "padded"),
        (132, "transposed", "row", "row"), (256, "matmul", "padded", "offset"),
    )  # fmt: skip
    for i, side in enumerate((1, 2, 3, 4)):
        for j, (n, op, b_layout, out_layout) in enumerate(forms):
            if (i + j) % 2 != 0:
                continue
            dtype = (FP32, FP64)[(i + j) // 2 % 2]
            yield Problem(
                f"merged_rows_{side}-{op}-{n}-{b_layout}-{out_layout}-{name_of(dtype)}",
                side * 310, side * 900, n, (side, side), dtype, op=op, b_layout=b_layout,
                out_layout=out_layout, index_dtype=INDEX_DTYPES[(i + j // 2) % 2],
                pattern=("skewed", "one_dense_row")[j % 2], density=0.01, bias=j % 3 == 1,
                activation=(None, "gelu", "relu")[(i + j) % 3],
            )  # fmt: skip
        yield Problem(f"merged_rows_{side}-batch", side * 400, side * 500, 6, (side, side),
                      (FP64, FP32)[i % 2], batch=(3,), pattern="skewed", bias=i == 1,
                      out_layout=("row", "column")[i % 2])  # fmt: skip


UNEVEN_CASES = (*_shared_rows(), *_cut_rows(), *_merged_rows())

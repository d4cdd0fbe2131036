"""Products that kernels for fp64 on tensor cores are made for.

Like those of `problems.py`, of which they are a part, every variant must get them right.
"""

from kernel_problems import of_blocks
from problem import FP64, INDEX_DTYPES, Problem

_PATTERNS = ("uniform", "skewed", "empty_rows", "one_dense_row", "full")
_ACTIVATIONS = (None, "gelu", None, "relu", "silu")


def _double_precision():
    """What fp64 tensor cores take: blocks of 8 rows and more, groups of rows that are not full,
    columns that fill tiles, leave a part of one, or are aligned to 8 bytes only."""
    products = (
        (144, "matmul", "row", "row"), (272, "matmul", "row", "column"),
        (133, "matmul", "column", "row"), (300, "linear", "row", "row"),
        (37, "matmul", "row", "row"), (16, "matmul", "padded", "offset"),
        (200, "transposed", "row", "row"), (130, "transposed", "column", "column"),
        (96, "right", "row", "row"),
    )  # fmt: skip
    blocks = (
        (8, 8), (16, 16), (32, 32), (64, 64), (128, 128), (8, 16), (16, 8), (24, 8), (96, 48),
        (8, 24), (192, 16),
    )  # fmt: skip
    for i, block in enumerate(blocks):
        for j, (n, *form) in enumerate(products):
            if (i + j) % 2:
                continue
            yield of_blocks(
                "double", block, (35 if block[0] <= 32 else 5, 21 if block[1] <= 32 else 7), n,
                *form, dtype=FP64, index_dtype=INDEX_DTYPES[(i + j + 1) % 2],
                pattern=_PATTERNS[(i + j) % 5], bias=j % 3 == 1,
                activation=_ACTIVATIONS[(i + 2 * j) % 5],
            )  # fmt: skip
    for op in ("matmul", "linear"):
        yield Problem(f"double-batch-{op}", 304, 720, 144, (16, 16), FP64, batch=(3,),
                      pattern="skewed", op=op)  # fmt: skip
    # More tiles than multiprocessors keep at one time.
    yield Problem("double-many_tiles", 4160, 208, 1040, (16, 16), FP64, pattern="skewed",
                  bias=True, activation="silu")  # fmt: skip
    for op in ("matmul", "linear", "transposed"):
        yield Problem(f"double-many_tiles-8-{op}", 1032, 264, 1730, (8, 8), FP64,
                      pattern="one_dense_row", density=0.1, bias=True, op=op)  # fmt: skip


def _double_few_columns():
    """fp64 with few columns, where stored blocks are shared out evenly: rows that many shares cut,
    rows that none does, empty ones at either end of a share; tiles that blocks leave a part of."""
    products = (
        (40, "matmul", "row", "row"), (64, "matmul", "row", "column"),
        (100, "linear", "row", "row"), (8, "transposed", "row", "row"),
        (128, "matmul", "column", "row"), (26, "right", "row", "row"),
        (200, "transposed", "column", "column"), (256, "matmul", "padded", "offset"),
        (17, "linear", "offset", "row"),
    )  # fmt: skip
    blocks = ((16, 16), (32, 32), (64, 64), (128, 128), (8, 32), (40, 80), (96, 16), (144, 48))
    for i, block in enumerate(blocks):
        for j, (n, *form) in enumerate(products):
            if (i + j) % 2:
                continue
            pattern = ("one_dense_row", "empty_rows", "skewed", "full")[(i + j // 2) % 4]
            yield of_blocks(
                "double_few", block, (40 if block[0] <= 32 else 9, 41 if block[1] <= 32 else 13),
                n, *form, dtype=FP64, index_dtype=INDEX_DTYPES[(i + j // 2) % 2], pattern=pattern,
                bias=j % 3 == 1, activation=_ACTIVATIONS[(i + 2 * j) % 5],
            )  # fmt: skip
    for op in ("matmul", "linear"):
        # A row of many thread blocks, and a batch.
        yield Problem(f"double_few-long-{op}", 64, 64 * 100, 48, (64, 64), FP64, density=0.9, op=op,
                      bias=True, activation="gelu")  # fmt: skip
        yield Problem(f"double_few-batch-{op}", 320, 1280, 24, (32, 32), FP64, batch=(3,),
                      pattern="skewed", op=op, bias=True)  # fmt: skip


DOUBLE_CASES = (*_double_precision(), *_double_few_columns())

"""Products that kernels of their own are made for: large and small blocks, long rows, few columns.

Like those of `problems.py`, of which they are a part, every variant must get them right.
"""

from problem import BF16, FP32, FP64, HALF, INDEX_DTYPES, Problem, name_of

_PATTERNS = ("uniform", "skewed", "empty_rows", "one_dense_row", "full")
_SKEWED_FIRST = ("skewed", "uniform", "empty_rows", "one_dense_row")
_ACTIVATIONS = (None, "gelu", None, "relu", "silu")
_LARGE = ((64, 64), (128, 128), (64, 128), (128, 64), (192, 64), (128, 192))


def of_blocks(family, block, grid, n, op, b_layout, out_layout, **rest):
    """A product of a matrix of `grid` blocks and of n columns."""
    return Problem(
        f"{family}_{block[0]}x{block[1]}-{op}-{n}-{b_layout}-{out_layout}",
        block[0] * grid[0], block[1] * grid[1], n, block,
        op=op, b_layout=b_layout, out_layout=out_layout, **rest,
    )  # fmt: skip


def _large_blocks():
    """Blocks that tensor cores take from shared memory, rectangular ones too, with rows of uneven
    length; n in whole units of 16 bytes and not; b and the result in either layout."""
    products = (
        (136, "matmul", "row", "row"), (264, "matmul", "row", "column"),
        (264, "matmul", "column", "row"), (520, "matmul", "row", "row"),
        (37, "linear", "row", "row"), (300, "linear", "row", "row"), (200, "linear", "row", "row"),
        (133, "matmul", "row", "row"), (300, "matmul", "row", "row"),
        (261, "matmul", "padded", "offset"),
    )  # fmt: skip
    for i, block in enumerate(_LARGE):
        for j, (n, *form) in enumerate(products):
            yield of_blocks(
                "large", block, (3, 4), n, *form, dtype=(BF16, HALF)[(i + j) % 2],
                index_dtype=INDEX_DTYPES[j % 2], pattern=_SKEWED_FIRST[(i + j) % 4],
                bias=j % 3 == 1, activation=_ACTIVATIONS[(i + 2 * j) % 4],
            )  # fmt: skip
    for dtype in (BF16, HALF):
        for batch in ((3,), (2, 3)):
            yield Problem(f"large-batch_{len(batch)}-{name_of(dtype)}", 256, 384, 72, (128, 128),
                          dtype, batch=batch, pattern="skewed")  # fmt: skip
    # More blocks in a row than column indices are fetched at once.
    yield Problem("_long_rows-block_64", 128, 4480, 136, (64, 64), BF16, density=0.8)


def _pairs():
    """Long rows of blocks for wgmma_pairs_sm90, in a batch."""
    for dtype in (HALF, BF16):
        for op, b_layout in (("matmul", "row"), ("matmul", "column"), ("right", "row")):
            yield Problem(f"large-pairs-{op}-{b_layout}-{name_of(dtype)}", 320, 2880, 520, (64, 64),
                          dtype, density=0.5, batch=(2,), pattern="uniform", op=op,
                          b_layout=b_layout, bias=True)  # fmt: skip


def _small_blocks():
    """Blocks of which several rows share what is loaded of b: more rows than a group has, the last
    group not full; more columns than are looked at once."""
    products = (
        (136, "matmul", "row", "row"), (264, "matmul", "row", "column"),
        (72, "matmul", "column", "row"), (300, "linear", "row", "row"),
        (200, "transposed", "row", "row"), (128, "transposed", "column", "column"),
        (100, "right", "row", "row"),
    )  # fmt: skip
    for i, block in enumerate(((16, 16), (32, 32), (16, 32), (32, 16))):
        for j, (n, *form) in enumerate(products):
            yield of_blocks(
                "small", block, (35, 45), n, *form, dtype=(BF16, HALF)[(i + j) % 2],
                index_dtype=INDEX_DTYPES[(j + 1) % 2], pattern=_PATTERNS[(i + j) % 5],
                bias=j % 3 == 1, activation=_ACTIVATIONS[(i + 2 * j) % 4],
            )  # fmt: skip
    yield Problem("small-batch", 304, 720, 136, (16, 16), BF16, batch=(3,), pattern="skewed")


def _halves_below_sixteen():
    """Half types in blocks with a side below 16: more rows than a tile has, more of k than a stage,
    strips that are not full, rows of which a stage holds more blocks than are looked up at once."""
    products = (
        (136, "matmul", "row", "row"), (264, "matmul", "row", "column"),
        (72, "matmul", "column", "row"), (300, "linear", "row", "row"),
        (200, "transposed", "row", "row"), (128, "transposed", "column", "column"),
        (100, "right", "row", "row"), (61, "linear", "row", "row"),
    )  # fmt: skip
    blocks = ((8, 8), (4, 4), (8, 16), (16, 8), (4, 4), (8, 8), (32, 8), (8, 64))
    for i, block in enumerate(blocks):
        grid = {8: 67, 4: 131}.get(block[0], 37), {8: 45, 4: 134}.get(block[1], 23)
        for j, (n, *form) in enumerate(products):
            if i >= 4 and (i + j) % 2:
                continue
            yield of_blocks(
                ("eights", "sparse_eights")[i // 4], block, grid, n, *form,
                dtype=(BF16, HALF)[(i + j) % 2], index_dtype=INDEX_DTYPES[(j + 1) % 2],
                pattern=_PATTERNS[(i + j) % 5], density=(0.3, 0.06)[i // 4], bias=j % 3 == 1,
                activation=_ACTIVATIONS[(i + 2 * j) % 5],
            )  # fmt: skip
    for block in (8, 4):
        # More tiles than multiprocessors keep at one time, each of which then takes several.
        yield Problem(f"eights-many_tiles-{block}", 520, 264, 5700, (block, block), BF16,
                      pattern="skewed", density=0.1, bias=True, activation="silu")  # fmt: skip
        for op in ("matmul", "linear"):
            yield Problem(f"eights-batch-{op}-{block}", 304, 720, 136, (block, block), BF16,
                          batch=(3,), pattern="skewed", op=op)  # fmt: skip


def _long_rows():
    """Rows that are worth cutting into parts: much longer than others, or few."""
    products = (
        (264, "matmul", "row", "row"), (264, "matmul", "column", "column"),
        (300, "linear", "row", "row"),
    )  # fmt: skip
    for i, block in enumerate(((64, 64), (128, 128), (128, 64))):
        for j, (n, *form) in enumerate(products):
            pattern = ("skewed", "one_dense_row", "full")[(i + j) % 3]
            yield of_blocks(
                "_long_rows", block, (2 if pattern == "full" else 5, 13), n, *form,
                dtype=(HALF, BF16)[(i + j) % 2], index_dtype=INDEX_DTYPES[(j + 1) % 2],
                pattern=pattern, bias=j > 0, activation=("relu", None, "gelu")[j],
            )  # fmt: skip
    yield Problem("_long_rows-batch", 640, 1408, 264, (128, 128), BF16, batch=(3,),
                  pattern="skewed")  # fmt: skip


def _few_columns():
    """Up to 128 columns in every form of operand, with rows that many warps share out."""
    blocks = (
        (16, 16), (32, 32), (64, 64), (128, 128), (16, 48), (48, 16), (8, 8), (64, 16), (24, 40),
        (80, 64),
    )  # fmt: skip
    forms = (
        ("linear", "row", "row"), ("matmul", "row", "row"), ("matmul", "column", "column"),
        ("transposed", "row", "row"), ("right", "row", "row"), ("matmul", "padded", "offset"),
        ("linear", "offset", "row"),
    )  # fmt: skip
    for i, block in enumerate(blocks):
        for j, n in enumerate((1, 2, 3, 5, 8, 12, 16, 17, 32, 64, 100, 128)):
            if (i + j) % 2:
                continue
            yield of_blocks(
                "few", block, (5, 9 + 4 * j), n, *forms[(i + j // 2) % len(forms)],
                dtype=(BF16, HALF)[i % 2], index_dtype=INDEX_DTYPES[j // 2 % 2],
                pattern=_SKEWED_FIRST[(i + j // 2) % 4], bias=j % 3 == 1,
                activation=_ACTIVATIONS[(i + 2 * j) % 5],
            )  # fmt: skip
    # Few rows, much longer than what is on its way at one time.
    for op in ("linear", "matmul", "transposed", "right"):
        for n in (1, 16, 40, 128):
            block = 64 if n > 16 else 16
            yield Problem(f"few_long_rows-{op}-{n}", block * 2, block * 150, n, (block, block),
                          BF16, density=0.7, op=op, bias=True)  # fmt: skip
    columns_of_b = (
        ("linear", "row", "row"), ("matmul", "column", "row"), ("matmul", "column", "column"),
    )  # fmt: skip
    # Small blocks and a column-major b, some columns short of a whole tile; rows of which each of
    # four groups of warps has more blocks than a warp has lanes.
    for i, block in enumerate((16, 32)):
        for j, n in enumerate((33, 64, 65, 72, 96, 127, 128)):
            form = columns_of_b[0 if (i + j) % 2 == 0 else 1 + j % 2]
            yield of_blocks(
                "few_small", (block, block), (11, 22 + 8 * j), n, *form,
                dtype=(BF16, HALF)[j % 2], index_dtype=INDEX_DTYPES[(i + j) % 2],
                pattern=("skewed", "empty_rows", "one_dense_row", "uniform")[(i + j) % 4],
                bias=j % 3 == 1, activation=(None, "silu", "relu")[(i + j) % 3],
            )  # fmt: skip
        yield Problem(f"few_long_rows-{block}", block * 3, block * 200, 120, (block, block), BF16,
                      density=0.9, op="linear", bias=True)  # fmt: skip
        yield Problem(f"few-batch-{block}", block * 4, block * 40, 80, (block, block), BF16,
                      batch=(3,), op="linear", bias=True)  # fmt: skip
    # The same of a row-major b, with gaps between its rows and without: columns in whole units of
    # 16 bytes that fill a tile, or not.
    for i, block in enumerate((16, 32)):
        for j, n in enumerate((24, 32, 40, 64, 72, 96, 120, 128)):
            layouts = ("row", "padded")[(i + j) % 2], ("row", "column", "offset")[(i + j) % 3]
            yield of_blocks(
                "few_row_major", (block, block), (11, 22 + 8 * j), n, "matmul", *layouts,
                dtype=(HALF, BF16)[j % 2], index_dtype=INDEX_DTYPES[(i + j) % 2],
                pattern=("empty_rows", "skewed", "uniform", "one_dense_row")[(i + j) % 4],
                bias=j % 3 == 1, activation=(None, "gelu", "relu")[(i + j) % 3],
            )  # fmt: skip
        yield Problem(f"few_long_rows-{block}-row_major", block * 3, block * 200, 120,
                      (block, block), BF16, density=0.9, bias=True)  # fmt: skip
        yield Problem(f"few-batch-{block}-row_major", block * 4, block * 40, 96, (block, block),
                      BF16, batch=(3,), bias=True)  # fmt: skip
    # Alone of their kind, which every variant runs: few take so few columns without gaps.
    for block, n in ((16, 24), (32, 24), (64, 16)):
        yield Problem(f"few_gapless_{block}-{n}", block * 7, block * 30, n, (block, block), HALF,
                      pattern="skewed", bias=True)  # fmt: skip
    # Square blocks and a column-major b of at most 16 columns: rows of more than warps fetch at one
    # time, and of any number of blocks behind the last whole 64 k. Two of a kind, which every
    # variant runs, as few take them.
    for i, block in enumerate((16, 32, 64)):
        for j, n in enumerate((1, 8, 13, 16)):
            form = columns_of_b[0 if (i + j) % 2 == 0 else 1 + j % 2]
            kind = ("few_square_narrow", "few_square_wide")[j // 2]
            yield of_blocks(
                kind, (block, block), (9, 37 + 13 * j), n, *form,
                dtype=(BF16, HALF)[(i + j) % 2], index_dtype=INDEX_DTYPES[j % 2],
                pattern=_PATTERNS[j], density=(0.2, 0.6)[(i + j) % 2], bias=j % 3 == 1,
                activation=(None, "gelu", "relu")[(i + j) % 3],
            )  # fmt: skip
    # Rows of which each half has more blocks than two warps look up at once; more strips of 16 rows
    # than are multiplied at one time.
    for block in (16, 32):
        yield Problem(f"few_long_halves-{block}", block * 3, block * 300, 16, (block, block), BF16,
                      density=0.9, op="linear", bias=True)  # fmt: skip
    yield Problem("few_many_strips", 15360, 336, 11, (16, 16), HALF, pattern="skewed",
                  density=0.3, op="linear")  # fmt: skip
    for op in ("linear", "matmul"):
        yield Problem(f"few-batch-{op}", 128, 512, 16, (32, 32), BF16, batch=(3,), op=op,
                      bias=True)  # fmt: skip


def _odd_blocks():
    """Block sides that tensor cores do not take, by strips of columns: strips that are full, narrow
    and cut off, rows that fill the warps of a thread block or not, every form of operand."""
    blocks = (
        (1, 1), (2, 2), (3, 3), (5, 5), (6, 6), (7, 7), (1, 4), (4, 1), (3, 6), (12, 12), (20, 20),
        (9, 40),
    )  # fmt: skip
    forms = (
        ("matmul", "row", "row"), ("linear", "row", "row"), ("matmul", "column", "column"),
        ("transposed", "row", "row"), ("right", "row", "row"), ("matmul", "padded", "offset"),
        ("linear", "offset", "row"),
    )  # fmt: skip
    for i, block in enumerate(blocks):
        for j, n in enumerate((16, 24, 33, 64, 100, 128, 260)):
            yield of_blocks(
                "odd", block, (21, 37), n, *forms[(i + j) % len(forms)],
                dtype=(FP64, FP32, FP64, BF16, FP32, HALF, FP64)[(2 * i + j) % 7],
                index_dtype=INDEX_DTYPES[(i + j) % 2], pattern=_PATTERNS[(i + j // 2) % 4],
                bias=j % 3 == 1, activation=_ACTIVATIONS[(i + 2 * j) % 5],
            )  # fmt: skip
    # Rows so much longer than the others that they are cut: with bias, activation and a batch.
    for i, dtype in enumerate((FP32, FP64, BF16)):
        for op in ("matmul", "linear"):
            yield Problem(f"odd_long_rows-{op}-{name_of(dtype)}", 3 * 40, 3 * 1200, 36, (3, 3),
                          dtype, pattern="one_dense_row", density=0.04, bias=True,
                          activation="relu", op=op)  # fmt: skip
        yield Problem(f"odd_long_rows-batch-{name_of(dtype)}", 2 * 40, 2 * 1200, 24, (2, 2), dtype,
                      batch=(3,), pattern="one_dense_row", density=0.04, bias=i > 0)  # fmt: skip


def _columns_of_scalars():
    """Blocks as finite elements have them, in fp32 and fp64, with few columns and a few more."""
    blocks = (
        (1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (1, 4), (4, 1), (4, 4), (3, 6), (5, 5), (6, 6),
        (7, 2), (8, 8), (12, 9), (16, 16), (1, 24), (33, 5),
    )  # fmt: skip
    forms = (
        ("matmul", "row", "row"), ("matmul", "padded", "offset"), ("matmul", "column", "column"),
        ("linear", "row", "row"), ("transposed", "row", "row"), ("right", "row", "row"),
    )  # fmt: skip
    for i, block in enumerate(blocks):
        for j, n in enumerate((None, 1, 2, 3, 4, 7, 9, 16, 33, 65)):
            if (i + j) % 2:
                continue
            form = forms[0 if n is None else (i + j // 2) % 6]
            yield of_blocks(
                "scalars", block, (23, 31 + 2 * j), n, *form, dtype=(FP64, FP32)[(i + j // 3) % 2],
                index_dtype=INDEX_DTYPES[(i + j) % 2], pattern=_PATTERNS[(i + j // 2) % 4],
                bias=j % 3 == 1, activation=(None, None, "gelu", "relu")[(i + j) % 4],
            )  # fmt: skip
    # A row of so many blocks that it is cut among threads, alone and in a batch.
    for n, batch in ((None, ()), (1, (2,)), (5, ()), (6, (2,))):
        for dtype in (FP64, FP32):
            yield Problem(f"scalars_long_row-{n}-{len(batch)}-{name_of(dtype)}", 18, 6 * 1100, n,
                          (6, 6), dtype, batch=batch, pattern="one_dense_row", bias=True,
                          activation="relu")  # fmt: skip


def _few_columns_of_any_block():
    """Up to 16 columns without tensor cores: every block side, operand and dtype, and rows of more
    blocks than a group of lanes should walk alone."""
    blocks = (
        (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (8, 8), (10, 12), (16, 16), (37, 5), (3, 6),
        (64, 64), (1, 130), (70, 4),
    )  # fmt: skip
    forms = (
        ("matmul", "row", "row"), ("linear", "row", "row"), ("matmul", "padded", "offset"),
        ("transposed", "row", "column"), ("right", "row", "row"), ("matmul", "column", "column"),
        ("linear", "offset", "row"),
    )  # fmt: skip
    dtypes = (FP64, FP32, FP64, FP32, HALF, BF16)
    for i, block in enumerate(blocks):
        for j, n in enumerate((None, 1, 2, 3, 4, 5, 8, 11, 12, 16)):
            if (i + j) % 2:
                continue
            op, *layouts = forms[(i + j) % len(forms)]
            yield of_blocks(
                "any", block, (5 + i, 9 + 4 * j), n, op, *(layouts if n else ("row", "row")),
                dtype=dtypes[(i + 2 * j + j // 3) % len(dtypes)],
                index_dtype=INDEX_DTYPES[(i + j // 2) % 2], pattern=_SKEWED_FIRST[(i + j // 2) % 4],
                bias=j % 3 == 1,
                activation=(None, "gelu", None, "relu", "silu", "gelu_tanh")[(i + 2 * j) % 6],
            )  # fmt: skip
    for i, block in enumerate(((1, 1), (2, 2), (3, 3), (8, 8), (4, 1))):
        for j, op in enumerate(("matmul", "linear", "transposed", "right")):
            for n in (1, 11):
                yield of_blocks(
                    "any_long_rows", block, ((3, 9)[j % 2], 2600), n, op, "row", "row",
                    dtype=(FP32, FP64)[(i + j) % 2], index_dtype=INDEX_DTYPES[1 - j // 2],
                    pattern=("full", "one_dense_row")[j % 2], bias=j % 2 == 0,
                    activation=(None, "silu", "gelu")[(i + j) % 3],
                )  # fmt: skip
    yield Problem("any_long_rows-batch", 6, 3 * 2600, 4, (3, 3), FP64, batch=(3,), pattern="full",
                  bias=True)  # fmt: skip


def _larger_than_a_core_cache():
    """A b that no core's L2 holds, of panels that are packed while others are multiplied."""
    for dtype, block in ((FP32, 16), (FP32, 64), (FP64, 32)):
        for n, out_layout in ((1200, "row"), (1309, "padded")):
            yield Problem(f"large_b-{name_of(dtype)}-{block}-{n}", 5 * block, 1024, n,
                          (block, block), dtype, pattern="empty_rows", density=0.2,
                          out_layout=out_layout)  # fmt: skip


def _large_transposed():
    """The cases of `_large_blocks` and `_long_rows` for a matrix that is stored transposed."""
    products = (
        (136, "transposed", "row", "row"), (264, "transposed", "row", "column"),
        (264, "transposed", "column", "row"), (520, "transposed", "column", "column"),
        (40, "right", "row", "row"), (304, "right", "row", "row"), (200, "right", "column", "row"),
    )  # fmt: skip
    for i, block in enumerate(_LARGE):
        for j, (n, *form) in enumerate(products):
            yield of_blocks(
                "large", block, (3, 5), n, *form, dtype=(HALF, BF16)[(i + j) % 2],
                index_dtype=INDEX_DTYPES[(i + j // 2) % 2], pattern=_SKEWED_FIRST[(i + j) % 4],
                bias=j % 3 == 1, activation=_ACTIVATIONS[(i + 2 * j) % 4],
            )  # fmt: skip
    for i, block in enumerate(((64, 64), (128, 128), (128, 64), (64, 128))):
        for j, (n, *form) in enumerate(products[1:6]):
            pattern = ("skewed", "one_dense_row", "full")[(i + j) % 3]
            yield of_blocks(
                "_long_rows", block, (2 if pattern == "full" else 5, 13), n, *form,
                dtype=(BF16, HALF)[(i + j) % 2], index_dtype=INDEX_DTYPES[(i + j // 2 + 1) % 2],
                pattern=pattern, bias=j % 2 == 1, activation=("relu", None, "gelu")[j % 3],
            )  # fmt: skip
    for op in ("transposed", "right"):
        yield Problem(f"{op}-large-batch", 384, 1408, 264, (128, 128), BF16, batch=(3,),
                      pattern="skewed", op=op)  # fmt: skip
        # More blocks in a row than places of blocks are fetched at once.
        yield Problem(f"{op}-_long_rows-block_64", 128, 4480, 136, (64, 64), HALF, density=0.8,
                      op=op)  # fmt: skip


def _fp32_blocks():
    """Blocks in fp32 that fill register tiles or do not: rows of uneven length, sides that are
    multiples of 4, lines of B and C that are aligned to 16 bytes or to single elements."""
    products = (
        (136, "matmul", "row", "row"), (37, "matmul", "row", "column"),
        (264, "matmul", "column", "row"), (300, "linear", "row", "row"),
        (133, "linear", "row", "row"), (200, "transposed", "row", "row"),
        (40, "right", "row", "row"), (261, "matmul", "padded", "offset"),
        (16, "matmul", "offset_column", "row"), (520, "transposed", "column", "column"),
    )  # fmt: skip
    blocks = ((4, 4), (8, 8), (12, 20), (16, 16), (40, 24), (32, 64), (64, 64), (80, 16),
              (128, 128))  # fmt: skip
    for i, block in enumerate(blocks):
        for j, (n, *form) in list(enumerate(products))[i % 2 :: 2]:
            yield of_blocks(
                "fp32", block, (5, 7 if block[1] > 32 else 37), n, *form,
                index_dtype=INDEX_DTYPES[j // 2 % 2], pattern=_SKEWED_FIRST[(i + j // 2) % 4],
                bias=j % 3 == 1, activation=_ACTIVATIONS[(i + 2 * j) % 5],
            )  # fmt: skip
    # More units of k in a row than are looked up at once, in each of several groups of warps.
    for op in ("matmul", "linear", "transposed"):
        yield Problem(f"fp32_long_rows-{op}", 64, 8 * 300, 72, (8, 8), density=0.8, op=op,
                      bias=True)  # fmt: skip
        yield Problem(f"fp32_batch-{op}", 192, 256, 136, (64, 64), op=op, batch=(3,),
                      pattern="skewed")  # fmt: skip


_FAMILIES = (
    _large_blocks, _pairs, _small_blocks, _halves_below_sixteen, _long_rows, _columns_of_scalars,
    _few_columns, _odd_blocks, _few_columns_of_any_block, _fp32_blocks, _larger_than_a_core_cache,
    _large_transposed,
)  # fmt: skip
KERNEL_CASES = tuple(problem for family in _FAMILIES for problem in family())
# They tell variants of a CPU nothing that smaller ones do not, and take them long.
AS_LARGE_AS_A_GPU = frozenset(_pairs())

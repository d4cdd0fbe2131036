"""The products that every variant must get right: blocks, sizes, patterns, layouts, epilogues."""

import dataclasses

import torch

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


HALF = torch.float16
BF16 = torch.bfloat16
FP32 = torch.float32
FP64 = torch.float64
DTYPES = (HALF, BF16, FP32, FP64)


def _name(dtype):
    return str(dtype).removeprefix("torch.")


def _blocks():
    """Every block shape in every dtype, with a ragged n; the two index dtypes in turn."""
    shapes = (
        (1, 1), (2, 3), (4, 4), (7, 5), (8, 8), (16, 16), (16, 48), (17, 17), (24, 8), (32, 16),
        (32, 32), (48, 80), (64, 32), (64, 64), (64, 128), (128, 64), (128, 128),
    )  # fmt: skip
    for i, (block_m, block_k) in enumerate(shapes):
        for j, dtype in enumerate(DTYPES):
            yield Problem(
                f"block_{block_m}x{block_k}-{_name(dtype)}",
                m=block_m * max(3, 48 // block_m),
                k=block_k * max(4, 60 // block_k),
                block=(block_m, block_k),
                dtype=dtype,
                index_dtype=(torch.int32, torch.int64)[(i + j) % 2],
            )


def _widths():
    """n around every tile width that a kernel may have."""
    widths = (1, 2, 3, 5, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 160)
    for n in (*widths, 192, 255, 256, 257, 300, 384, 520):
        for dtype in (BF16, FP32):
            yield Problem(f"n_{n}-{_name(dtype)}", n=n, block=(32, 32), dtype=dtype)
    for dtype in DTYPES:
        yield Problem(f"vector-{_name(dtype)}", n=None, dtype=dtype)
        yield Problem(f"n_300-block_64-{_name(dtype)}", 192, 256, 300, (64, 64), dtype)


def _patterns():
    patterns = (
        "full", "first_block", "last_block", "empty_rows", "one_dense_row", "skewed",
        "diagonal", "even", "empty",
    )  # fmt: skip
    for pattern in patterns:
        for block in (8, 16, 64):
            for dtype in (HALF, FP32) if block == 8 else (BF16, FP32):
                yield Problem(
                    f"{pattern}-block_{block}-{_name(dtype)}",
                    m=block * 9,
                    k=block * 7,
                    n=72,
                    block=(block, block),
                    dtype=dtype,
                    pattern=pattern,
                )
    # Longer sums and larger grids than elsewhere.
    for dtype in DTYPES:
        yield Problem(f"large-{_name(dtype)}", 768, 1024, 264, (64, 64), dtype, pattern="skewed")
        yield Problem(f"even-block_128-{_name(dtype)}", 384, 640, 256, (128, 128), dtype,
                      pattern="even")  # fmt: skip


def _layouts():
    for layout in (
        "column", "padded", "padded_column", "offset", "offset_column", "scattered"
    ):  # fmt: skip
        for dtype in DTYPES:
            yield Problem(f"b_{layout}-{_name(dtype)}", n=40, dtype=dtype, b_layout=layout)
            yield Problem(f"out_{layout}-{_name(dtype)}", n=40, dtype=dtype, out_layout=layout)
        yield Problem(f"b_{layout}-block_64", 128, 192, 136, (64, 64), BF16, b_layout=layout)
        yield Problem(f"out_{layout}-block_64", 128, 192, 136, (64, 64), BF16, out_layout=layout)
    for layout in ("scattered", "offset"):
        yield Problem(f"vector_b_{layout}", n=None, b_layout=layout)
        yield Problem(f"vector_out_{layout}", n=None, out_layout=layout)
    yield Problem("column_to_column", n=40, b_layout="column", out_layout="column")
    yield Problem("column_of_padded", n=1, b_layout="padded", out_layout="padded")
    yield Problem("one_row_of_blocks", m=16, n=1, b_layout="column")


def _large_blocks():
    """Blocks that tensor cores take from shared memory, rectangular ones too, with rows of uneven
    length; n in whole units of 16 bytes and not; b and the result in either layout."""
    products = (
        (136, "row", "row", "matmul"), (264, "row", "column", "matmul"),
        (264, "column", "row", "matmul"), (520, "row", "row", "matmul"),
        (37, "row", "row", "linear"), (300, "row", "row", "linear"), (200, "row", "row", "linear"),
        (133, "row", "row", "matmul"), (300, "row", "row", "matmul"),
        (261, "padded", "offset", "matmul"),
    )  # fmt: skip
    for i, block in enumerate(((64, 64), (128, 128), (64, 128), (128, 64), (192, 64), (128, 192))):
        for j, (n, b_layout, out_layout, op) in enumerate(products):
            yield Problem(
                f"large_{block[0]}x{block[1]}-{op}-{n}-{b_layout}-{out_layout}",
                m=block[0] * 3,
                k=block[1] * 4,
                n=n,
                block=block,
                dtype=(BF16, HALF)[(i + j) % 2],
                index_dtype=(torch.int32, torch.int64)[j % 2],
                pattern=("skewed", "uniform", "empty_rows", "one_dense_row")[(i + j) % 4],
                b_layout=b_layout,
                out_layout=out_layout,
                bias=j % 3 == 1,
                activation=(None, "gelu", None, "relu")[(i + 2 * j) % 4],
                op=op,
            )
    for dtype in (BF16, HALF):
        for batch in ((3,), (2, 3)):
            yield Problem(f"large-batch_{len(batch)}-{_name(dtype)}", 256, 384, 72, (128, 128),
                          dtype, batch=batch, pattern="skewed")  # fmt: skip
    # More blocks in a row than column indices are fetched at once.
    yield Problem("long_rows-block_64", 128, 4480, 136, (64, 64), BF16, density=0.8)


def _small_blocks():
    """Blocks of which several rows share what is loaded of b: more rows than a group has, the last
    group not full; more columns than are looked at once."""
    products = (
        (136, "row", "row", "matmul"), (264, "row", "column", "matmul"),
        (72, "column", "row", "matmul"), (300, "row", "row", "linear"),
        (200, "row", "row", "transposed"), (128, "column", "column", "transposed"),
        (100, "row", "row", "right"),
    )  # fmt: skip
    for i, block in enumerate(((16, 16), (32, 32), (16, 32), (32, 16))):
        for j, (n, b_layout, out_layout, op) in enumerate(products):
            yield Problem(
                f"small_{block[0]}x{block[1]}-{op}-{n}-{b_layout}-{out_layout}",
                m=block[0] * 19,
                k=block[1] * 45,
                n=n,
                block=block,
                dtype=(BF16, HALF)[(i + j) % 2],
                index_dtype=(torch.int64, torch.int32)[j % 2],
                pattern=("uniform", "skewed", "empty_rows", "one_dense_row", "full")[(i + j) % 5],
                b_layout=b_layout,
                out_layout=out_layout,
                bias=j % 3 == 1,
                activation=(None, "gelu", None, "relu")[(i + 2 * j) % 4],
                op=op,
            )
    yield Problem("small-batch", 304, 720, 136, (16, 16), BF16, batch=(3,), pattern="skewed")


def _long_rows():
    """Rows that are worth cutting into parts: much longer than others, or few."""
    products = (
        (264, "row", "row", "matmul"), (264, "column", "column", "matmul"),
        (300, "row", "row", "linear"),
    )  # fmt: skip
    for i, block in enumerate(((64, 64), (128, 128), (128, 64))):
        for j, (n, b_layout, out_layout, op) in enumerate(products):
            pattern = ("skewed", "one_dense_row", "full")[(i + j) % 3]
            yield Problem(
                f"long_rows_{block[0]}x{block[1]}-{op}-{b_layout}-{pattern}",
                m=block[0] * (2 if pattern == "full" else 5),
                k=block[1] * 13,
                n=n,
                block=block,
                dtype=(HALF, BF16)[(i + j) % 2],
                index_dtype=(torch.int64, torch.int32)[j % 2],
                pattern=pattern,
                b_layout=b_layout,
                out_layout=out_layout,
                bias=j > 0,
                activation=("relu", None, "gelu")[j],
                op=op,
            )
    yield Problem("long_rows-batch", 640, 1408, 264, (128, 128), BF16, batch=(3,),
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
            op, b_layout, out_layout = forms[(i + j // 2) % len(forms)]
            pattern = ("skewed", "uniform", "empty_rows", "one_dense_row")[(i + j // 2) % 4]
            yield Problem(
                f"few_{block[0]}x{block[1]}-{op}-{n}-{b_layout}-{out_layout}-{pattern}",
                m=block[0] * 5,
                k=block[1] * (9 + 4 * j),
                n=n,
                block=block,
                dtype=(BF16, HALF)[i % 2],
                index_dtype=(torch.int32, torch.int64)[j // 2 % 2],
                pattern=pattern,
                b_layout=b_layout,
                out_layout=out_layout,
                bias=j % 3 == 1,
                activation=(None, "gelu", None, "relu", "silu")[(i + 2 * j) % 5],
                op=op,
            )
    # Few rows, much longer than what is on its way at one time.
    for op in ("linear", "matmul", "transposed", "right"):
        for n in (1, 16, 40, 128):
            block = 64 if n > 16 else 16
            yield Problem(f"few_long_rows-{op}-{n}", block * 2, block * 150, n, (block, block),
                          BF16, density=0.7, op=op, bias=True)  # fmt: skip
    # Small blocks and a column-major b, some columns short of a whole tile; rows of which each of
    # four groups of warps has more blocks than a warp has lanes.
    for i, block in enumerate((16, 32)):
        for j, n in enumerate((65, 72, 96, 127, 128)):
            op, b_layout = (("linear", "row"), ("matmul", "column"))[(i + j) % 2]
            yield Problem(
                f"few_{block}-{op}-{n}",
                m=block * 11,
                k=block * (22 + 8 * j),
                n=n,
                block=(block, block),
                dtype=(BF16, HALF)[j % 2],
                index_dtype=(torch.int32, torch.int64)[(i + j) % 2],
                pattern=("skewed", "empty_rows", "one_dense_row", "uniform")[(i + j) % 4],
                b_layout=b_layout,
                out_layout=("row", "column")[j % 2] if op == "matmul" else "row",
                bias=j % 3 == 1,
                activation=(None, "silu", "relu")[(i + j) % 3],
                op=op,
            )
        yield Problem(f"few_long_rows-{block}", block * 3, block * 200, 120, (block, block), BF16,
                      density=0.9, op="linear", bias=True)  # fmt: skip
        yield Problem(f"few-batch-{block}", block * 4, block * 40, 80, (block, block), BF16,
                      batch=(3,), op="linear", bias=True)  # fmt: skip
    for op in ("linear", "matmul"):
        yield Problem(f"few-batch-{op}", 128, 512, 16, (32, 32), BF16, batch=(3,), op=op,
                      bias=True)  # fmt: skip


def _batches():
    for dtype in (BF16, FP32):
        for batch in ((1,), (3,), (2, 3), (2, 1, 2)):
            yield Problem(f"batch_{'x'.join(map(str, batch))}-{_name(dtype)}", dtype=dtype,
                          batch=batch)  # fmt: skip
        for layout in ("column", "offset", "expanded", "batch_inside", "scattered"):
            yield Problem(f"batch_b_{layout}-{_name(dtype)}", n=40, dtype=dtype, batch=(2, 3),
                          b_layout=layout)  # fmt: skip
        for layout in ("column", "padded"):
            yield Problem(f"batch_out_{layout}-{_name(dtype)}", n=40, dtype=dtype, batch=(2, 3),
                          out_layout=layout)  # fmt: skip


def _epilogues():
    for dtype in DTYPES:
        for activation in (None, "relu", "gelu", "gelu_tanh", "silu"):
            for bias in (False, True):
                if bias or activation:
                    yield Problem(
                        f"{activation}{'-bias' if bias else ''}-{_name(dtype)}",
                        n=40,
                        dtype=dtype,
                        bias=bias,
                        activation=activation,
                    )
        yield Problem(f"vector-bias-relu-{_name(dtype)}", n=None, dtype=dtype, bias=True,
                      activation="relu")  # fmt: skip
    yield Problem("bias-block_64", 192, 256, 130, (64, 64), BF16, bias=True, activation="gelu")
    yield Problem("bias-block_5", 35, 40, 9, (5, 8), bias=True, activation="silu")
    yield Problem("bias-batch", batch=(2, 2), bias=True, activation="silu")
    yield Problem("bias-column", b_layout="column", out_layout="column", bias=True,
                  activation="relu")  # fmt: skip
    for pattern in ("empty", "empty_rows"):
        for activation in ("gelu", "gelu_tanh", "silu", "relu"):
            yield Problem(f"bias-{activation}-{pattern}", bias=True, activation=activation,
                          pattern=pattern)  # fmt: skip


def _linears():
    for dtype in DTYPES:
        for tokens in (1, 5, 64, 300):
            yield Problem(f"linear_{tokens}-{_name(dtype)}", n=tokens, dtype=dtype, op="linear")
        yield Problem(f"linear-vector-{_name(dtype)}", n=None, dtype=dtype, op="linear",
                      bias=True)  # fmt: skip
        yield Problem(f"linear-leading-{_name(dtype)}", n=7, batch=(2, 3), dtype=dtype,
                      op="linear", bias=True, activation="gelu")  # fmt: skip
        yield Problem(f"linear-block_64-{_name(dtype)}", 192, 256, 130, (64, 64), dtype,
                      op="linear", bias=True, activation="silu")  # fmt: skip
    for layout in ("column", "padded", "offset", "offset_column", "scattered"):
        for dtype in (BF16, FP32):
            yield Problem(f"linear-x_{layout}-{_name(dtype)}", n=40, dtype=dtype, op="linear",
                          b_layout=layout)  # fmt: skip
    yield Problem("linear-expanded", n=8, batch=(3,), op="linear", b_layout="expanded")
    yield Problem("linear-permuted", n=8, batch=(3,), op="linear", b_layout="batch_inside")
    yield Problem("linear-empty_rows", op="linear", pattern="empty_rows", bias=True)


def _transposed():
    """S^T @ b and x @ S: what gradients and dense @ BSR are made of."""
    shapes = ((1, 1), (2, 3), (7, 5), (16, 16), (16, 48), (32, 16), (64, 64), (64, 128), (128, 128))
    for i, (block_m, block_k) in enumerate(shapes):
        for j, dtype in enumerate(DTYPES):
            op = ("transposed", "right")[(i + j) % 2]
            yield Problem(
                f"{op}-{block_m}x{block_k}-{_name(dtype)}",
                m=block_m * max(3, 48 // block_m),
                k=block_k * max(4, 60 // block_k),
                n=(37, 72)[j % 2],
                block=(block_m, block_k),
                dtype=dtype,
                index_dtype=(torch.int32, torch.int64)[(i + j // 2) % 2],
                pattern=("uniform", "empty_rows", "skewed")[(i + j) % 3],
                bias=j % 2 == 1,
                activation=(None, "gelu", "relu")[i % 3],
                op=op,
            )
    for pattern in ("full", "first_block", "last_block", "one_dense_row", "diagonal", "empty"):
        for op in ("transposed", "right"):
            yield Problem(f"{op}-{pattern}", 288, 224, 72, (32, 32), BF16, pattern=pattern, op=op)
    for layout in ("column", "offset", "offset_column", "scattered"):
        for block, dtype in ((16, FP32), (64, BF16)):
            for op in ("transposed", "right"):
                yield Problem(f"{op}-b_{layout}-block_{block}", block * 3, block * 4, 136,
                              (block, block), dtype, b_layout=layout, op=op)  # fmt: skip
            yield Problem(f"transposed-out_{layout}-block_{block}", block * 3, block * 4, 136,
                          (block, block), dtype, out_layout=layout, op="transposed")  # fmt: skip
    for n in (None, 1, 5, 300):
        for op in ("transposed", "right"):
            yield Problem(f"{op}-n_{n}", 192, 256, n, (64, 64), BF16, op=op, bias=True)
    for op in ("transposed", "right"):
        yield Problem(f"{op}-batch", 128, 192, 40, (64, 64), BF16, batch=(2, 3), op=op)


def _large_transposed():
    """The cases of `_large_blocks` and `_long_rows` for a matrix that is stored transposed."""
    products = (
        (136, "row", "row", "transposed"), (264, "row", "column", "transposed"),
        (264, "column", "row", "transposed"), (520, "column", "column", "transposed"),
        (40, "row", "row", "right"), (304, "row", "row", "right"), (200, "column", "row", "right"),
    )  # fmt: skip
    blocks = ((64, 64), (128, 128), (64, 128), (128, 64), (192, 64), (128, 192))
    for i, block in enumerate(blocks):
        for j, (n, b_layout, out_layout, op) in enumerate(products):
            yield Problem(
                f"large_{block[0]}x{block[1]}-{op}-{n}-{b_layout}-{out_layout}",
                m=block[0] * 3,
                k=block[1] * 5,
                n=n,
                block=block,
                dtype=(HALF, BF16)[(i + j) % 2],
                index_dtype=(torch.int32, torch.int64)[(i + j // 2) % 2],
                pattern=("skewed", "uniform", "empty_rows", "one_dense_row")[(i + j) % 4],
                b_layout=b_layout,
                out_layout=out_layout,
                bias=j % 3 == 1,
                activation=(None, "gelu", None, "relu")[(i + 2 * j) % 4],
                op=op,
            )
    for i, block in enumerate(((64, 64), (128, 128), (128, 64), (64, 128))):
        for j, (n, b_layout, out_layout, op) in enumerate(products[1:6]):
            pattern = ("skewed", "one_dense_row", "full")[(i + j) % 3]
            yield Problem(
                f"long_rows_{block[0]}x{block[1]}-{op}-{n}-{b_layout}-{out_layout}",
                m=block[0] * (2 if pattern == "full" else 5),
                k=block[1] * 13,
                n=n,
                block=block,
                dtype=(BF16, HALF)[(i + j) % 2],
                index_dtype=(torch.int64, torch.int32)[(i + j // 2) % 2],
                pattern=pattern,
                b_layout=b_layout,
                out_layout=out_layout,
                bias=j % 2 == 1,
                activation=("relu", None, "gelu")[j % 3],
                op=op,
            )
    for op in ("transposed", "right"):
        yield Problem(f"{op}-large-batch", 384, 1408, 264, (128, 128), BF16, batch=(3,),
                      pattern="skewed", op=op)  # fmt: skip
        # More blocks in a row than places of blocks are fetched at once.
        yield Problem(f"{op}-long_rows-block_64", 128, 4480, 136, (64, 64), HALF, density=0.8,
                      op=op)  # fmt: skip


def _native():
    for dtype in DTYPES:
        yield Problem(f"native-{_name(dtype)}", dtype=dtype, native=True)
        yield Problem(f"native-linear-{_name(dtype)}", dtype=dtype, native=True, op="linear")
    yield Problem("native-int32", index_dtype=torch.int32, native=True, bias=True)


def _tf32():
    for block in ((16, 16), (16, 48), (32, 32), (64, 64), (128, 128)):
        for n, layout in ((37, "row"), (136, "row"), (136, "column")):
            for op in ("matmul", "transposed"):
                yield Problem(
                    f"tf32-{block[0]}x{block[1]}-{op}-{layout}-{n}",
                    m=3 * block[0],
                    k=5 * block[1],
                    n=n,
                    block=block,
                    b_layout=layout,
                    op=op,
                    tf32=True,
                )


TF32_CASES = tuple(_tf32())
CASES = tuple(
    problem
    for family in (
        _blocks,
        _widths,
        _patterns,
        _layouts,
        _large_blocks,
        _small_blocks,
        _long_rows,
        _few_columns,
        _batches,
        _epilogues,
        _linears,
        _transposed,
        _large_transposed,
        _native,
    )
    for problem in family()
)

"""The products that every variant must get right: blocks, sizes, patterns, layouts, epilogues."""

import torch
from double_problems import DOUBLE_CASES
from kernel_problems import KERNEL_CASES
from problem import (
    BF16,
    BLOCKS,
    DTYPES,
    FP32,
    FP64,
    HALF,
    INDEX_DTYPES,
    LAYOUTS,
    PATTERNS,
    Problem,
    name_of,
)
from uneven_problems import UNEVEN_CASES


def _blocks():
    """Every block shape in every dtype, with a ragged n; the two index dtypes in turn."""
    for i, (block_m, block_k) in enumerate(BLOCKS):
        for j, dtype in enumerate(DTYPES):
            yield Problem(
                f"block_{block_m}x{block_k}-{name_of(dtype)}",
                m=block_m * max(3, 48 // block_m),
                k=block_k * max(4, 60 // block_k),
                block=(block_m, block_k),
                dtype=dtype,
                index_dtype=INDEX_DTYPES[(i + j) % 2],
            )


def _widths():
    """n around every tile width that a kernel may have."""
    widths = (1, 2, 3, 5, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 160)
    for n in (*widths, 192, 255, 256, 257, 300, 384, 520):
        for dtype in (BF16, FP32):
            yield Problem(f"n_{n}-{name_of(dtype)}", n=n, block=(32, 32), dtype=dtype)
    for dtype in DTYPES:
        yield Problem(f"vector-{name_of(dtype)}", n=None, dtype=dtype)
        yield Problem(f"n_300-block_64-{name_of(dtype)}", 192, 256, 300, (64, 64), dtype)


def _patterns():
    for pattern in PATTERNS[1:]:
        for block in (8, 16, 64):
            for dtype in (HALF, FP32) if block == 8 else (BF16, FP32):
                yield Problem(
                    f"{pattern}-block_{block}-{name_of(dtype)}",
                    m=block * 9,
                    k=block * 7,
                    n=72,
                    block=(block, block),
                    dtype=dtype,
                    pattern=pattern,
                )
    # Longer sums and larger grids than elsewhere.
    for dtype in DTYPES:
        yield Problem(f"large-{name_of(dtype)}", 768, 1024, 264, (64, 64), dtype, pattern="skewed")
        yield Problem(f"even-block_128-{name_of(dtype)}", 384, 640, 256, (128, 128), dtype,
                      pattern="even")  # fmt: skip


def _layouts():
    for layout in LAYOUTS[1:]:
        for dtype in DTYPES:
            yield Problem(f"b_{layout}-{name_of(dtype)}", n=40, dtype=dtype, b_layout=layout)
            yield Problem(f"out_{layout}-{name_of(dtype)}", n=40, dtype=dtype, out_layout=layout)
        yield Problem(f"b_{layout}-block_64", 128, 192, 136, (64, 64), BF16, b_layout=layout)
        yield Problem(f"out_{layout}-block_64", 128, 192, 136, (64, 64), BF16, out_layout=layout)
    for layout in ("scattered", "offset"):
        yield Problem(f"vector_b_{layout}", n=None, b_layout=layout)
        yield Problem(f"vector_out_{layout}", n=None, out_layout=layout)
    yield Problem("column_to_column", n=40, b_layout="column", out_layout="column")
    yield Problem("column_of_padded", n=1, b_layout="padded", out_layout="padded")
    yield Problem("one_row_of_blocks", m=16, n=1, b_layout="column")


def _batches():
    for dtype in (BF16, FP32):
        for batch in ((1,), (3,), (2, 3), (2, 1, 2)):
            yield Problem(f"batch_{'x'.join(map(str, batch))}-{name_of(dtype)}", dtype=dtype,
                          batch=batch)  # fmt: skip
        for layout in ("column", "offset", "expanded", "batch_inside", "scattered"):
            yield Problem(f"batch_b_{layout}-{name_of(dtype)}", n=40, dtype=dtype, batch=(2, 3),
                          b_layout=layout)  # fmt: skip
        for layout in ("column", "padded"):
            yield Problem(f"batch_out_{layout}-{name_of(dtype)}", n=40, dtype=dtype, batch=(2, 3),
                          out_layout=layout)  # fmt: skip


def _epilogues():
    for dtype in DTYPES:
        for activation in (None, "relu", "gelu", "gelu_tanh", "silu"):
            for bias in (False, True):
                if bias or activation:
                    yield Problem(
                        f"{activation}{'-bias' if bias else ''}-{name_of(dtype)}",
                        n=40,
                        dtype=dtype,
                        bias=bias,
                        activation=activation,
                    )
        yield Problem(f"vector-bias-relu-{name_of(dtype)}", n=None, dtype=dtype, bias=True,
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
            yield Problem(f"linear_{tokens}-{name_of(dtype)}", n=tokens, dtype=dtype, op="linear")
        yield Problem(f"linear-vector-{name_of(dtype)}", n=None, dtype=dtype, op="linear",
                      bias=True)  # fmt: skip
        yield Problem(f"linear-leading-{name_of(dtype)}", n=7, batch=(2, 3), dtype=dtype,
                      op="linear", bias=True, activation="gelu")  # fmt: skip
        yield Problem(f"linear-block_64-{name_of(dtype)}", 192, 256, 130, (64, 64), dtype,
                      op="linear", bias=True, activation="silu")  # fmt: skip
    for layout in ("column", "padded", "offset", "offset_column", "scattered"):
        for dtype in (BF16, FP32):
            yield Problem(f"linear-x_{layout}-{name_of(dtype)}", n=40, dtype=dtype, op="linear",
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
                f"{op}-{block_m}x{block_k}-{name_of(dtype)}",
                m=block_m * max(3, 48 // block_m),
                k=block_k * max(4, 60 // block_k),
                n=(37, 72)[j % 2],
                block=(block_m, block_k),
                dtype=dtype,
                index_dtype=INDEX_DTYPES[(i + j // 2) % 2],
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


def _native():
    for dtype in DTYPES:
        yield Problem(f"native-{name_of(dtype)}", dtype=dtype, native=True)
        yield Problem(f"native-linear-{name_of(dtype)}", dtype=dtype, native=True, op="linear")
    yield Problem("native-int32", index_dtype=torch.int32, native=True, bias=True)


def _dense_copies():
    """Matrices that are made dense: lines of any alignment, short ones and such as are cut, whose
    blocks are of few pieces or of many; rows of more blocks than are fetched at one time."""
    shapes = (
        ((1, 1), (37, 765), BF16), ((1, 1), (5, 12290), HALF), ((3, 3), (9, 1336), BF16),
        ((2, 2), (21, 1501), FP32), ((12, 12), (4, 341), HALF), ((5, 5), (6, 205), FP64),
        ((1, 1), (300, 7), FP64), ((8, 4), (31, 70), FP32), ((16, 2), (3, 4100), BF16),
        ((40, 40), (3, 35), FP64), ((1, 24), (70, 3), HALF),
    )  # fmt: skip
    for i, (block, grid, dtype) in enumerate(shapes):
        for j, (op, n) in enumerate((("matmul", 24), ("linear", 17), ("transposed", 33))):
            yield Problem(
                f"dense_copy_{block[0]}x{block[1]}-{op}-{name_of(dtype)}-{grid[0]}",
                block[0] * grid[0], block[1] * grid[1], n, block, dtype, op=op, density=0.15,
                index_dtype=INDEX_DTYPES[(i + j) % 2],
                pattern=("uniform", "one_dense_row", "empty_rows")[(i + j) % 3],
            )  # fmt: skip


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
    for block, activation in (((64, 64), "silu"), ((128, 32), "relu"), ((128, 128), None)):
        yield Problem(f"tf32-{block[0]}x{block[1]}-linear", 3 * block[0], 8 * block[1], 330, block,
                      op="linear", tf32=True, bias=True, activation=activation,
                      pattern="empty_rows")  # fmt: skip
    yield Problem("tf32-batch", 192, 256, 264, (64, 64), batch=(3,), b_layout="column", tf32=True,
                  bias=True, activation="gelu")  # fmt: skip


_FAMILIES = (
    _blocks, _widths, _patterns, _layouts, _batches, _epilogues, _linears, _transposed, _native,
    _dense_copies,
)  # fmt: skip
CASES = (
    *(problem for family in _FAMILIES for problem in family()),
    *KERNEL_CASES, *DOUBLE_CASES, *UNEVEN_CASES,
)  # fmt: skip
TF32_CASES = tuple(_tf32())

"""The sampled products that every variant must get right, and what they must be."""

import dataclasses
import functools
import itertools
import zlib

import numpy as np
import torch
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
    name_of,
)
from reference import (
    ACCUMULATE_ROUNDOFF,
    ACCUMULATE_SLACK,
    RESULT_ROUNDOFF,
    TF32_ROUNDOFF,
    UNDERFLOW,
    pattern_mask,
    strided,
)

import sparse_autotune
from sparse_autotune.errors import legality

_PLAIN_LAYOUTS = [(x, y) for x in ("row", "column") for y in ("row", "column")]


@dataclasses.dataclass(frozen=True)
class SampledProblem:
    """One sampled product: x (m, n) times y (n, k) at the stored blocks."""

    name: str
    m: int = 96
    k: int = 160
    n: int = 37
    block: tuple[int, int] = (16, 16)
    dtype: torch.dtype = torch.float32
    index_dtype: torch.dtype = torch.int64
    pattern: str = "uniform"
    density: float = 0.3
    x_layout: str = "row"
    y_layout: str = "row"
    batch: tuple[int, ...] = ()
    native: bool = False  # the pattern is a torch.sparse_bsr tensor
    tf32: bool = False

    def __str__(self):
        return self.name


@dataclasses.dataclass(frozen=True)
class SampledOperands:
    """A problem's tensors on a device, and what the values must be."""

    problem: SampledProblem
    x: torch.Tensor
    b: torch.Tensor  # y
    a: object  # the pattern
    reference: np.ndarray  # fp64, (nnzb, block_m, block_k)
    tolerance: np.ndarray  # fp64, absolute, for each element

    def call(self, variant="auto"):
        """The values of the result."""
        return sparse_autotune.sampled_matmul(self.x, self.b, self.a, variant=variant).values

    def legality(self):
        """Why each variant may not compute it (None: it may)."""
        return legality(self.x, self.b, pattern=self.a)


def _blocks():
    """Block shapes in every dtype and both index dtypes, with ragged sums, in each pair of layouts
    in turn."""
    for i, (block_m, block_k) in enumerate(BLOCKS):
        for j, dtype in enumerate(DTYPES):
            for x_layout, y_layout in (
                _PLAIN_LAYOUTS[(i + j) % 4],
                _PLAIN_LAYOUTS[(i + j + 1) % 4],
            ):
                yield SampledProblem(
                    f"block_{block_m}x{block_k}-{name_of(dtype)}-{x_layout}-{y_layout}",
                    m=block_m * max(3, 48 // block_m),
                    k=block_k * max(4, 60 // block_k),
                    n=(37, 136)[j % 2],
                    block=(block_m, block_k),
                    dtype=dtype,
                    index_dtype=INDEX_DTYPES[(i // 2 + j) % 2],
                    x_layout=x_layout,
                    y_layout=y_layout,
                )


def _lengths():
    """n around every chunk that a kernel may cut sums into."""
    lengths = (
        1,
        2,
        3,
        7,
        8,
        15,
        16,
        17,
        31,
        32,
        33,
        63,
        64,
        65,
        127,
        128,
        129,
        200,
        257,
        520,
        1000,
    )
    for n in lengths:
        for dtype in (BF16, FP32):
            layout = ("row", "column")[n % 2]
            yield SampledProblem(f"n_{n}-{name_of(dtype)}", n=n, block=(32, 32), dtype=dtype,
                                 x_layout=layout, y_layout="column")  # fmt: skip
    for dtype in DTYPES:
        yield SampledProblem(f"one_term-{name_of(dtype)}", n=1, block=(8, 24), m=64, k=96,
                             dtype=dtype)  # fmt: skip


def _multiples():
    """Sums as long as a multiple of the block's side: cuSPARSE takes no others."""
    for i, side in enumerate((2, 4, 8, 16, 32, 64, 128)):
        for j, dtype in enumerate(DTYPES):
            x_layout, y_layout = _PLAIN_LAYOUTS[(i + j) % 4]
            yield SampledProblem(
                f"multiple_{side}-{name_of(dtype)}",
                m=side * 5,
                k=side * 3,
                n=side * (3, 8)[j % 2],
                block=(side, side),
                dtype=dtype,
                index_dtype=INDEX_DTYPES[(i // 2 + j) % 2],
                batch=((), (2,))[i % 2],
                x_layout=x_layout,
                y_layout=y_layout,
            )


def _patterns():
    for pattern in PATTERNS[1:]:
        for block, dtype in ((8, HALF), (16, BF16), (64, FP32), (16, FP64)):
            yield SampledProblem(
                f"{pattern}-block_{block}-{name_of(dtype)}",
                m=block * 9,
                k=block * 7,
                n=72,
                block=(block, block),
                dtype=dtype,
                pattern=pattern,
                x_layout="column",
            )
    # Longer sums and larger grids than elsewhere.
    for dtype in DTYPES:
        yield SampledProblem(f"large-{name_of(dtype)}", 768, 1024, 264, (64, 64), dtype,
                             pattern="skewed", x_layout="column")  # fmt: skip
        yield SampledProblem(f"tall-{name_of(dtype)}", 384, 128, 2100, (192, 32), dtype)


def _in_all_layouts(name, shapes, terms, block_rows, block_cols, dtypes=(HALF, BF16)):
    """Each block shape in each layout, with all else that a kernel may depend on in turn.

    ``terms`` are multiples of eight: only so do contiguous ones leave the next line aligned.
    """
    patterns = ("uniform", "empty_rows", "skewed", "diagonal", "one_dense_row", "full")
    for i, (block_m, block_k) in enumerate(shapes):
        for j, (x_layout, y_layout) in enumerate(_PLAIN_LAYOUTS):
            aligned = terms[(i + j) % 4]
            yield SampledProblem(
                f"{name}_{block_m}x{block_k}-{x_layout}-{y_layout}",
                m=block_m * block_rows[(i + j) % 3],
                k=block_k * block_cols[(i + j) % 2],
                n=aligned - 3 if (x_layout, y_layout) == ("column", "row") else aligned,
                block=(block_m, block_k),
                dtype=dtypes[(i + j) % 2],
                index_dtype=INDEX_DTYPES[i % 2],
                pattern=patterns[(2 * i + j) % 6],
                x_layout=x_layout,
                y_layout=y_layout,
            )


def _large_blocks():
    """Blocks for the matrix units, in all layouts: rows of every length, which a kernel's tasks may
    run across; sums long enough to be cut into parts; sums that end within a step."""
    shapes = ((64, 64), (128, 128), (64, 128), (128, 64), (192, 64), (64, 192), (256, 128))
    yield from _in_all_layouts("large", shapes, (8, 136, 520, 1112), (5, 3, 9), (4, 7))
    for block in (64, 128):
        for x_layout, y_layout in (
            *_PLAIN_LAYOUTS,
            ("expanded", "row"),
            ("batch_inside", "column"),
        ):
            yield SampledProblem(f"large_{block}-batch-{x_layout}-{y_layout}", 3 * block,
                                 4 * block, 72, (block, block), BF16, batch=(3,),
                                 x_layout=x_layout, y_layout=y_layout)  # fmt: skip
        # More tasks than multiprocessors, in rounds that do not come out even.
        yield SampledProblem(f"large_{block}-many", 24 * block, 48 * block, 64, (block, block),
                             HALF, torch.int32, density=0.6, x_layout="column")  # fmt: skip


def _one_wave():
    """As many blocks as one wave of thread blocks takes: rows of all numbers of blocks, which share
    columns or do not."""
    grids = ((20, 13, 0.9, 40), (6, 9, 0.4, 392), (37, 7, 1.0, 72), (125, 4, 0.52, 40),
             (12, 20, 0.1, 72), (14, 16, 0.9, 840))  # fmt: skip
    grids_64 = ((40, 40, 0.3, 72), (9, 50, 1.0, 392), (128, 4, 0.9, 40), (20, 13, 0.6, 200),
                (64, 64, 0.02, 72), (101, 10, 0.25, 40))  # fmt: skip
    for side, of_side in ((128, grids), (64, grids_64)):
        for i, (rows, cols, density, n) in enumerate(of_side):
            x_layout, y_layout = _PLAIN_LAYOUTS[(i + 3) % 4]
            yield SampledProblem(f"one_wave_{side}-{rows}x{cols}", side * rows, side * cols, n,
                                 (side, side), (BF16, HALF)[i % 2],
                                 (torch.int64, torch.int32)[i % 2], density=density,
                                 x_layout=x_layout, y_layout=y_layout)  # fmt: skip


def _shares():
    """More blocks than that, which equal shares cut into tasks of different sizes."""
    grids = ((60, 16, 0.47, 72), (150, 6, 0.6, 40), (9, 70, 0.8, 136), (250, 4, 0.5, 40),
             (40, 13, 0.9, 840))  # fmt: skip
    for side in (128, 64):
        for i, (rows, cols, density, n) in enumerate(grids):
            x_layout, y_layout = _PLAIN_LAYOUTS[i % 4]
            across = cols * 128 // side
            yield SampledProblem(f"shares_{side}-{rows}x{across}", side * rows, side * across, n,
                                 (side, side), (HALF, BF16)[i % 2],
                                 INDEX_DTYPES[i % 2], density=density,
                                 batch=(3,) if i == 2 else (),
                                 x_layout=x_layout, y_layout=y_layout)  # fmt: skip


def _small_blocks():
    """Blocks that share rows and columns, in all layouts: few of them and many, evenly and not;
    sums long enough to be cut into parts; sums that end within a step."""
    shapes = ((16, 16), (32, 32), (16, 32), (32, 16), (64, 32), (16, 64))
    yield from _in_all_layouts("small", shapes, (136, 8, 520, 264), (13, 24, 5), (9, 14))
    for block in (16, 32):
        for x_layout, y_layout in (("row", "column"), ("expanded", "row"),
                                   ("batch_inside", "column")):  # fmt: skip
            yield SampledProblem(f"small_{block}-batch-{x_layout}-{y_layout}", 6 * block,
                                 9 * block, 72, (block, block), BF16, batch=(3,),
                                 x_layout=x_layout, y_layout=y_layout)  # fmt: skip
        # Groups of rows that have many more blocks than others, and columns that none has.
        yield SampledProblem(f"small_{block}-tall", 80 * block, 20 * block, 40, (block, block),
                             HALF, torch.int32, "skewed", x_layout="column")  # fmt: skip
        yield SampledProblem(f"small_{block}-band", 70 * block, 70 * block, 40, (block, block),
                             BF16, torch.int32, "diagonal", x_layout="column")  # fmt: skip
        yield SampledProblem(f"small_{block}-full", 40 * block, 12 * block, 40, (block, block),
                             BF16, pattern="full", x_layout="column")  # fmt: skip


def _double_precision():
    """What fp64 tensor cores take, in all layouts: blocks that fill tiles, share them or leave a
    part; so few that their sums are cut into parts, and so many that each share has several."""
    shapes = ((16, 16), (32, 32), (64, 64), (128, 128), (8, 48), (24, 160), (80, 32), (256, 16))
    yield from _in_all_layouts("double", shapes, (8, 136, 40, 264), (5, 12, 3), (4, 7), (FP64,) * 2)
    for side in (16, 64):
        for x_layout, y_layout in (*_PLAIN_LAYOUTS, ("expanded", "row"), ("row", "batch_inside")):
            yield SampledProblem(f"double_{side}-long-{x_layout}-{y_layout}", 2 * side, 3 * side,
                                 1112, (side, side), FP64, batch=(3,), x_layout=x_layout,
                                 y_layout=y_layout)  # fmt: skip
        yield SampledProblem(f"double_{side}-many", 40 * side, 50 * side, 24, (side, side), FP64,
                             torch.int32, "skewed", x_layout="column")  # fmt: skip


def _layouts():
    for layout in LAYOUTS[1:]:
        for dtype in DTYPES:
            yield SampledProblem(f"x_{layout}-{name_of(dtype)}", n=40, dtype=dtype, x_layout=layout)
            yield SampledProblem(f"y_{layout}-{name_of(dtype)}", n=40, dtype=dtype, y_layout=layout)
        yield SampledProblem(f"both_{layout}-block_64", 128, 192, 136, (64, 64), BF16,
                             x_layout=layout, y_layout=layout)  # fmt: skip
    yield SampledProblem("one_term-padded", n=1, x_layout="padded", y_layout="padded")
    yield SampledProblem("one_block_row", m=16, n=24, x_layout="column")
    yield SampledProblem("one_row", m=1, k=12, n=24, block=(1, 4), x_layout="column")
    yield SampledProblem("expanded_row", m=96, n=1, batch=(4,), x_layout="expanded",
                         y_layout="row")  # fmt: skip


def _batches():
    for dtype in DTYPES:
        for batch in ((1,), (3,), (2, 3), (2, 1, 2)):
            yield SampledProblem(f"batch_{'x'.join(map(str, batch))}-{name_of(dtype)}", dtype=dtype,
                                 batch=batch)  # fmt: skip
        for x_layout, y_layout in (
            ("column", "column"), ("column", "row"), ("row", "offset"), ("expanded", "row"),
            ("row", "expanded"), ("batch_inside", "row"), ("row", "batch_inside"),
            ("scattered", "column"),
        ):  # fmt: skip
            yield SampledProblem(f"batch-x_{x_layout}-y_{y_layout}-{name_of(dtype)}", n=40,
                                 dtype=dtype, batch=(2, 3), x_layout=x_layout,
                                 y_layout=y_layout)  # fmt: skip
        # What a linear layer's backward gives: leading dimensions that fold into the sum.
        yield SampledProblem(f"tokens-{name_of(dtype)}", n=21, dtype=dtype, batch=(4,),
                             x_layout="column", y_layout="row")  # fmt: skip


def _many_columns():
    """More of y than a core's caches hold: sums that are added up in passes through it."""
    for i, (block, dtype) in enumerate(
        itertools.product(((1, 1), (2, 3), (13, 5)), DTYPES), start=1
    ):
        x_layout, y_layout = _PLAIN_LAYOUTS[i % 4]
        yield SampledProblem(
            f"many_columns-block_{block[0]}x{block[1]}-{name_of(dtype)}",
            m=block[0] * 5,
            k=6000,
            n=(130, 37)[i % 2],
            block=block,
            dtype=dtype,
            index_dtype=INDEX_DTYPES[i % 2],
            density=0.05,
            batch=((), (4,))[i % 2],
            x_layout=x_layout,
            y_layout=y_layout,
        )


def _native():
    for dtype in DTYPES:
        yield SampledProblem(f"native-{name_of(dtype)}", dtype=dtype, native=True)
    yield SampledProblem("native-int32", index_dtype=torch.int32, native=True)


def _tf32():
    for block in ((16, 16), (32, 32), (64, 64), (128, 128), (64, 32)):
        for layout in ("row", "column"):
            yield SampledProblem(
                f"tf32-{block[0]}x{block[1]}-{layout}",
                m=3 * block[0],
                k=5 * block[1],
                n=136,
                block=block,
                x_layout=layout,
                tf32=True,
            )


_FAMILIES = (
    _blocks, _lengths, _multiples, _patterns, _large_blocks, _one_wave, _shares, _small_blocks,
    _double_precision, _layouts, _batches, _many_columns, _native,
)  # fmt: skip
SAMPLED_CASES = tuple(problem for family in _FAMILIES for problem in family())
SAMPLED_TF32_CASES = tuple(_tf32())
# For as many tasks as a GPU has multiprocessors: they tell variants of a CPU nothing new, and take
# them minutes.
AS_LARGE_AS_A_GPU = frozenset((*_one_wave(), *_shares()))


def blocks_of(dense: np.ndarray, mask: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """The stored blocks of a dense matrix, (nnzb, block_m, block_k)."""
    rows, cols = mask.shape
    grid = dense.reshape(rows, block[0], cols, block[1]).transpose(0, 2, 1, 3)
    return grid[mask]


@functools.lru_cache(maxsize=2)
def make_sampled(p: SampledProblem, device: str = "cpu") -> SampledOperands:
    """The tensors of a problem; the same every time."""
    rng = np.random.default_rng(zlib.crc32(p.name.encode()))
    mask = pattern_mask(p, rng)

    def draw(layout, *shape):
        data = torch.from_numpy(rng.standard_normal(shape)).to(p.dtype)
        return data[(0,) * len(p.batch)].expand(shape) if layout == "expanded" else data

    x, y = draw(p.x_layout, *p.batch, p.m, p.n), draw(p.y_layout, *p.batch, p.n, p.k)
    x64, y64 = x.double().numpy(), y.double().numpy()
    lead, length = tuple(range(len(p.batch))), p.n * int(np.prod(p.batch))
    result = blocks_of((x64 @ y64).sum(lead), mask, p.block)
    magnitude = blocks_of((np.abs(x64) @ np.abs(y64)).sum(lead), mask, p.block)
    error = ACCUMULATE_SLACK * ACCUMULATE_ROUNDOFF[p.dtype] * (length + 2) * magnitude
    if p.tf32:
        error = error + 2 * TF32_ROUNDOFF * magnitude
    error = error + RESULT_ROUNDOFF[p.dtype] * (np.abs(result) + error) + UNDERFLOW[p.dtype]

    crow = torch.from_numpy(np.concatenate([[0], np.cumsum(mask.sum(1))])).to(p.index_dtype)
    col = torch.from_numpy(np.argwhere(mask)[:, 1]).to(p.index_dtype)
    stored = torch.full((int(mask.sum()), *p.block), float("nan"), dtype=p.dtype)  # not looked at
    parts = [t.to(device) for t in (crow, col, stored)]
    if p.native:
        pattern = torch.sparse_bsr_tensor(*parts, (p.m, p.k), check_invariants=True)
    else:
        pattern = sparse_autotune.BsrTensor(*parts, (p.m, p.k))
    x, y = strided(x.to(device), p.x_layout), strided(y.to(device), p.y_layout)
    return SampledOperands(p, x, y, pattern, result, error)

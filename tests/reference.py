"""The operands of a test problem, its fp64 reference, and how far a result may be from it.

Nothing here uses the library to make data or references: patterns, values and products are NumPy's,
so a mistake in the library cannot hide in its own test.
"""

import dataclasses
import functools
import math
import zlib

import numpy as np
import torch
from problem import DENSE_LEFT, STORED_TRANSPOSED, Problem

import sparse_autotune
from sparse_autotune.errors import legality

# Unit roundoff: of the accumulator (half types accumulate in fp32), and of the stored result.
ACCUMULATE_ROUNDOFF = {
    torch.float16: 2.0**-24,
    torch.bfloat16: 2.0**-24,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}
RESULT_ROUNDOFF = {
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}
TF32_ROUNDOFF = 2.0**-11
# The sum of L products may be off by L roundoffs of the sum of their magnitudes; the reference, in
# fp64, and the order of summation may each take as much again.
ACCUMULATE_SLACK = 2.0
# Evaluating an activation: roundoffs of its argument and of its result, and how much an error of
# the argument may grow (the steepest slope, GELU's, is 1.13).
ACTIVATION_ROUNDOFFS = 8.0
ACTIVATION_SLOPE = 1.13
# Half of the smallest subnormal, the error of a result that underflows.
UNDERFLOW = {torch.float16: 2.0**-25, torch.bfloat16: 0.0, torch.float32: 0.0, torch.float64: 0.0}


@dataclasses.dataclass(frozen=True)
class Operands:
    """A problem's tensors on a device, and what the product must be."""

    problem: Problem
    a: object
    b: torch.Tensor  # x for linear
    bias: torch.Tensor | None
    reference: np.ndarray  # fp64
    tolerance: np.ndarray  # fp64, absolute, for each element

    def call(self, variant="auto", out=None):
        p = self.problem
        if p.op == "linear":
            return sparse_autotune.linear(
                self.b, self.a, self.bias, activation=p.activation, variant=variant
            )
        return sparse_autotune.matmul(
            *self.factors(), bias=self.bias, activation=p.activation, out=out, variant=variant
        )

    def factors(self):
        """The operands of `matmul`, in order."""
        if self.problem.op == "right":
            return self.b, self.a
        return (self.a.t() if self.problem.op == "transposed" else self.a), self.b

    def legality(self):
        """Why each variant may not compute it (None: it may)."""
        p = self.problem
        if p.op == "linear":
            return legality(self.a, self.b, self.bias, p.activation, linear=True)
        return legality(*self.factors(), self.bias, p.activation)


def pattern_mask(p: Problem, rng: np.random.Generator) -> np.ndarray:
    """Which blocks are stored."""
    rows, cols = p.m // p.block[0], p.k // p.block[1]
    mask = rng.random((rows, cols)) < p.density
    if p.pattern == "uniform":
        mask[rng.integers(rows), rng.integers(cols)] = True
    elif p.pattern == "full":
        mask[:] = True
    elif p.pattern == "empty":
        mask[:] = False
    elif p.pattern == "first_block":
        mask[:] = False
        mask[0, 0] = True
    elif p.pattern == "last_block":
        mask[:] = False
        mask[-1, -1] = True
    elif p.pattern == "empty_rows":  # the first and the last among them
        mask[:, 0] = True
        mask[::2] = False
        mask[-1] = False
    elif p.pattern == "one_dense_row":
        mask[:] = False
        mask[rows // 2] = True
    elif p.pattern == "skewed":
        mask = np.arange(cols)[None, :] < (cols / (1 + np.arange(rows)) ** 1.5)[:, None]
        mask = np.stack([rng.permutation(row) for row in mask])
    elif p.pattern == "diagonal":
        mask[:] = np.arange(rows)[:, None] % cols == np.arange(cols)[None, :]
    elif p.pattern == "even":  # equally many blocks in every row
        mask[:] = False
        for row in mask:
            row[rng.permutation(cols)[: max(1, round(p.density * cols))]] = True
    else:
        raise ValueError(p.pattern)
    return mask


def strided(data: torch.Tensor, layout: str) -> torch.Tensor:
    """The same elements in other memory; everything around them is NaN."""
    *lead, rows, cols = data.shape

    def inside(*big, at):
        buffer = torch.full(big, math.nan, dtype=data.dtype, device=data.device)
        view = buffer[at]
        view.copy_(data)
        return view

    everything = (slice(None),) * len(lead)
    if layout == "row":
        return data.contiguous()
    if layout == "column":
        return data.mT.contiguous().mT
    if layout == "padded":  # rows lie further apart than they are long
        return inside(*lead, rows, cols + 8, at=(..., slice(cols)))
    if layout == "offset":  # neither the start nor the rows are aligned to anything
        return inside(*lead, rows, cols + 3, at=(..., slice(1, 1 + cols)))
    if layout in ("padded_column", "offset_column"):
        turned = strided(data.mT.contiguous(), layout.removesuffix("_column"))
        return turned.mT
    if layout == "scattered":  # no dimension is contiguous
        steps = (slice(0, 2 * rows, 2), slice(0, 3 * cols, 3))
        return inside(*lead, 2 * rows, 3 * cols, at=(*everything, *steps))
    if layout == "expanded":  # one matrix, seen many times
        return data.flatten(0, -3)[:1].sum(0).expand(data.shape)
    if layout == "batch_inside":  # the batch lies between rows and columns
        moved = data.movedim(-2, 0).contiguous()
        return moved.movedim(0, -2)
    raise ValueError(layout)


def _activate(x: np.ndarray, activation: str | None) -> np.ndarray:
    if activation == "relu":
        return np.maximum(x, 0.0)
    if activation == "gelu":
        return 0.5 * x * (1.0 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2.0)))
    if activation == "gelu_tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    if activation == "silu":
        return x / (1.0 + np.exp(-x))
    assert activation is None
    return x


def block_product(mask: np.ndarray, blocks: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of the stored blocks with b (..., k, n), block by block in fp64."""
    _, block_m, block_k = blocks.shape
    c = np.zeros((*b.shape[:-2], mask.shape[0] * block_m, b.shape[-1]))
    for block, (row, col) in zip(blocks, np.argwhere(mask), strict=True):
        part = b[..., col * block_k : (col + 1) * block_k, :]
        c[..., row * block_m : (row + 1) * block_m, :] += block @ part
    return c


def error_bound(p: Problem, length, magnitude, product, pre, result):
    """The error each element may have: see the constants above. Of fp64 arrays or tensors.

    `length` is how many terms each row's sums have, `magnitude` is |A||B|, `product` is A B, `pre`
    adds the bias, `result` is the activation of that.
    """
    roundoff = ACCUMULATE_ROUNDOFF[p.dtype]
    error = ACCUMULATE_SLACK * roundoff * (length + 2) * (magnitude + abs(pre - product))
    if p.tf32:
        error = error + 2 * TF32_ROUNDOFF * magnitude
    if p.bias or p.activation:
        # A variant may round the product, and the product with its bias, on the way.
        error = (
            error + RESULT_ROUNDOFF[p.dtype] * (abs(product) + abs(pre)) + 2 * UNDERFLOW[p.dtype]
        )
        error = error * ACTIVATION_SLOPE
        error = error + ACTIVATION_ROUNDOFFS * roundoff * (abs(pre) + abs(result))
    return error + RESULT_ROUNDOFF[p.dtype] * (abs(result) + error) + UNDERFLOW[p.dtype]


def tolerance(p: Problem, mask, blocks, b, product, pre, result) -> np.ndarray:
    """`error_bound` of the product of the stored blocks with b."""
    length = np.repeat(mask.sum(1) * p.block[1], p.block[0])[:, None]
    magnitude = block_product(mask, np.abs(blocks), np.abs(b))
    return error_bound(p, length, magnitude, product, pre, result)


@functools.lru_cache(maxsize=2)
def make(p: Problem, device: str = "cpu") -> Operands:
    """The tensors of a problem; the same every time."""
    rng = np.random.default_rng(zlib.crc32(p.name.encode()))
    mask = pattern_mask(p, rng)
    n = 1 if p.n is None else p.n

    def draw(*shape):
        return torch.from_numpy(rng.standard_normal(shape)).to(p.dtype)

    values = stored = draw(int(mask.sum()), *p.block)
    b = draw(*p.batch, p.k, n)
    if p.b_layout == "expanded":
        b = b[(0,) * len(p.batch)].expand(b.shape)
    bias = draw(p.m) if p.bias else None

    b64, blocks64 = b.double().numpy(), values.double().numpy()
    product = block_product(mask, blocks64, b64)
    pre = product if bias is None else product + bias.double().numpy()[:, None]
    result = _activate(pre, p.activation)
    error = tolerance(p, mask, blocks64, b64, product, pre, result)

    shape = (p.m, p.k)
    if p.op in STORED_TRANSPOSED:
        rows, cols = np.nonzero(mask)
        stored = values[np.lexsort((rows, cols))].mT.contiguous()
        mask, shape = mask.T, (p.k, p.m)
    crow = np.concatenate([[0], np.cumsum(mask.sum(1))])
    crow_indices = torch.from_numpy(crow).to(device=device, dtype=p.index_dtype)
    col_indices = torch.from_numpy(np.argwhere(mask)[:, 1]).to(device=device, dtype=p.index_dtype)
    if p.native:
        checked = bool(mask.any())  # torch's own check refuses empty matrices on CUDA
        a = torch.sparse_bsr_tensor(
            crow_indices, col_indices, stored.to(device), shape, check_invariants=checked
        )
    else:
        a = sparse_autotune.BsrTensor(crow_indices, col_indices, stored.to(device), shape)

    b = b.to(device)
    if p.op in DENSE_LEFT:
        b, result, error = b.mT, np.swapaxes(result, -1, -2), np.swapaxes(error, -1, -2)
    b = strided(b, p.b_layout)
    if p.n is None:
        b = b[..., 0, :] if p.op in DENSE_LEFT else b[..., 0]
    bias = None if bias is None else bias.to(device)
    return Operands(p, a, b, bias, result.reshape(p.result_shape), error.reshape(p.result_shape))


def assert_close(result: torch.Tensor, operands: Operands) -> None:
    """Fails unless every element is within its tolerance; NaN never is."""
    p = operands.problem
    assert type(result) is torch.Tensor
    assert result.layout == torch.strided
    assert result.shape == operands.reference.shape
    assert result.dtype == p.dtype
    assert result.device == operands.b.device
    got = result.double().cpu().numpy()
    good = np.abs(got - operands.reference) <= operands.tolerance
    if good.all():
        return
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = np.abs(got - operands.reference) / operands.tolerance
    worst = np.unravel_index(np.argmax(np.where(np.isnan(excess), np.inf, excess)), good.shape)
    raise AssertionError(
        f"{(~good).sum()} of {good.size} elements of {p} are wrong, the worst at "
        f"{tuple(map(int, worst))}: got {got[worst]}, reference {operands.reference[worst]}, "
        f"tolerance {operands.tolerance[worst]}"
    )


def close(got, expected, tolerance=1e-4) -> None:
    """Fails unless tensors, or sequences of them, agree within a tolerance, relative and absolute.

    For what has no `Operands`: `assert_close` knows better how far a product may be off.
    """
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def poisoned(*shape, device="cpu", dtype=torch.float32) -> torch.Tensor:
    """Memory whose every byte is 0xFF: NaN in every float type."""
    memory = torch.empty(*shape, dtype=dtype, device=device)
    if memory.numel() > 0:
        memory.view(torch.uint8).fill_(0xFF)
    return memory


class PoisonedOut:
    """A poisoned `out`, with poisoned memory around it."""

    GUARD = 128  # elements on either side

    def __init__(self, operands: Operands):
        p = operands.problem
        layout = p.out_layout
        *lead, rows, cols = p.result_shape if p.n is not None else (*p.result_shape, 1)
        turned = layout.endswith("column")
        if turned:
            rows, cols = cols, rows
        pad, step = {"padded": (8, 1), "offset": (3, 1), "scattered": (0, 2)}.get(
            layout.removesuffix("_column"), (0, 1)
        )
        width = (cols + pad) * step
        start = self.GUARD + (1 if pad == 3 else 0)
        size = math.prod(lead) * rows * width
        self._memory = poisoned(size + 2 * self.GUARD + 1, dtype=p.dtype, device=operands.b.device)
        strides = [width * rows * math.prod(lead[i + 1 :]) for i in range(len(lead))]
        view = self._memory.as_strided((*lead, rows, cols), (*strides, width, step), start)
        view = view.mT if turned else view
        self.tensor = view.reshape(p.result_shape) if p.n is None else view
        assert self.tensor.untyped_storage().data_ptr() == self._memory.data_ptr()

    def written(self) -> torch.Tensor:
        """Whether any byte is no longer 0xFF, as a tensor on the device."""
        return (self._memory.view(_INTEGER[self._memory.element_size()]) != -1).any()

    def written_outside(self) -> torch.Tensor:
        """Whether a byte outside `tensor` changed; overwrites `tensor`."""
        self.tensor.view(_INTEGER[self.tensor.element_size()]).fill_(-1)
        return self.written()

    def assert_only_out_written(self) -> None:
        """Fails if a byte outside `tensor` changed."""
        assert not bool(self.written_outside()), "wrote outside of out"


_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}

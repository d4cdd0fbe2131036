"""Random products: any shape, block, dtype, layout, pattern and epilogue, from a seed and a number.

Like `problems.py` and `reference.py`, but drawn, and with operands and references made on the
device, so that a hundred thousand of them take minutes. Dense fp64 products by torch are what
results are compared with; nothing of the library makes data or references.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math

import numpy as np
import torch
from problem import (
    BF16,
    DENSE_LEFT,
    FP32,
    FP64,
    HALF,
    INDEX_DTYPES,
    LAYOUTS,
    STORED_TRANSPOSED,
    Problem,
)
from reference import PoisonedOut, error_bound, pattern_mask, strided

import sparse_autotune
from sparse_autotune.errors import legality

LARGEST = 2048  # of m, k and n
_MOST_BLOCKS = 48  # along a side
_MOST_MACS = 1 << 29


@dataclasses.dataclass(frozen=True)
class RandomProblem(Problem):
    """A problem with the flags that a program may set."""

    seed: tuple[int, int] = (0, 0)
    frozen: bool = False
    deterministic: bool = False
    exact_nonfinite: bool = False
    infinity: tuple[int, int] | None = None  # the element of b that is infinite


class NotLegalError(Exception):
    """A forced variant does not write such an `out`, and said so."""


_OPS = ("matmul", "linear", "transposed", "right", "right_transposed")
_CHANCES = (0.4, 0.2, 0.14, 0.14, 0.12)


def _log_uniform(rng: np.random.Generator, most: int) -> int:
    return min(int(math.exp(rng.uniform(0, math.log(most + 1)))), most)


def _block(rng: np.random.Generator) -> tuple[int, int]:
    kind = rng.random()
    if kind < 0.4:
        sizes = (64, 128, 192, 256)
        return tuple(int(rng.choice(sizes, p=(0.5, 0.35, 0.1, 0.05))) for _ in range(2))
    if kind < 0.5:
        return (16, 16) if rng.random() < 0.5 else (32, 32)
    if kind < 0.75:
        return tuple(int(rng.choice((8, 16, 32, 48, 64))) for _ in range(2))
    return tuple(_log_uniform(rng, 48) for _ in range(2))


def _columns(rng: np.random.Generator) -> int | None:
    kind = rng.random()
    if kind < 0.05:
        return None
    if kind < 0.45:
        return int(rng.integers(1, 131))
    if kind < 0.75:
        return 8 * int(rng.integers(1, 41))
    if kind < 0.85:
        return max(1, 2 ** int(rng.integers(0, 11)) + int(rng.integers(-1, 2)))
    return _log_uniform(rng, LARGEST)


def _layout(rng: np.random.Generator, plain: float, batch: bool = False) -> str:
    if rng.random() < plain:
        return "row" if rng.random() < 0.7 else "column"
    return str(rng.choice((*LAYOUTS[2:], "expanded", "batch_inside") if batch else LAYOUTS[2:]))


def draw(seed: int, index: int) -> RandomProblem:
    """The problem of that number; the same on every machine."""
    rng = np.random.default_rng((seed, index))
    dtype = (BF16, HALF, FP32, FP64)[rng.choice(4, p=(0.4, 0.3, 0.2, 0.1))]
    block = _block(rng)
    m, k = (
        side * _log_uniform(rng, min(LARGEST // side, _MOST_BLOCKS)) for side in block
    )  # fmt: skip
    n, op = _columns(rng), _OPS[rng.choice(len(_OPS), p=_CHANCES)]
    batches = ((2,), (3,), (2, 3), (1, 2, 2), (0,), (2, 0))
    chance = (0.24, 0.24, 0.24, 0.24, 0.02, 0.02)
    batch = batches[rng.choice(len(batches), p=chance)] if rng.random() < 0.15 else ()
    if n is None:
        batch = ()
    else:
        n = max(1, min(n, _MOST_MACS // (m * k * max(math.prod(batch), 1))))
    patterns = ("uniform", "even", "skewed", "empty_rows", "one_dense_row", "full", "first_block",
                "last_block", "diagonal", "empty")  # fmt: skip
    chance = (0.42, 0.08, 0.14, 0.1, 0.06, 0.06, 0.04, 0.04, 0.04, 0.02)
    activation = (None, "relu", "gelu", "gelu_tanh", "silu")[rng.choice(5, p=(0.6,) + (0.1,) * 4)]
    native, exact_nonfinite = rng.random() < 0.05, rng.random() < 0.15
    columns = 1 if n is None else n
    return RandomProblem(
        name=f"{seed}:{index}",
        m=m,
        k=k,
        n=n,
        block=block,
        dtype=dtype,
        index_dtype=INDEX_DTYPES[rng.integers(2)],
        pattern=str(rng.choice(patterns, p=chance)),
        density=float(rng.choice((0.02, 0.05, 0.125, 0.3, 0.6))),
        b_layout=_layout(rng, 0.7, bool(batch)),
        out_layout=_layout(rng, 0.8),
        batch=batch,
        bias=bool(rng.random() < 0.3),
        activation=activation,
        op=op,
        native=bool(native),
        tf32=bool(dtype == FP32 and rng.random() < 0.3),
        seed=(seed, index),
        frozen=bool(not native and rng.random() < 0.1),
        deterministic=bool(rng.random() < 0.15),
        exact_nonfinite=bool(exact_nonfinite),
        infinity=(int(rng.integers(k)), int(rng.integers(columns)))
        if exact_nonfinite and activation is None and rng.random() < 0.5
        else None,
    )


def _activate(x: torch.Tensor, activation: str | None) -> torch.Tensor:
    if activation == "relu":
        return x.clamp_min(0)
    if activation == "gelu":
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    if activation == "gelu_tanh":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if activation == "silu":
        return x / (1 + torch.exp(-x))
    assert activation is None
    return x


def _set_flags(deterministic: bool, tf32: bool, exact_nonfinite: bool) -> None:
    # What torch.use_deterministic_algorithms calls; that also imports the compiler, for seconds.
    torch._C._set_deterministic_algorithms(deterministic, warn_only=False)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    if sparse_autotune.settings.exact_nonfinite != exact_nonfinite:
        sparse_autotune.settings.exact_nonfinite = exact_nonfinite


@functools.cache
def _generator(device: str) -> torch.Generator:
    return torch.Generator(device)


class Case:
    """A problem's tensors on a device, its reference and tolerance, and the verdict on results."""

    def __init__(self, p: RandomProblem, device: str):
        # The CPU has no TF32: there the tolerance leaves no room for it.
        self.problem = p = dataclasses.replace(p, tf32=p.tf32 and device != "cpu")
        self.device = device
        mask = pattern_mask(p, np.random.default_rng((*p.seed, 1)))
        generator = _generator(device).manual_seed(p.seed[0] * 1_000_003 + p.seed[1])
        self._make_operands(mask, generator)

    def _make_operands(self, mask: np.ndarray, generator: torch.Generator) -> None:
        p, device = self.problem, self.device
        # Of the matrix as it is stored, S; `mask` is of A.
        turned = p.op in STORED_TRANSPOSED
        of_s, (block_m, block_k) = (mask.T, p.block[::-1]) if turned else (mask, p.block)
        rows, cols = of_s.shape
        shape = (p.k, p.m) if turned else (p.m, p.k)

        def draw_values(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=device, dtype=p.dtype)

        stored = np.flatnonzero(of_s)
        per_row = of_s.sum(1)
        values = draw_values(len(stored), block_m, block_k)
        b = draw_values(*p.batch, p.k, 1 if p.n is None else p.n)
        if p.b_layout == "expanded":
            b = strided(b, "expanded").clone()
        self.bias = draw_values(p.m) if p.bias else None

        dense = torch.zeros((rows * cols, block_m, block_k), device=device, dtype=torch.float64)
        dense[torch.from_numpy(stored).to(device)] = values.double()
        dense = dense.view(rows, cols, block_m, block_k).transpose(1, 2).reshape(shape)
        self._make_reference(dense.T if turned else dense, b.double(), mask)

        if p.infinity is not None:
            b[..., p.infinity[0], p.infinity[1]] = math.inf
        if p.op in DENSE_LEFT:
            b = b.mT
        b = strided(b, p.b_layout)
        if p.n is None:
            b = b[0] if p.op in DENSE_LEFT else b[:, 0]
        self.b = b
        crow = torch.from_numpy(np.concatenate([[0], np.cumsum(per_row)]))
        crow = crow.to(device=device, dtype=p.index_dtype)
        col = torch.from_numpy(stored % cols).to(device=device, dtype=p.index_dtype)
        if p.native:
            self.a = torch.sparse_bsr_tensor(crow, col, values, shape, check_invariants=False)
        else:
            self.a = sparse_autotune.BsrTensor(crow, col, values, shape)
        if p.op in ("transposed", "right_transposed"):
            self.a = self.a.t()
        if p.frozen:
            self.a.freeze()

    def _make_reference(self, dense: torch.Tensor, b: torch.Tensor, mask: np.ndarray) -> None:
        p, device = self.problem, self.device
        length = np.repeat(mask.sum(1) * p.block[1], p.block[0])[:, None]
        length = torch.from_numpy(length).to(device=device, dtype=torch.float64)
        self._not_finite = None
        if p.infinity is not None:
            row, column = p.infinity
            b[..., row, column] = 0  # what it reaches is not compared, what it does not is
            reached = torch.from_numpy(np.repeat(mask[:, row // p.block[1]], p.block[0]))
            self._not_finite = torch.zeros((*p.batch, p.m, b.shape[-1]), dtype=torch.bool)
            self._not_finite[..., column] = reached
            self._not_finite = self._not_finite.to(device)
        product = dense @ b
        pre = product if self.bias is None else product + self.bias.double()[:, None]
        result = _activate(pre, p.activation)
        bound = error_bound(p, length, dense.abs() @ b.abs(), product, pre, result)
        self.reference, self.tolerance = self._shaped(result), self._shaped(bound)
        if self._not_finite is not None:
            self._not_finite = self._shaped(self._not_finite)

    def _shaped(self, x: torch.Tensor) -> torch.Tensor:
        """A (..., m, n) tensor as the operation returns it."""
        p = self.problem
        return (x.mT if p.op in DENSE_LEFT else x).reshape(p.result_shape)

    def _factors(self) -> tuple:
        """The operands of `matmul`, in order; for `linear` the weight first."""
        right = self.problem.op in ("right", "right_transposed")
        return (self.b, self.a) if right else (self.a, self.b)

    @contextlib.contextmanager
    def _flags(self):
        p, matmul, settings = self.problem, torch.backends.cuda.matmul, sparse_autotune.settings
        deterministic = torch.are_deterministic_algorithms_enabled()
        before = (deterministic, matmul.allow_tf32, settings.exact_nonfinite)
        try:
            _set_flags(p.deterministic, p.tf32, p.exact_nonfinite)
            yield
        finally:
            _set_flags(*before)

    def legal(self) -> list[str]:
        """The variants that may compute this product into a new tensor."""
        p = self.problem
        with self._flags():
            why = legality(*self._factors(), self.bias, p.activation, linear=p.op == "linear")
        return sorted(name for name, reason in why.items() if reason is None)

    def run(self, variant: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The result, and a boolean on the device: whether memory beside it was written.

        Raises:
            NotLegalError: the variant does not write this layout of `out`; nothing was written.
        """
        p = self.problem
        epilogue = {"activation": p.activation, "variant": variant}
        if p.op == "linear":
            # The next allocation of this size is likely to get this memory.
            stale = torch.full(p.result_shape, math.nan, dtype=p.dtype, device=self.device)
            del stale
            with self._flags():
                got = sparse_autotune.linear(self.b, self.a, self.bias, **epilogue)
            return got, torch.zeros((), dtype=torch.bool, device=self.device)
        out = PoisonedOut(self)
        try:
            with self._flags():
                factors = self._factors()
                sparse_autotune.matmul(*factors, bias=self.bias, out=out.tensor, **epilogue)
        except (RuntimeError, ValueError) as error:
            if variant == "auto" or p.out_layout == "row" or "not legal" not in str(error):
                raise
            if bool(out.written()):
                raise AssertionError(f"refused, and wrote all the same: {error}") from error
            raise NotLegalError(str(error)) from None
        got = out.tensor.clone()
        return got, out.written_outside()

    def good(self, got: torch.Tensor) -> torch.Tensor:
        """For each element whether it is right; NaN is not, but where an infinity reaches."""
        assert got.shape == self.reference.shape and got.dtype == self.problem.dtype
        close = (got.double() - self.reference).abs() <= self.tolerance
        if self._not_finite is None:
            return close
        return torch.where(self._not_finite, ~got.isfinite(), close)

    def wrong(self, variant: str) -> torch.Tensor:
        """Runs a variant; a boolean on the device that says whether anything is wrong."""
        got, beside = self.run(variant)
        return ~self.good(got).all() | beside

    def explain(self, variant: str) -> str:
        """Runs a variant, and says what is wrong with its result."""
        got, beside = self.run(variant)
        good = self.good(got)
        said = ["memory beside the result was written"] if bool(beside) else []
        if not bool(good.all()):
            excess = (got.double() - self.reference).abs() / self.tolerance
            excess = torch.where(good, 0, torch.nan_to_num(excess, nan=math.inf))
            worst = np.unravel_index(int(excess.argmax()), tuple(good.shape))
            at = tuple(map(int, worst))
            said.append(
                f"{int((~good).sum())} of {good.numel()} elements are wrong, the worst at {at}: "
                f"got {float(got[at])}, reference {float(self.reference[at])}, "
                f"tolerance {float(self.tolerance[at])}"
            )
        return "; ".join(said) or "right when run again"

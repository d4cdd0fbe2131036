"""`advise`: what each block size would keep of a matrix, and how fast its product would be."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import conversions
from ..bsr_tensor import BsrTensor
from ..checks.matrix import block_shape, check_dense, check_value_dtype, share, size
from ..reblocking import block_norms, reblocked, with_largest
from .announcements import silenced
from .races import race_of_product
from .report import significant, text_table

if TYPE_CHECKING:
    import matplotlib.axes

_BLOCK_SIZES = (16, 32, 64, 128)
_SECONDS_FOR_DENSE, _LEAST_RUNS = 0.2, 5
_HEADINGS = ("block", "density", "kept", "padding", "µs", "of dense", "winner")


@dataclass(frozen=True)
class BlockSizeAdvice:
    """One block size; what was not measured or asked for is None.

    Attributes:
        block_size: (block_m, block_k).
        density: the share of blocks that are stored.
        kept_norm: the norm of what is stored, as a share of the matrix's.
        padding: stored elements for each non-zero that is stored.
        median_us: the time of the raced choice, microseconds.
        winner: the raced choice.
        reason: why there is no time; empty if there is one.
    """

    block_size: tuple[int, int]
    density: float | None = None
    kept_norm: float | None = None
    padding: float | None = None
    median_us: float | None = None
    winner: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Advice:
    """What `advise` found; prints as a table.

    Attributes:
        shape: of the matrix.
        n: columns of the dense operand.
        dtype: its name.
        device: "cpu" or "cuda".
        dense_us: the time of PyTorch's dense product, called from Python, microseconds.
        sizes: a record for each block size, as they were given.
    """

    shape: tuple[int, int]
    n: int
    dtype: str
    device: str
    dense_us: float
    sizes: list[BlockSizeAdvice] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python objects."""
        return asdict(self)

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                "x".join(map(str, dict.fromkeys(s.block_size))),
                "" if s.density is None else f"{s.density:.1%}",
                "" if s.kept_norm is None else f"{s.kept_norm:.1%}",
                significant(s.padding, 3),
                significant(s.median_us, 4),
                "" if s.median_us is None else f"{s.median_us / self.dense_us:.0%}",
                s.winner or s.reason,
            )
            for s in self.sizes
        ]

    def __str__(self) -> str:
        title = (
            f"{self.shape[0]}x{self.shape[1]}x{self.n} {self.dtype} on {self.device}, dense "
            f"{significant(self.dense_us, 4)} µs"
        )
        columns = [(name, "left" if name == "winner" else "right") for name in _HEADINGS]
        return text_table(title, columns, self._rows())

    def plot(self, ax: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """The share of the norm that is kept over the time. Needs matplotlib.

        Args:
            ax: axes to draw into; None creates a figure.

        Returns:
            The axes.
        """
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(layout="constrained")
        timed = {
            "x".join(map(str, dict.fromkeys(s.block_size))): (s.median_us, s.kept_norm)
            for s in self.sizes
            if s.median_us is not None and s.kept_norm is not None
        }
        ax.scatter([us for us, _ in timed.values()], [kept for _, kept in timed.values()])
        for text, place in timed.items():
            ax.annotate(text, place)
        ax.axvline(self.dense_us, linestyle="--", color="C1", label="dense")
        ax.set_xlabel("µs")
        ax.set_ylabel("share of the norm that is kept")
        ax.legend()
        return ax


def advise(
    matrix_or_mask: Tensor | BsrTensor,
    n: int,
    *,
    block_sizes: Iterable[int | Sequence[int]] = _BLOCK_SIZES,
    density: float | None = None,
) -> Advice:
    """Compares block sizes for one matrix: what each keeps, and how fast its product is.

    For each size the blocks of the matrix are formed. With a ``density`` as many stay, those of
    largest norm; without one all that hold a non-zero, and nothing is lost. Then the product with a
    dense operand of ``n`` columns races; nothing is cached.

    Args:
        matrix_or_mask: a dense matrix; a bool mask, whose elements count as ones of float32; or a
            `BsrTensor`, whose stored blocks are taken for non-zero.
        n: columns of the dense operand.
        block_sizes: ints or pairs.
        density: the share of blocks to store, 0 to 1.

    Raises:
        TypeError, ValueError: an argument is unfit. A size that does not divide the matrix is no
            error, but a row of the result without a time.
    """
    n = size(n, "n")
    if n == 0:
        raise ValueError("n must be positive; got 0")
    if density is not None:
        density = share(density, "density")
    if isinstance(matrix_or_mask, BsrTensor):
        stored, dense = matrix_or_mask.detach(), matrix_or_mask.detach().to_dense()
        if dense.dim() != 2:
            raise ValueError("matrix_or_mask must be one matrix, not a batch")
    else:
        check_dense(matrix_or_mask, "matrix_or_mask")
        stored, dense = None, matrix_or_mask.detach()
        if dense.dim() != 2:
            raise ValueError(
                f"matrix_or_mask must have 2 dimensions, got shape {tuple(dense.shape)}"
            )
        dense = dense.float() if dense.dtype == torch.bool else dense
        check_value_dtype(dense.dtype, "matrix_or_mask")
    b = torch.randn(dense.shape[-1], n, device=dense.device).to(dense.dtype)
    shapes = [block_shape(block, "block_sizes") for block in block_sizes]
    found = [_advice(stored, dense, b, block, density) for block in shapes]
    return Advice(
        (dense.shape[0], dense.shape[1]),
        n,
        str(dense.dtype).removeprefix("torch."),
        dense.device.type,
        _dense_us(dense, b),
        found,
    )


def _dense_us(dense: Tensor, b: Tensor) -> float:
    """The median time of PyTorch's product, in microseconds."""

    def seconds() -> float:
        start = time.perf_counter()
        torch.matmul(dense, b)
        if dense.is_cuda:
            torch.cuda.synchronize(dense.device)
        return time.perf_counter() - start

    seconds()  # which loads what it needs
    times: list[float] = []
    while len(times) < _LEAST_RUNS or sum(times) < _SECONDS_FOR_DENSE:
        times.append(seconds())
    return statistics.median(times) * 1e6


def _advice(
    stored: BsrTensor | None,
    dense: Tensor,
    b: Tensor,
    block: tuple[int, int],
    density: float | None,
) -> BlockSizeAdvice:
    if dense.shape[0] % block[0] or dense.shape[1] % block[1]:
        return BlockSizeAdvice(block, reason="does not divide the matrix")
    transposed = stored is not None and stored.is_transposed
    if stored is None:
        every = conversions.from_dense(dense, block, None)
    else:
        every = reblocked(stored._parts, block[::-1] if transposed else block)
    blocks = dense.shape[0] // block[0] * (dense.shape[1] // block[1])
    kept = every if density is None else with_largest(every, round(density * blocks))
    a = BsrTensor(*kept[:3], (kept.rows, kept.cols))
    a = a.t() if transposed else a
    total = block_norms(every).norm().item()
    nonzeros = int(kept.values.count_nonzero())
    facts: dict[str, Any] = {
        "density": kept.values.shape[0] / blocks if blocks else 0.0,
        "kept_norm": block_norms(kept).norm().item() / total if total else 1.0,
        "padding": kept.values.numel() / nonzeros if nonzeros else None,
    }
    with silenced():
        report = race_of_product(a, b)
    best = report.best
    if best is None:
        return BlockSizeAdvice(block, **facts, reason=report.failure or "every variant failed")
    return BlockSizeAdvice(block, **facts, median_us=best.median_us, winner=best.name)

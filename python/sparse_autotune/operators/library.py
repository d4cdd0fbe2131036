"""Loads the operator library; ``torch.ops.sparse_autotune`` exists once this is imported.

Here too is what compilers and tracers need of each operator without running it: what its result is
like. The results are contiguous whatever variant computes them, so this is exact. Nothing is
measured and no plan is made while tracing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

LIBRARY = Path(__file__).parents[1] / "libsparse_autotune.so"
torch.ops.load_library(str(LIBRARY))

# A schema that torch cannot parse is dropped without a word by some versions: fail here instead.
bsr_matmul = torch.ops.sparse_autotune.bsr_matmul.default
bsr_matmul_out = torch.ops.sparse_autotune.bsr_matmul_out.default
bsr_sampled_matmul = torch.ops.sparse_autotune.bsr_sampled_matmul.default
bsr_matmul_race = torch.ops.sparse_autotune.bsr_matmul_race.default
bsr_sampled_matmul_race = torch.ops.sparse_autotune.bsr_sampled_matmul_race.default
bsr_problem_race = torch.ops.sparse_autotune.bsr_problem_race.default
bsr_prepare = torch.ops.sparse_autotune.bsr_prepare.default


class ProductArguments(NamedTuple):
    """What ``bsr_matmul`` and its kin take by position."""

    crow_indices: Any
    col_indices: Any
    values: Any
    rows: int
    cols: int
    dense: Any
    bias: Any = None


def _check_alike(values: Tensor, *others: Tensor | None) -> None:
    present = [values, *(other for other in others if other is not None)]
    devices, dtypes = ([getattr(t, name) for t in present] for name in ("device", "dtype"))
    torch._check(
        len(set(devices)) == 1, lambda: f"all tensors must be on one device, got {devices}"
    )
    torch._check(len(set(dtypes)) == 1, lambda: f"all must share one dtype, got {dtypes}")


def _product_shape(
    *operands: Any, sparse_right: bool = False, transpose: bool = False, **_: Any
) -> list[int]:
    """Of what ``bsr_matmul`` gives for these arguments, which must fit together."""
    _, _, values, rows, cols, dense, bias = ProductArguments(*operands)
    _check_alike(values, dense, bias)
    inner, outer = (rows, cols) if transpose != sparse_right else (cols, rows)
    shape = list(dense.shape)
    axis = -1 if sparse_right or len(shape) == 1 else -2
    torch._check(
        shape[axis] == inner,
        lambda: f"the inner dimensions of the product must agree, got {shape[axis]} and {inner}",
    )
    torch._check(
        bias is None or list(bias.shape) == [outer],
        lambda: f"bias must have one value per row of the product, {outer}",
    )
    shape[axis] = outer
    return shape


@torch.library.register_fake("sparse_autotune::bsr_matmul")
def _fake_matmul(*operands: Any, **keywords: Any) -> Tensor:
    values = operands[2]
    return values.new_empty(_product_shape(*operands, **keywords))


@torch.library.register_fake("sparse_autotune::bsr_matmul_out")
def _fake_matmul_out(*operands: Any, out: Tensor, **keywords: Any) -> None:
    shape = _product_shape(*operands, **keywords)
    _check_alike(operands[2], out)
    torch._check(
        list(out.shape) == shape,
        lambda: f"out is never resized: it must have shape {shape}, got {list(out.shape)}",
    )


@torch.library.register_fake("sparse_autotune::bsr_sampled_matmul")
def _fake_sampled_matmul(
    crow_indices: Tensor, col_indices: Tensor, *arguments: Any, **_: Any
) -> Tensor:
    _, _, block_m, block_k, x, y = arguments
    _check_alike(x, y)
    torch._check(
        crow_indices.device == x.device,
        lambda: f"all tensors must be on one device, got {crow_indices.device} and {x.device}",
    )
    torch._check(
        x.shape[-1] == y.shape[-2],
        lambda: f"the columns of x must match the rows of y, got {x.shape[-1]} and {y.shape[-2]}",
    )
    return x.new_empty(col_indices.shape[0], block_m, block_k)


@torch.library.register_fake("sparse_autotune::bsr_matmul_race")
@torch.library.register_fake("sparse_autotune::bsr_sampled_matmul_race")
@torch.library.register_fake("sparse_autotune::bsr_problem_race")
def _fake_text(crow_indices: Tensor, *_: Any, **__: Any) -> Tensor:
    length = torch.library.get_ctx().new_dynamic_size()
    return torch.empty(length, dtype=torch.uint8, device="cpu")


@torch.library.register_fake("sparse_autotune::bsr_prepare")
def _fake_prepare(*_: Any) -> None:
    pass

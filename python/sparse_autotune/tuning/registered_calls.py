"""What a registered variant is called with, for each operator of the tuner that takes such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from torch import Tensor

from ..masks.block_mask import BlockMask
from ..operators.forms import ACTIVATIONS
from .variant_problems import (
    AttentionProblem,
    Facts,
    VariantProblem,
    attention_of,
    product_of,
)

Op = Literal["matmul", "sampled_matmul", "attention", "attention_backward"]

_ACTIVATION_NAMES: dict[int, Any] = {number: name for name, number in ACTIVATIONS.items()}
_PATTERN = "Tensor crow_indices, Tensor col_indices"
_MASK = "Tensor? crow_indices, Tensor? col_indices"
_FORM = "int block_m, int block_n, bool is_causal, float scale"


class Kind(NamedTuple):
    """How variants of an operator are called, and how ``supports`` is asked about its problems."""

    parameters: str  # of the operator that C++ calls
    problem: Callable[[Facts], VariantProblem | AttentionProblem]
    calls: Callable[[Callable[..., Any]], Callable[..., None]]  # the callable with these parameters


def _product(fn: Callable[..., Any]) -> Callable[..., None]:
    def call(*operands: Any) -> None:
        *positional, out, bias, positions, number, transpose = operands
        rest = {"bias": bias, "positions": positions, "transpose": transpose}
        fn(*positional, out=out, activation=_ACTIVATION_NAMES[number], **rest)

    return call


def _sampled(fn: Callable[..., Any]) -> Callable[..., None]:
    def call(crow: Tensor, col: Tensor, x: Tensor, b: Tensor, out: Tensor) -> None:
        fn(crow, col, x, b.mT, out=out)

    return call


def _mask_of(
    q: Tensor,
    k: Tensor,
    crow: Tensor | None,
    col: Tensor | None,
    block: tuple[int, int],
    is_causal: bool,
) -> BlockMask | None:
    if crow is None or col is None:
        return None
    lengths = q.shape[2], k.shape[2]
    return BlockMask(crow, col, block, lengths, is_causal=is_causal, check=False)


def _attention(fn: Callable[..., Any]) -> Callable[..., None]:
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        crow: Tensor | None,
        col: Tensor | None,
        block_m: int,
        block_n: int,
        is_causal: bool,
        scale: float,
        out: Tensor,
        lse: Tensor,
    ) -> None:
        mask = _mask_of(q, k, crow, col, (block_m, block_n), is_causal)
        fn(q, k, v, mask, out=out, lse=lse, is_causal=is_causal, scale=scale)

    return call


def _attention_backward(fn: Callable[..., Any]) -> Callable[..., None]:
    def call(
        grad_out: Tensor,
        grad_lse: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        crow: Tensor | None,
        col: Tensor | None,
        ccol: Tensor | None,
        row: Tensor | None,
        block_m: int,
        block_n: int,
        is_causal: bool,
        scale: float,
        grad_q: Tensor,
        grad_k: Tensor,
        grad_v: Tensor,
    ) -> None:
        mask = _mask_of(q, k, crow, col, (block_m, block_n), is_causal)
        written = {"grad_q": grad_q, "grad_k": grad_k, "grad_v": grad_v}
        rest = {"grad_lse": grad_lse, "by_column": None if ccol is None else (ccol, row)}
        fn(grad_out, q, k, v, out, lse, mask, **written, **rest, is_causal=is_causal, scale=scale)

    return call


KINDS: dict[Op, Kind] = {
    "matmul": Kind(
        f"{_PATTERN}, Tensor values, Tensor b, Tensor(a!) out, Tensor? bias, Tensor? positions, "
        "int activation, bool transpose",
        product_of,
        _product,
    ),
    "sampled_matmul": Kind(f"{_PATTERN}, Tensor x, Tensor b, Tensor(a!) out", product_of, _sampled),
    "attention": Kind(
        f"Tensor q, Tensor k, Tensor v, {_MASK}, {_FORM}, Tensor(a!) out, Tensor(b!) lse",
        attention_of,
        _attention,
    ),
    "attention_backward": Kind(
        "Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
        f"{_MASK}, Tensor? ccol_indices, Tensor? row_indices, {_FORM}, Tensor(a!) grad_q, "
        "Tensor(b!) grad_k, Tensor(c!) grad_v",
        attention_of,
        _attention_backward,
    ),
}

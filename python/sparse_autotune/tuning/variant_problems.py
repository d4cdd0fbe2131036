"""What `supports` of `register_variant` is asked about: a computation without its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..choices import Activation, DeviceType

_DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i32": torch.int32,
    "i64": torch.int64,
}

Layout = Literal["row", "col"]


@dataclass(frozen=True)
class VariantProblem:
    """A product without its data, as ``supports`` of `register_variant` is asked about it.

    Attributes:
        op: "matmul" or "sampled_matmul".
        device: "cpu" or "cuda".
        dtype: of all operands.
        index_dtype: of the indices, int32 or int64.
        m: rows of op(A) and of the result.
        n: columns of ``b``; of a sampled product the length of each sum.
        k: columns of op(A).
        block_m: rows of a block of op(A).
        block_k: its columns.
        nnzb: the number of stored blocks.
        longest_row: blocks in the longest block row; -1 if it is not known.
        batch: matrices ``b``, for each of which the callable is called once.
        b_layout: "row" for row-major, else "col".
        c_layout: the same of the result; of a sampled product, of ``x``.
        activation: its name, or None.
        bias: whether there is one.
        transpose: whether op(A) is the transpose of what is stored.
        frozen: whether the values will not change.
        allow_tf32: whether float32 may be rounded to TF32.
        deterministic: whether results must be repeatable.
    """

    op: Literal["matmul", "sampled_matmul"]
    device: DeviceType
    dtype: torch.dtype
    index_dtype: torch.dtype
    m: int
    n: int
    k: int
    block_m: int
    block_k: int
    nnzb: int
    longest_row: int
    batch: int
    b_layout: Layout
    c_layout: Layout
    activation: Activation | None
    bias: bool
    transpose: bool
    frozen: bool
    allow_tf32: bool
    deterministic: bool


@dataclass(frozen=True)
class AttentionProblem:
    """An attention or its gradients without data, as ``supports`` is asked about them.

    Attributes:
        op: "attention" or "attention_backward".
        device: "cpu" or "cuda".
        dtype: of ``q``, ``k`` and ``v``.
        batch: batch entries.
        heads: of ``q``.
        kv_heads: of ``k`` and ``v``; ``heads`` is a multiple of it.
        queries: rows of ``q``, S.
        keys: rows of ``k``, T.
        dim: numbers of a head, D.
        block_size: queries and keys of a block of the mask; None: there is no mask.
        patterns: batch entries and heads that have a pattern of their own, where 1 stands for one
            pattern for all; None: there is no mask.
        nnzb: stored blocks of all patterns; -1 if the host does not know.
        is_causal: query i sees key j only where ``j <= i``.
        grad_lse: whether the gradients are also those of lse.
        allow_tf32: whether float32 may be rounded to TF32.
        deterministic: whether results must be repeatable.
    """

    op: Literal["attention", "attention_backward"]
    device: DeviceType
    dtype: torch.dtype
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    block_size: tuple[int, int] | None
    patterns: tuple[int, int] | None
    nnzb: int
    is_causal: bool
    grad_lse: bool
    allow_tf32: bool
    deterministic: bool


Facts = dict[str, Any]  # a problem's fields, as the core writes them


def product_of(facts: Facts) -> VariantProblem:
    """The product that has these fields."""
    numbers = ("m", "n", "k", "block_m", "block_k", "nnzb", "longest_row", "batch")
    flags = ("bias", "transpose", "frozen", "deterministic")
    values = {name: facts[name] for name in ("op", "device", "b_layout", "c_layout")}
    values |= {name: int(facts[name]) for name in numbers}
    values |= {name: facts[name] == "1" for name in flags}
    return VariantProblem(
        **values,
        allow_tf32=facts["tf32"] == "1",
        dtype=_DTYPES[facts["dtype"]],
        index_dtype=_DTYPES[facts["index"]],
        activation=None if facts["activation"] == "none" else facts["activation"],
    )


def attention_of(facts: Facts) -> AttentionProblem:
    """The attention that has these fields."""
    block = int(facts["block_m"]), int(facts["block_n"])
    heads = int(facts["heads"]) if int(facts["mask_head_stride"]) else 1
    patterns = int(facts["patterns"]) // heads, heads
    masked = block != (0, 0)
    return AttentionProblem(
        **{name: int(facts[name]) for name in ("batch", "heads", "kv_heads", "dim", "nnzb")},
        op=facts["op"],
        device=facts["device"],
        dtype=_DTYPES[facts["dtype"]],
        queries=int(facts["rows"]),
        keys=int(facts["columns"]),
        block_size=block if masked else None,
        patterns=patterns if masked else None,
        is_causal=facts["causal"] == "1",
        grad_lse=facts["dlse"] == "1",
        allow_tf32=facts["tf32"] == "1",
        deterministic=facts["deterministic"] == "1",
    )

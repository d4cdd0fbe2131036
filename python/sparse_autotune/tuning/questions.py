"""What `variants`, `tune` and `benchmark` ask about: an operation that is not computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import errors
from ..block_attention import ask_attention, attention_operands, explain_attention
from ..masks.block_mask import BlockMask
from ..operators.attention import attention_backward_race_op, row_dtype
from ..operators.mask_lists import mask_columns


class Question(NamedTuple):
    """An operation with its operands: who may compute it, and who is fastest."""

    op: str  # the operator's name
    argument: str  # whose device is that of all
    operand: Tensor
    ask: Callable[..., str]  # what the operator answers that races it
    explain: Callable[[], None]  # raises what the operation would, if it refuses the operands
    title: Callable[[], str]

    def race(self, **options: Any) -> str:
        """The record of a race; empty when there is nothing to race."""
        try:
            return self.ask(**options)
        except Exception:
            self.explain()
            device = self.operand.device
            if device.type not in ("cpu", "cuda"):
                raise RuntimeError(
                    f"variants run on the CPU and on CUDA devices, but {self.argument} is on "
                    f"{device}"
                ) from None
            raise

    def legality(self) -> dict[str, str | None]:
        """For each variant of the operands' device, why it is not legal; None where it is."""
        return errors.reasons_of(self.race(dry_run=True))


def about_product(
    a: Any,
    b: Any,
    bias: Tensor | None = None,
    activation: str | None = None,
    linear: bool = False,
    pattern: Any = None,
    out: Tensor | None = None,
) -> Question:
    """About ``matmul(a, b)``, ``linear(b, a)`` or ``sampled_matmul(a, b, pattern)``.

    Raises:
        ValueError: a keyword that the operation does not have.
    """
    if linear and out is not None:
        raise ValueError("out must be None with linear=True: linear has no out")
    others = {"bias": bias, "activation": activation, "linear": linear, "out": out}
    for name, value in others.items() if pattern is not None else ():
        if value is not (absent := False if name == "linear" else None):
            raise ValueError(
                f"{name} must be {absent} with a pattern: sampled_matmul has no {name}"
            )

    def ask(**options: Any) -> str:
        options |= {"linear": linear, "pattern": pattern, "out": out}
        return errors.ask(a, b, bias, activation, **options)

    def explain() -> None:
        if pattern is not None:
            errors.explain_sampled_matmul(a, b, pattern, None)
        else:
            left, right = (b, a) if linear else (a, b)
            errors.explain_matmul(left, right, bias, activation, out, None, linear=linear)

    op = "matmul" if pattern is None else "sampled_matmul"
    return Question(op, "b", b, ask, explain, lambda: f"{tuple(a.shape)} @ {tuple(b.shape)}")


def about_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, is_causal: bool, backward: bool
) -> Question:
    """About ``attention(q, k, v, mask)``, or its gradients."""

    def ask_gradients(**options: Any) -> str:
        # A race has tensors of its own in place of the zeros.
        query, key, value, crow, col, form = attention_operands(
            q, k, v, mask, is_causal, None, None
        )
        columns: Any = (None, None)
        if crow is not None and col is not None:
            columns = mask_columns(crow, col, -(-k.shape[2] // form.block_n))
        out = query.new_zeros(query.shape)
        lse = query.new_zeros(query.shape[:3], dtype=row_dtype(query.dtype))
        answer = attention_backward_race_op(
            torch.zeros_like(query),
            None,
            *(query, key, value, out, lse, crow, col, *columns, *form[:2]),
            **form.switches(),
            **options,
        )
        return bytes(answer.tolist()).decode()

    def ask(**options: Any) -> str:
        return ask_attention(q, k, v, mask, is_causal, None, None, **options)

    def explain() -> None:
        explain_attention(q, k, v, mask, is_causal, None, None)

    op = "attention_backward" if backward else "attention"
    asked = ask_gradients if backward else ask
    return Question(
        op, "q", q, asked, explain, lambda: f"{op} of {tuple(q.shape)} and {tuple(k.shape)}"
    )

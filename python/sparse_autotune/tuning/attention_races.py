"""Attention as `variants`, `tune` and `benchmark` are asked about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..block_attention import attention_operands, explain_attention
from ..masks.block_mask import BlockMask
from ..operators.attention import (
    AttentionForm,
    attention_backward_race_op,
    attention_race_op,
)
from ..operators.mask_lists import mask_columns


@dataclass(frozen=True)
class AttentionQuestion:
    """``attention(q, k, v, mask)``, or its gradients. See `races` for what it is asked."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: BlockMask | None = None
    is_causal: bool = False
    backward: bool = False

    @property
    def op(self) -> str:
        """The operator's name."""
        return "attention_backward" if self.backward else "attention"

    @property
    def device(self) -> Any:
        """The operands'."""
        return self.q.device

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Refuses as the operation would: with its reason, if it has one."""
        try:
            yield
        except Exception:
            explain_attention(self.q, self.k, self.v, self.mask, self.is_causal, None, None)
            device = self.q.device
            if device.type not in ("cpu", "cuda"):
                raise RuntimeError(
                    f"variants run on the CPU and on CUDA devices, but q is on {device}"
                ) from None
            raise

    def _asked(self, **options: Any) -> str:
        operands = attention_operands(self.q, self.k, self.v, self.mask, self.is_causal, None, None)
        form = operands[-1]
        if not self.backward:
            answer = attention_race_op(*operands[:-1], *form[:2], **form.switches(), **options)
        else:
            answer = attention_backward_race_op(
                *self._gradient_operands(*operands), **form.switches(), **options
            )
        return bytes(answer.tolist()).decode()

    @staticmethod
    def _gradient_operands(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        crow: Tensor | None,
        col: Tensor | None,
        form: AttentionForm,
    ) -> tuple[Any, ...]:
        """Those of the backward operator; a race has tensors of its own in place of the zeros."""
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        block = form[:2]
        columns: tuple[Tensor | None, Tensor | None] = (None, None)
        if crow is not None and col is not None:
            columns = mask_columns(crow, col, -(-k.shape[2] // block[1]))
        return (
            torch.zeros_like(q),
            None,
            q,
            k,
            v,
            q.new_zeros(q.shape),
            q.new_zeros(q.shape[:3], dtype=dtype),
            crow,
            col,
            *columns,
            *block,
        )

    def legality(self) -> dict[str, str | None]:
        """For each variant of the operands' device, why it is not legal; None where it is."""
        with self.explained():
            lines = (line.split("\t") for line in self._asked(dry_run=True).splitlines())
            return {name: reason[0] if reason else None for name, _, *reason in lines}

    def race(self, **options: Any) -> str:
        """The record of a race; empty when there is nothing to race."""
        with self.explained():
            return self._asked(**options)

    def __str__(self) -> str:
        return f"{self.op} of {tuple(self.q.shape)} and {tuple(self.k.shape)}"

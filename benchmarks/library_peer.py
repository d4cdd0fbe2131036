"""Peers that are vendor routines reached through a variant of this package."""

from __future__ import annotations

import sparse_autotune

from .cell import Call, Operands, UnsupportedError


def frozen_variant(operands: Operands, family: str) -> Call:
    """A call of `family` on frozen values; raises UnsupportedError where it is not legal."""
    names = sparse_autotune.variants(operands.frozen, operands.b, linear=operands.linear)
    if not any(name.split("/")[0] == family for name in names):
        raise UnsupportedError("not among the legal variants here")
    return operands.product(operands.frozen, family)

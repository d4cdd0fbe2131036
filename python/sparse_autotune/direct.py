"""The operators of compiled graphs without the dispatcher, where it would add nothing but its time.

A graph calls ``torch.ops.sparse_autotune.bsr_product.default`` in every step: an object that hands
its arguments to ``_op``, torch's way into the dispatcher, which newer versions of torch exchange
for one of their own. Here it is exchanged for one that computes products which were decided before
of plain tensors, and passes all others on. Graphs that are stored on disk profit as well.
"""

from __future__ import annotations

import torch

from ._tuner import DirectGradients, DirectProduct, Eager
from .launching import LISTENERS, OPERANDS, eager_with
from .ops import bsr_product, bsr_product_gradients

# Modes of functions, too, expect to meet whatever is called from Python.
_EAGER: Eager = eager_with((*LISTENERS, torch._C._len_torch_function_stack))


def install() -> None:
    """Once, at import; not for a torch whose tensors cannot be looked at without it."""
    if OPERANDS is None:
        return
    for operator, direct in (
        (bsr_product, DirectProduct),
        (bsr_product_gradients, DirectGradients),
    ):
        operator._op = direct(operator._op, OPERANDS, _EAGER)

"""Formulas for ``torch.utils.flop_counter``, whose import would import Triton."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def count_with(formula: Callable[..., int], *operators: Any, of_tensors: bool = False) -> None:
    """Has every ``FlopCounterMode`` count these operators by a formula.

    It takes the operator's arguments with the shapes of tensors in place of tensors, or, if
    ``of_tensors``, as they are; the result is ``out_shape`` or ``out_val``.

    A counter asks an operator to decompose before it looks for a formula: that is when the formula
    is put into that counter.
    """
    for operator in operators:
        operator.decompose = _announcing(operator, formula, operator.decompose, of_tensors)


def _announcing(
    operator: Any, formula: Callable[..., int], decompose: Callable[..., Any], of_tensors: bool
) -> Callable[..., Any]:
    def decomposed(*arguments: Any, **keywords: Any) -> Any:
        counters: Any = sys.modules.get("torch.utils.flop_counter")
        for mode in _get_current_dispatch_mode_stack() if counters is not None else ():
            if isinstance(mode, counters._FlopCounterMode):
                wrapped = formula if of_tensors else counters.shape_wrapper(formula)
                mode.counter.flop_registry.setdefault(operator._overloadpacket, wrapped)
        return decompose(*arguments, **keywords)

    return decomposed

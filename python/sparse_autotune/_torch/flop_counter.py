"""Formulas for ``torch.utils.flop_counter``, whose import would import Triton."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def count_with(formula: Callable[..., int], *operators: Any) -> None:
    """Has every ``FlopCounterMode`` count these operators by a formula.

    A counter asks an operator to decompose before it looks for a formula: that is when the formula
    is put into that counter.
    """
    for operator in operators:
        operator.decompose = _announcing(operator, formula, operator.decompose)


def _announcing(
    operator: Any, formula: Callable[..., int], decompose: Callable[..., Any]
) -> Callable[..., Any]:
    def decomposed(*arguments: Any, **keywords: Any) -> Any:
        counters: Any = sys.modules.get("torch.utils.flop_counter")
        for mode in _get_current_dispatch_mode_stack() if counters is not None else ():
            if isinstance(mode, counters._FlopCounterMode):
                wrapped = counters.shape_wrapper(formula)
                mode.counter.flop_registry.setdefault(operator._overloadpacket, wrapped)
        return decompose(*arguments, **keywords)

    return decomposed

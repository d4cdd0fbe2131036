"""What torch.compile must be told about this package, and what it tells."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import _get_deterministic_algorithms as is_deterministic
from torch._C._dynamo import eval_frame
from torch._C._dynamo.eval_frame import get_eval_frame_callback as frame_callback
from torch._guards import TracingContext

__all__ = ["frame_callback", "is_deterministic"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def constant_when_compiled(function: _Function) -> _Function:
    """``torch.compiler.assume_constant_result``, which would import torch._dynamo here."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def never_traced(function: _Function) -> _Function:
    """``torch.compiler.disable`` for a function that no traced code calls, likewise."""
    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
    eval_frame.set_code_exec_strategy(function.__code__, skip)
    return function


@constant_when_compiled
def surrounding_level() -> int:
    """The level of forward-mode derivatives that Dynamo found when it began to trace."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    level: int = InstructionTranslator.current_tx().output.dual_level
    return level


@constant_when_compiled
def is_exporting() -> bool:
    """``torch.compiler.is_exporting``, which older Dynamos take for True in all that they trace."""
    return torch.compiler.is_exporting()


def is_compiler_tracing() -> bool:
    """Whether AOTAutograd traces: what it meets below autograd runs perhaps thousands of times."""
    return TracingContext.try_get() is not None


def watched_native(*operands: Any) -> bool:
    """Whether Dynamo watches an eager call whose operands are torch's own sparse tensors.

    It left the call to eager mode because of them, but goes on looking at the functions called
    inside, and fails on the parts of a sparse tensor.
    """
    # In this order: met first, a sparse tensor keeps Dynamo out of this function too.
    sparse = any(
        isinstance(operand, Tensor) and operand.layout != torch.strided for operand in operands
    )
    return sparse and frame_callback() not in (None, False)


def unwatched(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Calls ``function`` with Dynamo looking away."""
    return torch.compiler.disable(function)(*arguments, **keywords)


@constant_when_compiled
def distinguish_products() -> None:
    """Has Dynamo tell ``a @ x`` from ``x @ a`` where ``a`` is no tensor but a ``BsrTensor``.

    For operators whose left operand is no tensor Dynamo swaps the operands and calls the reflected
    method, which it looks up in a table. The table has none for ``@`` (torch 2.10 to 2.15), so that
    it would call ``Tensor.__matmul__`` with swapped operands and compile x @ a. What stands in the
    table is looked up before this function can be reached, so that the first time the analysis
    starts again.
    """
    from torch._dynamo import exc
    from torch._dynamo.variables import builtin

    reflected = builtin.BUILTIN_TO_TENSOR_RFN_MAP
    if operator.matmul not in reflected:
        reflected[operator.matmul] = Tensor.__rmatmul__
        raise exc.UnspecializeRestartAnalysis

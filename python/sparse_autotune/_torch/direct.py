"""Products and attention past the dispatcher, where it would add nothing but its time.

`matmul` and its kin make the calls of plain eager mode, and the first derivatives of training. A
compiled graph calls ``torch.ops.sparse_autotune.bsr_matmul.default`` in every step: an object that
hands its arguments to ``_op``, torch's way into the dispatcher, which newer versions of torch
exchange for one of their own. `install` exchanges it for one that computes products which were
decided before, of plain tensors, and passes all others on. Graphs that are stored on disk profit
as well.

Both take only what was decided before, for the same pattern or for others of its kind, of plain
tensors while nobody listens (csrc/bindings/direct.h); all else is for the operators.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo import guards
from torch.autograd import forward_ad

from .._tuner import Direct, DirectOperator
from .transforms import BelowAutograd, transforms_active

# Transforms, tracers, profilers and modes must find the operator in the dispatcher.
_LISTENERS: tuple[Callable[[], int], ...] = (
    torch._C._len_torch_dispatch_stack,
    torch._C._is_tracing,
    torch.autograd._profiler_enabled,
    transforms_active,
)


# As csrc/calls/tensor_view.h numbers them.
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)


def _direct(listeners: tuple[Callable[[], int], ...]) -> Direct:
    return Direct(
        exchange_api=Tensor.__dlpack_c_exchange_api__,
        empty_on_cpu=guards._empty_strided_cpu,  # type: ignore[attr-defined]
        empty_on_gpu=guards._empty_strided_cuda,  # type: ignore[attr-defined]
        tensor=Tensor,
        parameter=torch.nn.Parameter,
        dtypes=_DTYPES,
        new_handles=torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors,
        # Its like for one capsule keeps the handle, and with it the tensor's memory, for ever.
        adopt=torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs,
        is_grad_enabled=torch.is_grad_enabled,
        listeners=listeners,
        forward_ad=forward_ad,
    )


_plain = _direct(_LISTENERS)
# Each takes the tensors of the operator and a form, which `operators.forms` has. `matmul` takes
# `out`, too, and `attention` the lengths that its mask is of; `gradients` takes the result's
# gradient instead of a bias, and gives those of the dense operand and of the values;
# `attention_gradients` takes those of both results behind the form, and both results, and gives
# those of q, k and v. They return None for what the operator has to do.
matmul = DirectOperator("bsr_matmul", _plain)
gradients = DirectOperator("gradients", _plain)
attention = DirectOperator("attention", _plain)
attention_gradients = DirectOperator("attention_gradients", _plain)


# Whether crow_indices, col_indices and values are plain contiguous tensors that make up one matrix
# of so many rows and columns; False where somebody has to look closer.
is_matrix = _plain.is_matrix
# The operator of that name on a GPU, by its ordinal or -1, the current one: of one pattern, a rule
# of nine numbers and ends of documents on the host. It counts the blocks, too.
mask_of_rule = _plain.mask_of_rule


def or_else(name: str, call: Callable[..., Any]) -> DirectOperator:
    """The same for an operator whose part ``call`` does, below autograd, with these arguments."""

    def below_autograd(*operands: Any) -> Any:
        with BelowAutograd():
            return call(*operands)

    return DirectOperator(name, _plain, below_autograd)


def install(*operators: Any) -> None:
    """Once for each operator, at import."""
    # Modes of functions, too, expect to meet whatever is called from Python.
    of_graphs = _direct((*_LISTENERS, torch._C._len_torch_function_stack))
    for operator in operators:
        schema = operator._schema
        names = tuple(sys.intern(argument.name) for argument in schema.arguments)
        operator._op = DirectOperator(schema.name.split("::")[1], of_graphs, operator._op, names)

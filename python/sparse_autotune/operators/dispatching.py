"""The operators' derivatives, for whoever meets them in the dispatcher.

That is anyone who calls the operators themselves, and compilers, tracers, ``torch.func`` and
forward-mode derivatives, which `autograd` sends here. Without these kernels a compiled gradient
would be missing and a tangent silently zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._torch.compiling import never_traced
from .._torch.transforms import BelowAutograd, apply_at_this_level, has_tangent
from .autograd import ACTIVATION_FUNCTIONS, DispatchedProduct, Sampled
from .forms import (
    NONE,
    RELU,
    Form,
    SampleForm,
    call_matmul,
    differentiable,
    matmul_below_autograd,
    sampled_below_autograd,
)
from .library import ProductArguments, bsr_matmul_out


@never_traced
def _product_through_dispatcher(*arguments: Any, **switches: Any) -> Tensor:
    crow, col, values, rows, cols, dense, bias = ProductArguments(*arguments)
    form, tensors = Form(rows, cols, **switches), (crow, col, values, dense, bias)
    if not (has_tangent(values, dense, bias) or differentiable(values, dense, bias)):
        return matmul_below_autograd(*tensors, form)
    if form.activation > RELU:
        z = call_matmul(*tensors, form._replace(activation=NONE))
        return ACTIVATION_FUNCTIONS[form.activation](z)
    return apply_at_this_level(DispatchedProduct, *tensors, form)


@never_traced
def _sampled_through_dispatcher(*arguments: Any, **switches: Any) -> Tensor:
    crow, col, *sizes, x, y = arguments
    form = SampleForm(*sizes, **switches)
    if has_tangent(x, y) or differentiable(x, y):
        return apply_at_this_level(Sampled, crow, col, x, y, form)
    return sampled_below_autograd(crow, col, x, y, form)


@never_traced
def _out_through_dispatcher(*tensors: Any, out: Tensor, **keywords: Any) -> None:
    arguments = [t for t in (*tensors, out) if isinstance(t, Tensor)]
    if differentiable(*arguments):
        raise RuntimeError("bsr_matmul_out writes into out, which has no derivative")
    if has_tangent(*arguments):
        raise RuntimeError("bsr_matmul_out writes into out, which has no forward-mode derivative")
    with BelowAutograd():
        bsr_matmul_out(*tensors, **keywords, out=out)


_library = torch.library.Library("sparse_autotune", "IMPL")
_library.impl("bsr_matmul", _product_through_dispatcher, "Autograd")
_library.impl("bsr_matmul_out", _out_through_dispatcher, "Autograd")
_library.impl("bsr_sampled_matmul", _sampled_through_dispatcher, "Autograd")

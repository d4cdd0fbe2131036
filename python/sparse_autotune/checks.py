"""The one place where user errors are raised.

The operators refuse bad input without explaining it (C++ exceptions map differently from one torch
to the next); the functions `explain_…` then look at the same arguments and raise what a PyTorch
user expects, naming the argument, the rule and the value:

- ``TypeError``: not a tensor, wrong layout, wrong dtype;
- ``ValueError``: wrong shape, wrong ``out``, bad index content, unknown activation, illegal
  variant;
- ``RuntimeError``: wrong device, memory that overlaps, a gradient that cannot be computed, frozen
  values that changed.

They return when they find nothing wrong. Only index content needs a look at tensor elements (and so
a synchronisation on a GPU); it comes late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad

from . import _tuner
from .matrix_checks import (
    Components,
    bsr_components,
    check_components,
    check_dense,
    check_indices,
    check_local,
    check_value_dtype,
    is_dense,
    is_sparse_operand,
    kind,
)
from .settings import settings
from .variant_names import meant_variants, unknown

# The numbers are part of the operators' schema.
ACTIVATIONS: dict[str | None, int] = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}

# What refused arguments raise. Anything else passes without a look at them, such as what ends the
# recomputation of a checkpoint early, once in every step.
REFUSALS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


def explain_matmul(
    a: Any,
    b: Any,
    bias: Any = None,
    activation: Any = None,
    out: Any = None,
    variant: Any = "auto",
) -> None:
    """Raises the reason why ``matmul`` refuses these arguments; returns when it knows none."""
    if not is_sparse_operand(a) and (is_sparse_operand(b) or (is_dense(a) and not is_dense(b))):
        _explain_right(a, b, bias, activation, out, variant)
        return
    matrix = _matrix(a, "a")
    check_dense(b, "b")
    _check_same(matrix, {"b": b, "bias": bias, "out": out}, "a")
    if b.dim() == 0:
        raise ValueError("b must have at least 1 dimension, got a scalar")
    inner = b.shape[-2] if b.dim() > 1 else b.shape[0]
    rows, cols = matrix.shape
    if inner != cols:
        raise ValueError(
            f"the columns of a must match the {'rows' if b.dim() > 1 else 'elements'} of b: a has "
            f"shape {(rows, cols)}, b {tuple(b.shape)}"
        )
    _check_bias(bias, rows, "row of the result (a.shape[0])")
    _check_activation(activation)
    if out is not None:
        shape = (*b.shape[:-2], rows, b.shape[-1]) if b.dim() > 1 else (rows,)
        _check_out(out, shape, {"a": matrix.values, "b": b, "bias": bias}, matrix, "a")
    check_indices(matrix, "a")
    _check_variant(a, b, bias, activation, variant, linear=False)


def explain_linear(
    x: Any, weight: Any, bias: Any = None, activation: Any = None, variant: Any = "auto"
) -> None:
    """Raises the reason why ``linear`` refuses these arguments; returns when it knows none."""
    _explain_right(x, weight, bias, activation, None, variant, linear=True)


def _explain_right(
    a: Any, b: Any, bias: Any, activation: Any, out: Any, variant: Any, *, linear: bool = False
) -> None:
    """`explain_matmul` with the block-sparse matrix as ``b``, or `explain_linear`."""
    dense, name = ("x", "weight") if linear else ("a", "b")
    matrix = _matrix(b, name)
    check_dense(a, dense)
    _check_same(matrix, {dense: a, "bias": bias, "out": out}, name)
    if a.dim() == 0:
        raise ValueError(f"{dense} must have at least 1 dimension, got a scalar")
    inner, outer = matrix.shape[::-1] if linear else matrix.shape
    if a.shape[-1] != inner:
        rule = (
            "the last dimension of x must match the columns of weight (in_features)"
            if linear
            else f"the {'columns' if a.dim() > 1 else 'elements'} of a must match the rows of b"
        )
        raise ValueError(
            f"{rule}: {dense} has shape {tuple(a.shape)}, {name} {tuple(matrix.shape)}"
        )
    per = "out feature (weight.shape[0])" if linear else "column of the result (b.shape[1])"
    _check_bias(bias, outer, per)
    _check_activation(activation)
    if out is not None:
        shape = (*a.shape[:-1], outer)
        _check_out(out, shape, {"a": a, "b": matrix.values, "bias": bias}, matrix, "b")
    check_indices(matrix, name)
    sparse_first = (b, a) if linear else (a, b)
    _check_variant(*sparse_first, bias, activation, variant, linear=linear)


def check_batch(dense: Any, name: str, count: int, of: str) -> None:
    """Raises unless ``dense`` is an operand of ``count`` matrices, or one for all of them."""
    check_dense(dense, name)
    if dense.dim() > 3 or (dense.dim() == 3 and dense.shape[0] != count):
        raise ValueError(
            f"{of} is a batch of {count} matrices: {name} must be one matrix or vector, or have "
            f"{count} matrices in its only leading dimension; got shape {tuple(dense.shape)}"
        )


def explain_sampled_matmul(x: Any, y: Any, pattern: Any, variant: Any = "auto") -> None:
    """Raises the reason why ``sampled_matmul`` refuses these; returns when it knows none."""
    matrix = _matrix(pattern, "pattern", batch=True)
    for name, tensor in (("x", x), ("y", y)):
        check_dense(tensor, name)
        check_local(tensor, name)
        if tensor.device != matrix.values.device:
            raise RuntimeError(
                f"{name} must be on the device of pattern: pattern is on {matrix.values.device}, "
                f"{name} on {tensor.device}"
            )
    check_value_dtype(x.dtype, "x")
    if x.dtype != y.dtype:
        raise TypeError(f"y must have the dtype of x: x has {x.dtype}, y {y.dtype}")
    for name, tensor in (("x", x), ("y", y)):
        if tensor.dim() < 2:
            raise ValueError(
                f"{name} must have at least 2 dimensions, got shape {tuple(tensor.shape)}"
            )
    shapes = f"x has shape {tuple(x.shape)}, y {tuple(y.shape)}"
    if x.shape[:-2] != y.shape[:-2]:
        raise ValueError(f"the leading dimensions of x and y must be equal: {shapes}")
    if x.shape[-1] != y.shape[-2]:
        raise ValueError(f"the columns of x must match the rows of y: {shapes}")
    for name, rule, got, wanted in (
        ("x", "rows", x.shape[-2], matrix.shape[0]),
        ("y", "columns", y.shape[-1], matrix.shape[1]),
    ):
        if got != wanted:
            raise ValueError(
                f"{name} must have the {rule} of pattern: {shapes}, pattern {tuple(matrix.shape)}"
            )
    check_indices(matrix, "pattern")
    _check_variant(x, y, None, None, variant, pattern=pattern)


def frozen_values_changed(recorded: int, current: int) -> RuntimeError:
    """The error for values that were changed in place while frozen."""
    return RuntimeError(
        f"the values of a frozen BsrTensor must not change, but they did: their version was "
        f"{recorded} at freeze() and is {current} now. Call thaw() before changing them and "
        "freeze() afterwards"
    )


def check_freezable(values: Tensor) -> None:
    """Raises RuntimeError for values that cannot be frozen because they are being trained."""
    if values.requires_grad:
        raise RuntimeError(
            "freeze() promises that the values will not change, but they require grad: freeze "
            "a.detach(), or call values.requires_grad_(False) first"
        )


def _matrix(value: Any, name: str, *, batch: bool = False) -> Components:
    matrix = bsr_components(value, name)
    check_components(matrix, name, batch=batch)
    for part, tensor in zip(matrix._fields[:3], matrix[:3], strict=True):
        check_local(tensor, f"{name}.{part}")
    device = matrix.values.device
    if device.type == "cuda" and (why := _tuner.device_info(device.index or 0)["unavailable"]):
        raise RuntimeError(f"{name} is on {device}, where products are off: {why}")
    return matrix


def _check_same(matrix: Components, dense: dict[str, Any], name: str) -> None:
    values = matrix.values
    present = {argument: t for argument, t in dense.items() if t is not None}
    for argument, tensor in present.items():
        check_dense(tensor, argument)
        check_local(tensor, argument)
        if tensor.device != values.device:
            raise RuntimeError(
                f"{argument} must be on the device of {name}: {name} is on {values.device}, "
                f"{argument} on {tensor.device}"
            )
    for argument, tensor in present.items():
        if tensor.dtype != values.dtype:
            raise TypeError(
                f"{argument} must have the dtype of {name}: {name} has {values.dtype}, "
                f"{argument} {tensor.dtype}"
            )


def _check_bias(bias: Tensor | None, length: int, per: str) -> None:
    if bias is not None and tuple(bias.shape) != (length,):
        raise ValueError(
            f"bias must have one value per {per}, shape ({length},); got {tuple(bias.shape)}"
        )


def _check_activation(activation: Any) -> None:
    if activation is not None and not isinstance(activation, str):
        raise TypeError(f"activation must be None or a name, got {kind(activation)}")
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, (name for name in ACTIVATIONS if name))


def check_out_has_no_gradient(arguments: dict[str, Any]) -> None:
    """Raises RuntimeError where a derivative or a transform is wanted: `out` gets none."""
    for name, tensor in arguments.items():
        if not isinstance(tensor, Tensor):
            continue
        if is_functorch_wrapped_tensor(tensor):
            raise RuntimeError(
                f"a product written to out cannot be transformed by torch.func, but {name} belongs "
                "to a transform: leave out away"
            )
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise RuntimeError(
                f"a product written to out has no backward, but {name} requires grad and grad "
                f"mode is on: leave out away, call it under torch.no_grad(), or detach {name}"
            )
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
            raise RuntimeError(
                "a product written to out has no forward-mode derivative, but "
                f"{name} carries a tangent: leave out away"
            )


def _check_out(
    out: Tensor, shape: Sequence[int], inputs: dict[str, Any], matrix: Components, name: str
) -> None:
    check_out_has_no_gradient({**inputs, "out": out})
    if tuple(out.shape) != tuple(shape):
        raise ValueError(
            f"out is never resized: it must have shape {tuple(shape)}, got {tuple(out.shape)}"
        )
    if out.is_neg():
        raise ValueError(
            "out must not be a lazily negated view, whose memory holds the negated elements: pass "
            "out.resolve_neg()"
        )
    if _overlaps_itself(out):
        raise RuntimeError(
            "the elements of out must not share memory with each other: out has shape "
            f"{tuple(out.shape)} and strides {out.stride()}"
        )
    inputs = {
        **inputs,
        f"{name}.crow_indices": matrix.crow_indices,
        f"{name}.col_indices": matrix.col_indices,
    }
    for argument, tensor in inputs.items():
        if tensor is not None and _may_overlap(out, tensor):
            raise RuntimeError(
                f"out must not overlap an input, but its memory does overlap that of {argument}"
            )


def _overlaps_itself(tensor: Tensor) -> bool:
    """Exact for every layout in which one dimension's steps leap over all smaller ones."""
    if tensor.numel() == 0:
        return False
    reach = 0
    steps = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    for stride, size in steps:
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def _extent(tensor: Tensor) -> tuple[int, int]:
    reach = sum(
        stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    start = tensor.data_ptr()
    return start, start + (reach + 1) * tensor.element_size()


def _may_overlap(a: Tensor, b: Tensor) -> bool:
    """Whether the address ranges meet; tensors interleaved in one buffer count as overlapping."""
    if a.numel() == 0 or b.numel() == 0 or a.is_meta:
        return False
    (a_start, a_end), (b_start, b_end) = _extent(a), _extent(b)
    return a_start < b_end and b_start < a_end


def legality(
    a: Any,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    linear: bool = False,
    pattern: Any = None,
) -> dict[str, str | None]:
    """Why each variant of the operands' device may not run this product; None: it may.

    With ``pattern`` it is ``sampled_matmul(a, b, pattern)``.
    """
    from .functional import operator_arguments, sampled_arguments  # functional needs this module
    from .ops import bsr_matmul_legality, bsr_sampled_matmul_legality

    if pattern is not None:
        arguments, keywords = sampled_arguments(a, b, pattern)
        answer = bsr_sampled_matmul_legality(*arguments, **keywords)
    else:
        arguments, keywords = operator_arguments(a, b, bias, activation, linear=linear)
        answer = bsr_matmul_legality(*arguments, **keywords)
    lines = (line.split("\t") for line in bytes(answer.tolist()).decode().splitlines())
    return {name: reason[0] if reason else None for name, _, *reason in lines}


def _check_variant(
    a: Any,
    b: Tensor,
    bias: Tensor | None,
    activation: str | None,
    variant: Any,
    *,
    linear: bool = False,
    pattern: Any = None,
) -> None:
    """A forced variant or family that does not exist, or is not legal here; None: not looked at."""
    if variant is None:
        return
    op = "matmul" if pattern is None else "sampled_matmul"
    name = "variant"
    if variant == "auto":
        name, variant = "settings.variant", settings.variant
        if all(v["op"] != op for v in _tuner.variants() if variant in (v["name"], v["family"])):
            return  # none is forced, or one of the other operation
    if not isinstance(variant, str):
        raise TypeError(f"variant must be a name or 'auto', got {kind(variant)}")
    meant = meant_variants(name, variant, op, b.device.type, also=["auto"])
    reasons = legality(a, b, bias, activation, linear=linear, pattern=pattern)
    if all(reasons[full] is not None for full in meant):
        each = "; ".join(f"{full}: {reasons[full]}" for full in meant)
        raise ValueError(f"{name} {variant!r} is not legal for this product ({each})")

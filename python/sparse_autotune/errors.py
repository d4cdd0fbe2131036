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

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _tuner
from ._torch.transforms import has_forward_level, is_functorch_wrapped_tensor
from .checks.matrix import (
    Components,
    check_components,
    check_dense,
    check_indices,
    check_local,
    check_value_dtype,
    kind,
)
from .checks.variant_names import meant_variants, unknown
from .operands import (
    autocast_dtype,
    autocast_to,
    bsr_components,
    product_operands,
    sampled_operands,
    sides,
)
from .operators.forms import ACTIVATIONS, call_matmul, call_sampled
from .operators.library import bsr_matmul_race, bsr_sampled_matmul_race
from .settings import settings

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
    *,
    linear: bool = False,
) -> None:
    """Raises the reason why ``matmul``, or ``linear(a, b)``, refuses these arguments.

    Returns when it knows none.
    """
    sparse, dense, name, other, right = sides(a, b, linear)
    names = (other, name) if right else (name, other)
    matrix = _matrix(sparse, name)
    check_dense(dense, other)
    optional = {n: tensor for n, tensor in (("bias", bias), ("out", out)) if tensor is not None}
    check_devices({other: dense, **optional}, matrix.values, name)
    check_dtypes({other: dense, **optional}, matrix.values, name)
    if dense.dim() == 0:
        raise ValueError(f"{other} must have at least 1 dimension, got a scalar")
    rows, cols = matrix.shape
    inner, outer = (rows, cols) if right and not linear else (cols, rows)
    axis = -1 if right or dense.dim() == 1 else -2
    if dense.shape[axis] != inner:
        rule = "the columns of a must match the rows of b"
        if linear:
            rule = "the last dimension of x must match the columns of weight (in_features)"
        shapes = f"{names[0]} has shape {tuple(a.shape)}, {names[1]} {tuple(b.shape)}"
        raise ValueError(f"{rule}: {shapes}")
    if bias is not None and tuple(bias.shape) != (outer,):
        per = "column of the result (b.shape[1])" if right else "row of the result (a.shape[0])"
        if linear:
            per = "out feature (weight.shape[0])"
        raise ValueError(
            f"bias must have one value per {per}, shape ({outer},); got {tuple(bias.shape)}"
        )
    if activation is not None and not isinstance(activation, str):
        raise TypeError(f"activation must be None or a name, got {kind(activation)}")
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, (known for known in ACTIVATIONS if known))
    if out is not None:
        shape = list(dense.shape)
        shape[axis] = outer
        inputs = {name: matrix.values, other: dense, "bias": bias}
        _check_out(out, tuple(shape), inputs, matrix, name)
    check_indices(matrix, name)
    product = (*((b, a) if linear else (a, b)), bias, activation)
    check_variant(variant, "matmul", b.device, lambda: legality(*product, linear=linear))


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
    check_devices({"x": x, "y": y}, matrix.values, "pattern")
    check_value_dtype(x.dtype, "x")
    check_dtypes({"y": y}, x, "x")
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
    check_variant(variant, "sampled_matmul", y.device, lambda: legality(x, y, pattern=pattern))


def _matrix(value: Any, name: str, *, batch: bool = False) -> Components:
    matrix = bsr_components(value, name)
    check_components(matrix, name, batch=batch)
    for part, tensor in zip(matrix._fields[:3], matrix[:3], strict=True):
        check_local(tensor, f"{name}.{part}")
    check_device(matrix.values, name, "products")
    return matrix


def check_device(tensor: Tensor, name: str, what: str) -> None:
    """Raises RuntimeError for a GPU on which the library is off."""
    device = tensor.device
    if device.type == "cuda" and (why := _tuner.device_info(device.index or 0)["unavailable"]):
        raise RuntimeError(f"{name} is on {device}, where {what} are off: {why}")


def check_devices(dense: dict[str, Any], like: Tensor, name: str) -> None:
    """Raises unless these are dense tensors on the device of ``like``, a part of ``name``."""
    for argument, tensor in dense.items():
        check_dense(tensor, argument)
        check_local(tensor, argument)
        if tensor.device != like.device:
            raise RuntimeError(
                f"{argument} must be on the device of {name}: {name} is on {like.device}, "
                f"{argument} on {tensor.device}"
            )


def check_dtypes(dense: dict[str, Tensor], like: Tensor, name: str) -> None:
    """Raises unless these have the dtype of ``like``, a part of ``name``, or autocast gives it."""
    lower = None if "out" in dense else autocast_dtype(like)
    for argument, tensor in dense.items():
        if autocast_to(tensor.dtype, lower) != autocast_to(like.dtype, lower):
            raise TypeError(
                f"{argument} must have the dtype of {name}: {name} has {like.dtype}, "
                f"{argument} {tensor.dtype}"
            )


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
        if has_forward_level() and forward_ad.unpack_dual(tensor).tangent is not None:
            raise RuntimeError(
                "a product written to out has no forward-mode derivative, but "
                f"{name} carries a tangent: leave out away"
            )


def _check_out(
    out: Tensor, shape: tuple[int, ...], inputs: dict[str, Any], matrix: Components, name: str
) -> None:
    check_out_has_no_gradient({**inputs, "out": out})
    if tuple(out.shape) != shape:
        raise ValueError(
            f"out is never resized: it must have shape {shape}, got {tuple(out.shape)}"
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
    indices = {f"{name}.{part}": getattr(matrix, part) for part in ("crow_indices", "col_indices")}
    for argument, tensor in {**inputs, **indices}.items():
        if tensor is not None and _may_overlap(out, tensor):
            raise RuntimeError(
                f"out must not overlap an input, but its memory does overlap that of {argument}"
            )


def _overlaps_itself(tensor: Tensor) -> bool:
    """Exact for every layout in which one dimension's steps leap over all smaller ones."""
    if tensor.numel() == 0:
        return False
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
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


def ask(
    a: Any,
    b: Any,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    linear: bool = False,
    pattern: Any = None,
    out: Tensor | None = None,
    **options: Any,
) -> str:
    """What the operator answers that races ``matmul(a, b)`` or ``linear(b, a)``.

    With ``pattern`` it is the one for ``sampled_matmul(a, b, pattern)``.
    """
    if pattern is not None:
        answer = call_sampled(
            *sampled_operands(a, b, pattern), operator=bsr_sampled_matmul_race, **options
        )
    else:
        left, right = (b, a) if linear else (a, b)
        operands = product_operands(left, right, bias, activation, linear=linear)
        answer = call_matmul(*operands, operator=bsr_matmul_race, out=out, **options)
    return bytes(answer.tolist()).decode()


def reasons_of(answer: str) -> dict[str, str | None]:
    """Of a dry run's answer: why each variant of the device may not compute it; None: it may."""
    lines = (line.split("\t") for line in answer.splitlines())
    return {name: reason[0] if reason else None for name, _, *reason in lines}


def legality(*product: Any, **keywords: Any) -> dict[str, str | None]:
    """Why each variant of the operands' device may not run that product, as for `ask`."""
    return reasons_of(ask(*product, **keywords, dry_run=True))


def check_variant(
    variant: Any,
    op: str,
    device: torch.device,
    why_not: Callable[[], dict[str, str | None]],
    what: str = "product",
) -> None:
    """A forced variant or family that does not exist, or is not legal here; None: not looked at.

    ``why_not`` returns the `legality` of the operation.
    """
    if variant is None:
        return
    name = "variant"
    if variant == "auto":
        name, variant = "settings.variant", settings.variant
        if all(v["op"] != op for v in _tuner.variants() if variant in (v["name"], v["family"])):
            return  # none is forced, or one of another operation
    if not isinstance(variant, str):
        raise TypeError(f"variant must be a name or 'auto', got {kind(variant)}")
    meant = meant_variants(name, variant, op, device.type, also=["auto"])
    reasons = why_not()
    if all(reasons[full] is not None for full in meant):
        each = "; ".join(f"{full}: {reasons[full]}" for full in meant)
        raise ValueError(f"{name} {variant!r} is not legal for this {what} ({each})")

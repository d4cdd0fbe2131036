"""`matmul`, `linear` and `sampled_matmul`: from arguments to operators, on the shortest path.

A valid call pays for no check in Python: the operators refuse what would touch memory they must
not, and only then `checks` looks for the reason.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _tuner, checks
from .bsr_tensor import BsrTensor, Known
from .matrix_checks import bsr_components, check_components
from .ops import bsr_matmul, bsr_matmul_out, bsr_sampled_matmul
from .precision import allow_tf32, deterministic

_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_dynamo_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_tracing = torch._C._is_tracing
_profiler_enabled = torch.autograd._profiler_enabled
_LAUNCHED, _MOVED = _tuner.Launcher.LAUNCHED, _tuner.Launcher.MOVED


def matmul(
    a: Tensor | BsrTensor,
    b: Tensor,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    out: Tensor | None = None,
    variant: str = "auto",
) -> Tensor:
    """The product of a block-sparse matrix with a dense one, ``activation(a @ b + bias)``.

    The first call with a new kind of problem races every variant that is legal for it and
    remembers the winner (see ``settings``). Half types accumulate in float32.

    Args:
        a: (m, k) ``torch.sparse_bsr`` tensor or `BsrTensor`; float16, bfloat16, float32, float64.
        b: (k, n), (..., k, n) or (k,), strided, the dtype and device of ``a``. Row-major and
            column-major matrices are read in place, others are copied.
        bias: (m,), one value per row of the result.
        activation: "relu", "gelu", "gelu_tanh" or "silu".
        out: written instead of a new tensor; any strides. Never resized, and its memory may not
            overlap an input's.
        variant: "auto", a family ("simt"), or one variant ("simt/rows16").

    Returns:
        (m, n), (..., m, n) or (m,), contiguous unless ``out`` is given.

    Raises:
        TypeError: an argument has a wrong type, layout or dtype.
        ValueError: shapes disagree, the indices break a rule of BSR, ``out`` does not fit, the
            activation is unknown, the variant is unknown or not legal here.
        RuntimeError: devices differ, ``out`` overlaps, an input requires grad in grad mode.
    """
    if type(a) is BsrTensor and bias is activation is out is None and variant == "auto":
        result = _launched(a, b)
        if result is not None:
            return result
    try:
        crow, col, values, rows, cols, frozen = _components(a, "a")
        if _is_grad_enabled() and (
            values.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad)
        ):
            raise RuntimeError("matmul has no backward yet")
        if forward_ad._current_level >= 0:
            checks.check_tangents({"a": values, "b": b, "bias": bias, "out": out})
        if (
            out is None
            and activation is None
            and variant == "auto"
            and not frozen
            and not deterministic()
            and (values.dtype is not torch.float32 or not allow_tf32(values))
        ):
            return bsr_matmul(crow, col, values, rows, cols, b, bias)
        keywords = {
            "activation": checks.ACTIVATIONS[activation],
            "frozen": frozen,
            "allow_tf32": allow_tf32(values),
            "deterministic": deterministic(),
            "variant": None if variant == "auto" else variant,
        }
        if out is None:
            return bsr_matmul(crow, col, values, rows, cols, b, bias, **keywords)
        if _is_grad_enabled() and out.requires_grad:
            raise RuntimeError("matmul has no backward yet")
        if out.is_neg():  # torch's fallback for those misreads an operator that returns nothing
            raise ValueError("out is a lazily negated view")
        bsr_matmul_out(crow, col, values, rows, cols, b, bias, **keywords, out=out)
    except Exception:
        checks.explain_matmul(a, b, bias, activation, out, variant)
        raise
    # The operator writes behind autograd's back: saved tensors must notice.
    torch.autograd.graph.increment_version(out)
    return out


def linear(
    x: Tensor,
    weight: Tensor | BsrTensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    variant: str = "auto",
) -> Tensor:
    """A linear layer with a block-sparse weight, ``activation(x @ weight.T + bias)``.

    Neither ``x`` nor the result is copied or transposed.

    Args:
        x: (..., in_features), strided, the dtype and device of ``weight``.
        weight: (out_features, in_features) ``torch.sparse_bsr`` tensor or `BsrTensor`.
        bias: (out_features,).
        activation: "relu", "gelu", "gelu_tanh" or "silu".
        variant: "auto", a family, or one variant, as in `matmul`.

    Returns:
        (..., out_features), contiguous.

    Raises:
        TypeError, ValueError, RuntimeError: as `matmul`.
    """
    try:
        crow, col, values, rows, cols, frozen = _components(weight, "weight")
        if _is_grad_enabled() and (
            values.requires_grad or x.requires_grad or (bias is not None and bias.requires_grad)
        ):
            raise RuntimeError("linear has no backward yet")
        if forward_ad._current_level >= 0:
            checks.check_tangents({"x": x, "weight": values, "bias": bias})
        return bsr_matmul(
            crow,
            col,
            values,
            rows,
            cols,
            x,
            bias,
            sparse_right=True,
            transpose=True,
            activation=checks.ACTIVATIONS[activation],
            frozen=frozen,
            allow_tf32=allow_tf32(values),
            deterministic=deterministic(),
            variant=None if variant == "auto" else variant,
        )
    except Exception:
        checks.explain_linear(x, weight, bias, activation, variant)
        raise


def sampled_matmul(
    x: Tensor, y: Tensor, pattern: Tensor | BsrTensor, *, variant: str = "auto"
) -> BsrTensor:
    """The product of two dense matrices at the stored blocks of a pattern alone (SDDMM).

    With ``x`` the gradient of C and ``y`` the transpose of B it is the gradient of C = A @ B with
    respect to A's blocks. Variants race as for `matmul`; half types accumulate in float32.

    Args:
        x: (m, n) or (..., m, n), strided; float16, bfloat16, float32 or float64. Row-major and
            column-major matrices are read in place, others are copied.
        y: (n, k) or (..., n, k), the dtype, device and leading dimensions of ``x``; products are
            summed over the leading dimensions.
        pattern: (m, k) ``torch.sparse_bsr`` tensor or `BsrTensor` on the device of ``x``; only its
            indices and its block size are used, its values and their dtype are not.
        variant: "auto", a family ("sampled_simt"), or one variant, as for `matmul`.

    Returns:
        A `BsrTensor` of the dtype of ``x`` on the pattern's own indices.

    Raises:
        TypeError: an argument has a wrong type, layout or dtype.
        ValueError: shapes disagree, the indices break a rule of BSR, the variant is unknown or not
            legal here.
        RuntimeError: devices differ, ``x`` or ``y`` requires grad in grad mode.
    """
    try:
        arguments, keywords = sampled_arguments(x, y, pattern)
        if _is_grad_enabled() and (x.requires_grad or y.requires_grad):
            raise RuntimeError("sampled_matmul has no backward yet")
        if forward_ad._current_level >= 0:
            checks.check_tangents({"x": x, "y": y})
        values = bsr_sampled_matmul(
            *arguments, **keywords, variant=None if variant == "auto" else variant
        )
    except Exception:
        checks.explain_sampled(x, y, pattern, variant)
        raise
    crow, col, rows, cols = arguments[:4]
    if type(pattern) is BsrTensor:
        return pattern._with(crow, col, values)
    return BsrTensor(crow.contiguous(), col.contiguous(), values, (rows, cols))


def _launched(a: BsrTensor, b: Tensor) -> Tensor | None:
    """``a @ b`` without the dispatcher, where a plan remembers how; None: the operator's work.

    Whoever listens to the dispatcher (autograd, transforms, compilers, tracers, profilers, modes)
    must find the operator there, so this is for plain tensors in plain eager mode alone.
    """
    known = a._launcher
    if known is None:
        known = a._launcher = _make_launcher(a)
        if known is None:
            return None
    values = a._values
    if (
        _is_compiling()
        or type(b) is not Tensor
        or b.layout is not torch.strided
        or b.is_neg()
        or (_is_grad_enabled() and (b.requires_grad or values.requires_grad))
        or _dispatch_modes()
        or _is_tracing()
        or _profiler_enabled()
        or forward_ad._current_level >= 0
    ):
        return None
    shape = b.shape
    if len(shape) != 2:
        return None
    if a._frozen:
        a.check_frozen()
    launcher, on_cpu, _ = known
    result = b.new_empty(a._rows, shape[1])
    outcome = launcher.launch(
        a._crow_indices,
        a._col_indices,
        values,
        b,
        result,
        a._frozen,
        not on_cpu and allow_tf32(values),
        deterministic(),
    )
    if outcome == _LAUNCHED:
        return result
    if outcome == _MOVED:
        a._launcher = None
    return None


def _make_launcher(a: BsrTensor) -> Known | None:
    """What `_launched` needs; None for tensors without memory or a version counter to look at.

    ``tensor.data = other`` gives a tensor other memory, of another dtype perhaps, and no counter
    shows it. The aliases keep the memory that the launcher knows: while the tensors still lie at
    its addresses, it is theirs.
    """
    parts = a._parts()
    tensors = parts[:3]
    device = a._values.device
    if device.type not in ("cpu", "cuda") or any(
        t.is_inference() or type(t) not in (Tensor, torch.nn.Parameter) or not t.is_contiguous()
        for t in tensors
    ):
        return None
    try:
        check_components(parts)
    except (TypeError, ValueError, RuntimeError):
        return None  # the operator refuses them, and `checks` says why
    if tuple(a._values.shape[1:]) != a._block_size:
        return None
    exchange_api = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if exchange_api is None:
        return None  # an older torch than those that this was tried with
    crow, col, values = aliases = tuple(t.detach() for t in tensors)
    launcher = _tuner.Launcher(exchange_api, crow, col, values, a._rows, a._cols)
    return launcher, device.type == "cpu", aliases


class _Parts(NamedTuple):
    crow_indices: Tensor
    col_indices: Tensor
    values: Tensor
    rows: int
    cols: int
    frozen: bool


def _components(a: Any, name: str) -> _Parts | tuple[Tensor, Tensor, Tensor, int, int, bool]:
    if type(a) is BsrTensor:
        if a._frozen:
            a.check_frozen()
        return a._crow_indices, a._col_indices, a._values, a._rows, a._cols, a._frozen
    return _Parts(*bsr_components(a, name), False)


def operator_arguments(
    a: Tensor | BsrTensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    linear: bool = False,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The operators' arguments for ``matmul(a, b)``, or for ``linear(b, a)``.

    Used by whatever asks about a product without computing it: `variants`, `tune`, `benchmark`.
    """
    crow, col, values, rows, cols, frozen = _components(a, "weight" if linear else "a")
    keywords = {
        "sparse_right": linear,
        "transpose": linear,
        "activation": checks.ACTIVATIONS[activation],
        "frozen": frozen,
        "allow_tf32": allow_tf32(values),
        "deterministic": deterministic(),
    }
    return (crow, col, values, rows, cols, b, bias), keywords


def sampled_arguments(
    x: Tensor, y: Tensor, pattern: Tensor | BsrTensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The operators' arguments for ``sampled_matmul(x, y, pattern)``, but for the variant."""
    crow, col, values, rows, cols = bsr_components(pattern, "pattern")
    block_m, block_k = values.shape[1:]
    keywords = {"allow_tf32": allow_tf32(x), "deterministic": deterministic()}
    return (crow, col, rows, cols, block_m, block_k, x, y), keywords

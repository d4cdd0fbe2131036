"""`variants`, `tune`, `benchmark`, `tuning_count`: using the tuner directly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from torch import Tensor

from .. import _tuner
from ..bsr_tensor import BsrTensor
from ..checks.matrix import kind
from ..checks.variant_names import meant_variants
from ..choices import Activation
from ..masks.block_mask import BlockMask
from ..settings import settings
from .announcements import silenced
from .questions import Question, about_attention, about_product
from .report import BenchmarkReport, VariantRecord, report_of

# A benchmark times everybody to the end: so many times the seconds of a race.
_BENCHMARK_BUDGETS = 10
_NOTHING = "the product has no stored block or no element"


def _question(
    a: Any,
    b: Any,
    v: Tensor | None,
    mask: BlockMask | None,
    is_causal: bool,
    backward: bool,
    **product: Any,
) -> Question:
    """About attention where there is a ``v``, otherwise about a product."""
    if v is None:
        for name, value in (("mask", mask), ("is_causal", is_causal), ("backward", backward)):
            if value:
                raise ValueError(f"{name} is of attention, which needs v, too")
        return about_product(a, b, **product)
    for name, value in product.items():
        if value is not None and value is not False:
            raise ValueError(f"{name} is of a product, and v of attention: give one of them")
    return about_attention(a, b, v, mask, is_causal, backward)


def variants(
    a: Tensor | BsrTensor | None = None,
    b: Tensor | BsrTensor | None = None,
    *,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    linear: bool = False,
    pattern: Tensor | BsrTensor | None = None,
    v: Tensor | None = None,
    mask: BlockMask | None = None,
    is_causal: bool = False,
    backward: bool = False,
) -> list[str]:
    """Full names ("family/config") of the variants of this build, or of those legal for a product.

    Args:
        a: as for `matmul`; None lists all variants of this build.
        b: as for `matmul` (for `linear`: ``x``).
        bias: as for `matmul`.
        activation: as for `matmul`.
        linear: ask about ``linear(b, a)`` instead of ``matmul(a, b)``.
        pattern: ask about ``sampled_matmul(a, b, pattern)`` instead, with dense ``a`` and ``b``.
        v: ask about ``attention(a, b, v, mask, is_causal=is_causal)`` instead, with ``q`` as ``a``
            and ``k`` as ``b``.
        mask: of attention.
        is_causal: of attention.
        backward: ask about the gradients of attention.

    Returns:
        Sorted names; with operands, only variants that are legal for them on their device.

    Raises:
        TypeError: only one of ``a`` and ``b`` is given; or as `matmul`.
        ValueError, RuntimeError: as `matmul`, or `sampled_matmul` with a pattern.
    """
    if a is None and b is None:
        return [v["name"] for v in _tuner.variants()]
    if a is None or b is None:
        raise TypeError("variants needs both a and b, or neither")
    about = {"bias": bias, "activation": activation, "linear": linear, "pattern": pattern}
    product = _question(a, b, v, mask, is_causal, backward, **about)
    return [name for name, why in product.legality().items() if why is None]


def _race(
    product: Question,
    names: str | Iterable[str] | None,
    argument: str,
    **options: Any,
) -> BenchmarkReport:
    """Races the variants that ``names`` and families mean, the value of ``argument``; None: all."""
    legality = product.legality()
    device: Any = product.operand.device
    selected = list(legality)
    if names is not None:
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, Iterable):
            raise TypeError(f"{argument} must be names, got {kind(names)}")
        meant = [meant_variants(argument, name, product.op, device.type) for name in names]
        selected = list(dict.fromkeys(itertools.chain(*meant)))
    if not selected:
        raise ValueError(f"{argument} must name one at least")
    legal = [name for name in selected if legality[name] is None]
    unsupported = {name: why for name in selected if (why := legality[name]) is not None}
    if not legal:
        reasons = "; ".join(f"{name}: {why}" for name, why in unsupported.items())
        raise ValueError(f"{argument}: none of them is legal for this product ({reasons})")
    timing = settings.timing
    text = product.race(variants=",".join(legal), **options)
    if text:
        return report_of(_tuner.parse_record(text), device.type, unsupported, timing)
    return BenchmarkReport(
        problem=product.title(),
        device=_tuner.device_info(-1 if device.type == "cpu" else device.index)["name"],
        device_type=device.type,
        timing=timing,
        failure=f"nothing to race, {_NOTHING}",
        records=[VariantRecord(name, name.split("/")[0], "skipped", _NOTHING) for name in legal],
    )


def _is_a(numbers: type, value: Any) -> bool:
    """Whether it is one of these numbers, as True and False, for Python, are too."""
    return isinstance(value, numbers) and not isinstance(value, bool)


def tune(
    a: Tensor | BsrTensor,
    b: Tensor | BsrTensor,
    *,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    out: Tensor | None = None,
    variant: str = "auto",
    linear: bool = False,
    pattern: Tensor | BsrTensor | None = None,
    v: Tensor | None = None,
    mask: BlockMask | None = None,
    is_causal: bool = False,
    backward: bool = False,
) -> BenchmarkReport:
    """Races now, in every mode, even if a winner is cached, and replaces the cache entry.

    Args:
        a: as for `matmul`.
        b: as for `matmul` (for `linear`: ``x``). Its values are not used.
        bias: as for `matmul`.
        activation: as for `matmul`.
        out: as for `matmul`; its layout is used, its values are not. Not for `linear`.
        variant: "auto", or a family or variant to race alone; the cache entry then does not change.
        linear: tune ``linear(b, a)`` instead of ``matmul(a, b)``.
        pattern: tune ``sampled_matmul(a, b, pattern)`` instead, with dense ``a`` and ``b``.
        v: tune ``attention(a, b, v, mask, is_causal=is_causal)`` instead, with ``q`` as ``a`` and
            ``k`` as ``b``.
        mask: of attention.
        is_causal: of attention.
        backward: tune the gradients of attention.

    Returns:
        The race. If there is nothing to race, because the matrix has no stored block or the product
        no element, a report without a winner that says why.

    Raises:
        TypeError, ValueError, RuntimeError: as `matmul`, or `sampled_matmul` with a pattern.
    """
    about = {"bias": bias, "activation": activation, "linear": linear, "pattern": pattern}
    return _race(
        _question(a, b, v, mask, is_causal, backward, **about, out=out),
        None if variant == "auto" else variant,
        "variant",
        save=variant == "auto",
    )


def race_of_product(a: BsrTensor, b: Tensor) -> BenchmarkReport:
    """The race that ``matmul(a, b)`` would run; caches nothing."""
    return _race(about_product(a, b), None, "variants", save=False)


def benchmark(
    a: Tensor | BsrTensor,
    b: Tensor | BsrTensor,
    *,
    variants: str | Iterable[str] | None = None,
    num_runs: int | None = None,
    budget_s: float | None = None,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    linear: bool = False,
    pattern: Tensor | BsrTensor | None = None,
    v: Tensor | None = None,
    mask: BlockMask | None = None,
    is_causal: bool = False,
    backward: bool = False,
) -> BenchmarkReport:
    """Times every variant, eliminating none, on operands of its own; caches nothing.

    Args:
        a: as for `matmul`; its pattern and strides are used, its values are not.
        b: as for `matmul` (for `linear`: ``x``).
        variants: names and families to compare; None: all for the operands' device.
        num_runs: timed rounds for each variant; None: as many as are useful within the budget.
        budget_s: seconds to spend; None: ten times ``settings.budget_s``. Variants that are not
            expected to fit are skipped, unless ``num_runs`` is given.
        bias: as for `matmul`.
        activation: as for `matmul`.
        linear: measure ``linear(b, a)`` instead of ``matmul(a, b)``.
        pattern: measure ``sampled_matmul(a, b, pattern)`` instead, with dense ``a`` and ``b``.
        v: measure ``attention(a, b, v, mask, is_causal=is_causal)`` instead, with ``q`` as ``a``
            and ``k`` as ``b``.
        mask: of attention.
        is_causal: of attention.
        backward: measure the gradients of attention.

    Returns:
        A record per variant, including those that could not take part, with the reason.

    Raises:
        TypeError, ValueError, RuntimeError: as `matmul`, or `sampled_matmul` with a pattern;
            ValueError also if a variant is unknown, if none of ``variants`` is legal, or if
            ``num_runs`` or ``budget_s`` is out of range.
    """
    if num_runs is not None and not (_is_a(Integral, num_runs) and 0 < num_runs < 2**31):
        raise ValueError(f"num_runs must be a whole number, 1 to 2**31 - 1; got {num_runs!r}")
    check_budget(budget_s)
    about = {"bias": bias, "activation": activation, "linear": linear, "pattern": pattern}
    with silenced():
        return _race(
            _question(a, b, v, mask, is_causal, backward, **about),
            variants,
            "variants",
            rounds=int(num_runs or 0),
            budget_s=float(budget_s or _BENCHMARK_BUDGETS * settings.budget_s),
            eliminate=False,
            save=False,
        )


def check_budget(budget_s: float | None) -> None:
    """Raises ValueError for seconds that nobody can spend."""
    if budget_s is not None and not (_is_a(Real, budget_s) and 0 < budget_s < math.inf):
        raise ValueError(f"budget_s must be a positive, finite number of seconds; got {budget_s!r}")


def tuning_count() -> int:
    """How many races this process has run for products and `tune` (excluding `benchmark`)."""
    return _tuner.tuning_count()

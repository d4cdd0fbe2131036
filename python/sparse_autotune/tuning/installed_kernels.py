"""What registrations of other packages' attention have in common."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Callable
from typing import Any

import torch

from .registration import RegisteredVariant, register_variant
from .variant_problems import AttentionProblem

_HOPPER = 9


def in_letters(version: str) -> str:
    """A version without its local part, in the characters that `register_variant` takes."""
    return re.sub(r"[^a-z0-9]", "_", version.split("+")[0].lower())


def register_both(
    name: str,
    forward: Callable[..., None],
    backward: Callable[..., None],
    supports: Callable[[AttentionProblem], bool | str],
    *,
    distribution: str,
    module: str,
    version: str | None,
) -> tuple[RegisteredVariant, RegisteredVariant]:
    """Registers a package's kernels for Hopper GPUs and half types, as ``name`` and name_backward.

    CUDA graphs can hold both, and equal calls of the second give gradients that are not equal.
    Where ``module`` cannot be imported this raises an ImportError; a version that is None is that
    of ``distribution``.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{name} needs {distribution} (pip install {distribution}): {error}"
        ) from error
    if version is None:
        version = in_letters(importlib.metadata.version(distribution))

    def asked(problem: AttentionProblem) -> bool | str:
        if torch.cuda.get_device_capability()[0] != _HOPPER:
            return "registered for Hopper GPUs only"
        if problem.dtype not in (torch.float16, torch.bfloat16):
            return "float16 and bfloat16 only"
        return supports(problem)

    same: dict[str, Any] = {"version": version, "supports": asked, "captures": True}
    first = register_variant(name, forward, op="attention", **same)
    try:
        second = register_variant(
            f"{name}_backward", backward, op="attention_backward", deterministic=False, **same
        )
    except ValueError:
        first.unregister()
        raise
    return first, second

"""What the operators count in ``torch.utils.flop_counter``: the stored blocks alone.

Importing that module imports Triton, so it is told of them when somebody else does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from math import prod
from types import ModuleType
from typing import Any

import torch

from .ops import SPARSE_RIGHT

_COUNTER = "torch.utils.flop_counter"


def _product(
    crow: Any,
    col: Any,
    values: Sequence[int],
    rows: int,
    cols: int,
    dense: Sequence[int],
    bias: Any = None,
    *,
    sparse_right: bool = False,
    **_: Any,
) -> int:
    inner = len(dense) - (1 if sparse_right or len(dense) == 1 else 2)
    return 2 * prod(values) * prod(size for axis, size in enumerate(dense) if axis != inner)


def _product_of_form(*shapes: Any, **_: Any) -> int:
    *operands, form, _variant = shapes
    return _product(*operands, sparse_right=bool(form & SPARSE_RIGHT))


def _gradients(*shapes: Any, **_: Any) -> int:
    *operands, _grad, form = shapes
    return 2 * _product(*operands, sparse_right=bool(form & SPARSE_RIGHT))


def _sampled(
    crow: Any,
    col: Sequence[int],
    rows: int,
    cols: int,
    block_m: int,
    block_k: int,
    x: Sequence[int],
    *_: Any,
    **__: Any,
) -> int:
    return 2 * col[0] * block_m * block_k * prod(x[:-2]) * x[-1]


def _register(counter: ModuleType) -> None:
    operators = torch.ops.sparse_autotune
    if operators.bsr_matmul in counter.flop_registry:  # this package was imported before
        return
    register = counter.register_flop_formula
    register([operators.bsr_matmul, operators.bsr_matmul_out])(_product)
    register(operators.bsr_product)(_product_of_form)
    register(operators.bsr_product_gradients)(_gradients)
    register([operators.bsr_sampled_matmul, operators.bsr_sampled_product])(_sampled)


class _WhenImported(MetaPathFinder):
    """Finds that one module as anybody would, to register when it is executed, not when found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _COUNTER:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                execute(module)
                _register(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Registers the formulas, now or when the module that takes them is imported."""
    if _COUNTER in sys.modules:
        _register(sys.modules[_COUNTER])
    else:
        sys.meta_path.insert(0, _WhenImported())

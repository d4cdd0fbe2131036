"""The compiled, torch-free autotuner (csrc/bindings/tuner_module.cpp)."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

def install_host(
    load: Callable[[str, str], str | None],
    save: Callable[[str, str, str], None],
    report: Callable[[dict[str, Any]], None],
    reclaim: Callable[[int], None],
) -> None: ...
def remove_host() -> None: ...
def set_settings(
    *,
    mode: str,
    budget_s: float,
    timing: str,
    plan_bytes: int,
    frozen_bytes: int,
    tuning_bytes: int,
    exact_nonfinite: bool,
    variant: str | None,
) -> None: ...
def get_settings() -> dict[str, Any]: ...
def tuning_count() -> int: ...
def parse_record(text: str) -> dict[str, Any]: ...
def known() -> list[tuple[str, str]]: ...
def forget() -> None: ...
def variants() -> list[dict[str, Any]]: ...
def build_info() -> dict[str, Any]: ...
def device_info(ordinal: int, threads: int = 1) -> dict[str, Any]: ...
def environment(ordinal: int) -> str: ...
def libraries() -> list[dict[str, Any]]: ...

class Eager:
    def __init__(
        self,
        *,
        tensor: type[Tensor],
        parameter: type[Tensor],
        is_grad_enabled: Callable[[], bool],
        listeners: tuple[Callable[[], int], ...],
        forward_ad: ModuleType,
    ) -> None: ...
    def is_component(self, tensor: Tensor) -> bool: ...
    def nobody_listens(self) -> bool: ...

class Operands:
    def __init__(
        self,
        *,
        exchange_api: object,
        empty_on_cpu: Callable[..., Tensor] | None,
        empty_on_gpu: Callable[..., Tensor] | None,
    ) -> None: ...

class DirectProduct:
    def __init__(
        self, dispatched: Callable[..., Any], operands: Operands, eager: Eager
    ) -> None: ...
    def __call__(self, *arguments: Any, **keywords: Any) -> Any: ...

class DirectGradients:
    def __init__(
        self, dispatched: Callable[..., Any], operands: Operands, eager: Eager
    ) -> None: ...
    def __call__(self, *arguments: Any, **keywords: Any) -> Any: ...

class Launcher:
    def __init__(
        self,
        operands: Operands,
        eager: Eager,
        crow_indices: Tensor,
        col_indices: Tensor,
        values: Tensor,
        rows: int,
        cols: int,
    ) -> None: ...
    @property
    def lost(self) -> bool: ...
    def product(
        self,
        crow_indices: Tensor,
        col_indices: Tensor,
        values: Tensor,
        dense: Tensor,
        bias: Tensor | None,
        out: Tensor | None,
        sparse_right: bool,
        transpose: bool,
        activation: int,
        frozen: bool,
        allow_tf32: bool,
        deterministic: bool,
        /,
    ) -> Tensor | None: ...
    def sample(
        self,
        crow_indices: Tensor,
        col_indices: Tensor,
        x: Tensor,
        y: Tensor,
        transposed: bool,
        allow_tf32: bool,
        deterministic: bool,
        /,
    ) -> Tensor | None: ...

def memory(ordinal: int = -1) -> dict[str, int]: ...
def drop_plan(crow_indices: int, col_indices: int) -> None: ...
def own_indices(crow_indices: int, col_indices: int) -> None: ...
def disown_indices(crow_indices: int, col_indices: int) -> None: ...
def drop_frozen(crow_indices: int, col_indices: int, values: int) -> None: ...

"""The compiled, torch-free autotuner (csrc/bindings/tuner_module.cpp)."""

from collections.abc import Callable
from typing import Any

def install_host(
    load: Callable[[str, str], str | None],
    save: Callable[[str, str, str], None],
    report: Callable[[dict[str, Any]], None],
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

class Launcher:
    def __init__(
        self,
        *,
        crow_indices: int,
        col_indices: int,
        wide_indices: bool,
        nnzb: int,
        rows: int,
        cols: int,
        block_m: int,
        block_k: int,
        dtype: str,
        ordinal: int,
    ) -> None: ...
    def launch(
        self,
        crow_version: int,
        col_version: int,
        values: int,
        b: int,
        c: int,
        n: int,
        b_row_stride: int,
        b_col_stride: int,
        c_row_stride: int,
        c_col_stride: int,
        frozen: bool,
        allow_tf32: bool,
        deterministic: bool,
        /,
    ) -> bool: ...

def memory(ordinal: int = -1) -> dict[str, int]: ...
def drop_plan(crow_indices: int, col_indices: int) -> None: ...
def drop_frozen(values: int) -> None: ...

"""The names that arguments, settings and results choose from, as types.

With them a type checker finds a misspelt name before anything runs. What checks the names at run
time takes them from here, or is compared with these by tests/test_types.py.
"""

from __future__ import annotations

from typing import Literal

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Pattern = Literal[
    "uniform",
    "banded",
    "power_law",
    "one_dense_row",
    "half_empty",
    "block_diagonal",
    "causal",
]
Mode = Literal["on", "off", "readonly", "record"]
Timing = Literal["cold", "warm"]
Buckets = Literal["geometric", "exact"]
Verbosity = Literal[0, 1]
DeviceType = Literal["cpu", "cuda"]
Status = Literal["ok", "eliminated", "skipped", "unsupported", "failed"]

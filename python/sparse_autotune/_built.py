"""Fails the import in one sentence where nothing was built for this Python, or torch is too old."""

from __future__ import annotations

import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import torch

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):  # of which symbols are missing
    raise ImportError(f"sparse_autotune needs torch >= 2.10, {torch.__version__} is installed")
if find_spec(f"{__package__}._tuner") is None:
    raise ImportError(
        f"sparse_autotune is not built for {sys.executable}: {Path(__file__).parent} has no "
        f"_tuner{sysconfig.get_config_var('EXT_SUFFIX')} (make build PYTHON={sys.executable}, or "
        "pip install --no-build-isolation . in the sources)"
    )

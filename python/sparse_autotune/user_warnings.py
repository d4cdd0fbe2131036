"""Warnings that point at the user's own line."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

# Whose frames a warning is not about: they lie between a user's line and what is wrong with it.
_BETWEEN = {__name__.partition(".")[0], "torch", "importlib"}


def _is_between(frame: FrameType) -> bool:
    # Its module tells, its file does not: code that torch generates lies in any directory. Some of
    # it is in no module.
    module = frame.f_globals.get("__name__")
    return module is None or str(module).partition(".")[0] in _BETWEEN


def warn(text: str, category: type[Warning]) -> None:
    """A Python warning at the innermost frame outside this package, torch and the import system."""
    frame = sys._getframe()
    while frame.f_back is not None and _is_between(frame):
        frame = frame.f_back
    # `warnings.warn` would count frames: in an import, without those of the import system.
    warnings.warn_explicit(
        text,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )

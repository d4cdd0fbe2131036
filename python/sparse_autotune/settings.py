"""What a user may change: `settings`, one object for the process.

=================  ==============================  =========  =======================================
attribute          environment variable            default    meaning
=================  ==============================  =========  =======================================
mode               SPARSE_AUTOTUNE                 "on"       "on" races on a miss; "off" uses the
                                                              heuristic alone; "readonly" the cache,
                                                              else the heuristic, and never races or
                                                              writes; "record" is readonly and logs
                                                              the signatures it missed
verbosity          SPARSE_AUTOTUNE_VERBOSE         1          0 silences what a tuning prints
budget_s           SPARSE_AUTOTUNE_BUDGET_S        1.0        seconds that one race may take
timing             SPARSE_AUTOTUNE_TIMING          "cold"     "cold" rotates operands that fit the
                                                              GPU's cache, "warm" does not
cache_dir          SPARSE_AUTOTUNE_CACHE_DIR       None       where winners are kept; None:
                                                              $XDG_CACHE_HOME/sparse_autotune, else
                                                              ~/.cache/sparse_autotune
plan_bytes         SPARSE_AUTOTUNE_PLAN_BYTES      2**30      bound on index tensors that plans keep
                                                              alive
frozen_bytes       SPARSE_AUTOTUNE_FROZEN_BYTES    2**33      bound on converted copies of frozen
                                                              values
tuning_bytes       SPARSE_AUTOTUNE_TUNING_BYTES    2**32      bound on everything one race allocates
exact_nonfinite    SPARSE_AUTOTUNE_EXACT_NONFINITE False      only variants that never multiply an
                                                              absent block (0 * infinity is NaN)
variant            SPARSE_AUTOTUNE_VARIANT         None       forces a variant or family everywhere
=================  ==============================  =========  =======================================

Environment variables are read once, at import. Assigning to an attribute takes effect at the next
call, in every thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

from . import _tuner

_PREFIX = "SPARSE_AUTOTUNE"
_MODES = ("on", "off", "readonly", "record")
_TIMINGS = ("cold", "warm")


class _Core(TypedDict):
    """The settings that the compiled core reads."""

    mode: str
    budget_s: float
    timing: str
    plan_bytes: int
    frozen_bytes: int
    tuning_bytes: int
    exact_nonfinite: bool
    variant: str | None


def _one_of(*choices: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, got {value!r}")
        return str(value)

    return check


def _bytes(value: Any) -> int:
    if isinstance(value, bool) or int(value) != float(value) or int(value) < 0:
        raise ValueError(f"must be a number of bytes, 0 or more, got {value!r}")
    return int(value)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not 0 < float(value) < float("inf"):
        raise ValueError(f"must be a positive number of seconds, got {value!r}")
    return float(value)


def _verbosity(value: Any) -> int:
    if isinstance(value, bool) or int(value) not in (0, 1):
        raise ValueError(f"must be 0 or 1, got {value!r}")
    return int(value)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value) in ("0", "1"):
        return str(value) == "1"
    raise ValueError(f"must be True or False (in the environment 1 or 0), got {value!r}")


def _optional_text(value: Any) -> str | None:
    return None if value is None or value == "" else os.fspath(value)


def _variant(value: Any) -> str | None:
    name = _optional_text(value)
    known = {v[key] for v in _tuner.variants() for key in ("name", "family")}
    if name is not None and name not in known:
        raise ValueError(f"must be a variant or a family of this build, got {value!r}")
    return name


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "mode": _one_of(*_MODES),
    "verbosity": _verbosity,
    "budget_s": _seconds,
    "timing": _one_of(*_TIMINGS),
    "cache_dir": _optional_text,
    "plan_bytes": _bytes,
    "frozen_bytes": _bytes,
    "tuning_bytes": _bytes,
    "exact_nonfinite": _truth,
    "variant": _variant,
}
_VARIABLES = {name: f"{_PREFIX}_{name.upper()}" for name in _CHECKS} | {
    "mode": _PREFIX,
    "verbosity": f"{_PREFIX}_VERBOSE",
}


class Settings:
    """Typed attributes, checked when assigned; see the module's table."""

    mode: str
    verbosity: int
    budget_s: float
    timing: str
    cache_dir: str | None
    plan_bytes: int
    frozen_bytes: int
    tuning_bytes: int
    exact_nonfinite: bool
    variant: str | None

    def __init__(self) -> None:
        values: dict[str, Any] = {"verbosity": 1, "cache_dir": None, **_tuner.get_settings()}
        for name, variable in _VARIABLES.items():
            text = os.environ.get(variable)
            if text:
                values[name] = self._checked(name, text, variable)
        self.__dict__.update(values)
        self._apply()

    @staticmethod
    def _checked(name: str, value: Any, shown: str) -> Any:
        try:
            return _CHECKS[name](value)
        except (TypeError, ValueError) as error:
            text = str(error)
            rule = text if text.startswith("must") else f"has an unusable value, {value!r}"
            raise ValueError(f"{shown} {rule}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Checks and applies; an unknown name raises AttributeError."""
        if name not in _CHECKS:
            raise AttributeError(f"settings has no {name!r}; it has {', '.join(_CHECKS)}")
        checked = self._checked(name, value, f"settings.{name}")
        moved = name == "cache_dir" and checked != self.cache_dir
        self.__dict__[name] = checked
        if moved:
            _tuner.forget()  # what another directory remembered
        self._apply()

    def _apply(self) -> None:
        core: _Core = {name: self.__dict__[name] for name in _Core.__annotations__}  # type: ignore[assignment]
        _tuner.set_settings(**core)

    @contextmanager
    def override(self, **values: Any) -> Iterator[Settings]:
        """Settings for the body of a ``with`` statement, in the whole process."""
        before = {name: getattr(self, name) for name in values}
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield self
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def __repr__(self) -> str:
        listed = ", ".join(f"{name}={getattr(self, name)!r}" for name in _CHECKS)
        return f"settings({listed})"


settings = Settings()

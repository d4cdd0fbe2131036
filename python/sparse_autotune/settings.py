"""`settings`, the one object per process through which a user configures the library."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict, get_args

from . import _tuner
from .choices import Buckets, Mode, Timing, Verbosity
from .user_warnings import warn

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PREFIX = "SPARSE_AUTOTUNE"


class _Values(TypedDict, total=False):
    """What can be assigned to each setting."""

    mode: Mode
    verbosity: Verbosity
    budget_s: float
    timing: Timing
    buckets: Buckets
    min_speedup: float
    cache_dir: str | os.PathLike[str] | None
    record_path: str | os.PathLike[str] | None
    cache_bytes: int
    plan_bytes: int
    frozen_bytes: int
    tuning_bytes: int
    exact_nonfinite: bool
    variant: str | None


class _PathSetting:
    """For type checkers: assigned a path of any kind, it is read as a string."""

    if TYPE_CHECKING:

        def __get__(self, of: Any, kind: Any = None) -> str | None: ...
        def __set__(self, of: Any, path: str | os.PathLike[str] | None) -> None: ...


# A rule as people read it, and a function that returns the value as it is kept, or raises
# ValueError, TypeError or OverflowError. Values are Python's or an environment variable's text.
_Rule = tuple[str, Callable[[Any], Any]]


def _refuse_unless(holds: bool) -> None:
    if not holds:
        raise ValueError


def _one_of(*choices: str) -> _Rule:
    def kept(value: Any) -> str:
        _refuse_unless(value in choices)
        return str(value)

    return f"must be one of {', '.join(choices)}", kept


def _whole_number(rule: str, most: int) -> _Rule:
    def kept(value: Any) -> int:
        number = int(value)
        _refuse_unless(isinstance(value, str) or (number == value and not isinstance(value, bool)))
        _refuse_unless(0 <= number <= most)
        return number

    return rule, kept


def _finite(rule: str, least: float) -> _Rule:
    def kept(value: Any) -> float:
        number = float(value)
        _refuse_unless(least <= number < math.inf and not isinstance(value, bool))
        return number

    return rule, kept


def _truth(value: Any) -> bool:
    _refuse_unless(isinstance(value, bool) or value in ("0", "1"))
    return value in (True, "1")


def _path(value: Any) -> str | None:
    if value is None or value == "":
        return None
    path = os.fspath(value)
    _refuse_unless(isinstance(path, str) and "\0" not in path)
    # Absolute: a later chdir does not move the cache.
    return os.path.abspath(os.path.expanduser(path))


def _variant(value: Any) -> str | None:
    if value is None or value == "":
        return None
    _refuse_unless(value in {v[key] for v in _tuner.variants() for key in ("name", "family")})
    return str(value)


_BYTES = _whole_number("must be a whole number of bytes, 0 to 2**63 - 1", 2**63 - 1)
_RULES: dict[str, _Rule] = {
    "mode": _one_of(*get_args(Mode)),
    "verbosity": _whole_number("must be 0 or 1", 1),
    "budget_s": _finite("must be a positive, finite number of seconds", math.nextafter(0, 1)),
    "timing": _one_of(*get_args(Timing)),
    "buckets": _one_of(*get_args(Buckets)),
    "min_speedup": _finite("must be a finite number, at least 1", 1),
    "cache_dir": ("must be a path or None", _path),
    "record_path": ("must be a path or None", _path),
    "cache_bytes": _BYTES,
    "plan_bytes": _BYTES,
    "frozen_bytes": _BYTES,
    "tuning_bytes": _BYTES,
    "exact_nonfinite": ("must be True or False (in the environment 1 or 0)", _truth),
    "variant": ("must be a variant or a family of this build (see variants()) or None", _variant),
}
_VARIABLES = {name: f"{_PREFIX}_{name.upper()}" for name in _RULES} | {
    "mode": _PREFIX,
    "verbosity": f"{_PREFIX}_VERBOSE",
    "record_path": f"{_PREFIX}_RECORD",
}

# Read by setup.py, and by programs without Python.
_OTHER_VARIABLES = {f"{_PREFIX}_{name}" for name in ("BUNDLE", "CUDA", "WERROR")}


def _warn_of_unknown_variables() -> None:
    for variable in sorted(os.environ):
        known = variable in _VARIABLES.values() or variable in _OTHER_VARIABLES
        if variable.startswith(f"{_PREFIX}_") and not known:
            name = variable.removeprefix(f"{_PREFIX}_").lower()
            alike = difflib.get_close_matches(name, _VARIABLES, 1)
            meant = f"; is {_VARIABLES[alike[0]]} meant?" if alike else ""
            text = f"the environment variable {variable} is none of sparse_autotune's{meant}"
            warn(text, UserWarning)


def _checked(name: str, value: Any, shown: str) -> Any:
    rule, kept = _RULES[name]
    try:
        return kept(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{shown} {rule}; got {value!r}") from None


def _check_name(name: str) -> None:
    if name not in _RULES:
        raise AttributeError(f"settings has no {name!r}; it has {', '.join(_RULES)}")


class Settings:
    """The library's configuration; each value is checked when it is assigned.

    =============== =============================== =========== ==================================
    attribute       environment variable            default     meaning
    =============== =============================== =========== ==================================
    mode            SPARSE_AUTOTUNE                 "on"        "on" races on a miss; "off" uses
                                                                the heuristic alone; "readonly"
                                                                uses the cache, else the
                                                                heuristic, and never races or
                                                                writes entries; "record" is
                                                                "readonly" and appends what it
                                                                missed to record_path, for
                                                                tune_file
    verbosity       SPARSE_AUTOTUNE_VERBOSE         1           0 silences what a race prints and
                                                                "record" logs
    budget_s        SPARSE_AUTOTUNE_BUDGET_S        1.0         seconds that one race may spend on
                                                                launches
    timing          SPARSE_AUTOTUNE_TIMING          "cold"      "cold" rotates operands that would
                                                                fit the GPU's cache, "warm" does
                                                                not; a CPU's caches are warm in
                                                                either case
    buckets         SPARSE_AUTOTUNE_BUCKETS         "geometric" numbers of columns share races in
                                                                buckets; "exact" races each of
                                                                them
    min_speedup     SPARSE_AUTOTUNE_MIN_SPEEDUP     1.02        who is not faster by that factor
                                                                does not beat the winner of
                                                                before, or one that needs less
                                                                memory
    cache_dir       SPARSE_AUTOTUNE_CACHE_DIR       None        where winners are kept; None:
                                                                $XDG_CACHE_HOME/sparse_autotune,
                                                                else ~/.cache/sparse_autotune
    record_path     SPARSE_AUTOTUNE_RECORD          None        where "record" writes; None:
                                                                missed.jsonl in the cache
                                                                directory
    cache_bytes     SPARSE_AUTOTUNE_CACHE_BYTES     2**28       bound on the cache directory, from
                                                                which the oldest entries go, those
                                                                of other environments first
    plan_bytes      SPARSE_AUTOTUNE_PLAN_BYTES      2**30       bound on what plans keep: index
                                                                tensors and what is derived from
                                                                them
    frozen_bytes    SPARSE_AUTOTUNE_FROZEN_BYTES    2**33       bound on converted copies of
                                                                frozen values
    tuning_bytes    SPARSE_AUTOTUNE_TUNING_BYTES    2**32       bound on everything one race
                                                                allocates
    exact_nonfinite SPARSE_AUTOTUNE_EXACT_NONFINITE False       only variants that never multiply
                                                                an absent block (0 * infinity is
                                                                NaN)
    variant         SPARSE_AUTOTUNE_VARIANT         None        forces a variant or family in
                                                                every product of its kind: matmul
                                                                with linear, and sampled_matmul
    =============== =============================== =========== ==================================

    Environment variables are read once, at import; an empty one counts as unset, and an unknown one
    that begins with ``SPARSE_AUTOTUNE_`` is warned of. Assigning to an attribute takes effect at
    the next call, in every thread. An invalid value raises ValueError and changes nothing.
    """

    mode: Mode
    verbosity: Verbosity
    budget_s: float
    timing: Timing
    buckets: Buckets
    min_speedup: float
    cache_bytes: int
    plan_bytes: int
    frozen_bytes: int
    tuning_bytes: int
    exact_nonfinite: bool
    variant: str | None

    if TYPE_CHECKING:  # at run time attributes like the others
        cache_dir = record_path = _PathSetting()

    def __init__(self) -> None:
        values: dict[str, Any] = {"verbosity": 1, "cache_dir": None, "record_path": None}
        values |= {"cache_bytes": 2**28, **_tuner.get_settings()}
        for name, variable in _VARIABLES.items():
            text = os.environ.get(variable)
            if text:
                values[name] = _checked(name, text, variable)
        _warn_of_unknown_variables()
        self.__dict__.update(values)
        self._apply()

    def _assign(self, name: str, value: Any) -> None:
        """Checks and applies a value; an unknown name raises AttributeError."""
        _check_name(name)
        checked = _checked(name, value, f"settings.{name}")
        moved = name == "cache_dir" and checked != self.cache_dir
        self.__dict__[name] = checked
        if moved:
            _tuner.forget()  # what another directory remembered
        self._apply()

    if not TYPE_CHECKING:  # a type checker that saw it would accept an unknown name
        __setattr__ = _assign

    def __delattr__(self, name: str) -> None:
        """Raises AttributeError: settings cannot be deleted."""
        raise AttributeError(f"settings.{name} cannot be deleted: assign another value")

    def _apply(self) -> None:
        # Until nothing has changed meanwhile: another thread may have applied a newer value.
        applied: dict[str, Any] = {}
        while applied != (values := {name: self.__dict__[name] for name in _tuner.get_settings()}):
            _tuner.set_settings(**values)
            applied = values

    @contextmanager
    def override(self, **values: Unpack[_Values]) -> Iterator[Settings]:
        """Changes settings for the body of a ``with`` statement, in the whole process.

        Raises:
            AttributeError: there is no setting of that name.
            ValueError: a value is invalid; no setting stays changed.
        """
        for name in values:
            _check_name(name)
        before = {name: getattr(self, name) for name in values}
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield self
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def __repr__(self) -> str:
        listed = ", ".join(f"{name}={getattr(self, name)!r}" for name in _RULES)
        return f"settings({listed})"


settings = Settings()

"""The variants of this build, and whether what one says is missing from this machine truly is."""

import pathlib
import re

import pytest

from sparse_autotune import _tuner

DETERMINISTIC = {v["name"]: v["deterministic"] for v in _tuner.variants()}


def built(device, op="matmul"):
    """Full names of the variants of a device for an operation."""
    return [v["name"] for v in _tuner.variants() if (v["device"], v["op"]) == (device, op)]


def each_built(op="matmul"):
    """(device, name) of each variant for an operation, as parameters; those of a GPU marked so."""
    marks = {"cpu": [], "cuda": [pytest.mark.gpu]}
    return [
        pytest.param(device, name, marks=marks[device])
        for device in marks
        for name in built(device, op)
    ]


def _cpu_flags():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    match = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return set(match.group(1).split()) if match else set()


MISSING = {
    r"\bAMX\b": lambda: "amx_bf16" not in _cpu_flags(),
    r"AVX-?512-?BF16": lambda: "avx512_bf16" not in _cpu_flags(),
    r"AVX-?512\b": lambda: "avx512f" not in _cpu_flags(),
    r"AVX2": lambda: "avx2" not in _cpu_flags(),
}


def lacks_this_machine(reason):
    """Whether the reason names something that this machine does not have."""
    return any(
        re.search(pattern, reason, re.IGNORECASE) and is_missing()
        for pattern, is_missing in MISSING.items()
    )


def reasons_until_settled(combinations, device, legality_of):
    """What each variant's answers were, over as many cases as it takes to know that every variant
    is legal for one that it runs, or lacks something of this machine."""
    run_by = {}
    for case, of_device, variant in combinations:
        if of_device == device:
            run_by.setdefault(case, []).append(variant)
    reasons = {variant: set() for variants in run_by.values() for variant in variants}
    for case, variants in run_by.items():
        answers = legality_of(case)
        for variant in variants:
            reasons[variant].add(answers[variant])
        if all(None in seen or any(map(lacks_this_machine, seen)) for seen in reasons.values()):
            break
    return reasons


def assert_legal_somewhere(reasons):
    """Of each variant why it is not legal, case by case (None: it is): for one, or never here."""
    for variant, seen in reasons.items():
        if None in seen:
            continue
        lacking = [reason for reason in seen if lacks_this_machine(reason)]
        assert lacking, f"{variant} is legal for no case: {sorted(seen)}"
        print(f"{variant} cannot run on this machine: {lacking[0]}")

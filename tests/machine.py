"""What a variant's reason says is missing from this machine, and how to see that it truly is."""

import pathlib
import re


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

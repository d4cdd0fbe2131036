"""Which configuration of each of our families enters the interleaved rounds of a cell."""

from __future__ import annotations

from sparse_autotune import BenchmarkReport

from . import timing
from .cell import Operands
from .result import Row

# Readable and far too slow for these sizes: one call can take longer than a cell's whole budget.
_LEFT_OUT = {"reference": "the reference is not timed at these sizes"}
# Variants that fill in A's zeros, where nobody would: a race has no memory for that.
_DENSE = {"cublas_dense", "dense"}
# Families that are kernels of a library, which has others for each GPU.
_LIBRARIES = {"cublas_dense", "cusparse_bsr", "cusparse_blocked_ell"}
_HOPPER = "_sm90"
# torch lets cuBLAS add partial sums in half precision: verification excludes it where that shows.
_LESS_PRECISE = {"cublas_dense"}
# A family's configurations that the race found fastest, and how often they are timed against each
# other: a race ranks in its own mode and stops timing whoever is behind.
_ENTRANTS = 3
_ROUNDS = 3


def is_portable(variant: str) -> bool:
    """Whether a variant is ours and runs the same code from Ampere on."""
    family = variant.partition("/")[0]
    return family not in _LIBRARIES and not family.endswith(_HOPPER)


def _best(names: list[str], operands: Operands, device: str) -> str:
    if len(names) == 1:
        return names[0]
    samplers = {}
    for name in names:
        call = operands.product(operands.a, name)
        call()
        samplers[name] = (
            timing.cpu_sampler(call) if device == "cpu" else timing.kernel_sampler([call])[0]
        )
    taken = timing.interleave(samplers, _ROUNDS)
    return min(taken, key=lambda name: taken[name].median_us)


def rows(
    report: BenchmarkReport, operands: Operands, device: str, without: set[str]
) -> list[tuple[Row, str]]:
    """A row for each family but those `without`, and its fastest configuration ("": none ran).

    On a GPU the fastest is meant warm.
    """
    found = []
    for family in sorted({record.family for record in report.records} - without):
        records = [record for record in report.records if record.family == family]
        timed = sorted((r.median_us, r.name) for r in records if r.median_us is not None)
        if family in _LEFT_OUT:
            found.append((Row(family, "family", "left out", _LEFT_OUT[family]), ""))
        elif family in _DENSE and not operands.fits_dense:
            found.append((Row(family, "family", "left out", "too large with its zeros"), ""))
        elif not timed:
            said = next((r for r in records if r.status == "failed"), records[0])
            status: str = said.status
            if family in _LESS_PRECISE and status == "failed" and "wrong result" in said.reason:
                status = "disqualified"
            found.append((Row(family, "family", status, said.reason), ""))
        else:
            best = _best([name for _, name in timed[:_ENTRANTS]], operands, device)
            failed = [r.name for r in records if r.status == "failed"]
            note = f"; failed: {', '.join(failed)}" if failed else ""
            found.append((Row(family, "family", detail=best + note), best))
    return found

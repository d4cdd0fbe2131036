"""`BenchmarkReport`: what a race measured, for people and for programs."""

from __future__ import annotations

import html
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas

_COLUMNS = (
    ("variant", "<"),
    ("median µs", ">"),
    ("± µs", ">"),
    ("TFLOP/s (nnz)", ">"),
    ("(dense-eq.)", ">"),
    ("GB/s", ">"),
    ("of limit", ">"),
    ("error", ">"),
    ("status", "<"),
)


@dataclass(frozen=True)
class VariantRecord:
    """How one variant fared; times are None where it was not timed.

    ``tflops`` counts stored blocks only, 2 · nnzb · block_m · block_k · n / time;
    ``dense_tflops`` the dense product of equal shape; ``gbps`` the bytes that any variant must move.
    ``limit_share`` is the time that the device's data sheet allows over the median. ``error`` is
    the largest deviation from the fp64 reference as a share of what rounding explains.
    """

    name: str
    family: str
    status: str  # ok, eliminated, skipped, unsupported, or failed
    reason: str
    median_us: float | None
    spread_us: float | None  # interquartile range
    samples: int
    tflops: float | None
    dense_tflops: float | None
    gbps: float | None
    limit_share: float | None
    error: float | None
    memory_bytes: int  # scratch and converted copy


@dataclass(frozen=True)
class BenchmarkReport:
    """One race: a record per variant, fastest first.

    Prints as a table, in a terminal and in Jupyter. ``timing`` is "cold" or "warm" (see
    `settings`); times are of the device, not of the host's call.
    """

    problem: str
    device: str
    signature: str
    timing: str
    when: str
    seconds: float
    winner: str
    records: list[VariantRecord] = field(default_factory=list)

    @property
    def best(self) -> VariantRecord | None:
        """The winner's record; None when every variant failed."""
        return next((r for r in self.records if r.name == self.winner), None)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python objects."""
        return asdict(self)

    def to_pandas(self) -> pandas.DataFrame:
        """The records as a DataFrame, one row per variant. Needs pandas."""
        import pandas

        return pandas.DataFrame([asdict(record) for record in self.records])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_dict` as JSON.

        Raises:
            OSError: the file cannot be written.
        """
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    def plot(self, ax: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """Bars of the nnz TFLOP/s of each variant that was timed. Needs matplotlib."""
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(layout="constrained")
        timed = [r for r in self.records if r.tflops is not None][::-1]
        colours = ["C1" if r.name == self.winner else "C0" for r in timed]
        ax.barh([r.name for r in timed], [r.tflops or 0.0 for r in timed], color=colours)
        ax.set_xlabel("TFLOP/s (nnz)")
        ax.set_title(f"{self.problem} on {self.device}, {self.timing}")
        return ax

    def _rows(self) -> list[tuple[str, ...]]:
        def number(value: float | None, form: str) -> str:
            return "" if value is None else format(value, form)

        rows = []
        for r in self.records:
            status = r.status if not r.reason else f"{r.status}: {r.reason}"
            rows.append(
                (
                    f"{r.name} *" if r.name == self.winner else r.name,
                    number(r.median_us, ".4g"),
                    number(r.spread_us, ".2g"),
                    number(r.tflops, ".4g"),
                    number(r.dense_tflops, ".4g"),
                    number(r.gbps, ".4g"),
                    number(r.limit_share, ".0%"),
                    number(r.error, ".2g"),
                    status,
                )
            )
        return rows

    def _title(self) -> str:
        return f"{self.problem} on {self.device}, {self.timing}, {self.when}"

    def __str__(self) -> str:
        rows = [tuple(name for name, _ in _COLUMNS), *self._rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        lines = [
            "  ".join(
                f"{cell:{align}{width}}"
                for cell, (_, align), width in zip(row, _COLUMNS, widths, strict=True)
            ).rstrip()
            for row in rows
        ]
        return "\n".join([self._title(), *lines])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name, _ in _COLUMNS)
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="text-align:{"left" if align == "<" else "right"}">'
                f"{html.escape(cell)}</td>"
                for cell, (_, align) in zip(row, _COLUMNS, strict=True)
            )
            + "</tr>"
            for row in self._rows()
        )
        return (
            f"<table><caption>{html.escape(self._title())}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


def report_of(record: dict[str, Any], unsupported: dict[str, str]) -> BenchmarkReport:
    """The report of a race as the core tells it, with the variants that could not take part."""
    records = []
    for entrant in record["entrants"]:
        us = entrant["median_us"] or None
        failed = entrant["status"] not in ("ok", "eliminated", "skipped", "unsupported")
        reason = entrant["reason"]
        if failed:
            reason = f"{entrant['status'].replace('_', ' ')}: {reason}"
        checked = us is not None or entrant["status"] == "wrong_result"
        records.append(
            VariantRecord(
                name=entrant["name"],
                family=entrant["name"].split("/")[0],
                status="failed" if failed else entrant["status"],
                reason=reason,
                median_us=us,
                spread_us=entrant["spread_us"] if us else None,
                samples=entrant["samples"],
                tflops=record["nnz_flops"] / us / 1e6 if us else None,
                dense_tflops=record["dense_flops"] / us / 1e6 if us else None,
                gbps=record["bytes"] / us / 1e3 if us else None,
                limit_share=record["limit_us"] / us if us and record["limit_us"] else None,
                error=entrant["error"] if checked else None,
                memory_bytes=entrant["memory_bytes"],
            )
        )
    records += [
        VariantRecord(
            name=name,
            family=name.split("/")[0],
            status="unsupported",
            reason=reason,
            median_us=None,
            spread_us=None,
            samples=0,
            tflops=None,
            dense_tflops=None,
            gbps=None,
            limit_share=None,
            error=None,
            memory_bytes=0,
        )
        for name, reason in unsupported.items()
    ]
    return BenchmarkReport(
        problem=record["description"],
        device=record["device"],
        signature=record["signature"],
        timing=record["timing"],
        when=record["when"],
        seconds=record["seconds"],
        winner=record["winner"],
        records=records,
    )

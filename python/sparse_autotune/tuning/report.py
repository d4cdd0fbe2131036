"""`BenchmarkReport`: the results of a race, as a table and as data."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..choices import DeviceType, Status, Timing

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas
    import rich.table

_COLUMNS = (
    ("variant", "left"),
    ("median µs", "right"),
    ("± µs", "right"),
    ("TFLOP/s (nnz)", "right"),
    ("of peak", "right"),
    ("(dense-eq.)", "right"),
    ("GB/s", "right"),
    ("of memory", "right"),
    ("error", "right"),
    ("MiB", "right"),
    ("status", "left"),
)


def significant(value: float | None, digits: int) -> str:
    """A number with so many significant digits, and never an exponent for a large one."""
    if value is None:
        return ""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:.0f}"


def frame_of(report: dict[str, Any], rows: str) -> pandas.DataFrame:
    """The dicts that a report has under the name ``rows``; all else as the frame's ``attrs``."""
    import pandas

    frame = pandas.DataFrame(report.pop(rows))
    frame.attrs = report
    return frame


def text_table(
    title: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]
) -> str:
    """Lines of cells below a title; a column is its heading and "left" or "right"."""
    padded = []
    for (heading, side), *figures in zip(columns, *rows, strict=True):
        cells = [heading, *figures]
        width = max(map(len, cells))
        padded.append([c.ljust(width) if side == "left" else c.rjust(width) for c in cells])
    lines = ("  ".join(cells).rstrip() for cells in zip(*padded, strict=True))
    return "\n".join([title, *lines])


@dataclass(frozen=True)
class VariantRecord:
    """One variant's results; what was not measured is None.

    Attributes:
        name: "family/config".
        family: the algorithm, and the stem of its source file.
        status: "ok", "eliminated" (correct, and timed until it was far behind), "skipped" (its
            expected time exceeds the budget), "unsupported" or "failed".
        reason: why the status is not "ok".
        expected_us: what the variant's cost model says, microseconds; it orders the race. None: it
            has none.
        median_us: time of one call on the device, microseconds, including conversions.
        spread_us: interquartile range of the samples, microseconds.
        eager_us: time of one of many calls that the host launches, microseconds: of the device or
            of the launch on the host, whichever is longer. Python's way to the launch, which is the
            same for all, is not in it.
        captures: whether a CUDA graph can hold it; if not, `median_us` is as eager.
        samples: the number of timings that the median is taken over.
        tflops: TFLOP/s on stored blocks only, 2 · nnzb · block_m · block_k · n / median.
        dense_tflops: TFLOP/s of the dense product of the same shape in that time.
        gbps: GB/s (1e9 bytes per second), counting the bytes that any variant must move.
        peak_share: `tflops` as a share of the report's ``peak_tflops``.
        memory_share: `gbps` as a share of the report's ``peak_gbps``; products whose operands stay
            in a cache may exceed 1.
        error: the largest deviation from the reference, divided by the bound that rounding
            explains; above 1 the result is wrong.
        memory_bytes: scratch of a call and converted copy, bytes.
    """

    name: str
    family: str
    status: Status
    reason: str = ""
    expected_us: float | None = None
    median_us: float | None = None
    spread_us: float | None = None
    eager_us: float | None = None
    samples: int = 0
    tflops: float | None = None
    dense_tflops: float | None = None
    gbps: float | None = None
    peak_share: float | None = None
    memory_share: float | None = None
    error: float | None = None
    memory_bytes: int = 0
    captures: bool = True


@dataclass(frozen=True)
class BenchmarkReport:
    """One race: a record per variant, fastest first.

    Prints as a table of the best of each family, in a terminal, in Jupyter and through rich;
    `table` shows every configuration.

    Attributes:
        problem: "4096x4096x4096 bs64 density 0.125 bf16" (m x k x n); the operands' shapes if there
            was nothing to race.
        device: the device's name.
        device_type: "cpu" or "cuda".
        signature: the kind of problem, the name of its cache entry.
        timing: "cold" or "warm", as `settings` said.
        measured: "cold" if operands rotated, else "warm": on a CPU, which every race warms up, and
            where a GPU's cache is too small for them anyway. Empty if nothing was measured.
        peak_tflops: the device's arithmetic limit for the problem's dtype, on a GPU usually that of
            its tensor cores, from its data sheet; on a CPU a rough estimate. 0 if unknown.
        peak_gbps: the bandwidth of the device's memory, likewise.
        when: the start of the race, UTC.
        seconds: the duration of the race.
        winner: "family/config"; empty if there is none.
        captured_winner: the winner inside of CUDA graphs, where the host's part does not count.
        failure: why the race was not run, or not completed; empty if it was.
        records: those of all requested variants.
    """

    problem: str
    device: str
    device_type: DeviceType
    signature: str = ""
    timing: Timing | Literal[""] = ""
    measured: Timing | Literal[""] = ""
    peak_tflops: float = 0.0
    peak_gbps: float = 0.0
    when: str = ""
    seconds: float = 0.0
    winner: str = ""
    captured_winner: str = ""
    failure: str = ""
    records: list[VariantRecord] = field(default_factory=list)

    @property
    def best(self) -> VariantRecord | None:
        """The winner's record; None when no variant could be timed."""
        return next((r for r in self.records if r.name == self.winner), None)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python objects."""
        return asdict(self)

    def to_pandas(self) -> pandas.DataFrame:
        """The records as a DataFrame, one row per variant. Needs pandas.

        What holds for all of them (problem, device, timing, limits …) is in the frame's ``attrs``.
        """
        return frame_of(self.to_dict(), "records")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_dict` as JSON.

        Raises:
            OSError: the file cannot be written.
        """
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    def plot(
        self, ax: matplotlib.axes.Axes | None = None, *, configs: bool = False
    ) -> matplotlib.axes.Axes:
        """Bar chart of nnz TFLOP/s: the best of each family, or all. Needs matplotlib.

        Each bar has its shares of the device's arithmetic limit and memory bandwidth.

        Args:
            ax: axes to draw into; None creates a figure.
            configs: show every configuration that was timed.

        Returns:
            The axes.
        """
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(layout="constrained")
        shown = self.records if configs else [family[0] for family in self._families()]
        timed = [r for r in shown if r.tflops is not None][::-1]
        colours = ["C1" if r.name == self.winner else "C0" for r in timed]
        bars = ax.barh([r.name for r in timed], [r.tflops or 0.0 for r in timed], color=colours)
        rough, gap = self._rough(), "\n" if len(timed) <= 12 else ", "
        labels = [
            ""
            if r.peak_share is None or r.memory_share is None
            else f"{rough}{r.peak_share:.0%} of peak{gap}{rough}{r.memory_share:.0%} of memory"
            for r in timed
        ]
        ax.bar_label(bars, labels, padding=3, fontsize="small")
        ax.margins(x=0.6 if gap == "\n" else 1.2)  # room for the labels
        ax.set_xlabel("TFLOP/s (nnz)")
        ax.set_title(f"{self.problem}\non {self.device}{self._limits()}, {self._timing()}")
        return ax

    def table(self, *, configs: bool = False) -> str:
        """The report as text: the best of each family, or every configuration."""
        return text_table(self._title(), _COLUMNS, self._rows(configs))

    __repr__ = table

    def __rich__(self) -> rich.table.Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=Text(self._title()), box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
        )
        rows = self._rows(configs=False)
        for (heading, side), *cells in zip(_COLUMNS, *rows, strict=True):
            # In a narrow terminal names and reasons wrap, figures never.
            if side == "left":
                table.add_column(Text(heading), overflow="fold")
            else:
                width = max(map(len, [*heading.split(), *cells]))
                table.add_column(Text(heading), justify="right", width=width)
        for row in rows:
            table.add_row(*map(Text, row), style="bold" if row[0].endswith(" *") else "")
        return table

    def _repr_html_(self) -> str:
        def line(tag: str, cells: Iterable[str]) -> str:
            return "".join(
                f'<{tag} style="text-align:{side}">{html.escape(cell)}</{tag}>'
                for cell, (_, side) in zip(cells, _COLUMNS, strict=True)
            )

        head = line("th", (heading for heading, _ in _COLUMNS))
        body = "".join(f"<tr>{line('td', row)}</tr>" for row in self._rows(configs=False))
        return (
            f"<table><caption>{html.escape(self._title())}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    def _title(self) -> str:
        problem = f"{self.problem} on {self.device}{self._limits()}"
        facts = [problem, self._timing(), self.when, self.failure]
        return ", ".join(fact for fact in facts if fact)

    def _limits(self) -> str:
        if not (self.peak_tflops and self.peak_gbps):
            return ""
        peak, memory = significant(self.peak_tflops, 3), significant(self.peak_gbps, 3)
        return f" (limits {self._rough()}{peak} TFLOP/s, {self._rough()}{memory} GB/s)"

    def _rough(self) -> str:
        """The mark of an estimate: a CPU's limits are such."""
        return "~" if self.device_type == "cpu" else ""

    def _timing(self) -> str:
        as_said = self.measured in ("", self.timing)
        return self.timing if as_said else f"{self.timing} (measured {self.measured})"

    def _families(self) -> list[list[VariantRecord]]:
        """The records by family, its fastest first."""
        families: dict[str, list[VariantRecord]] = {}
        for record in self.records:
            families.setdefault(record.family, []).append(record)
        # Except that the winner may be a little slower, and smaller, than another configuration.
        return [sorted(family, key=lambda r: r.name != self.winner) for family in families.values()]

    def _rows(self, configs: bool) -> list[tuple[str, ...]]:
        if configs:
            return [self._row(r, r.name) for r in self.records]
        rows = []
        for family in self._families():
            best, others = family[0], ""
            failed = [r for r in family if r.status == "failed"]
            if failed and best.status != "failed":
                others = f"; {len(failed)} of {len(family)} failed, {failed[0].name}: "
                others += failed[0].reason
            alike = best.median_us is None and len(family) > 1
            rows.append(self._row(best, best.family if alike else best.name, others))
        return rows

    def _mark(self, r: VariantRecord) -> str:
        if self.captured_winner in ("", self.winner):
            return " *" if r.name == self.winner else ""
        return {self.winner: " * (eager)", self.captured_winner: " * (in graphs)"}.get(r.name, "")

    def _row(self, r: VariantRecord, name: str, others: str = "") -> tuple[str, ...]:
        peak, memory = (
            "" if share is None else f"{self._rough()}{share:.0%}"
            for share in (r.peak_share, r.memory_share)
        )
        if r.eager_us and r.median_us and r.eager_us > r.median_us:
            others = f"; eager {significant(r.eager_us, 4)} µs{others}"
        if not r.captures:
            others = f"; no CUDA graph can hold it, timed eagerly{others}"
        return (
            name + self._mark(r),
            significant(r.median_us, 4),
            significant(r.spread_us, 2),
            significant(r.tflops, 3),
            peak,
            significant(r.dense_tflops, 3),
            significant(r.gbps, 3),
            memory,
            "" if r.error is None else f"{r.error:.2g}",
            significant(r.memory_bytes / 2**20 or None, 2),
            (f"{r.status}: {r.reason}" if r.reason else r.status) + others,
        )


def what_failed(entrant: dict[str, Any]) -> str:
    """What went wrong with a variant that was launched, and why; empty where nothing did."""
    status, reason = entrant["status"], entrant["reason"]
    failures = ("out_of_memory", "launch_failed", "wrong_result")
    return f"{status.replace('_', ' ')}: {reason}" if status in failures else ""


def _record_of(entrant: dict[str, Any], race: dict[str, Any]) -> VariantRecord:
    same = ("name", "status", "reason", "samples", "memory_bytes", "captures")
    record = VariantRecord(
        family=entrant["name"].split("/")[0],
        expected_us=entrant["expected_us"] or None,
        **{name: entrant[name] for name in same},
    )
    if failure := what_failed(entrant):
        error = entrant["error"] if entrant["status"] == "wrong_result" else None
        return replace(record, status="failed", reason=failure, error=error)
    if not (us := entrant["median_us"]):
        return record
    peak_tflops, peak_gbps = race["peak_tflops"], race["peak_gbps"]
    tflops, gbps = race["nnz_flops"] / us / 1e6, race["bytes"] / us / 1e3
    return replace(
        record,
        median_us=us,
        spread_us=entrant["spread_us"],
        eager_us=max(us, entrant["host_us"]),
        tflops=tflops,
        dense_tflops=race["dense_flops"] / us / 1e6,
        gbps=gbps,
        peak_share=tflops / peak_tflops if peak_tflops else None,
        memory_share=gbps / peak_gbps if peak_gbps else None,
        error=entrant["error"],
    )


def report_of(
    race: dict[str, Any], device_type: DeviceType, unsupported: dict[str, str], timing: Timing
) -> BenchmarkReport:
    """The report of a race as the core tells it, with the variants that could not take part.

    ``timing`` is the setting under which it was run.
    """
    records = [_record_of(entrant, race) for entrant in race["entrants"]]
    records += [
        VariantRecord(name, name.split("/")[0], "unsupported", reason)
        for name, reason in unsupported.items()
    ]
    here = {
        "problem": race["description"],
        "device_type": device_type,
        "timing": timing,
        "measured": race["timing"] if any(r.median_us for r in records) else "",
        "records": records,
    }
    names = (field.name for field in fields(BenchmarkReport))
    return BenchmarkReport(**{name: race[name] for name in names if name not in here}, **here)

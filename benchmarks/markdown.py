"""Saved runs as Markdown tables: `python -m benchmarks.markdown build/bench.json`.

With `--page` the tables are renewed in a Markdown file, between the lines `<!-- markdown begin -->`
and `<!-- markdown end -->`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

_BEGIN, _END = "<!-- markdown begin -->", "<!-- markdown end -->"


def renewed(page: str, table: str, begin: str = _BEGIN, end: str = _END) -> str:
    """The page with this table between its marks."""
    before, first, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"the page needs the lines {begin} and {end}")
    return f"{before}{first}\n\n{table}\n\n{last}{after}"


def lines(rows: list[dict[str, str]]) -> str:
    """A table of rows, from column to text; all have the first one's columns."""
    cells = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _cells(results: list[dict]) -> list[dict[str, str]]:
    """A line a cell: what ran, its rate in each mode, the best peer of each and the speed over it.

    Rates are nnz TFLOP/s, except cuBLAS's on a full random matrix, where it was measured. Beside
    that of a peer that left the rounds before the choice did stands how many it took part in.
    """
    found: list[dict[str, str]] = []
    for result in results:
        cell = result["cell"]
        rows = {row["name"]: row for row in result["rows"]}
        line = {
            "m × k × n": f"{cell['m']} × {cell['k']} × {cell['n']}",
            "block": str(cell["block"]),
            "density": f"{cell['density']:.3g}",
            "what": f"{cell['op']}, {cell['dtype']}, {cell['pattern']}",
            "choice": f"`{result['chosen']}`",
        }
        modes = [m for m in ("wall", "warm", "cold") if m in rows["choice"]["timings"]]
        for mode in modes:
            rate = rows["choice"]["tflops_nnz"][mode]
            line[f"{mode}: TFLOP/s"] = f"{rate:.3g}"
            peers = {
                row["tflops_nnz"][mode]: name
                for name, row in rows.items()
                if row["kind"] == "peer" and row["status"] == "ok" and mode in row["timings"]
            }
            best = max(peers) if peers else None
            text = ""
            if best is not None:
                text = f"`{peers[best]}` {best:.3g}"
                rounds = rows[peers[best]]["timings"][mode]["rounds"]
                if rounds < rows["choice"]["timings"][mode]["rounds"]:
                    text += f" (rounds: {rounds})"
            line[f"{mode}: best peer"] = text
            line[f"{mode}: ×"] = "" if best is None else f"**{rate / best:.2f}**"
        if "dense_random" in rows and rows["dense_random"]["timings"]:
            rate = rows["dense_random"]["tflops_dense"]["warm"]
            line["cuBLAS dense, random data"] = f"{rate:.3g}"
        found.append(line)
    return found


def _host_times(rows: list[dict]) -> list[dict[str, str]]:
    """A line a call: its time, its reference's, and whether it is within the limit."""
    found = []
    for row in rows:
        line = {
            "call": f"`{row['name']}`",
            "µs": f"{row['us']:.2f}",
            "reference": f"`{row['reference']}`",
            "its µs": f"{row['reference_us']:.2f}",
            "×": f"{row['ratio']:.2f}",
            "limit": "",
            "holds": "",
        }
        if row["limit"] is not None:
            extra = f" + {row['extra_us']:g} µs" if row["extra_us"] else ""
            line["limit"] = f"{row['limit']:g} ×{extra} = {row['limit_us']:.2f} µs"
            line["holds"] = "yes" if row["holds"] else "**no**"
        if row["waited"]:
            line["holds"] += " (waited for the GPU)"
        found.append(line)
    return found


def table(saved: dict) -> str:
    """What a run measured, and where it was."""
    rows = _host_times(saved["host_times"]) if "host_times" in saved else _cells(saved["cells"])
    gpu = saved["environment"].get("gpu", {}).get("name") or saved["environment"]["cpu"]
    source = (
        f"{gpu}, torch {saved['environment']['torch']}, suite `{saved['suite']}`, revision "
        f"{saved['environment']['revision']}, {saved['started']}"
    )
    return f"{lines(rows)}\n\n{source}"


def main() -> int:
    """Prints the tables; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.markdown")
    parser.add_argument("saved", type=Path, nargs="+")
    parser.add_argument("--page", type=Path, help="a Markdown file to renew the tables in")
    options = parser.parse_args()
    text = "\n\n".join(table(json.loads(path.read_text())) for path in options.saved)
    print(text)
    if options.page is not None:
        options.page.write_text(renewed(options.page.read_text(), text))
    return 0


if __name__ == "__main__":
    sys.exit(main())

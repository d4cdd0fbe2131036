"""Tables as Markdown."""

from __future__ import annotations


def lines(rows: list[dict[str, str]]) -> str:
    """A table of rows, from column to text; all have the first one's columns."""
    cells = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)

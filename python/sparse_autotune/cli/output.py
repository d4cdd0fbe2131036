"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..tuning.report import BenchmarkReport

_Command = TypeVar("_Command", bound=Callable[..., Any])
# In a pipe nothing is folded.
_WIDTH_OF_A_PIPE = 10_000

json_option: Callable[[_Command], _Command] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of text."
)


def show(what: RenderableType) -> None:
    """Prints text or a table, as wide as the terminal, or as it needs to be."""
    width = None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE
    Console(width=width, soft_wrap=False, highlight=False, emoji=False, markup=False).print(what)


def show_result(result: Any, as_json: bool) -> None:
    """Prints what has `to_dict` and a text."""
    if as_json:
        show_json(result.to_dict())
    else:
        show(str(result))


def show_report(report: BenchmarkReport) -> None:
    """Prints a race: on a terminal what does not fit is folded, in a pipe nothing is."""
    show(report if sys.stdout.isatty() else report.table())


def show_json(data: Any) -> None:
    """Prints plain Python objects."""
    click.echo(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False))


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> Table:
    """Rows of text under headings; the columns ``right`` hold figures."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for i, heading in enumerate(headings):
        figures = i in right
        made.add_column(
            Text(heading),
            justify="right" if figures else "left",
            overflow="fold",
            no_wrap=figures,
        )
    for row in rows:
        made.add_row(*map(Text, row))
    return made

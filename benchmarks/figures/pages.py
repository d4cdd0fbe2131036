"""Everything that is made from the kept results: files by their paths, and what is stale."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from . import (
    attention,
    comparisons,
    dashboard,
    first_screen,
    mlp,
    roofline,
    speedups,
    sweeps,
    tables,
)
from .results import Run, by_device, is_of_attention, of_matmul

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/attention.md",
    "docs/performance.md",
    "docs/reading_figures.md",
    "docs/figures/index.md",
)
FIGURES = "docs/figures"
DASHBOARD = "docs/dashboard.html"
_MARKED = re.compile(r"(<!-- figures: (\w+)((?: \w+)*) -->\n).*?(<!-- figures: end -->)", re.DOTALL)

_PICTURES: dict[str, tuple[Callable[[list[Run]], str | None], str]] = {
    "speedups": (speedups.draw, "Speed over each peer, a point for each product"),
    "roofline": (roofline.draw, "Every product under the device's limits"),
    "density": (sweeps.density, "Time against density"),
    "columns": (sweeps.columns, "Time against the number of columns"),
    "mlp": (mlp.draw, "A training step of an MLP"),
    "attention": (speedups.draw, "Attention's speed over each peer, a point for each problem"),
}


def pictures(runs: list[Run]) -> dict[str, str]:
    """The pictures of every device, by file name."""
    found = {}
    attentions = by_device([run for run in runs if is_of_attention(run)])
    products = by_device(of_matmul(runs))
    for folder in by_device(runs):
        for name, (draw, _) in _PICTURES.items():
            theirs = (attentions if name == "attention" else products).get(folder)
            if theirs and (text := draw(theirs)) is not None:
                found[f"{name}_{folder}.svg"] = text
    return found


def _gallery(runs: list[Run]) -> str:
    drawn = pictures(runs)
    parts = []
    for folder, theirs in by_device(runs).items():
        shown = [
            f"![{alt}, {theirs[0].device}]({name}_{folder}.svg)"
            for name, (_, alt) in _PICTURES.items()
            if f"{name}_{folder}.svg" in drawn
        ]
        if shown:
            parts += [f"## {theirs[0].device}", *shown]
    return "\n\n".join(parts)


def _section(name: str, arguments: list[str], runs: list[Run]) -> str:
    sections: dict[str, Callable[..., str]] = {
        **tables.SECTIONS,
        **attention.SECTIONS,
        **comparisons.SECTIONS,
        **first_screen.SECTIONS,
        "gallery": _gallery,
    }
    if name not in sections:
        raise ValueError(f"no section is called {name!r}: there are {', '.join(sections)}")
    return sections[name](runs, *arguments)


def renewed(page: str, runs: list[Run]) -> str:
    """A page with what the results say between its marks."""

    def fill(found: re.Match[str]) -> str:
        text = _section(found[2], found[3].split(), runs)
        return f"{found[1]}\n{text}\n\n{found[4]}" if text else f"{found[1]}{found[4]}"

    return _MARKED.sub(fill, page)


def made(runs: list[Run], root: Path = ROOT) -> dict[str, str]:
    """Every file that is made from the results, by its path below the root."""
    found = {page: renewed((root / page).read_text(), runs) for page in PAGES}
    found |= {f"{FIGURES}/{name}": text for name, text in pictures(runs).items()}
    return found | {DASHBOARD: dashboard.page(runs)}


def stale(runs: list[Run], root: Path = ROOT) -> list[str]:
    """The paths of files that are not what the results make of them, or that nothing makes."""
    files = made(runs, root)
    wrong = [
        path
        for path, text in files.items()
        if not (root / path).is_file() or (root / path).read_text() != text
    ]
    drawn = {f"{FIGURES}/{path.name}" for path in (root / FIGURES).glob("*.svg")}
    return wrong + sorted(drawn - files.keys())


def write(runs: list[Run], root: Path = ROOT) -> list[str]:
    """Makes all files, removes pictures that nothing makes; returns what changed."""
    changed = stale(runs, root)
    files = made(runs, root)
    for path in changed:
        if path in files:
            (root / path).write_text(files[path])
        else:
            (root / path).unlink()
    return changed

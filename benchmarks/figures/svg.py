"""A small writer of SVG: the same bytes from the same figures, wherever it runs.

Colours are classes, which a style sheet in the picture sets for light and for dark screens; print
gets the light ones. They are Okabe and Ito's, which colour-blind readers can tell apart, and no
picture relies on them alone: markers and labels differ too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

_COLOURS = {
    "page": ("#ffffff", "#16181d"),
    "text": ("#1b1b1b", "#e8e8e8"),
    "quiet": ("#5c5c5c", "#a9adb5"),
    "grid": ("#e2e2e2", "#30343c"),
    "axis": ("#8a8a8a", "#7d828c"),
    "shade": ("#f6ece6", "#2b211d"),
    "c0": ("#0067a5", "#56b4e9"),
    "c1": ("#c2500a", "#f0913e"),
    "c2": ("#00805c", "#35c49a"),
    "c3": ("#a8487f", "#e59fc4"),
    "c4": ("#7a6400", "#e0cf45"),
    "c5": ("#5c5c5c", "#a9adb5"),
}
SERIES = 6
WIDTH = 600
_FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"


def _style() -> str:
    def rules(shade: int) -> str:
        return "".join(
            f".{name}{{fill:{found[shade]}}}.s-{name}{{stroke:{found[shade]};fill:none}}"
            for name, found in _COLOURS.items()
        )

    return f"{rules(0)}@media screen and (prefers-color-scheme:dark){{{rules(1)}}}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Svg:
    """A picture; `render` gives its text. Whoever draws below sets `height`."""

    def __init__(self, title: str, subtitle: str, description: str, height: float = 0) -> None:
        self.height = height
        self._title, self._description = title, description
        self._parts: list[str] = []
        self.text(16, 28, title, size=19, weight=600)
        self.text(16, 48, subtitle, "quiet", size=14)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        colour: str = "text",
        *,
        size: int = 15,
        anchor: str = "start",
        weight: int = 400,
        turned: bool = False,
    ) -> None:
        """A line of text, its baseline at y; `turned` reads upwards."""
        bold = f' font-weight="{weight}"' if weight != 400 else ""
        turn = f' transform="rotate(-90 {_number(x)} {_number(y)})"' if turned else ""
        self._parts.append(
            f'<text class="{colour}" x="{_number(x)}" y="{_number(y)}" font-size="{size}"'
            f' text-anchor="{anchor}"{bold}{turn}>{escape(text)}</text>'
        )

    def rect(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """A filled rectangle."""
        self._parts.append(
            f'<rect class="{colour}" x="{_number(x)}" y="{_number(y)}" '
            f'width="{_number(width)}" height="{_number(height)}"/>'
        )

    def line(
        self, points: Sequence[tuple[float, float]], colour: str, width: float = 1, dash: str = ""
    ) -> None:
        """A line through points."""
        path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<polyline class="s-{colour}" points="{path}" stroke-width="{width:g}"'
            f' stroke-linejoin="round"{dashed}/>'
        )

    def marker(
        self, x: float, y: float, series: int, tip: str = "", size: float = 4.5, opacity: float = 1
    ) -> None:
        """A point of a series, in the shape of the series; `tip` shows under the mouse."""
        s = size
        shapes = (
            f"M{_number(x - s)} {_number(y)}a{s} {s} 0 1 0 {2 * s} 0a{s} {s} 0 1 0 {-2 * s} 0z",
            _polygon(x, y, s * 1.25, 4, 45),
            _polygon(x, y, s * 1.35, 3, -90),
            _polygon(x, y, s * 1.3, 4, 0),
            _polygon(x, y, s * 1.35, 3, 90),
            _polygon(x, y, s * 1.2, 6, 0),
        )
        faint = f' fill-opacity="{opacity:g}"' if opacity != 1 else ""
        self._parts.append(
            f'<path class="c{series % SERIES}" d="{shapes[series % SERIES]}"{faint}>'
            f"<title>{escape(tip)}</title></path>"
        )

    def render(self) -> str:
        """The whole picture."""
        height = _number(self.height)
        page = f'<rect class="page" width="{WIDTH}" height="{height}"/>\n'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" font-family="{_FONT}">\n'
            f"<title>{escape(self._title)}</title>\n<desc>{escape(self._description)}</desc>\n"
            f"<style>{_style()}</style>\n{page}" + "\n".join(self._parts) + "\n</svg>\n"
        )


def _polygon(x: float, y: float, radius: float, corners: int, first: float) -> str:
    angles = (math.radians(first + 360 * i / corners) for i in range(corners))
    points = (
        f"{_number(x + radius * math.cos(a))} {_number(y + radius * math.sin(a))}" for a in angles
    )
    return "M" + "L".join(points) + "z"


class LogAxis:
    """Maps positive values to pixels; its ticks are 1, 2 and 5 times powers of ten, or powers."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self._start, self._end = low, high, start, end

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self._start + share * (self._end - self._start)

    def ticks(self, most: int = 9) -> list[float]:
        """Round values within the axis, at most so many."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            found = [step * 10.0**power for power in powers for step in steps]
            found = [t for t in found if self.low * 0.999 <= t <= self.high * 1.001]
            if len(found) <= most:
                return found
        return found[:: math.ceil(len(found) / most)]


def axis_around(values: Sequence[float], start: float, end: float, room: float = 1.25) -> LogAxis:
    """An axis that holds the values, and some room on both sides."""
    return LogAxis(min(values) / room, max(values) * room, start, end)


def short(value: float) -> str:
    """A value for an axis or a label."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


class Plot:
    """The frame of a picture with two logarithmic axes."""

    def __init__(
        self, svg: Svg, x: LogAxis, y: LogAxis, x_label: str, y_label: str, most_x: int = 9
    ) -> None:
        self.svg, self.x, self.y = svg, x, y
        left, right, bottom, top = x(x.low), x(x.high), y(y.low), y(y.high)
        for tick in x.ticks(most_x):
            svg.line([(x(tick), top), (x(tick), bottom)], "grid")
            svg.text(x(tick), bottom + 18, short(tick), "quiet", size=14, anchor="middle")
        for tick in y.ticks():
            svg.line([(left, y(tick)), (right, y(tick))], "grid")
            svg.text(left - 7, y(tick) + 4.5, short(tick), "quiet", size=14, anchor="end")
        svg.line([(left, top), (left, bottom), (right, bottom)], "axis")
        svg.text((left + right) / 2, bottom + 38, x_label, size=14, anchor="middle")
        svg.text(16, (top + bottom) / 2, y_label, size=14, anchor="middle", turned=True)

    def series(
        self, number: int, points: Sequence[tuple[float, float, str]], width: float = 2
    ) -> None:
        """Points and the line through them; each has a tip."""
        places = [(self.x(x), self.y(y)) for x, y, _ in points]
        self.svg.line(places, f"c{number % SERIES}", width)
        for (x, y), (_, _, tip) in zip(places, points, strict=True):
            self.svg.marker(x, y, number, tip)


def legend(svg: Svg, y: float, names: Sequence[tuple[int, str]], x: float) -> None:
    """Markers and names in lines that begin at y, and end the picture."""
    at = x
    for number, name in names:
        width = 22 + 8 * len(name)
        if at + width > WIDTH - 10 and at > x:
            at, y = x, y + 22
        svg.marker(at + 5, y - 4.5, number)
        svg.text(at + 16, y, name, size=14)
        at += width + 12
    svg.height = y + 18

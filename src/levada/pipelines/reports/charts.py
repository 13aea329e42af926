"""Charts as SVG, without a drawing library (pure).

A chart is a column of panels: lines over time, or bars by name. Its colours follow the viewer's light or dark mode.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from math import ceil, floor
from typing import NamedTuple

WIDTH, LEFT, RIGHT = 860, 64, 150
TITLE_HEIGHT, PANEL_GAP = 44, 26
LINES_HEIGHT, BAR_HEIGHT = 220, 24
BAR_LABEL = 250
BAR_LETTERS, LEGEND_LETTERS = 36, 17
COLOURS = ("#0a7d6c", "#c77700", "#3b6fd4", "#b3366f", "#6b8e23", "#7a5bc2", "#59636e")
STYLE = """
svg { background: #ffffff }
text { font: 12px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2328 }
.title { font-size: 17px; font-weight: 600 }
.head { font-weight: 600 }
.dim { fill: #59636e }
.grid { stroke: #d1d9e0 }
.line { fill: none; stroke-width: 2; stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117 }
  text { fill: #e6edf3 }
  .dim { fill: #9198a1 }
  .grid { stroke: #3d444d }
}
"""

Point = tuple[datetime, float]


class Lines(NamedTuple):
    """Values over time, a line for each name."""

    title: str
    series: Mapping[str, Sequence[Point]]
    from_zero: bool = True  # for counts; the axis of other values begins near their minimum


class Bars(NamedTuple):
    """Values by name, in the given order."""

    title: str
    values: Sequence[tuple[str, float]]


Panel = Lines | Bars


def svg(title: str, panels: Sequence[Panel]) -> str:
    """The chart as an SVG document."""
    drawn, y = [], TITLE_HEIGHT
    for panel in panels:
        parts, height = _lines(panel, y) if isinstance(panel, Lines) else _bars(panel, y)
        drawn += parts
        y += height + PANEL_GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" '
            f'role="img" aria-label="{escape(title)}">',
            f"<style>{STYLE}</style>",
            _text(12, 26, title, "title"),
            *drawn,
            "</svg>",
            "",
        ]
    )


def _lines(panel: Lines, top: int) -> tuple[list[str], int]:
    points = [point for series in panel.series.values() for point in series]
    parts = [_text(12, top + 14, panel.title, "head")]
    if not points:
        return [*parts, _text(LEFT, top + 40, "nothing to show", "dim")], 50
    first, last = min(when for when, _ in points), max(when for when, _ in points)
    marks = _marks([value for _, value in points], panel.from_zero)
    high, low = top + 30, top + LINES_HEIGHT - 24
    span_s = max((last - first).total_seconds(), 1e-9)

    def height(value: float) -> float:
        return low - (low - high) * (value - marks[0]) / (marks[-1] - marks[0])

    def coordinates(point: Point) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (point[0] - first).total_seconds() / span_s
        return f"{x:.1f},{height(point[1]):.1f}"

    for mark in marks:
        y = height(mark)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 6, y + 4, short(mark), "dim", "end"))
    parts.append(_text(LEFT, low + 18, clock(first), "dim"))
    parts.append(_text(WIDTH - RIGHT, low + 18, f"{clock(last)} UTC", "dim", "end"))
    for index, (name, series) in enumerate(panel.series.items()):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(map(coordinates, sorted(series)))
        parts.append(f'<polyline class="line" stroke="{colour}" points="{path}"/>')
        if len(panel.series) > 1:
            parts += _legend(high + 6 + 18 * index, name, colour)
    return parts, LINES_HEIGHT


def _legend(y: float, name: str, colour: str) -> list[str]:
    left = WIDTH - RIGHT + 14
    square = f'<rect fill="{colour}" x="{left}" y="{y - 8}" width="10" height="10" rx="2"/>'
    return [square, _text(left + 16, y + 1, clipped(name, LEGEND_LETTERS))]


def _marks(values: Sequence[float], from_zero: bool) -> list[float]:
    """The grid lines of the axis: two or more round numbers that enclose all values."""
    if from_zero:
        most = nice_ceiling(max(values))
        return [0, most / 2, most]
    step = nice_ceiling((max(values) - min(values)) / 3 or abs(max(values)) / 10)
    least = floor(min(values) / step)
    return [step * mark for mark in range(least, max(ceil(max(values) / step), least + 1) + 1)]


def _bars(panel: Bars, top: int) -> tuple[list[str], int]:
    parts = [_text(12, top + 14, panel.title, "head")]
    most = max((value for _, value in panel.values), default=0) or 1
    for index, (name, value) in enumerate(panel.values):
        y = top + 28 + BAR_HEIGHT * index
        width = max(1.0, (WIDTH - BAR_LABEL - RIGHT) * max(value, 0) / most)
        parts.append(_text(BAR_LABEL - 8, y + 12, clipped(name, BAR_LETTERS), "", "end"))
        parts.append(f'<rect fill="{COLOURS[0]}" x="{BAR_LABEL}" y="{y}" width="{width:.1f}" height="16" rx="2"/>')
        parts.append(_text(BAR_LABEL + width + 6, y + 12, short(value), "dim"))
    return parts, 28 + BAR_HEIGHT * len(panel.values)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def nice_ceiling(value: float) -> float:
    """The next of 1, 2 and 5 times a power of ten; 1 for zero and negative values."""
    if value <= 0:
        return 1.0
    step = 10.0 ** (len(f"{int(value)}") - 1) if value >= 1 else 10.0 ** -len(f"{int(1 / value)}")
    return next(step * factor for factor in (1, 2, 5, 10, 20) if step * factor >= value)


def short(value: float) -> str:
    """A number with few digits."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.3g}"


def clipped(name: str, letters: int) -> str:
    """The name, cut to a number of letters."""
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def clock(when: datetime) -> str:
    """A time as on the axis, in UTC."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")

"""Draws the panels of a chart as SVG with matplotlib.

Texts stay texts, so that they can be searched and the viewer's fonts show letters of all languages. Figures are made
without pyplot: no display and no global list of figures. The same panels give the same bytes.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from levada.pipelines.reports.panels import COLOURS, Bars, Counts, Panel, Ranges, clipped, has_data, labelled, short

WIDTH_IN = 9.6
TITLE_IN, LINES_IN, BARS_IN, BAR_IN = 0.5, 2.7, 1.0, 0.28
LEGEND_WIDTH, UNIT_WIDTH = 22, 34
MARKERS_MAX = 200  # of a line; more cannot be told apart
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#59636e",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.facecolor": "white",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "grid.color": "#e1e6eb",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "levada",
    "text.parse_math": False,
}

Entry = tuple[Artist, str]  # of a legend


def svg(title: str, panels: Sequence[Panel], note: str = "") -> str:
    """The chart as an SVG document; `note` is a line at its end."""
    with style():
        return to_svg(_figure(title, panels, note), title)


def to_svg(figure: Figure, title: str) -> str:
    """The figure as an SVG document without the time of its drawing."""
    text = StringIO()
    figure.savefig(text, format="svg", metadata={"Title": title, "Date": None, "Creator": None})
    return text.getvalue()


@contextmanager
def style() -> Iterator[None]:
    """Use matplotlib's defaults with STYLE, whatever the user has set."""
    with mpl.rc_context(), warnings.catch_warnings():
        # The viewer's fonts may have letters that matplotlib's font does not have.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font", category=UserWarning)
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


def _figure(title: str, panels: Sequence[Panel], note: str) -> Figure:
    heights = [
        BARS_IN + BAR_IN * max(1, len(panel.values)) if isinstance(panel, Bars) else LINES_IN for panel in panels
    ]
    figure = Figure(figsize=(WIDTH_IN, TITLE_IN + sum(heights)))
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    figure.suptitle(clipped(title, 80), x=0.01, ha="left", fontsize=13, fontweight="bold")
    if note:
        figure.supxlabel(note, x=0.01, ha="left", color="#59636e", fontsize=9)
    parts = figure.subfigures(len(panels), 1, height_ratios=heights, squeeze=False)
    for index, panel in enumerate(panels):
        axes = parts[index, 0].subplots()
        axes.set_gid(f"panel-{index}")
        axes.set_title(clipped(panel.title, 90))
        match panel:
            case Counts():
                _counts(axes, panel, f"panel-{index}")
            case Ranges():
                _ranges(axes, panel, f"panel-{index}")
            case Bars():
                _bars(axes, panel, f"panel-{index}")
        if not has_data(panel):
            axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color="#59636e")
    return figure


def _counts(axes: Axes, panel: Counts, gid: str) -> None:
    edges = date2num(panel.windows.edges())
    entries: list[Entry] = []
    for index, (name, counts) in enumerate(panel.lines().items()):
        line = axes.stairs(counts, edges, baseline=None, color=COLOURS[index], linewidth=1.6)
        line.set_gid(f"{gid}-line-{index}")
        entries.append((line, clipped(name, LEGEND_WIDTH)))
    _legend(axes, entries + _time_axis(axes, panel, gid))


def _ranges(axes: Axes, panel: Ranges, gid: str) -> None:
    times = date2num(panel.windows.middles())
    means, least, greatest = panel.columns()
    spread = axes.vlines(times, least, greatest, color=COLOURS[4], linewidth=2.5)
    spread.set_gid(f"{gid}-range")
    marker = "o" if len(times) <= MARKERS_MAX else ""
    (line,) = axes.plot(times, means, color=COLOURS[0], linewidth=1.6, marker=marker, markersize=2.5)
    line.set_gid(f"{gid}-line-0")
    entries: list[Entry] = [(line, "mean"), (spread, "least to greatest")]
    _legend(axes, entries + _time_axis(axes, panel, gid))


def _bars(axes: Axes, panel: Bars, gid: str) -> None:
    names = [clipped(name) for name, _ in panel.values]
    values = [value for _, value in panel.values]
    bars = axes.barh(range(len(values)), values, height=0.66, color=COLOURS[0])
    for index, bar in enumerate(bars):
        bar.set_gid(f"{gid}-bar-{index}")
    axes.bar_label(bars, [short(value) for value in values], padding=4)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)  # the first name at the top
    least, greatest = min([0, *values]), max([0, *values])
    room = (greatest - least) / 10 or 1  # for the numbers beside the bars
    axes.set_xlim(least - room if least else 0, greatest + room if greatest or not least else 0)
    axes.grid(visible=False, axis="y")
    _number_axis(axes.xaxis, whole=all(value == int(value) for value in values))
    axes.set_xlabel(panel.unit)


def _time_axis(axes: Axes, panel: Counts | Ranges, gid: str) -> list[Entry]:
    """Set the axes of a panel over time, mark its partial windows and outliers, and return their legend."""
    edges = panel.windows.edges()
    axes.set_xlim(*date2num([edges[0], edges[-1]]))
    axes.set_ylim(*panel.limits())
    locator = AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlabel("time (UTC)")
    axes.set_ylabel(clipped(panel.unit, UNIT_WIDTH))
    _number_axis(axes.yaxis, whole=isinstance(panel, Counts))
    entries: list[Entry] = []
    for index, (start, end) in enumerate(panel.windows.partial()):
        area = axes.axvspan(*date2num([start, end]), facecolor="#f0f0f0", edgecolor="#b4bbc3", hatch="///", linewidth=0)
        area.set(gid=f"{gid}-partial-{index}", zorder=0.5)
        entries = [(area, "partial window")]
    return entries + _outliers(axes, panel, gid)


def _outliers(axes: Axes, panel: Counts | Ranges, gid: str) -> list[Entry]:
    """Mark values beyond the axis at its end, and write the farthest ones beside their marks."""
    low, high = panel.limits()
    found = panel.outliers()
    entries: list[Entry] = []
    for above, marker in ((True, "^"), (False, "v")):
        beyond = [outlier for outlier in found if (outlier.value > high) is above]
        if beyond:
            times, colours = date2num([each.when for each in beyond]), [each.colour for each in beyond]
            end = high if above else low
            marks = axes.scatter(times, [end] * len(beyond), c=colours, marker=marker, clip_on=False, zorder=3)
            marks.set_gid(f"{gid}-outliers-{'above' if above else 'below'}")
            entries = [(marks, "beyond the axis")]
    for outlier in labelled(found, panel.windows):
        end, lift = (high, -4) if outlier.value > high else (low, 3)
        axes.annotate(short(outlier.value), (date2num(outlier.when), end), (6, lift), textcoords="offset points")
    return entries


def _number_axis(axis: Axis, *, whole: bool = False) -> None:
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=whole))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def _legend(axes: Axes, entries: Sequence[Entry]) -> None:
    """Draw the legend beside the axes."""
    legend = axes.legend(
        [artist for artist, _ in entries], ["." for _ in entries], loc="upper left", bbox_to_anchor=(1, 1)
    )
    for text, (_, label) in zip(legend.get_texts(), entries, strict=True):
        text.set_text(label)  # matplotlib leaves out labels that begin with an underscore

"""Draws a report as one HTML file: its tables, and charts that can be zoomed.

The file needs no network, as plotly's script is part of it. Plotly reads texts as HTML, so every name is escaped.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from math import isfinite
from operator import sub
from typing import Any

import plotly.io

from levada.pipelines.reports.panels import COLOURS, Bars, Counts, Panel, Ranges, clipped, has_data, labelled, short
from levada.pipelines.reports.table import Table

LINES_PX, BARS_PX, BAR_PX = 340, 110, 28
BUTTONS = ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]  # plotly's own list has uploads
CONFIG = {"displaylogo": False, "responsive": True, "modeBarButtons": [BUTTONS]}
AXIS = {"gridcolor": "#e1e6eb", "linecolor": "#59636e", "automargin": True, "separatethousands": True, "tickangle": 0}
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2328; background: #ffffff; max-width: 1100px; margin: 2em auto }
table { border-collapse: collapse; margin: 0.5em 0 1.5em }
th, td { padding: 0.2em 0.8em; border-bottom: 1px solid #e1e6eb; text-align: left }
.number { text-align: right; font-variant-numeric: tabular-nums }
"""

Figure = dict[str, Any]


def html(title: str, panels: Sequence[Panel], tables: Sequence[Table], note: str = "") -> str:
    """The page; `note` is a line below the charts."""
    charts = [
        plotly.io.to_html(
            _figure(panel),
            config=CONFIG,
            include_plotlyjs=index == 0,  # the script, for all charts
            full_html=False,
            div_id=f"panel-{index}",
        )
        for index, panel in enumerate(panels)
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head>",
            f"<body><h1>{escape(title)}</h1>",
            "<p>Drag in a chart to zoom in, double-click to zoom out, click a name to hide its line.</p>",
            *charts,
            *([f"<p>{escape(note)}</p>"] if note else []),
            *(table.html() for table in tables),
            "</body></html>",
            "",
        ]
    )


def _figure(panel: Panel) -> Figure:
    match panel:
        case Counts():
            figure = _over_time(panel, _lines(panel))
        case Ranges():
            figure = _over_time(panel, [_range(panel)])
        case Bars():
            figure = _bars(panel)
    if not has_data(panel):
        figure["layout"]["annotations"] = [
            {"text": "no data", "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False}
        ]
    return figure


def _lines(panel: Counts) -> list[Figure]:
    """Two traces for each name: a point for each window, and a line to the end of the last window."""
    times = list(map(_time, panel.windows.edges()))
    traces: list[Figure] = []
    for index, (name, counts) in enumerate(panel.lines().items()):
        line = {"color": COLOURS[index], "shape": "hv", "width": 2}
        shared = {"type": "scatter", "mode": "lines", "name": _text(name), "legendgroup": str(index), "line": line}
        end = {"x": times[-2:], "y": counts[-1:] * 2, "hoverinfo": "skip", "showlegend": False}
        traces += [shared | {"x": times[:-1], "y": counts}, shared | end]
    return traces


def _range(panel: Ranges) -> Figure:
    means, least, greatest = panel.columns()
    return {
        "type": "scatter",
        "name": "mean, least to greatest",
        "x": list(map(_time, panel.windows.middles())),
        "y": _numbers(means),
        "mode": "lines+markers",
        "line": {"color": COLOURS[0], "width": 2},
        "marker": {"size": 4},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": _numbers(map(sub, greatest, means)),
            "arrayminus": _numbers(map(sub, means, least)),
            "color": COLOURS[4],
            "thickness": 2,
            "width": 0,
        },
        "customdata": list(zip(_numbers(least), _numbers(greatest), strict=True)),
        "hovertemplate": "mean %{y:,.4g}, least %{customdata[0]:,.4g}, greatest %{customdata[1]:,.4g}<extra></extra>",
    }


def _over_time(panel: Counts | Ranges, traces: list[Figure]) -> Figure:
    low, high = panel.limits()
    edges = panel.windows.edges()
    mark = {"type": "rect", "name": "partial window", "layer": "below", "fillcolor": "#e4e7ea", "line": {"width": 0}}
    partial = [
        mark | {"x0": _time(start), "x1": _time(end), "y0": 0, "y1": 1, "yref": "paper", "showlegend": index == 0}
        for index, (start, end) in enumerate(panel.windows.partial())
    ]
    outliers = [
        {"x": _time(outlier.when), "y": int(outlier.value > high), "yref": "paper", "yanchor": "bottom"}
        | {"text": f"{'▲' if outlier.value > high else '▼'} {short(outlier.value)}", "showarrow": False}
        for outlier in labelled(panel.outliers(), panel.windows)
    ]
    return _with_layout(
        traces,
        panel.title,
        LINES_PX,
        xaxis={"type": "date", "title": _title("time (UTC)"), "range": [_time(edges[0]), _time(edges[-1])]},
        yaxis={"title": _title(panel.unit), "range": [low, high]},
        hovermode="x unified",
        shapes=partial,
        annotations=outliers,
    )


def _bars(panel: Bars) -> Figure:
    values = [value for _, value in panel.values]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": list(range(len(values))),
        "text": list(map(short, values)),
        "textposition": "outside",
        "cliponaxis": False,
        "hoverinfo": "skip",
        "marker": {"color": COLOURS[0]},
        "showlegend": False,
    }
    names = {"tickvals": trace["y"], "ticktext": [_text(name) for name, _ in panel.values]}
    return _with_layout(
        [trace],
        panel.title,
        BARS_PX + BAR_PX * max(1, len(values)),
        xaxis={"title": _title(panel.unit), "rangemode": "tozero"},
        yaxis=names | {"autorange": "reversed", "showgrid": False},
    )


def _with_layout(traces: list[Figure], title: str, height: int, **layout: Any) -> Figure:
    axes = {axis: AXIS | layout.pop(axis) for axis in ("xaxis", "yaxis")}
    common = {
        "template": "none",
        "title": {"text": f"<b>{_text(title)}</b>", "x": 0, "xref": "paper", "font": {"size": 15}},
        "height": height,
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "margin": {"l": 70, "r": 30, "t": 56, "b": 56},
        "showlegend": True,
        "legend": {"tracegroupgap": 0},
    }
    return {"data": traces, "layout": common | axes | layout}


def _title(unit: str) -> Figure:
    return {"text": _text(unit), "font": {"size": 13}}


def _numbers(values: Iterable[float]) -> list[float | None]:
    """The values, with gaps as JSON has them."""
    return [value if isfinite(value) else None for value in values]


def _text(text: str) -> str:
    return escape(clipped(text))


def _time(when: datetime) -> str:
    """UTC without a zone, as plotly shows times as they are written."""
    return when.replace(tzinfo=None).isoformat(" ")

"""Reports as HTML: the page is read back as a browser reads it, without running its scripts."""

import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from levada.pipelines.reports.page import html
from levada.pipelines.reports.panels import Bars, Counts, Panel, Ranges, Windows
from levada.pipelines.reports.table import Table

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
WINDOWS = Windows(NOON, NOON + timedelta(seconds=594), 10)
STARTS = WINDOWS.edges()[:-1]
NAMES = ["<b>&amp;</b>", "</script><script>alert(1)", "日本語", "_internal", "%{x}"]
BYTES_MAX = 5_000_000


class Page(HTMLParser):
    """The elements of a page, its texts, and the figures of its charts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif data.strip():
            self.texts.append(data.strip())

    def figures(self) -> list[tuple[list[Any], dict[str, Any], dict[str, Any]]]:
        """The traces, the layout and the config of each chart."""
        found = []
        decoder = json.JSONDecoder()
        for script in self.scripts:
            start = re.search(r'Plotly\.newPlot\(\s*"panel-\d+",\s*', script)
            if start and len(script) < 1_000_000:
                parts, at = [], start.end()
                for _ in range(3):
                    part, at = decoder.raw_decode(script, at)
                    parts.append(part)
                    at += len(re.match(r"[\s,]*", script[at:])[0])  # type: ignore[index]
                traces, layout, config = parts
                found.append((traces, layout, config))
        return found


def page(*panels: Panel, tables: list[Table] | None = None, note: str = "") -> Page:
    return Page(html("A <title> & more", panels, tables or [], note))


def counts(value: float = 5.0, *names: str) -> Counts:
    return Counts(
        "Events", "events per 10 seconds", WINDOWS, {name: dict.fromkeys(STARTS, value) for name in names or ["clicks"]}
    )


def test_the_page_is_one_file_that_asks_for_nothing() -> None:
    text = html("Report", [counts(), Bars("Views", "views", [("/", 1.0)])], [])
    assert len(text.encode()) < BYTES_MAX
    read = Page(text)
    assert not [attributes for _, attributes in read.elements if {"src", "href", "action"} & attributes.keys()]
    policies = [attributes["content"] for _, attributes in read.elements if "http-equiv" in attributes]
    inline = "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    assert policies == [f"default-src 'none'; {inline}"]
    assert sum(len(script) > 1_000_000 for script in read.scripts) == 1


def test_no_button_uploads_the_data() -> None:
    for _, _, config in page(counts(), Bars("Views", "views", [("/", 1.0)])).figures():
        assert config["modeBarButtons"] == [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]]


def test_counts_stand_on_zero_with_units_and_a_mark_for_the_partial_window() -> None:
    ((traces, layout, _),) = page(counts()).figures()
    assert layout["yaxis"]["range"][0] == 0 and layout["yaxis"]["range"][1] >= 5
    assert layout["yaxis"]["title"]["text"] == "events per 10 seconds"
    assert layout["xaxis"]["title"]["text"] == "time (UTC)"
    (mark,) = layout["shapes"]
    assert (mark["name"], mark["showlegend"]) == ("partial window", True)
    assert (mark["x0"], mark["x1"]) == ("2026-11-15 12:09:50", "2026-11-15 12:10:00")
    points, end = traces
    assert points["y"] == [5.0] * 60 and points["x"][0] == "2026-11-15 12:00:00"
    assert end["x"] == ["2026-11-15 12:09:50", "2026-11-15 12:10:00"] and not end["showlegend"]


def test_bars_begin_at_zero() -> None:
    ((traces, layout, _),) = page(Bars("Views", "views", [("/", 1000.0), ("/a", 1.0)])).figures()
    assert layout["xaxis"]["rangemode"] == "tozero" and layout["xaxis"]["title"]["text"] == "views"
    assert traces[0]["x"] == [1000, 1] and traces[0]["text"] == ["1,000", "1"]
    assert layout["yaxis"]["ticktext"] == ["/", "/a"]


def test_an_outlier_is_named_beyond_the_axis() -> None:
    values = dict.fromkeys(STARTS, (20.0, 19.0, 21.0)) | {STARTS[5]: (20.0, -9999.0, 21.0)}
    spiked = dict.fromkeys(STARTS, 100.0) | {STARTS[9]: 100_000.0}
    ((_, above, _),) = page(Counts("Events", "events per 10 seconds", WINDOWS, {"a": spiked})).figures()
    ((_, below, _),) = page(Ranges("Range", "temperature", WINDOWS, values)).figures()
    assert [mark["text"] for mark in above["annotations"]] == ["▲ 100,000"] and above["yaxis"]["range"][1] < 200
    assert [mark["text"] for mark in below["annotations"]] == ["▼ -9,999"] and below["yaxis"]["range"][0] > 0


def test_a_gap_has_no_point() -> None:
    values = {start: (20.0, 19.0, 21.5) for start in STARTS if start != STARTS[7]}
    ((traces, _, _),) = page(Ranges("Range", "temperature", WINDOWS, values)).figures()
    assert traces[0]["y"][6:9] == [20, None, 20]
    assert traces[0]["error_y"]["array"][6:9] == [1.5, None, 1.5]
    assert traces[0]["error_y"]["arrayminus"][6:9] == [1, None, 1]


def test_names_are_texts_whatever_they_are() -> None:
    table = Table(NAMES[1], ("page",), [(name,) for name in NAMES])
    read = page(counts(1.0, *NAMES), Bars(NAMES[0], NAMES[1], [(name, 1.0) for name in NAMES]), tables=[table])
    assert {tag for tag, _ in read.elements}.isdisjoint({"b", "a", "img"})
    assert set(NAMES) <= set(read.texts) and read.texts.count("A <title> & more") == 2
    assert len(read.scripts) == len(page(counts(), counts()).scripts)
    (lines, _, _), (_, bars, _) = read.figures()
    escaped = ["&lt;b&gt;&amp;amp;&lt;/b&gt;", "&lt;/script&gt;&lt;script&gt;alert(1)", *NAMES[2:]]
    assert {line["name"] for line in lines} == set(escaped) and bars["yaxis"]["ticktext"] == escaped
    assert bars["title"]["text"] == f"<b>{escaped[0]}</b>" and bars["xaxis"]["title"]["text"] == escaped[1]


@pytest.mark.parametrize(
    "panel",
    [Counts("", "events per 10 seconds", WINDOWS, {}), Ranges("", "temperature", WINDOWS, {}), Bars("", "views", [])],
    ids=["counts", "ranges", "bars"],
)
def test_a_panel_of_nothing_says_so(panel: Panel) -> None:
    ((_, layout, _),) = page(panel).figures()
    assert [mark["text"] for mark in layout["annotations"]] == ["no data"]


def test_the_note_and_the_tables_are_below_the_charts() -> None:
    read = page(counts(), tables=[Table("Events", ("kind", "events"), [("clicks", 1234)])], note="12 of 40 measures")
    assert read.texts[-6:] == ["12 of 40 measures", "Events", "kind", "events", "clicks", "1,234"]

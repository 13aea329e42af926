"""Charts and tables of reports, and sample streams, without Spark."""

import random
from datetime import UTC, datetime, timedelta
from itertools import islice
from xml.etree import ElementTree

import pytest

from levada.pipelines.errors import PipelineError, check_durations
from levada.pipelines.flows import samples
from levada.pipelines.reports import charts
from levada.pipelines.reports import report as reports

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("value", "ceiling"),
    [(0, 1), (-3, 1), (1, 1), (1.5, 2), (4.9, 5), (7, 10), (99, 100), (123, 200), (1001, 2000), (0.03, 0.05)],
)
def test_axes_end_at_round_numbers(value: float, ceiling: float) -> None:
    assert charts.nice_ceiling(value) == pytest.approx(ceiling)


def test_a_chart_is_drawn_within_its_picture() -> None:
    points = [(NOON + timedelta(seconds=second), float(second % 7)) for second in range(60)]
    text = charts.svg(
        "A <title> & more",
        [
            charts.Lines("Lines", {"one": points, "two": points[:1]}),
            charts.Bars("Bars", [("<b>", 3.0), ("none", 0.0)]),
            charts.Lines("Nothing", {}),
        ],
    )
    root = ElementTree.fromstring(text)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for line in root.findall(f"{SVG}polyline"):
        for pair in line.attrib["points"].split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= width and 0 <= y <= height
    for shape in [*root.findall(f"{SVG}text"), *root.findall(f"{SVG}rect")]:
        assert 0 <= float(shape.attrib["x"]) <= width and 0 <= float(shape.attrib["y"]) <= height
    words = {shape.text for shape in root.findall(f"{SVG}text")}
    assert {"A <title> & more", "<b>", "nothing to show", "2026-11-15 12:00:59 UTC"} <= words


def test_values_that_are_no_counts_are_shown_where_they_move() -> None:
    points = [(NOON + timedelta(seconds=second), 70 + second % 3) for second in range(9)]
    root = ElementTree.fromstring(charts.svg("", [charts.Lines("", {"flow": points}, from_zero=False)]))
    words = {shape.text for shape in root.findall(f"{SVG}text")}
    assert {"70", "71", "72"} <= words and "0" not in words and "flow" not in words  # one line needs no legend
    line = root.find(f"{SVG}polyline")
    assert line is not None
    heights = {pair.partition(",")[2] for pair in line.attrib["points"].split()}
    assert len(heights) == 3
    still = charts.svg("", [charts.Lines("", {"flow": [(NOON, 5.0), (NOON, 5.0)]}, from_zero=False)])
    assert "polyline" in still


def test_a_long_name_does_not_leave_the_picture() -> None:
    assert charts.clipped("a" * 40, 36) == "a" * 35 + "…" and charts.clipped("a" * 36, 36) == "a" * 36


@pytest.mark.parametrize(
    ("step", "printed"),
    [("1 seconds", "second"), ("30 seconds", "30 seconds"), ("60 seconds", "minute"), ("900 seconds", "15 minutes"),
     ("3600 seconds", "hour"), ("86400 seconds", "day")],
)  # fmt: skip
def test_a_title_says_how_often(step: str, printed: str) -> None:
    assert reports.window_words(step) == printed


@pytest.mark.parametrize("length", ["10 seconds", "1 hour 30 minutes", "0.5 Seconds", "0 seconds"])
def test_lengths_of_time(length: str) -> None:
    check_durations(gap=length)


@pytest.mark.parametrize("length", ["", "soon", "5", "x minutes", "-5 minutes", "5 fortnights"])
def test_what_is_no_length_of_time_is_reported(length: str) -> None:
    """Spark takes such a gap for no session at all, and says nothing."""
    with pytest.raises(PipelineError, match=r"gap: '.*' is not a duration"):
        check_durations(gap=length)


def test_a_made_up_stream_is_the_same_twice() -> None:
    for stream in (samples.website, samples.devices, samples.service_logs):
        first, second = (list(islice(stream(random.Random(3), lambda: NOON), 500)) for _ in range(2))
        assert first == second
        assert list(islice(stream(random.Random(4), lambda: NOON), 500)) != first


def test_a_website_has_every_kind_of_event() -> None:
    made = list(islice(samples.website(random.Random(3), lambda: NOON), 2000))
    assert {sample.topic for sample in made} == {"page-views", "searches", "clicks", "scrolls", "ads"}
    seen: set[str] = set()
    for sample in made:
        assert sample.topic == "page-views" or sample.key in seen  # nobody acts on a page he has not opened
        seen.add(sample.key)

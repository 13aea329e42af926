"""Charts and tables of reports, and the made-up streams, without Spark (R63)."""

import random
from datetime import UTC, datetime, timedelta
from itertools import islice
from xml.etree import ElementTree

import pytest

from levada.pipelines import charts, samples

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
    assert {"A <title> & more", "<b>", "nothing to show", "2026-11-15 12:00:59"} <= words


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

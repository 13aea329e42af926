"""Charts as SVG: what they show is read back from the picture."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from tests.support.svg import Drawing

from levada.pipelines.reports.image import svg
from levada.pipelines.reports.panels import COLOURS, Bars, Counts, Panel, Ranges, Windows

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def windows(count: int, *, partial: bool = True) -> Windows:
    return Windows(NOON, NOON + timedelta(seconds=10 * count - (6 if partial else 0.1)), 10)


def counts(values: Sequence[float], *names: str, partial: bool = True) -> Counts:
    over = windows(len(values), partial=partial)
    starts = over.edges()[:-1]
    return Counts(
        "Events", "events per 10 seconds", over, {name: dict(zip(starts, values, strict=True)) for name in names}
    )


def ranges(values: Sequence[tuple[float, float, float]]) -> Ranges:
    over = windows(len(values))
    return Ranges("Range", "temperature (C)", over, dict(zip(over.edges()[:-1], values, strict=True)))


def draw(*panels: Panel, note: str = "") -> Drawing:
    return Drawing(svg("A <title> & more", panels, note))


def test_counts_stand_on_zero() -> None:
    drawing = draw(counts([70, 80, 90, 75], "clicks"))
    _, _, top, bottom = drawing.box(0)
    ticks = drawing.ticks(0, "y")
    assert ticks["0"] == pytest.approx(bottom)
    heights = [bottom - y for _, y in drawing.points("panel-0-line-0")]
    assert min(heights) / max(heights) == pytest.approx(70 / 90, rel=1e-3)
    assert top < bottom - max(heights)


def test_bars_begin_at_zero_and_are_as_long_as_their_values() -> None:
    drawing = draw(Bars("Views", "views", [("/", 1000.0), ("/a", 250.0), ("/b", 1.0), ("/c", 0.0)]))
    zero = drawing.ticks(0, "x")["0"]
    sides = [[x for x, _ in drawing.points(f"panel-0-bar-{index}")] for index in range(4)]
    assert [min(side) for side in sides] == pytest.approx([zero] * 4)
    lengths = [max(side) - zero for side in sides]
    assert [length / lengths[0] for length in lengths] == pytest.approx([1, 0.25, 0.001, 0], abs=1e-4)
    assert {"1,000", "250", "1", "0", "views", "/a"} <= set(drawing.texts())


def test_negative_bars_go_to_the_other_side_of_zero() -> None:
    drawing = draw(Bars("Deviations", "deviations", [("a", 4.5), ("b", -0.5)]))
    zero = drawing.ticks(0, "x")["0"]
    assert min(x for x, _ in drawing.points("panel-0-bar-1")) < zero
    assert max(x for x, _ in drawing.points("panel-0-bar-1")) == pytest.approx(zero)


def test_axes_have_units() -> None:
    texts = draw(counts([1, 2, 3], "clicks"), ranges([(20.0, 19.0, 21.0)] * 3)).texts()
    assert {"events per 10 seconds", "temperature (C)", "mean", "least to greatest"} <= set(texts)
    assert texts.count("time (UTC)") == 2


def test_a_partial_window_is_hatched_and_in_the_legend() -> None:
    drawing = draw(counts([5, 5, 5, 2], "clicks"))
    assert drawing.ids("panel-0-partial-.*") == ["panel-0-partial-0"]
    left, right, _, _ = drawing.box(0)
    sides = [x for x, _ in drawing.points("panel-0-partial-0")]
    assert min(sides) == pytest.approx(left + (right - left) * 3 / 4) and max(sides) == pytest.approx(right)
    assert "url(#" in next(drawing.mark("panel-0-partial-0").iter()).find(".//*").attrib["style"]  # type: ignore[union-attr]
    assert drawing.texts().count("partial window") == 1
    whole = draw(counts([5, 5, 5, 5], "clicks", partial=False))
    assert whole.ids(".*partial.*") == [] and "partial window" not in whole.texts()


def test_a_single_window_is_visible() -> None:
    drawing = draw(counts([5], "clicks"), ranges([(20.0, 19.0, 21.0)]))
    left, right, _, _ = drawing.box(0)
    ends = [x for x, _ in drawing.points("panel-0-line-0")]
    assert (min(ends), max(ends)) == pytest.approx((left, right))
    assert drawing.ids("panel-1-(range|line-0)") == ["panel-1-range", "panel-1-line-0"]


def test_an_outlier_is_marked_and_written_while_the_rest_keeps_its_height() -> None:
    values = [100.0 + index % 5 for index in range(60)]
    values[30] = 100_000.0
    drawing = draw(counts(values, "clicks"))
    _, _, top, bottom = drawing.box(0)
    assert drawing.ids("panel-0-outliers-.*") == ["panel-0-outliers-above"]
    assert {"100,000", "beyond the axis"} <= set(drawing.texts())
    first = drawing.points("panel-0-line-0")[0]
    assert (bottom - first[1]) / (bottom - top) > 0.5
    below = draw(ranges([(20.0, 19.0, 21.0)] * 30 + [(20.0, -9999.0, 21.0)]))
    assert below.ids("panel-0-outliers-.*") == ["panel-0-outliers-below"] and "-9,999" in below.texts()


def test_names_are_texts_of_the_picture_whatever_they_are() -> None:
    names = ["<b>&amp;</b>", "_internal", "$x^2$", "日本語", "العربية", "</text><script>"]
    drawing = draw(counts([1, 2], *names), Bars("<i>$B$</i>", "views", [(name, 1.0) for name in names]))
    texts = drawing.texts()
    assert all(texts.count(name) == 2 for name in names) and "<i>$B$</i>" in texts and "A <title> & more" in texts
    assert {element.tag.rpartition("}")[2] for element in drawing.root.iter()}.isdisjoint({"script", "b", "i"})


def test_labels_of_bars_are_in_the_picture_and_apart() -> None:
    drawing = draw(Bars("Views", "views", [(f"/{'x' * 300}/{index}", 40.0 - index) for index in range(40)]))
    tops = [min(y for _, y in drawing.points(f"panel-0-bar-{index}")) for index in range(40)]
    left, right, _, bottom = drawing.box(0)
    assert drawing.width / 2 > left > 100 and right <= drawing.width and bottom <= drawing.height
    assert all(later - earlier >= 15 for earlier, later in pairwise(tops))


def test_many_series_share_the_legend() -> None:
    drawing = draw(counts([1, 2, 3], *(f"topic-{number:02}" for number in range(40))))
    assert len(drawing.ids("panel-0-line-.*")) == len(COLOURS)
    assert f"{41 - len(COLOURS)} others" in drawing.texts()


@pytest.mark.parametrize(
    "panel",
    [
        Counts("Events", "events per 10 seconds", windows(3), {}),
        Ranges("Range", "temperature", windows(3), {}),
        Bars("Views", "views", []),
    ],
    ids=["counts", "ranges", "bars"],
)
def test_a_panel_of_nothing_says_so(panel: Panel) -> None:
    assert "no data" in draw(panel).texts()


def test_all_zero_is_drawn_on_the_axis() -> None:
    drawing = draw(counts([0, 0, 0], "clicks"), Bars("Views", "views", [("/", 0.0)]))
    _, _, _, bottom = drawing.box(0)
    heights = [y for _, y in drawing.points("panel-0-line-0")]
    assert heights == pytest.approx([bottom] * len(heights))
    assert "no data" not in drawing.texts()


def test_ten_thousand_windows_are_a_file_of_moderate_size() -> None:
    text = svg("", [counts([float(index % 97) for index in range(10_000)], "clicks")])
    assert len(text) < 1_000_000 and Drawing(text).ids("panel-0-line-0")


@pytest.mark.parametrize("last", [datetime.max.replace(tzinfo=UTC), datetime(1, 1, 3, tzinfo=UTC)])
def test_any_time_that_python_can_name_is_drawn(last: datetime) -> None:
    over = Windows.over(min(last, NOON), max(last, NOON))
    drawing = draw(Counts("Events", "events per 10 seconds", over, {"clicks": {over.edges()[0]: 5.0}}))
    assert drawing.ids("panel-0-line-0")


def test_values_near_the_largest_number_are_drawn() -> None:
    drawing = draw(ranges([(0.0, -1e299, 1e299)] * 30), Bars("Views", "views", [("/", 1e299)]))
    assert drawing.ids("panel-0-range") and max(map(len, drawing.texts())) < 100


def test_the_same_panels_give_the_same_bytes() -> None:
    assert svg("t", [counts([1, 2], "a")], "note") == svg("t", [counts([1, 2], "a")], "note")


def test_settings_of_the_user_do_not_matter() -> None:
    import matplotlib as mpl

    expected = svg("t", [counts([1, 2], "a")])
    with mpl.rc_context({"svg.fonttype": "path", "axes.facecolor": "black", "font.size": 30}):
        assert svg("t", [counts([1, 2], "a")]) == expected
        assert mpl.rcParams["font.size"] == 30

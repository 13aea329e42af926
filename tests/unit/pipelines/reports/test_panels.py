"""Panels of charts: windows, limits of axes, outliers and labels."""

from datetime import UTC, datetime, timedelta

import pytest

from levada.pipelines.reports.panels import (
    COLOURS,
    NAMES_MAX,
    POINTS,
    Counts,
    Ranges,
    Windows,
    clipped,
    labelled,
    ordinary_range,
    short,
)

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
MINUTE = Windows(NOON, NOON + timedelta(seconds=59), 10)


def second(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("seconds", "printed"),
    [(1, "second"), (30, "30 seconds"), (60, "minute"), (900, "15 minutes"), (3600, "hour"), (86400, "day")],
)
def test_an_axis_says_how_long_a_window_is(seconds: int, printed: str) -> None:
    assert Windows(NOON, NOON, seconds).words == printed


@pytest.mark.parametrize("days", [0, 0.001, 1, 365, 56 * 365, 7900 * 365])
def test_a_line_has_few_points_however_long_the_time(days: float) -> None:
    """Also where one record has the timestamp zero, or the last one that Python can name."""
    windows = Windows.over(NOON, min(NOON + timedelta(days=days), datetime.max.replace(tzinfo=UTC)))
    edges = windows.edges()
    assert edges[0] <= windows.first and windows.last.replace(microsecond=0) <= edges[-1]
    assert len(edges) - 1 <= POINTS + 1 or windows.seconds == 365 * 86400


def test_windows_are_aligned_as_those_of_spark() -> None:
    windows = Windows(second(3), second(27), 10)
    assert windows.edges() == [second(0), second(10), second(20), second(30)]
    assert windows.middles() == [second(5), second(15), second(25)]


@pytest.mark.parametrize(
    ("first", "last", "partial"),
    [
        (0, 29.9, []),
        (0, 24, [(20, 30)]),
        (4, 29.9, [(0, 10)]),
        (4, 24, [(0, 10), (20, 30)]),
        (1, 3, [(0, 10)]),  # both ends in one window
        (0, 20, [(20, 30)]),
    ],
)
def test_a_window_is_partial_where_records_begin_or_end(
    first: float, last: float, partial: list[tuple[int, int]]
) -> None:
    found = Windows(second(first), second(last), 10).partial()
    assert found == [(second(start), second(end)) for start, end in partial]


def test_a_window_without_events_has_a_count_of_zero() -> None:
    panel = Counts("", "events per 10 seconds", MINUTE, {"clicks": {second(0): 3.0, second(20): 4.0}})
    assert panel.lines() == {"clicks": [3, 0, 4, 0, 0, 0]}


def test_more_names_than_colours_are_one_line_of_the_same_total() -> None:
    series = {f"topic-{number:02}": {second(10): float(number), second(20): 1.0} for number in range(40)}
    lines = Counts("", "events per 10 seconds", MINUTE, series).lines()
    *named, others = lines
    assert named == [f"topic-{number}" for number in range(39, 39 - NAMES_MAX, -1)]
    assert others == f"{40 - NAMES_MAX} others" and len(lines) == len(COLOURS)
    assert [sum(counts) for counts in zip(*lines.values(), strict=True)] == [0, sum(range(40)), 40, 0, 0, 0]


def ten_minutes() -> Windows:
    return Windows(NOON, second(599.9), 10)


def test_an_outlier_is_beyond_the_axis_and_does_not_flatten_the_rest() -> None:
    windows = ten_minutes()
    series = {start: 100.0 + index % 7 for index, start in enumerate(windows.edges()[:-1])}
    series[second(300)] = 100_000.0
    panel = Counts("", "events per 10 seconds", windows, {"clicks": series, "rare": {second(0): 1.0}})
    low, high = panel.limits()
    assert low == 0 and 106 <= high < 120
    (outlier,) = panel.outliers()
    assert (outlier.when, outlier.value, outlier.colour) == (second(305), 100_000, COLOURS[0])


def test_a_line_far_above_the_others_is_no_outlier() -> None:
    starts = ten_minutes().edges()[:-1]
    series = {name: dict.fromkeys(starts, count) for name, count in (("few", 1.0), ("many", 1000.0))}
    panel = Counts("", "events per 10 seconds", ten_minutes(), series)
    assert panel.limits()[1] >= 1000 and panel.outliers() == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], (0, 0)),
        ([0.0] * 30, (0, 0)),
        ([0.0] * 30 + [500.0], (0, 500)),  # a single burst is all there is to see
        ([5.0] * 30 + [5.5], (5, 5.5)),
        ([1.0, 1000.0], (1, 1000)),
        ([20.0] * 30 + [-9999.0], (20, 20)),
    ],
)
def test_the_ordinary_range(values: list[float], expected: tuple[float, float]) -> None:
    assert ordinary_range(values) == expected


def test_a_range_shows_outliers_on_both_sides_and_gaps() -> None:
    windows = ten_minutes()
    values = dict.fromkeys(windows.edges()[:-1], (20.0, 19.0, 21.0))
    values[second(100)] = (20.0, -9999.0, 21.0)
    values[second(200)] = (20.0, 19.0, 9999.0)
    del values[second(300)]
    panel = Ranges("", "temperature", windows, values)
    low, high = panel.limits()
    assert 18 < low < 19 and 21 < high < 22
    assert sorted(outlier.value for outlier in panel.outliers()) == [-9999, 9999]
    means, _, _ = panel.columns()
    assert means[30] != means[30] and means[29] == 20  # NaN is a gap


def test_labels_of_outliers_do_not_overlap() -> None:
    windows = ten_minutes()
    values = dict.fromkeys(windows.edges()[:-1], (20.0, 19.0, 21.0))
    values |= {second(seconds): (20.0, 19.0, 5000.0 + seconds) for seconds in (100, 110, 400)}
    panel = Ranges("", "temperature", windows, values)
    assert len(panel.outliers()) == 3
    assert [outlier.value for outlier in labelled(panel.outliers(), windows)] == [5400, 5110]


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("a" * 9, 9, "a" * 9),
        ("a" * 10, 9, "a" * 8 + "…"),
        ("日本語" * 4, 9, "日本語日…"),
        ("a\nb\x00c", 9, "a b c"),
        ("", 9, "(empty)"),
    ],
)
def test_a_long_name_is_cut(name: str, width: int, shown: str) -> None:
    assert clipped(name, width) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (1_000_000, "1,000,000"), (0.1234, "0.123"), (1234.5, "1,234"), (4.54, "4.54"), (1e299, "1e+299")],
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert short(value) == shown

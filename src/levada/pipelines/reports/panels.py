"""The panels of a chart: which values they show, in which windows and within which limits (pure).

`image` and `page` draw the same panels; whatever both must agree on is decided here.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import ceil, nan
from statistics import median
from typing import NamedTuple
from unicodedata import east_asian_width

POINTS = 60  # of a line, about
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
WINDOWS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(MINUTE_S * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(HOUR_S * hours for hours in (1, 2, 4, 12)),
    *(DAY_S * days for days in (1, 7, 30, 365)),
)
EPOCH, MICROSECOND = datetime.fromtimestamp(0, UTC), timedelta(microseconds=1)
EARLIEST, LATEST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
MICROS_MIN, MICROS_MAX = (EARLIEST - EPOCH) // MICROSECOND, (LATEST - EPOCH) // MICROSECOND
COVERED = 0.95  # of a window: if the records cover less, the window is partial
# Okabe and Ito's colours, which people with any colour vision can tell apart, without yellow.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#767676")
NAMES_MAX = len(COLOURS) - 1  # the last colour is for all other names
LABEL_WIDTH = 44
OUTLIER_DISTANCES = 20  # a value is an outlier beyond this multiple of the distance of other values from the median
OUTLIER_VALUES_MIN = 8  # fewer values have no outliers
OUTLIER_LABELS_MAX, OUTLIER_LABEL_SPAN = 4, 0.09  # the latter of the width of the axis


class Windows(NamedTuple):
    """Time windows of equal length over all records, aligned as Spark's."""

    first: datetime  # the time of the first and of the last record
    last: datetime
    seconds: int

    @classmethod
    def over(cls, first: datetime, last: datetime) -> "Windows":
        """The windows with which a line has about POINTS points."""
        wanted = (last - first).total_seconds() / POINTS
        return cls(first, last, next((seconds for seconds in WINDOWS_S if seconds >= wanted), WINDOWS_S[-1]))

    @property
    def duration(self) -> str:
        """The length of a window in Spark's syntax."""
        return f"{self.seconds} seconds"

    @property
    def words(self) -> str:
        """The length of a window, as in `events per second` and `each 15 minutes`."""
        count, unit = self.seconds, "second"
        for longer, size in (("minute", 60), ("hour", 60), ("day", 24)):
            if count % size:
                break
            count, unit = count // size, longer
        return unit if count == 1 else f"{count} {unit}s"

    def edges(self) -> list[datetime]:
        """The start of every window, and the end of the last one."""
        first, last = (int(when.timestamp() // self.seconds) for when in (self.first, self.last))
        return [instant(window * self.seconds * 1_000_000) for window in range(first, last + 2)]

    def middles(self) -> list[datetime]:
        """The middle of every window."""
        return [start + (end - start) / 2 for start, end in pairwise(self.edges())]

    def partial(self) -> list[tuple[datetime, datetime]]:
        """The windows in which records begin or end, if they do not cover them: their values are too small."""
        edges = self.edges()
        found = []
        for start, end in dict.fromkeys([(edges[0], edges[1]), (edges[-2], edges[-1])]):
            covered = min(end, self.last) - max(start, self.first)
            if covered < COVERED * timedelta(seconds=self.seconds):
                found.append((start, end))
        return found


class Outlier(NamedTuple):
    """A value beyond the limits of its axis, at the middle of its window."""

    when: datetime
    value: float
    colour: str


class Counts(NamedTuple):
    """Counts by the start of their window, a line for each name; a window without a count has none."""

    title: str
    unit: str
    windows: Windows
    series: Mapping[str, Mapping[datetime, float]]

    def lines(self) -> dict[str, list[float]]:
        """The counts of all windows by name, the greatest totals first; names beyond NAMES_MAX are one line."""
        starts = self.windows.edges()[:-1]
        names = sorted(self.series, key=lambda name: (-sum(self.series[name].values()), name))
        found = {name: [self.series[name].get(start, 0.0) for start in starts] for name in names[:NAMES_MAX]}
        rest = [self.series[name] for name in names[NAMES_MAX:]]
        if rest:
            found[f"{len(rest)} others"] = [sum(counts.get(start, 0.0) for counts in rest) for start in starts]
        return found

    def limits(self) -> tuple[float, float]:
        """The axis: from zero to the greatest count that is not an outlier."""
        highest = max((ordinary_range(counts)[1] for counts in self.lines().values()), default=0.0)
        return 0.0, 1.05 * highest or 1.0

    def outliers(self) -> list[Outlier]:
        """The counts beyond the axis."""
        _, high = self.limits()
        middles = self.windows.middles()
        return [
            Outlier(when, count, COLOURS[index])
            for index, counts in enumerate(self.lines().values())
            for when, count in zip(middles, counts, strict=True)
            if count > high
        ]


class Ranges(NamedTuple):
    """The mean, the least and the greatest value by the start of their window; a window without values is a gap."""

    title: str
    unit: str
    windows: Windows
    values: Mapping[datetime, Sequence[float]]

    def columns(self) -> tuple[list[float], list[float], list[float]]:
        """The means, least and greatest values of all windows, with NaN for gaps."""
        rows = [self.values.get(start, (nan, nan, nan)) for start in self.windows.edges()[:-1]]
        means, least, greatest = map(list, zip(*rows, strict=True))
        return means, least, greatest

    def limits(self) -> tuple[float, float]:
        """The axis: all values that are not outliers. It does not begin at zero, as there is no bar or area."""
        low, high = ordinary_range([value for values in self.values.values() for value in values])
        margin = (high - low) / 20 or abs(high) / 20 or 1.0
        return low - margin, high + margin

    def outliers(self) -> list[Outlier]:
        """The least and greatest values beyond the axis."""
        low, high = self.limits()
        _, *extremes = self.columns()
        return [
            Outlier(when, value, COLOURS[0])
            for values in extremes
            for when, value in zip(self.windows.middles(), values, strict=True)
            if value < low or value > high
        ]


class Bars(NamedTuple):
    """Values by name, in the given order, on an axis from zero."""

    title: str
    unit: str
    values: Sequence[tuple[str, float]]


Panel = Counts | Ranges | Bars


def has_data(panel: Panel) -> bool:
    """Whether there is anything to draw."""
    return bool(panel.series if isinstance(panel, Counts) else panel.values)


def ordinary_range(values: Sequence[float]) -> tuple[float, float]:
    """The least and the greatest value without outliers.

    An axis with a value a thousand times the others would show a flat line; outliers are marked at its end instead.
    """
    if not values:
        return 0.0, 0.0
    present = [value for value in values if value]
    if len(present) >= OUTLIER_VALUES_MIN:
        middle = median(present)
        distances = sorted(abs(value - middle) for value in present)
        bound = OUTLIER_DISTANCES * max(distances[ceil(0.9 * len(distances)) - 1], abs(middle) / 2)
        values = [value for value in values if abs(value - middle) <= bound]
    return min(values), max(values)


def instant(micros: int) -> datetime:
    """A time from microseconds since 1970, or the nearest one that Python can name."""
    return EPOCH + min(max(micros, MICROS_MIN), MICROS_MAX) * MICROSECOND


def labelled(outliers: Sequence[Outlier], windows: Windows) -> list[Outlier]:
    """The farthest outliers, as many as have room for their values beside their marks."""
    edges = windows.edges()
    room = OUTLIER_LABEL_SPAN * (edges[-1] - edges[0])
    found: list[Outlier] = []
    for outlier in sorted(outliers, key=lambda each: -abs(each.value)):
        if len(found) < OUTLIER_LABELS_MAX and all(abs(outlier.when - other.when) > room for other in found):
            found.append(outlier)
    return found


def clipped(name: str, width: int = LABEL_WIDTH) -> str:
    """The name, cut to a width in letters; letters of Chinese, Japanese and Korean are two wide."""
    shown = "".join(letter if letter.isprintable() else " " for letter in name[: width + 1])
    if _width(shown) <= width:
        return shown or "(empty)"
    while _width(shown) >= width:
        shown = shown[:-1]
    return f"{shown}…"


def _width(text: str) -> int:
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def short(value: float) -> str:
    """A number with few digits."""
    is_plain = (value == int(value) or abs(value) >= 100) and abs(value) < 1e15
    return f"{value:,.0f}" if is_plain else f"{value:,.3g}"

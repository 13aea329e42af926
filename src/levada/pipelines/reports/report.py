"""Reports: tables and a chart over all records of topics or of a lake.

Tables are small by construction (windows, top-N), so they are collected to the driver.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from levada.pipelines.errors import PipelineError
from levada.pipelines.flows import flow
from levada.pipelines.lake.history import history
from levada.pipelines.lake.lake import check_lake
from levada.pipelines.reports import charts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINTS = 60  # of a line of the chart, about
WINDOWS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


class Table(NamedTuple):
    """A title, column names, and rows of texts and numbers."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]

    def lines(self) -> list[str]:
        """The table as lines of text."""
        if not self.rows:
            return [f"{self.title}: none"]
        texts = [self.columns, *(tuple(map(_cell, row)) for row in self.rows)]
        widths = [max(len(row[index]) for row in texts) for index in range(len(self.columns))]
        right = [all(isinstance(row[index], int | float) for row in self.rows) for index in range(len(self.columns))]
        return [f"{self.title}:"] + [
            "  ".join(
                text.rjust(width) if to_right else text.ljust(width)
                for text, width, to_right in zip(row, widths, right, strict=True)
            ).rstrip()
            for row in [tuple(name.upper() for name in self.columns), *texts[1:]]
        ]


class Report(NamedTuple):
    """Tables, and the panels of a chart."""

    title: str
    tables: Sequence[Table]
    panels: Sequence[charts.Panel]

    def text(self) -> str:
        """All tables as text."""
        return "\n\n".join("\n".join(table.lines()) for table in self.tables)

    def write(self, path: str) -> str:
        """Write the chart to an SVG file; return its absolute path."""
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(charts.svg(self.title, self.panels))
        return os.path.abspath(path)


def records(
    spark: "SparkSession",
    topics: Sequence[str],
    bootstrap: str,
    lake: str | None,
    options: Mapping[str, str],
) -> DataFrame:
    """The records of topics; with a lake also those that only the lake has, each record once."""
    if lake is None:
        return flow.read_batch(spark, bootstrap, topics, options)
    check_lake(spark, lake)
    found = [history(topic, lake, bootstrap=bootstrap, spark=spark, gaps=False, **options) for topic in topics]
    return reduce(DataFrame.unionByName, found)


def window_for(first: datetime, last: datetime) -> str:
    """The window with which a line has about POINTS points (pure)."""
    wanted = (last - first).total_seconds() / POINTS
    return f"{next((seconds for seconds in WINDOWS_S if seconds >= wanted), WINDOWS_S[-1])} seconds"


def window_words(window: str) -> str:
    """The window in the words of a title: `second`, `15 minutes` (pure)."""
    count, unit = int(window.split()[0]), "second"
    for longer, size in (("minute", 60), ("hour", 60), ("day", 24)):
        if count % size:
            break
        count, unit = count // size, longer
    return unit if count == 1 else f"{count} {unit}s"


def time_range(rows: DataFrame, column: str = "at") -> tuple[datetime, datetime]:
    """The first and last timestamp; PipelineError if there are no rows."""
    found = rows.agg(F.unix_micros(F.min(column)).alias("first"), F.unix_micros(F.max(column)).alias("last")).first()
    if found is None or found["first"] is None:
        raise PipelineError("nothing to report: the topics have no events that can be parsed")
    return instant(found["first"]), instant(found["last"])


def instant(micros: int) -> datetime:
    """A UTC time, independent of the time zones of Python and Spark."""
    return datetime.fromtimestamp(micros / 1e6, UTC)


def series(rows: DataFrame, name: str, value: str) -> dict[str, list[charts.Point]]:
    """The lines of a chart, by name, from rows with `from`, a name and a value."""
    found = rows.select(F.unix_micros("from").alias("at"), name, F.col(value).cast("double").alias("v"))
    lines: dict[str, list[charts.Point]] = {}
    for row in found.orderBy(name, "at").collect():
        lines.setdefault(row[name] or "(none)", []).append((instant(row["at"]), row["v"]))
    return lines


def table(title: str, rows: DataFrame) -> Table:
    """Collect rows into a table."""
    return Table(title, tuple(rows.columns), [tuple(row) for row in rows.collect()])


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)

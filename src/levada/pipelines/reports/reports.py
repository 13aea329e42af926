"""Reports of pipelines: tables and a chart, computed at once from all that topics or a lake have.

Tables are small by construction (windows, top-N), so they are collected and kept as plain rows.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from levada.pipelines.flows import flow
from levada.pipelines.lake.formats import check_lake
from levada.pipelines.lake.history import history
from levada.pipelines.reports import charts
from levada.pipelines.runs.queries import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINTS = 60  # about as many as a line of a chart has
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


class Table(NamedTuple):
    """A heading, names of columns, and rows of texts and numbers."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]

    def lines(self) -> list[str]:
        """As text, in columns below the heading."""
        if not self.rows:
            return [f"{self.title}: none"]
        texts = [self.columns, *(tuple(map(_cell, row)) for row in self.rows)]
        widths = [max(len(row[index]) for row in texts) for index in range(len(self.columns))]
        right = [
            all(isinstance(row[index], int | float) for row in self.rows)
            for index in range(len(self.columns))
        ]
        return [f"{self.title}:"] + [
            "  ".join(
                text.rjust(width) if to_right else text.ljust(width)
                for text, width, to_right in zip(row, widths, right, strict=True)
            ).rstrip()
            for row in [tuple(name.upper() for name in self.columns), *texts[1:]]
        ]


class Report(NamedTuple):
    """What a batch found."""

    title: str
    tables: Sequence[Table]
    panels: Sequence[charts.Panel]

    def text(self) -> str:
        """For a terminal."""
        return "\n\n".join("\n".join(table.lines()) for table in self.tables)

    def write(self, path: str) -> str:
        """Draw the chart into a file; its path."""
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
    """What the topics have; with a lake, also what only the lake has, each record once."""
    if lake is None:
        return flow.table_of(spark, bootstrap, topics, options)
    check_lake(spark, lake)
    found = [
        history(topic, lake, bootstrap=bootstrap, spark=spark, gaps=False, **options) for topic in topics
    ]
    whole = found[0]
    for more in found[1:]:
        whole = whole.unionByName(more)
    return whole


def step(first: datetime, last: datetime) -> str:
    """The window with which a line has about POINTS points (pure)."""
    wanted = (last - first).total_seconds() / POINTS
    return f"{next((seconds for seconds in STEPS_S if seconds >= wanted), STEPS_S[-1])} seconds"


def each(step: str) -> str:
    """The step in the words of a title: `second`, `15 minutes` (pure)."""
    count, unit = int(step.split()[0]), "second"
    for longer, size in (("minute", 60), ("hour", 60), ("day", 24)):
        if count % size:
            break
        count, unit = count // size, longer
    return unit if count == 1 else f"{count} {unit}s"


def span(rows: DataFrame, column: str = "at") -> tuple[datetime, datetime]:
    """When the first and the last of them happened; PipelineError if there are none."""
    found = rows.agg(
        F.unix_micros(F.min(column)).alias("first"), F.unix_micros(F.max(column)).alias("last")
    ).first()
    if found is None or found["first"] is None:
        raise PipelineError("there is nothing to report: the topics have no events that can be read")
    return instant(found["first"]), instant(found["last"])


def instant(micros: int) -> datetime:
    """A time in UTC, whatever the zones of Python and Spark are."""
    return datetime.fromtimestamp(micros / 1e6, UTC)


def series(rows: DataFrame, name: str, value: str) -> dict[str, list[charts.Point]]:
    """Rows with `from`, a name and a value as lines of a chart, in the order of names."""
    found = rows.select(F.unix_micros("from").alias("at"), name, F.col(value).cast("double").alias("v"))
    lines: dict[str, list[charts.Point]] = {}
    for row in found.orderBy(name, "at").collect():
        lines.setdefault(row[name] or "(none)", []).append((instant(row["at"]), row["v"]))
    return lines


def table(title: str, rows: DataFrame) -> Table:
    """Collected."""
    return Table(title, tuple(rows.columns), [tuple(row) for row in rows.collect()])


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)

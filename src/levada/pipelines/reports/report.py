"""Reports: tables and a chart over all records of topics or of a lake, read with Spark.

Tables are small by construction (windows, top-N), so they are collected to the driver.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from levada.pipelines.errors import PipelineError, check_chart_file
from levada.pipelines.flows import flow
from levada.pipelines.lake.history import history
from levada.pipelines.lake.lake import check_lake
from levada.pipelines.reports.panels import Panel, Windows, instant
from levada.pipelines.reports.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUE_MAX = 1e300  # of a chart: the numbers of an axis are multiplied


class Report(NamedTuple):
    """Tables, and the panels of a chart."""

    title: str
    tables: Sequence[Table]
    panels: Sequence[Panel]
    note: str = ""  # below the charts

    def text(self) -> str:
        """All tables as text."""
        return "\n\n".join("\n".join(table.lines()) for table in self.tables)

    def write(self, path: str) -> str:
        """Write the chart to an .svg file, or charts and tables to an .html file; return its absolute path."""
        check_chart_file(path)
        # The libraries that draw are imported when a report is drawn.
        if path.endswith(".html"):
            from levada.pipelines.reports.page import html

            content = html(self.title, self.panels, self.tables, self.note)
        else:
            from levada.pipelines.reports.image import svg

            content = svg(self.title, self.panels, self.note)
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
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


def windows(rows: DataFrame, column: str = "at") -> Windows:
    """The windows of a chart over all rows; PipelineError if there are no rows."""
    found = rows.agg(F.unix_micros(F.min(column)).alias("first"), F.unix_micros(F.max(column)).alias("last")).first()
    if found is None or found["first"] is None:
        raise PipelineError("nothing to report: the topics have no events that can be parsed")
    return Windows.over(instant(found["first"]), instant(found["last"]))


def series(rows: DataFrame, name: str, *values: str) -> dict[str, dict[datetime, tuple[float, ...]]]:
    """The values of a chart by name and start of their window, from rows with `from`, a name and values."""
    columns = [F.col(value).cast("double") for value in values]
    lines: dict[str, dict[datetime, tuple[float, ...]]] = {}
    for found, start, *numbers in rows.select(name, F.unix_micros("from"), *columns).orderBy(name, "from").collect():
        if all(number is not None and abs(number) < VALUE_MAX for number in numbers):  # not NaN either
            lines.setdefault("(none)" if found is None else found, {})[instant(start)] = tuple(numbers)
    return lines


def table(title: str, rows: DataFrame) -> Table:
    """Collect rows into a table."""
    return Table(title, tuple(rows.columns), [tuple(row) for row in rows.collect()])

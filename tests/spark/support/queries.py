"""Streaming queries from a topic to files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.support.connector import Connector
from tests.spark.support.feeds import TIMEOUT_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def start(frame: "DataFrame", folder: Path, trigger: dict[str, Any]) -> "StreamingQuery":
    """A query that writes values to files, from where the last one in this folder ended."""
    writer = frame.selectExpr("string(value) value").writeStream.format("parquet").trigger(**trigger)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "files"))


def run(frame: "DataFrame", folder: Path) -> "StreamingQuery":
    """Everything there is now, and end; a failure is raised here."""
    query = start(frame, folder, {"availableNow": True})
    assert query.awaitTermination(TIMEOUT_S), query.status
    return query


def written(connector: Connector, folder: Path) -> list[str]:
    found = connector.spark.read.schema("value string").parquet(str(folder / "files")).collect()
    return sorted(row.value for row in found)

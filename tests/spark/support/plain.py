"""Readers as plain objects: the calls of Spark, without Spark."""

import json
import pickle
from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructField, StructType
from tests.spark.support.feeds import Feeds

from levada.spark.read.batch import BatchReader
from levada.spark.read.planner import TaskRanges
from levada.spark.read.rows import COLUMNS
from levada.spark.read.stream import StreamReader
from levada.spark.source import LevadaDataSource

EVERYTHING = StructType([StructField(name, kind) for name, kind in COLUMNS.items()])

Row = dict[str, Any]


class Plain(Feeds):
    """The connector of one broker. Options are given as to Spark: `startingOffsets="earliest"`."""

    def source(self, options: dict[str, Any]) -> LevadaDataSource:
        """As Spark makes it: keys in lower case, values as text."""
        given = {"kafka.bootstrap.servers": self.broker.bootstrap} | options
        texts = {name.lower(): value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
        return LevadaDataSource(texts)

    def reader(self, schema: StructType = EVERYTHING, **options: Any) -> BatchReader:
        found = self.source(options).reader(schema)
        assert isinstance(found, BatchReader)
        return found

    def tasks(self, **options: Any) -> list[TaskRanges]:
        """What the tasks of a batch would read."""
        return [part.value for part in self.reader(**options).partitions() if part.value]

    def rows(self, schema: StructType = EVERYTHING, **options: Any) -> list[Row]:
        """A batch, in the order of its tasks."""
        reader = self.reader(schema, **options)
        return rows_of(reader, reader.partitions())

    def texts(self, **options: Any) -> list[str]:
        """The values of a batch."""
        return [row["value"].decode() for row in self.rows(**options)]

    def streaming(self, schema: StructType = EVERYTHING, **options: Any) -> StreamReader:
        found = self.source(options).streamReader(schema)
        assert isinstance(found, StreamReader)
        return found


class Stream:
    """A streaming query as Spark drives it: offsets become JSON and back, tasks read with copies of the reader."""

    def __init__(self, reader: StreamReader, start: Any = None) -> None:
        self.reader = reader
        self.at = reader.initialOffset() if start is None else start

    def batch(self, limit: ReadLimit | None = None) -> list[str] | None:
        """The values of the next micro-batch; None if there is none yet."""
        limit = limit or self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self.reader.latestOffset(self.at, limit)))
        if end == self.at:
            return None
        found = rows_of(self.reader, self.reader.partitions(self.at, end))
        self.at = end
        return [row["value"].decode() for row in found]


def rows_of(reader: BatchReader | StreamReader, parts: Iterable[InputPartition]) -> list[Row]:
    """What the tasks give; each has its own copy of the reader."""
    found: list[Row] = []
    for part in parts:
        copy = pickle.loads(pickle.dumps(reader)) if isinstance(reader, BatchReader) else reader
        for batch in copy.read(pickle.loads(pickle.dumps(part))):
            batch.validate(full=True)
            found += batch.to_pylist()
    return found

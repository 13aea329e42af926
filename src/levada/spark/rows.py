"""Columns of a log as the rows that Spark wants: the stock connector's columns, those that a user's schema names.

A schema given by the user is a projection: a column that is not in it is not made. `key` and `value` may be asked for
as strings. With `valueFormat`, `value` is a struct, and `malformed` holds what could not be read as one.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from levada.model import TopicPartition
from levada.spark.columns import Columns
from levada.spark.options import OptionError, nearest
from levada.spark.planning import Range, Task
from levada.spark.read_options import ReadOptions
from levada.spark.reading import read_columns

ARROW_BATCH_BYTES = 16 << 20  # what is handed to the JVM at once, about

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}
MALFORMED = "malformed"
DDL = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key: string, value: binary>>",
}


def table_schema(options: ReadOptions) -> str:
    """The columns of a topic when the user gives no schema, as Spark's own words for them."""
    types = dict(DDL)
    if not options.include_headers:
        del types["headers"]
    return ", ".join(f"`{name}` {kind}" for name, kind in types.items())


class Part(NamedTuple):
    """Some records of one partition."""

    place: TopicPartition
    columns: Columns


Maker = Callable[[Part], Any]


class Rows:
    """Makes Arrow batches of one schema; it travels to the tasks with the reader, so it holds no Arrow objects."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options
        for field in schema.fields:
            _check(field, options)

    def read(self, task: Task | None) -> Iterator[Any]:
        """The batches of a task."""
        from pyspark.sql.pandas.types import to_arrow_schema

        target = to_arrow_schema(self._schema, timezone="UTC")
        makers = [_maker(field.name, target.field(field.name).type) for field in self._schema.fields]
        for part in task or ():
            for columns in self._columns(part):
                arrays = [make(Part(part.partition, columns)) for make in makers]
                yield from _in_pieces(pa.RecordBatch.from_arrays(arrays, schema=target))

    def _columns(self, part: Range) -> Iterator[Columns]:
        options = self._options
        return read_columns(
            options.bootstrap,
            part.partition,
            part.start,
            part.end,
            want_headers="headers" in self._schema.names,
            where=options.where,
            options=options.fetch_options,
            topic_id=part.topic_id,
        )


def _check(field: StructField, options: ReadOptions) -> None:
    """A column that a user asks for is one of ours, in its type."""
    name, kind = field.name, field.dataType
    if name not in COLUMNS:
        known = ", ".join(COLUMNS)
        raise OptionError(f"a topic has no column {name}{nearest(name, COLUMNS)} There are {known}")
    if name == "headers" and not options.include_headers:
        raise OptionError("the schema has a column headers, and option includeHeaders is false")
    if kind == COLUMNS[name] or (name in ("key", "value") and isinstance(kind, StringType)):
        return
    wanted = COLUMNS[name].simpleString()
    raise OptionError(f"column {name} is of type {wanted}, and the schema says {kind.simpleString()}")


def _maker(name: str, kind: Any) -> Maker:
    if name in ("key", "value"):
        if pa.types.is_string(kind):
            return lambda part: as_text(getattr(part.columns, name))
        return lambda part: getattr(part.columns, name)
    makers: dict[str, Maker] = {
        "topic": lambda part: pa.repeat(pa.scalar(part.place.topic, pa.string()), part.columns.rows),
        "partition": lambda part: pa.repeat(pa.scalar(part.place.partition, pa.int32()), part.columns.rows),
        "offset": lambda part: part.columns.offset,
        "timestamp": lambda part: pc.multiply(part.columns.timestamp, 1000).view(kind),
        "timestampType": lambda part: part.columns.timestamp_type.cast(pa.int32()),
        "headers": lambda part: _as_type(part.columns.headers, kind),
    }
    return makers[name]


def as_text(values: Any) -> Any:
    """Binary as strings; what is not UTF-8 has U+FFFD in its place."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        found = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(found, pa.string())


def _as_type(array: Any, kind: Any) -> Any:
    """The same lists under the names that Spark has for their parts."""
    return array if array.type == kind else array.cast(kind)


def _in_pieces(batch: Any) -> Iterator[Any]:
    """The same rows in batches that the JVM takes easily; nothing is copied."""
    count = -(-batch.nbytes // ARROW_BATCH_BYTES) or 1
    rows = -(-batch.num_rows // count) or 1
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)

"""Columns of a log as the rows that Spark wants: the stock connector's columns, those that a user's schema names.

A schema given by the user is a projection: a column that is not in it is not made. `key` and `value` may be asked for
as strings. With `valueFormat`, `value` is a struct, and `malformed` holds what could not be read as one.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
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
from levada.spark.formats.avro import AvroSchema, AvroValues
from levada.spark.formats.columns import Columns
from levada.spark.formats.json import JsonValues
from levada.spark.options import OptionError, nearest
from levada.spark.read.options import ReadOptions
from levada.spark.read.planning import Range, Task
from levada.spark.session.workers import keep_memory

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
MALFORMED = "malformed"  # a column only with `valueFormat`
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


def table_schema(options: ReadOptions) -> StructType | str:
    """The columns of a topic when the user gives no schema; as text where types are the user's, for Spark to read."""
    types: dict[str, str] = dict(DDL)
    if not options.include_headers:
        del types["headers"]
    if options.value_format:
        types["value"] = f"struct<{options.value_schema}>"
        if not options.dead_letter_topic:
            types[MALFORMED] = "binary"
    if options.value_format == "json" and not options.value_schema:
        raise OptionError(
            "option valueFormat json needs valueSchema (such as `user string, amount double`), or a schema "
            "that has `value` as a struct"
        )
    if options.value_format != "avro":
        return ", ".join(f"`{name}` {kind}" for name, kind in types.items())
    known = COLUMNS | {"value": avro_schema(options).type, MALFORMED: BinaryType()}
    return StructType([StructField(name, known[name]) for name in types])


def avro_schema(options: ReadOptions) -> AvroSchema:
    """The schema that a user gives with `valueFormat` avro."""
    try:
        return AvroSchema(options.value_schema)
    except ValueError as error:
        raise OptionError(f"option valueSchema: {error}") from None


class Values(Protocol):
    """Reads the values of a format."""

    def decode(self, values: Any) -> tuple[Any, Any]:
        """An array of structs, and an array that is true where a value is not of the format."""


class Part(NamedTuple):
    """Some records of one partition; with `valueFormat` the structs that values are, and which are none."""

    place: TopicPartition
    columns: Columns
    structs: Any = None
    bad: Any = None


Maker = Callable[[Part], Any]


class Rows:
    """Makes Arrow batches of one schema; it travels to the tasks with the reader, so it holds no Arrow objects."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options
        for field in schema.fields:
            _check(field, options)
        self._values(self._target())

    def read(self, task: Task | None) -> Iterator[Any]:
        """The batches of a task."""
        keep_memory()
        target = self._target()
        values = self._values(target)
        makers = [_maker(field.name, target.field(field.name).type) for field in self._schema.fields]
        for part in task or ():
            for columns in self._columns(part):
                found = self._part(part.partition, columns, values)
                batch = pa.RecordBatch.from_arrays([make(found) for make in makers], schema=target)
                if self._options.dead_letter_topic and found.bad is not None and pc.any(found.bad).as_py():
                    from levada.spark.formats.dead_letters import send_dead_letters

                    send_dead_letters(self._options, part.partition, columns, found.bad)
                    batch = batch.filter(pc.invert(found.bad))
                yield from _in_pieces(batch)

    def _target(self) -> Any:
        """The schema as Arrow has it."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self._schema, timezone="UTC")

    def _values(self, target: Any) -> Values | None:
        """What reads values, if they are to be read."""
        if not self._options.value_format or "value" not in target.names:
            return None
        kind = target.field("value").type
        if self._options.value_format == "avro":
            return AvroValues(avro_schema(self._options), kind)
        try:
            return JsonValues(kind)
        except ValueError as error:
            raise OptionError(f"option valueSchema: {error}") from None

    def _columns(self, part: Range) -> Iterator[Columns]:
        options = self._options
        from levada.spark.read.columns import read_columns  # loads kernels: only tasks need them

        return read_columns(
            options.bootstrap,
            part.partition,
            part.start,
            part.end,
            want_headers="headers" in self._schema.names or bool(options.dead_letter_topic),
            where=options.where,
            options=options.fetch_options,
            topic_id=part.topic_id,
        )

    def _part(self, place: TopicPartition, columns: Columns, values: Values | None) -> Part:
        if values is None:
            return Part(place, columns)
        structs, bad = values.decode(_without_first(columns.value, self._options.value_skip_bytes))
        return Part(place, columns, structs, bad)


def _check(field: StructField, options: ReadOptions) -> None:
    """A column that a user asks for is one of ours, in its type."""
    name, kind = field.name, field.dataType
    known = dict(COLUMNS)
    if options.value_format and not options.dead_letter_topic:
        known[MALFORMED] = BinaryType()
    if options.value_format == "avro":
        known["value"] = avro_schema(options).type
    if name not in known:
        near = nearest(name, known) or "."
        raise OptionError(f"a topic has no column {name}{near} There are {', '.join(known)}")
    if name == "headers" and not options.include_headers:
        raise OptionError("the schema has a column headers, and option includeHeaders is false")
    if name == "value" and options.value_format == "json":
        fits, wanted = isinstance(kind, StructType), "a struct"
    else:
        may_be_text = name == "key" or (name == "value" and not options.value_format)
        fits = kind == known[name] or (may_be_text and isinstance(kind, StringType))
        wanted = known[name].simpleString()
    if not fits:
        raise OptionError(f"column {name} is {wanted}, and the schema says {kind.simpleString()}")


def _maker(name: str, kind: Any) -> Maker:
    if name == "value" and pa.types.is_struct(kind):
        return lambda part: part.structs
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
        MALFORMED: _malformed,
    }
    return makers[name]


def _malformed(part: Part) -> Any:
    """Values that could not be read, as they are."""
    if part.bad is None:
        return pa.nulls(part.columns.rows, pa.binary())
    return pc.if_else(part.bad, part.columns.value, pa.scalar(None, pa.binary()))


def as_text(values: Any) -> Any:
    """Binary as strings; what is not UTF-8 has U+FFFD in its place."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        found = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(found, pa.string())


def _without_first(values: Any, count: int) -> Any:
    """Binary without its first bytes; what has fewer is empty. (Arrow's own slice fails on those.)"""
    if not count:
        return values
    _, edges, data = values.buffers()
    ends = np.frombuffer(edges, np.int32)[values.offset : values.offset + len(values) + 1]
    lengths = np.minimum(np.diff(ends), count)
    cut = np.repeat(ends[:-1] + lengths - np.cumsum(lengths), lengths) + np.arange(lengths.sum())
    kept = np.delete(np.frombuffer(data, np.uint8)[: ends[-1]], np.append(np.arange(ends[0]), cut))
    places = np.append(0, np.cumsum(np.diff(ends) - lengths)).astype(np.int32)
    missing = values.is_valid().buffers()[1] if values.null_count else None
    return pa.Array.from_buffers(
        values.type, len(values), [missing, pa.py_buffer(places), pa.py_buffer(kept)]
    )


def _as_type(array: Any, kind: Any) -> Any:
    """The same lists under the names that Spark has for their parts."""
    return array if array.type == kind else array.cast(kind)


def _in_pieces(batch: Any) -> Iterator[Any]:
    """The same rows in batches that the JVM takes easily; nothing is copied."""
    count = -(-batch.nbytes // ARROW_BATCH_BYTES) or 1
    rows = -(-batch.num_rows // count) or 1
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)

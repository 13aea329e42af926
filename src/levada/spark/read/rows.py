"""Builds the Arrow record batches of a task: fetches and decodes offset ranges, and builds the columns of the schema.

A schema given by the user is a projection: a column that is not in it is not built. `key` and `value` may be strings.
With `valueFormat`, `value` is a struct, and `malformed` holds the values that are not of the format.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

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

from levada.errors import KafkaError
from levada.model import TopicPartition
from levada.spark.errors import OptionError
from levada.spark.formats.json import JsonDecoder
from levada.spark.options import nearest
from levada.spark.read.fetcher import FetchOptions, fetch_range
from levada.spark.read.options import ReadOptions
from levada.spark.read.planner import TaskRanges
from levada.spark.worker import retain_freed_memory

if TYPE_CHECKING:
    from levada.spark.formats.avro import AvroSchema
    from levada.spark.formats.decoder import Columns, Filter

ARROW_BATCH_BYTES = 16 << 20  # passed to the JVM at once, about

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


def table_schema(options: ReadOptions) -> StructType | str:
    """The columns of a topic if the user gives no schema; as DDL if Spark has to parse the user's `valueSchema`."""
    types = {name: kind.simpleString() for name, kind in COLUMNS.items()}
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


def avro_schema(options: ReadOptions) -> "AvroSchema":
    """The schema that a user gives with `valueFormat` avro."""
    from levada.spark.formats.avro import AvroSchema  # loads fastavro

    try:
        return AvroSchema(options.value_schema)
    except ValueError as error:
        raise OptionError(f"option valueSchema: {error}") from None


def read_columns(
    bootstrap: str,
    partition: TopicPartition,
    start: int,
    end: int,
    *,
    want_headers: bool = True,
    where: "Filter | None" = None,
    options: FetchOptions = FetchOptions(),  # noqa: B008
    topic_id: UUID | None = None,
) -> "Iterator[Columns]":
    """Fetch and decode the records of [start, end), in order.

    See `fetch_range` for what it raises. Records that cannot be decoded raise a KafkaError with partition and offset.
    """
    from levada.spark.formats.decoder import decode_all  # loads the kernels, which only tasks need

    for chunk in fetch_range(bootstrap, partition, start, end, options, topic_id):
        pieces = decode_all(chunk.data, chunk.start, end, chunk.aborted, want_headers, where)
        try:
            yield from pieces
        except KafkaError as error:
            raise KafkaError(error.code, f"{partition}: {error.detail}") from None


class ValueDecoder(Protocol):
    """Decodes values of one format."""

    def decode(self, values: Any) -> tuple[Any, Any]:
        """An array of structs, and an array that is true where a value is not of the format."""


class Decoded(NamedTuple):
    """Records of one partition; with `valueFormat` also the structs, and where a value is not of the format."""

    partition: TopicPartition
    columns: "Columns"
    structs: Any = None
    bad: Any = None


ColumnBuilder = Callable[[Decoded], Any]


class RowReader:
    """Builds Arrow record batches of one schema. Spark pickles it with the reader, so it holds no Arrow objects."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options
        for field in schema.fields:
            _check(field, options)
        self._value_decoder(self._arrow_schema())

    def read(self, task: TaskRanges | None) -> Iterator[Any]:
        """The record batches of a task."""
        retain_freed_memory()
        schema = self._arrow_schema()
        decoder = self._value_decoder(schema)
        builders = [_builder(field.name, schema.field(field.name).type) for field in self._schema.fields]
        options = self._options
        for one in task or ():
            pieces = read_columns(
                options.bootstrap,
                one.partition,
                one.start,
                one.end,
                want_headers="headers" in self._schema.names or bool(options.dead_letter_topic),
                where=options.where,
                options=options.fetch_options,
                topic_id=one.topic_id,
            )
            for columns in pieces:
                found = self._decode_values(one.partition, columns, decoder)
                batch = pa.RecordBatch.from_arrays([build(found) for build in builders], schema=schema)
                if options.dead_letter_topic and found.bad is not None and pc.any(found.bad).as_py():
                    from levada.spark.read.dead_letter_topic import send_dead_letters

                    send_dead_letters(options, one.partition, columns, found.bad)
                    batch = batch.filter(pc.invert(found.bad))
                yield from _split(batch)

    def _arrow_schema(self) -> Any:
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self._schema, timezone="UTC")

    def _value_decoder(self, schema: Any) -> ValueDecoder | None:
        """The decoder of `valueFormat`, if the schema has the column `value`."""
        if not self._options.value_format or "value" not in schema.names:
            return None
        kind = schema.field("value").type
        if self._options.value_format == "avro":
            from levada.spark.formats.avro import AvroDecoder

            return AvroDecoder(avro_schema(self._options), kind)
        try:
            return JsonDecoder(kind)
        except ValueError as error:
            raise OptionError(f"option valueSchema: {error}") from None

    def _decode_values(self, partition: TopicPartition, columns: "Columns", decoder: ValueDecoder | None) -> Decoded:
        if decoder is None:
            return Decoded(partition, columns)
        structs, bad = decoder.decode(skip_bytes(columns.value, self._options.value_skip_bytes))
        return Decoded(partition, columns, structs, bad)


def _check(field: StructField, options: ReadOptions) -> None:
    """Raise OptionError unless a column of the user's schema exists and has its type."""
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
        raise OptionError("the schema has a column headers, and option includeHeaders is false: remove one of the two")
    if name == "value" and options.value_format == "json":
        fits, wanted = isinstance(kind, StructType), "a struct"
    else:
        may_be_text = name == "key" or (name == "value" and not options.value_format)
        fits = kind == known[name] or (may_be_text and isinstance(kind, StringType))
        wanted = known[name].simpleString()
    if not fits:
        raise OptionError(f"column {name} is {wanted}, and the schema has {kind.simpleString()}")


def _builder(name: str, kind: Any) -> ColumnBuilder:
    if name == "value" and pa.types.is_struct(kind):
        return lambda found: found.structs
    if name in ("key", "value"):
        if pa.types.is_string(kind):
            return lambda found: _as_text(getattr(found.columns, name))
        return lambda found: getattr(found.columns, name)
    builders: dict[str, ColumnBuilder] = {
        "topic": lambda found: pa.repeat(pa.scalar(found.partition.topic, pa.string()), found.columns.rows),
        "partition": lambda found: pa.repeat(pa.scalar(found.partition.partition, pa.int32()), found.columns.rows),
        "offset": lambda found: found.columns.offset,
        "timestamp": lambda found: pc.multiply(found.columns.timestamp, 1000).view(kind),
        "timestampType": lambda found: found.columns.timestamp_type.cast(pa.int32()),
        "headers": lambda found: _as_type(found.columns.headers, kind),
        MALFORMED: _malformed,
    }
    return builders[name]


def _malformed(found: Decoded) -> Any:
    """The bytes of the values that are not of the format."""
    if found.bad is None:
        return pa.nulls(found.columns.rows, pa.binary())
    return pc.if_else(found.bad, found.columns.value, pa.scalar(None, pa.binary()))


def _as_text(values: Any) -> Any:
    """Binary as strings; bytes that are not UTF-8 become U+FFFD."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        found = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(found, pa.string())


def skip_bytes(values: Any, count: int) -> Any:
    """Binary values without their first bytes; shorter ones become empty. (Arrow's own slice fails on those.)"""
    if not count:
        return values
    _, edges, data = values.buffers()
    ends = np.frombuffer(edges, np.int32)[values.offset : values.offset + len(values) + 1]
    lengths = np.minimum(np.diff(ends), count)
    cut = np.repeat(ends[:-1] + lengths - np.cumsum(lengths), lengths) + np.arange(lengths.sum())
    kept = np.delete(np.frombuffer(data, np.uint8)[: ends[-1]], np.append(np.arange(ends[0]), cut))
    offsets = np.append(0, np.cumsum(np.diff(ends) - lengths)).astype(np.int32)
    missing = values.is_valid().buffers()[1] if values.null_count else None
    return pa.Array.from_buffers(values.type, len(values), [missing, pa.py_buffer(offsets), pa.py_buffer(kept)])


def _as_type(array: Any, kind: Any) -> Any:
    """The same lists with Spark's names for their fields."""
    return array if array.type == kind else array.cast(kind)


def _split(batch: Any) -> Iterator[Any]:
    """The same rows in batches of about ARROW_BATCH_BYTES; nothing is copied."""
    count = -(-batch.nbytes // ARROW_BATCH_BYTES) or 1
    rows = -(-batch.num_rows // count) or 1
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)

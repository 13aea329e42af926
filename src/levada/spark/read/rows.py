"""Builds the Arrow record batches of a task: fetches and decodes offset ranges, and builds the columns of the schema.

A schema given by the user is a projection: a column that is not in it is not built. `key` and `value` may be strings.
With `valueFormat`, `value` is typed, and `malformed` holds the values that are not of the format; so it is with
`keyFormat`, `key` and `malformedKey`.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.spark.errors import OptionError
from levada.spark.formats.rows import ValueDecoder, skip_bytes
from levada.spark.options import nearest
from levada.spark.read.fetcher import FetchOptions, fetch_range
from levada.spark.read.options import ReadOptions
from levada.spark.read.planner import TaskRanges
from levada.spark.registry.client import Schema
from levada.spark.registry.reading import column_decoder, reader_schema, schema_type, unknown_fields
from levada.spark.worker import retain_freed_memory

if TYPE_CHECKING:
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
ReaderSchemas = dict[str, Schema | None]  # by typed column
MALFORMED = {"value": "malformed", "key": "malformedKey"}  # columns only with `valueFormat` and `keyFormat`


def reader_schemas(options: ReadOptions) -> ReaderSchemas:
    """The readers' schemas of the typed columns. The subject's latest one may change: a query chooses once."""
    return {form.column: reader_schema(form, options.topics) for form in options.formats}


def table_schema(options: ReadOptions, readers: ReaderSchemas) -> StructType | str:
    """The columns of a topic if the user gives no schema; as DDL if Spark has to parse columns in SQL."""
    types: dict[str, DataType | str] = dict(COLUMNS)
    if not options.include_headers:
        del types["headers"]
    for form in options.formats:
        schema = readers[form.column]
        if schema is None and not form.schema:
            raise OptionError(
                f"{form.option('Format')} json needs {form.column}Schema (such as `user string, amount double`), or a "
                f"schema that has `{form.column}` as a struct"
            )
        types[form.column] = f"struct<{form.schema}>" if schema is None else schema_type(form, schema)
        if not options.dead_letter_topic:
            types[MALFORMED[form.column]] = BinaryType()
    fields = [StructField(name, kind) for name, kind in types.items() if isinstance(kind, DataType)]
    if len(fields) == len(types) and options.formats:
        return StructType(fields)
    return ", ".join(f"`{name}` {kind if isinstance(kind, str) else _ddl(kind)}" for name, kind in types.items())


def _ddl(kind: DataType) -> str:
    """A type in SQL, with quoted names of fields."""
    if isinstance(kind, StructType):
        fields = (f"{_quoted(field.name)}:{_ddl(field.dataType)}" for field in kind.fields)
        return f"struct<{','.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_ddl(kind.keyType)},{_ddl(kind.valueType)}>"
    return kind.simpleString()


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f"`{name.replace('`', '``')}`"


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


class Decoded(NamedTuple):
    """Records of one partition, and their typed keys and values."""

    partition: TopicPartition
    columns: "Columns"
    typed: dict[str, tuple[Any, Any]]  # by column: decoded values, and where they are not of the format

    @property
    def bad(self) -> Any | None:
        """Where a key or value is not of its format; None if no column has one."""
        found = [bad for _, bad in self.typed.values()]
        return found[0] if len(found) == 1 else pc.or_(*found) if found else None


ColumnBuilder = Callable[[Decoded], Any]


class RowReader:
    """Builds Arrow record batches of one schema. Spark pickles it with the reader, so it holds no Arrow objects."""

    def __init__(self, schema: StructType, options: ReadOptions, readers: ReaderSchemas | None = None) -> None:
        """`readers` are those that the schema is of; chosen now if the user gave it."""
        self._schema = schema
        self._options = options
        self._readers = readers or {
            form.column: reader_schema(form, options.topics) for form in options.formats if form.column in schema.names
        }
        for field in schema.fields:
            _check(field, options, self._readers)
        self._decoders(self._arrow_schema())

    def read(self, task: TaskRanges | None) -> Iterator[Any]:
        """The record batches of a task."""
        retain_freed_memory()
        schema = self._arrow_schema()
        decoders = self._decoders(schema)
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
                found = Decoded(one.partition, columns, self._decode(columns, decoders))
                batch = pa.RecordBatch.from_arrays([build(found) for build in builders], schema=schema)
                bad = found.bad if options.dead_letter_topic else None
                if bad is not None and pc.any(bad).as_py():
                    from levada.spark.read.dead_letter_topic import send_dead_letters

                    send_dead_letters(options, one.partition, columns, bad)
                    batch = batch.filter(pc.invert(bad))
                yield from _split(batch)

    def _arrow_schema(self) -> Any:
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self._schema, timezone="UTC")

    def _decoders(self, schema: Any) -> dict[str, ValueDecoder]:
        """The decoders of the typed columns that the schema has."""
        return {
            form.column: column_decoder(form, self._readers[form.column], schema.field(form.column).type)
            for form in self._options.formats
            if form.column in schema.names
        }

    def _decode(self, columns: "Columns", decoders: dict[str, ValueDecoder]) -> dict[str, tuple[Any, Any]]:
        skipped = {"value": self._options.value_skip_bytes}
        return {
            column: decoder.decode(skip_bytes(getattr(columns, column), skipped.get(column, 0)))
            for column, decoder in decoders.items()
        }


def _check(field: StructField, options: ReadOptions, readers: ReaderSchemas) -> None:
    """Raise OptionError unless a column of the user's schema exists and has its type."""
    name, kind = field.name, field.dataType
    known = dict(COLUMNS)
    if not options.dead_letter_topic:
        known |= {MALFORMED[form.column]: BinaryType() for form in options.formats}
    if name not in known:
        near = nearest(name, known) or "."
        raise OptionError(f"a topic has no column {name}{near} There are {', '.join(known)}")
    if name == "headers" and not options.include_headers:
        raise OptionError("the schema has a column headers, and option includeHeaders is false: remove one of the two")
    form = options.column_format(name) if name in ("key", "value") else None
    if form is not None and form.name == "json":
        fits, wanted = isinstance(kind, StructType), "a struct"
    elif form is not None:
        reader = readers[name]
        assert reader is not None
        known[name] = schema_type(form, reader)
        fits, wanted = not unknown_fields(kind, known[name]), known[name].simpleString()
    else:
        fits = kind == known[name] or (name in ("key", "value") and isinstance(kind, StringType))
        wanted = known[name].simpleString()
    if not fits:
        raise OptionError(f"column {name} is {wanted}, and the schema has {kind.simpleString()}")


def _builder(name: str, kind: Any) -> ColumnBuilder:
    if name in ("key", "value"):
        as_text = pa.types.is_string(kind)
        return lambda found: _key_or_value(found, name, as_text)
    for column, malformed in MALFORMED.items():
        if name == malformed:
            return lambda found: _malformed(found, column)
    builders: dict[str, ColumnBuilder] = {
        "topic": lambda found: pa.repeat(pa.scalar(found.partition.topic, pa.string()), found.columns.rows),
        "partition": lambda found: pa.repeat(pa.scalar(found.partition.partition, pa.int32()), found.columns.rows),
        "offset": lambda found: found.columns.offset,
        "timestamp": lambda found: _timestamps(found).view(kind),
        "timestampType": lambda found: found.columns.timestamp_type.cast(pa.int32()),
        "headers": lambda found: _as_type(found.columns.headers, kind),
    }
    return builders[name]


def _timestamps(found: Decoded) -> Any:
    """Timestamps in microseconds; KafkaError for one that is not within Spark's years, -290308 to 294247.

    The stock connector fails for such a record, too. Any other timestamp, or null, would be one that nobody sent.
    """
    times = found.columns.timestamp
    try:
        return pc.multiply_checked(times, 1000)
    except pa.ArrowInvalid:
        limit = ((1 << 63) - 1) // 1000
        row = pc.index(pc.or_(pc.less(times, -limit), pc.greater(times, limit)), True).as_py()
        offset, time_ms = found.columns.offset[row].as_py(), times[row].as_py()
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"{found.partition}: the record at offset {offset} has the timestamp {time_ms} ms, which is outside the "
            f"years of Spark's timestamps. Read without the column timestamp, or start at offset {offset + 1}",
        ) from None


def _key_or_value(found: Decoded, column: str, as_text: bool) -> Any:
    if column in found.typed:
        return found.typed[column][0]
    values = getattr(found.columns, column)
    return _as_text(values) if as_text else values


def _malformed(found: Decoded, column: str) -> Any:
    """The bytes of the keys or values that are not of their format."""
    if column not in found.typed:
        return pa.nulls(found.columns.rows, pa.binary())
    return pc.if_else(found.typed[column][1], getattr(found.columns, column), pa.scalar(None, pa.binary()))


def _as_text(values: Any) -> Any:
    """Binary as strings; bytes that are not UTF-8 become U+FFFD."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        found = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(found, pa.string())


def _as_type(array: Any, kind: Any) -> Any:
    """The same lists with Spark's names for their fields."""
    return array if array.type == kind else array.cast(kind)


def _split(batch: Any) -> Iterator[Any]:
    """The same rows in batches of about ARROW_BATCH_BYTES; nothing is copied."""
    count = -(-batch.nbytes // ARROW_BATCH_BYTES) or 1
    rows = -(-batch.num_rows // count) or 1
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)

"""Encodes the typed columns of rows, with schemas that are registered under the subjects of their topics.

The schema is a given one, a registered one, or derived from the type of the column. The driver registers it before any
task runs; tasks do the same for topics that only rows name. A registry returns the id that a schema already has.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import DataType, StructType

from levada.errors import ErrorCode
from levada.spark.errors import OptionError
from levada.spark.formats.rows import MALFORMED
from levada.spark.registry.client import IncompatibleSchema, Schema, UnknownSchema, schema_registry
from levada.spark.registry.options import LATEST, ColumnFormat
from levada.spark.registry.reading import TYPES, schema_type, unknown_fields
from levada.spark.registry.wire_format import encode_indexes, prefix

if TYPE_CHECKING:
    from levada.spark.write.options import WriteOptions

Encode = Callable[[Any], bytes]


def column_encoders(options: "WriteOptions") -> list["ColumnEncoder"]:
    """The encoders of the typed columns."""
    found = []
    for form in options.formats:
        uses_latest = options.use_latest_version and form.version is None
        chosen = form._replace(version=LATEST) if uses_latest else form
        found.append(ColumnEncoder(chosen, registers=options.auto_register))
    return found


def register_schemas(options: "WriteOptions", schema: StructType) -> None:
    """On the driver: register the schemas of the topic that option `topic` names."""
    kinds = {field.name.lower(): field.dataType for field in schema.fields}
    for encoder in column_encoders(options):
        if options.topic:
            encoder.prepare(options.topic, _through_arrow(kinds[encoder.column]))


def _through_arrow(kind: DataType) -> DataType:
    """The type as tasks see it, which must derive the same schema."""
    return from_arrow_type(to_arrow_type(kind, timezone="UTC"))


class ColumnEncoder:
    """Encodes the column `key` or `value`."""

    def __init__(self, form: ColumnFormat, *, registers: bool) -> None:
        self._form, self._registers = form, registers
        self.column = form.column
        self._encoders: dict[str, tuple[bytes, Encode]] = {}  # prefix and function by topic

    def encode(self, topic: str, column: Any) -> Any:
        """A column of structs as a column of bytes."""
        if topic not in self._encoders:
            self.prepare(topic, from_arrow_type(column.type))
        head, encode = self._encoders[topic]
        if self._form.name == "json" and _may_be_infinite(column):
            encode = _only_finite(encode)
        found = []
        for row, value in enumerate(column.to_pylist(maps_as_pydicts="strict")):
            try:
                found.append(None if value is None else head + encode(value))
            except MALFORMED as error:
                from levada.spark.formats.encoder import InvalidRow  # loads the kernels, which a driver does not need

                why = f"column {self.column} of row {row} cannot be encoded as {self._form.name}: {error!r}"
                raise InvalidRow(ErrorCode.INVALID_RECORD, why) from None
        return pa.array(found, pa.binary())

    def prepare(self, topic: str, kind: DataType) -> None:
        """Register or look up the schema for a topic; OptionError if the column does not fit it."""
        form = self._form
        schema = self._schema(topic, kind)
        if form.schema or form.schema_id is not None or form.version is not None:
            unknown = unknown_fields(kind, schema_type(form, schema), by_type=False)
            if unknown:
                raise OptionError(
                    f"column {self.column} has {', '.join(unknown)}, which the schema does not have; drop it, or write "
                    "with another schema"
                )
        message, encode = _encoder(form, schema)  # a wrong schema must not be registered
        head = b"" if form.registry is None else prefix(self._id(topic, schema))
        self._encoders[topic] = (head + message if head else b""), encode

    def _schema(self, topic: str, kind: DataType) -> Schema:
        """The schema to write with; its id is None if it must be registered."""
        form = self._form
        if form.schema:
            return Schema(TYPES[form.name], form.schema)
        if form.registry is None or (form.schema_id is None and form.version is None):
            return self._derived(topic, kind)
        registry, subject = schema_registry(form.registry), form.subject_of(topic)
        try:
            if form.schema_id is not None:
                return registry.schema(form.schema_id)
            return registry.version(subject, form.version or LATEST)
        except UnknownSchema as error:
            raise OptionError(f"{form.option('Format')}: there is no schema to write with: {error}") from None

    def _derived(self, topic: str, kind: DataType) -> Schema:
        try:
            return Schema(TYPES[self._form.name], self._derive(topic, kind))
        except ValueError as error:
            raise OptionError(f"column {self.column} cannot be written as {self._form.name}: {error}") from None

    def _derive(self, topic: str, kind: DataType) -> str:
        if self._form.name == "avro":
            from levada.spark.formats.avro_schema import avro_schema_of

            return avro_schema_of(kind)
        if self._form.name == "json":
            from levada.spark.formats.json_schema import json_schema_of

            return json_schema_of(kind)
        from levada.spark.formats.protobuf_encoder import proto_of

        return proto_of(kind, self._previous_message(topic))

    def _previous_message(self, topic: str) -> Any:
        """The message of the latest schema, whose field numbers a derived one keeps."""
        from levada.spark.formats.protobuf import ProtobufSchema

        if self._form.registry is None:
            return None
        try:
            found = schema_registry(self._form.registry).version(self._form.subject_of(topic))
        except UnknownSchema:
            return None
        if found.type != "PROTOBUF":
            return None
        return ProtobufSchema(found.text, found.references).message(self._form.message)

    def _id(self, topic: str, schema: Schema) -> int:
        if schema.id is not None:
            return schema.id
        assert self._form.registry is not None
        registry, subject = schema_registry(self._form.registry), self._form.subject_of(topic)
        try:
            if self._registers:
                return registry.register(subject, schema.type, schema.text)
            return registry.lookup(subject, schema.type, schema.text)
        except UnknownSchema as error:
            raise OptionError(
                f"the schema of column {self.column} is not registered under {subject}, and auto.register.schemas is "
                f"false: register it, or set use.latest.version or {self.column}SchemaId. {error}. It is {schema.text}"
            ) from None
        except IncompatibleSchema as error:
            raise IncompatibleSchema(
                f"the schema of column {self.column} cannot be registered under {subject}: {error}. It is {schema.text}"
            ) from None


def _may_be_infinite(column: Any) -> bool:
    """Whether a number in a column of any type is NaN or infinite; the content of nulls may count."""
    kind = column.type
    if pa.types.is_floating(kind):
        return bool(pc.any(pc.invert(pc.is_finite(column))).as_py())
    if pa.types.is_struct(kind):
        return any(map(_may_be_infinite, column.flatten()))
    if pa.types.is_map(kind):
        return _may_be_infinite(column.items)
    return pa.types.is_list(kind) and _may_be_infinite(column.flatten())


def _only_finite(encode: Encode) -> Encode:
    """The same function for values without NaN and infinity; the encoder would write them as null."""

    def check(value: Any) -> None:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"JSON has no {value}")
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(one)

    def checked(value: Any) -> bytes:
        check(value)
        return encode(value)

    return checked


def _encoder(form: ColumnFormat, schema: Schema) -> tuple[bytes, Encode]:
    """The path of indexes to the message, which only Protocol Buffers have, and the function that encodes."""
    try:
        if form.name == "json":
            return b"", msgspec.json.Encoder(decimal_format="number").encode
        if form.name == "avro":
            from levada.spark.formats.avro import AvroSchema, avro_encoder

            texts = [text for _, text in schema.references]
            return b"", avro_encoder(AvroSchema(schema.text, texts, typed=False))
        from levada.spark.formats.protobuf import ProtobufSchema
        from levada.spark.formats.protobuf_encoder import protobuf_encoder

        compiled = ProtobufSchema(schema.text, schema.references)
        message = compiled.message(form.message)
        return encode_indexes(compiled.indexes(message)), protobuf_encoder(message)
    except ValueError as error:
        raise OptionError(f"column {form.column} cannot be written as {form.name}: {error}") from None

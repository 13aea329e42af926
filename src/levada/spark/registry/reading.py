"""The reader's schema of a typed column, its type in Spark, and the decoder of its values.

The driver chooses the reader's schema once for each query: a given one, or the latest of the subject. Tasks decode each
value with the schema that it was written with, and resolve it to the reader's.
"""

from collections.abc import Collection
from typing import Any, Protocol

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from levada.spark.errors import OptionError
from levada.spark.formats.rows import ValueDecoder, decode_rows
from levada.spark.registry.client import Schema, UnknownSchema, schema_registry
from levada.spark.registry.options import LATEST, ColumnFormat

TYPES = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}


def reader_schema(form: ColumnFormat, topics: Collection[str]) -> Schema | None:
    """The schema that a reader wants; None if only columns in SQL are given, which only JSON can have."""
    if form.schema:
        is_columns = form.name == "json" and not form.schema.lstrip().startswith("{")
        return None if is_columns else Schema(TYPES[form.name], form.schema)
    if form.registry is None:
        return None
    registry = schema_registry(form.registry)
    try:
        if form.schema_id is not None:
            return _of_type(registry.schema(form.schema_id), form)
        return _of_type(registry.version(_subject(form, topics), form.version or LATEST), form)
    except UnknownSchema as error:
        if form.name == "json" and form.schema_id is None and form.version is None:
            return None  # a DataFrame's own schema may name the columns
        advice = f"write to the topic first, or set {form.column}Schema, {form.column}Subject or {form.column}SchemaId"
        raise OptionError(
            f"{form.option('Format')} {form.name}: there is no schema to read with: {error}; {advice}"
        ) from None


def _subject(form: ColumnFormat, topics: Collection[str]) -> str:
    if form.subject:
        return form.subject
    if len(topics) != 1:
        raise OptionError(
            f"{form.option('Subject')} is missing: a query that reads several topics has one schema for all. Set it, "
            f"or {form.column}Schema or {form.column}SchemaId"
        )
    return form.subject_of(next(iter(topics)))


def _of_type(schema: Schema, form: ColumnFormat) -> Schema:
    if schema.type != TYPES[form.name]:
        raise OptionError(
            f"{form.option('Format')} is {form.name}, and the registry's schema {schema.id} is {schema.type}"
        )
    return schema


def schema_type(form: ColumnFormat, schema: Schema) -> DataType:
    """The type in Spark of a reader's schema; OptionError if it has none."""
    try:
        return _type(form, schema)
    except ValueError as error:
        where = (
            form.option("Schema")
            if schema.id is None
            else f"{form.option('Format')}: the registry's schema {schema.id}"
        )
        raise OptionError(f"{where}: {error}") from None


def _type(form: ColumnFormat, schema: Schema) -> DataType:
    texts = [text for _, text in schema.references]
    if form.name == "avro":
        from levada.spark.formats.avro import AvroSchema

        return AvroSchema(schema.text, texts).type
    if form.name == "json":
        from levada.spark.formats.json_schema import type_of_json_schema

        return type_of_json_schema(schema.text)
    from levada.spark.formats.protobuf import ProtobufSchema, type_of_message

    return type_of_message(ProtobufSchema(schema.text, schema.references).message(form.message))


def unknown_fields(wanted: DataType, known: DataType, path: str = "", *, by_type: bool = True) -> list[str]:
    """The fields of a type that another one does not have under the same name, or has with another type."""
    if isinstance(wanted, StructType) and isinstance(known, StructType):
        types = {field.name: field.dataType for field in known.fields}
        found = []
        for field in wanted.fields:
            deeper, kind = f"{path}.{field.name}" if path else field.name, types.get(field.name)
            found += [deeper] if kind is None else unknown_fields(field.dataType, kind, deeper, by_type=by_type)
        return found
    if isinstance(wanted, ArrayType) and isinstance(known, ArrayType):
        return unknown_fields(wanted.elementType, known.elementType, path, by_type=by_type)
    if isinstance(wanted, MapType) and isinstance(known, MapType) and wanted.keyType == known.keyType:
        return unknown_fields(wanted.valueType, known.valueType, path, by_type=by_type)
    return [path] if by_type and wanted != known else []


def column_decoder(form: ColumnFormat, reader: Schema | None, kind: Any) -> ValueDecoder:
    """The decoder of a column as an Arrow type; OptionError if its type cannot be had."""
    from levada.spark.registry.wire_format import RegistryDecoder

    kinds: dict[str, type[_Avro | _Json | _Protobuf]] = {"avro": _Avro, "json": _Json, "protobuf": _Protobuf}
    try:
        create: _Decoders = kinds[form.name](form, reader, kind)
    except ValueError as error:
        raise OptionError(f"{form.option('Schema')}: {error}") from None
    if form.registry is None:
        return create.plain()
    return RegistryDecoder(schema_registry(form.registry), kind, create.by_writer, form.unknown_ids_max)


class _Decoders(Protocol):
    """Creates the decoders of one format."""

    def plain(self) -> ValueDecoder:
        """For values of the reader's schema."""

    def by_writer(self, schema: Schema) -> ValueDecoder:
        """For values of another schema; ValueError if they cannot be read."""


class _Avro:
    """Creates decoders of Avro."""

    def __init__(self, form: ColumnFormat, reader: Schema | None, kind: Any) -> None:
        from levada.spark.formats.avro import AvroSchema

        assert reader is not None
        self._kind, self._reader = kind, AvroSchema(reader.text, [text for _, text in reader.references])

    def plain(self) -> ValueDecoder:
        from levada.spark.formats.avro import AvroDecoder

        return AvroDecoder(self._reader, self._kind)

    def by_writer(self, schema: Schema) -> ValueDecoder:
        from levada.spark.formats.avro import AvroDecoder, AvroSchema

        _check_type(schema, "AVRO")
        writer = AvroSchema(schema.text, [text for _, text in schema.references], typed=False)
        return AvroDecoder(writer, self._kind, self._reader)


class _Json:
    """Creates decoders of JSON, which describes itself: the writer's schema is only checked to exist."""

    def __init__(self, form: ColumnFormat, reader: Schema | None, kind: Any) -> None:
        from levada.spark.formats.json import JsonDecoder

        self._decoder = JsonDecoder(kind)

    def plain(self) -> ValueDecoder:
        return self._decoder

    def by_writer(self, schema: Schema) -> ValueDecoder:
        _check_type(schema, "JSON")
        return self._decoder


class _Protobuf:
    """Creates decoders of Protocol Buffers."""

    def __init__(self, form: ColumnFormat, reader: Schema | None, kind: Any) -> None:
        from levada.spark.formats.protobuf import ProtobufSchema

        assert reader is not None
        self._kind = kind
        self._message = ProtobufSchema(reader.text, reader.references).message(form.message)

    def plain(self) -> ValueDecoder:
        from levada.spark.formats.protobuf import ProtobufDecoder

        return ProtobufDecoder(self._message, self._kind, self._message)

    def by_writer(self, schema: Schema) -> ValueDecoder:
        _check_type(schema, "PROTOBUF")
        return _IndexedMessages(schema, self._message, self._kind)


class _IndexedMessages:
    """Decodes the messages of one schema by the indexes before each."""

    def __init__(self, schema: Schema, reader: Any, kind: Any) -> None:
        from levada.spark.formats.protobuf import ProtobufSchema

        self._schema, self._reader, self._kind = ProtobufSchema(schema.text, schema.references), reader, kind
        self._decoders: dict[tuple[int, ...], Any] = {}

    def decode(self, values: Any) -> tuple[Any, Any]:
        from levada.spark.formats.protobuf import ProtobufDecoder
        from levada.spark.registry.wire_format import split_indexes

        decoders = self._decoders

        def decode(value: bytes) -> Any:
            indexes, position = split_indexes(value)
            found = decoders.get(indexes)
            if found is None:
                message = self._schema.message_at(indexes)
                found = decoders[indexes] = ProtobufDecoder(message, self._kind, self._reader).decode_one
            return found(value[position:])

        return decode_rows(values, decode, self._kind)


def _check_type(schema: Schema, wanted: str) -> None:
    if schema.type != wanted:
        raise ValueError(f"the schema is {schema.type}, not {wanted}")

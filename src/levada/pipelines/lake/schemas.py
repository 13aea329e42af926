"""Schemas of a lake: merges what is compatible, and reads records of an older schema as those of a newer one.

As in Spark, Parquet and Delta, a schema may get columns and nested fields, and numbers may become wider. A column that
a file does not have is null. Everything else (another type, a narrower number) is incompatible.
"""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import types as t

from levada.pipelines.errors import LakeError
from levada.pipelines.lake.files import Files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DATE = "date"  # of a record's timestamp, in UTC
_DAYS = "floor(unix_millis(timestamp) / 86400000)"
# The same in every session time zone; null outside the years 1 to 9999, in which no reader of a directory's name or of
# a Delta table takes it for a date: the kernel of Delta cannot open a table with such a one.
DATE_EXPRESSION = f"if({_DAYS} BETWEEN -719162 AND 2932896, date_from_unix_date(int({_DAYS})), NULL)"
# What Spark reads from a Parquet file of the first type.
WIDER: dict[type[t.DataType], tuple[type[t.DataType], ...]] = {
    t.ByteType: (t.ShortType, t.IntegerType, t.LongType, t.DoubleType),
    t.ShortType: (t.IntegerType, t.LongType, t.DoubleType),
    t.IntegerType: (t.LongType, t.DoubleType),
    t.FloatType: (t.DoubleType,),
}


OTHER_LAKE = "--to another path"


class Merging(NamedTuple):
    """How types of numbers may differ."""

    may_widen: bool = True  # the new type may be wider: the merged schema has that one
    may_narrow: bool = False  # the new type may be narrower: the merged schema has the old one


WIDENING = Merging()
READING = Merging(may_narrow=True)
SAME_TYPES = Merging(may_widen=False)


class IncompatibleSchemaError(Exception):
    """A column has a type in the lake that cannot be merged with its new one."""

    def __init__(self, column: str, old: str, new: str, reason: str = "") -> None:
        super().__init__(column, old, new, reason)
        self.column = column
        self.old = old
        self.new = new
        self.reason = reason

    def lake_error(self, old_place: str, new_place: str, advice: str) -> LakeError:
        """The same for users: where the two types are, and what can be done."""
        reason = f": {self.reason}" if self.reason else ""
        return LakeError(
            f"the column {self.column} is {self.old} in {old_place} and {self.new} in {new_place}{reason}; {advice}"
        )


def lake_schema(records: t.StructType) -> t.StructType:
    """The schema of a lake with these records: they have a date there, and every column may be null."""
    fields = [field for field in records.fields if field.name != DATE]
    found = _nullable(t.StructType([*fields, t.StructField(DATE, t.DateType())]))
    assert isinstance(found, t.StructType)
    return found


def file_schema(columns: t.StructType) -> t.StructType:
    """The schema of a lake that has files with these columns; topic and date are in the names of directories."""
    return lake_schema(t.StructType([*columns.fields, t.StructField("topic", t.StringType())]))


def _nullable(kind: t.DataType) -> t.DataType:
    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(field.name, _nullable(field.dataType)) for field in kind.fields])
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_nullable(kind.elementType))
    if isinstance(kind, t.MapType):
        return t.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def merge_schemas(old: t.StructType, new: t.StructType, merging: Merging = WIDENING) -> t.StructType:
    """Both schemas as one: the fields of the old one, then new ones; IncompatibleSchemaError if that cannot be."""
    return _merge_fields("", old, new, merging)


def _merge_fields(path: str, old: t.StructType, new: t.StructType, merging: Merging) -> t.StructType:
    known = {field.name.lower(): field.name for field in old.fields}
    for field in new.fields:
        name = known.get(field.name.lower(), field.name)
        if name != field.name:
            raise IncompatibleSchemaError(f"{path}{name}", name, field.name, "the name differs only in case")
    added = {field.name: field.dataType for field in new.fields}
    fields = []
    for field in old.fields:
        column, kind = f"{path}{field.name}", added.pop(field.name, None)
        if kind is None and not field.nullable:
            raise IncompatibleSchemaError(column, f"{ddl(field.dataType)} NOT NULL", "missing")
        merged = field.dataType if kind is None else _merge(column, field.dataType, kind, merging)
        fields.append(t.StructField(field.name, merged, field.nullable))
    return t.StructType([*fields, *(t.StructField(name, _nullable(kind)) for name, kind in added.items())])


def _merge(path: str, old: t.DataType, new: t.DataType, merging: Merging) -> t.DataType:
    if isinstance(old, t.StructType) and isinstance(new, t.StructType):
        return _merge_fields(f"{path}.", old, new, merging)
    if isinstance(old, t.ArrayType) and isinstance(new, t.ArrayType):
        element = _merge(f"{path}.element", old.elementType, new.elementType, merging)
        return t.ArrayType(element, old.containsNull)
    if isinstance(old, t.MapType) and isinstance(new, t.MapType) and _nullable(old.keyType) == _nullable(new.keyType):
        value = _merge(f"{path}.value", old.valueType, new.valueType, merging)
        return t.MapType(old.keyType, value, old.valueContainsNull)
    if old == new or (merging.may_narrow and _is_wider(old, new)):
        return old
    if not _is_wider(new, old):
        reason = "a column cannot become narrower" if _is_wider(old, new) else ""
        raise IncompatibleSchemaError(path, ddl(old), ddl(new), reason)
    if not merging.may_widen:
        raise IncompatibleSchemaError(path, ddl(old), ddl(new), "a column of a Delta table cannot become wider")
    return new


def _is_wider(wide: t.DataType, narrow: t.DataType) -> bool:
    """Whether the first type has all numbers of the second."""
    if isinstance(wide, t.DecimalType) and isinstance(narrow, t.DecimalType):
        digits = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return wide != narrow and digits and wide.scale >= narrow.scale
    return type(wide) in WIDER.get(type(narrow), ())


def merge_records_schema(
    root: str, lake: t.StructType, records: t.StructType, merging: Merging = WIDENING
) -> t.StructType:
    """The schema of a lake after records of another schema are added; LakeError if they cannot be."""
    try:
        return merge_schemas(lake, records, merging)
    except IncompatibleSchemaError as error:
        if error.column == "value" and error.old == "BINARY":
            advice = "continue without valueFormat (bytes can be decoded when they are read)"
        elif error.column == "value" and error.new == "BINARY":
            advice = "continue with valueFormat and the valueSchema of the lake"
        else:
            advice = "continue with the type of the lake"
        advice += f", or archive to another lake ({OTHER_LAKE}). Nothing was written"
        raise error.lake_error(f"the lake {root}", "the records", advice) from None


def merge_files_schemas(files: Files, names: Iterable[str]) -> t.StructType | None:
    """The schema of a lake from its files; None if there are none, LakeError if it has no common schema."""
    merged = None
    for text in dict.fromkeys(files.parquet_footer(name).schema for name in names):
        found = file_schema(t.StructType.fromJson(json.loads(text)))
        try:
            merged = found if merged is None else merge_schemas(merged, found, READING)
        except IncompatibleSchemaError as error:
            advice = f"an older version wrote them. Archive to another lake ({OTHER_LAKE})"
            raise error.lake_error(f"files of the lake {files.root}", "other files", advice) from None
    return merged


def merge_topics_schemas(root: str, schemas: Iterable[t.StructType]) -> t.StructType | None:
    """The schema of all topics of a lake; None if there are none, LakeError if they have no common schema."""
    merged = None
    for schema in schemas:
        try:
            merged = schema if merged is None else merge_schemas(merged, schema, READING)
        except IncompatibleSchemaError as error:
            advice = "read or register each topic by itself (its directory is topic=NAME)"
            raise error.lake_error(f"one topic of the lake {root}", "another", advice) from None
    return merged


def ddl(kind: t.DataType) -> str:
    """A type as SQL writes it."""
    if isinstance(kind, t.StructType):
        return f"STRUCT<{', '.join(f'{field.name}: {ddl(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, t.ArrayType):
        return f"ARRAY<{ddl(kind.elementType)}>"
    if isinstance(kind, t.MapType):
        return f"MAP<{ddl(kind.keyType)}, {ddl(kind.valueType)}>"
    return kind.simpleString().upper()


def with_schema(rows: "DataFrame", schema: t.StructType) -> "DataFrame":
    """The rows with the columns of a schema that is merged from theirs; columns that they do not have are null."""
    from pyspark.sql.functions import col, lit

    columns = []
    for field in schema.fields:
        if field.name in rows.columns:
            column = _cast(col(f"`{field.name}`"), rows.schema[field.name].dataType, field.dataType)
        else:
            column = lit(None).cast(field.dataType)
        columns.append(column.alias(field.name))
    return rows.select(*columns)


def _cast(column: "Column", old: t.DataType, new: t.DataType) -> "Column":
    from pyspark.sql.functions import lit, struct, transform, transform_values, when

    if _nullable(old) == _nullable(new):
        return column
    if isinstance(old, t.StructType) and isinstance(new, t.StructType):
        known = {field.name: field.dataType for field in old.fields}
        fields = [
            (
                _cast(column.getField(field.name), known[field.name], field.dataType)
                if field.name in known
                else lit(None).cast(field.dataType)
            ).alias(field.name)
            for field in new.fields
        ]
        return when(column.isNotNull(), struct(*fields))
    if isinstance(old, t.ArrayType) and isinstance(new, t.ArrayType):
        kinds = old.elementType, new.elementType
        return transform(column, lambda element: _cast(element, *kinds))
    if isinstance(old, t.MapType) and isinstance(new, t.MapType):
        values = old.valueType, new.valueType
        return transform_values(column, lambda _, value: _cast(value, *values))
    return column.cast(new)

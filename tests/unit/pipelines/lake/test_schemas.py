"""Which schemas a lake merges, and what it says of the others."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from levada.pipelines.errors import LakeError
from levada.pipelines.lake.schemas import (
    READING,
    SAME_TYPES,
    WIDENING,
    IncompatibleSchemaError,
    Merging,
    lake_schema,
    merge_records_schema,
    merge_schemas,
)

INT, LONG, FLOAT, DOUBLE, STRING, BINARY = (
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    StringType(),
    BinaryType(),
)


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize(
    ("old", "new", "merged"),
    [
        (INT, INT, INT),
        (INT, LONG, LONG),
        (ByteType(), LONG, LONG),
        (INT, DOUBLE, DOUBLE),
        (FLOAT, DOUBLE, DOUBLE),
        (DecimalType(5, 2), DecimalType(10, 3), DecimalType(10, 3)),
        (struct(a=INT), struct(b=INT), struct(a=INT, b=INT)),
        (struct(a=struct(b=INT)), struct(a=struct(b=LONG, c=STRING)), struct(a=struct(b=LONG, c=STRING))),
        (ArrayType(struct(a=INT)), ArrayType(struct(b=INT)), ArrayType(struct(a=INT, b=INT))),
        (MapType(STRING, INT), MapType(STRING, LONG), MapType(STRING, LONG)),
    ],
)
def test_compatible_types_are_merged(old: DataType, new: DataType, merged: DataType) -> None:
    assert merge_schemas(struct(v=old), struct(v=new)) == struct(v=merged)
    assert merge_schemas(struct(v=merged), struct(v=old), READING) == struct(v=merged)


@pytest.mark.parametrize(
    ("old", "new", "merging"),
    [
        (STRING, INT, WIDENING),
        (INT, STRING, READING),
        (LONG, INT, WIDENING),
        (LONG, DOUBLE, READING),  # not every long is a double
        (DOUBLE, FLOAT, WIDENING),
        (INT, LONG, SAME_TYPES),
        (DecimalType(10, 2), DecimalType(10, 4), READING),
        (DateType(), TimestampType(), READING),
        (BINARY, struct(a=INT), READING),
        (struct(a=INT), BINARY, READING),
        (ArrayType(INT), INT, READING),
        (ArrayType(STRING), ArrayType(INT), READING),
        (MapType(STRING, INT), MapType(INT, INT), READING),
        (struct(a=struct(b=INT)), struct(a=struct(B=INT)), READING),
    ],
)
def test_others_are_not(old: DataType, new: DataType, merging: Merging) -> None:
    with pytest.raises(IncompatibleSchemaError):
        merge_schemas(struct(v=old), struct(v=new), merging)


def test_a_column_of_every_record_cannot_go() -> None:
    """As in Delta tables of older versions, which kept NOT NULL."""
    old = StructType([StructField("a", INT, nullable=False), StructField("b", INT)])
    assert merge_schemas(old, struct(a=INT, c=INT)).names == ["a", "b", "c"]
    with pytest.raises(IncompatibleSchemaError):
        merge_schemas(old, struct(b=INT))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            LONG,
            INT,
            r"the column value.a is BIGINT in the lake lake and INT in the records: .*narrower; .*Nothing was written",
        ),
        (STRING, INT, r"the column value.a is STRING .* INT .*; continue with the type of the .*Nothing was written"),
        (None, INT, r"value is BINARY .* STRUCT<a: INT> .*continue without valueFormat .*--to another .*Nothing was"),
        (INT, None, r"value is STRUCT<a: INT> .* BINARY .*continue with valueFormat .*--to another path.*Nothing was"),
    ],
)
def test_a_message_says_what_can_be_done(old: DataType | None, new: DataType | None, message: str) -> None:
    lake, records = (struct(value=BINARY if kind is None else struct(a=kind)) for kind in (old, new))
    with pytest.raises(LakeError, match=message):
        merge_records_schema("lake", lake, records)


def test_every_column_of_a_lake_may_be_null() -> None:
    records = StructType([StructField("l", ArrayType(INT, containsNull=False), nullable=False)])
    assert lake_schema(records) == StructType([StructField("l", ArrayType(INT)), StructField("date", DateType())])

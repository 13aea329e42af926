"""Derived .proto files keep the numbers of the latest one, reserve those of dropped fields, and find free ones."""

import re

import pytest
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructType

from levada.spark.formats.protobuf import ProtobufSchema
from levada.spark.formats.protobuf_encoder import proto_of


def derived(body: str, *names: str, syntax: str = "proto3") -> str:
    """The .proto file of columns with these names, after one with this body."""
    previous = ProtobufSchema(f'syntax = "{syntax}"; message A {{ {body} }}').message()
    kind = StructType()
    for name in names:
        kind = kind.add(name, LongType())
    return proto_of(kind, previous)


def numbers(text: str) -> dict[str, int]:
    return {field.name: field.number for field in ProtobufSchema(text).message().fields}


@pytest.mark.parametrize(
    ("body", "number", "reserved"),
    [
        ("int64 a = 1;", 2, ""),
        ("int64 a = 1; int64 b = 2; int64 c = 3; int64 d = 7;", 8, "2 to 3, 7"),
        ("int64 a = 1; reserved 5 to max;", 2, "5 to 536870911"),
        ("int64 a = 1; int64 b = 7; reserved 3 to 4, 10 to max;", 8, "3 to 4, 7, 10 to 536870911"),
        ("int64 a = 4; reserved 5 to max;", 1, "5 to 536870911"),
        ("int64 a = 1; int64 b = 536870911;", 2, "536870911"),
        ("int64 a = 18999;", 20_000, ""),
        ("int64 a = 18999; reserved 20000 to max;", 1, "20000 to 536870911"),
        ("int64 a = 1; reserved 2 to 18999;", 20_000, "2 to 18999"),
    ],
)
def test_a_new_field_gets_a_number_that_is_free(body: str, number: int, reserved: str) -> None:
    text = derived(body, "a", "new")
    assert numbers(text)["new"] == number
    found = re.search("reserved (.*);", text)
    assert (found[1] if found else "") == reserved
    assert derived(body, "a", "new", "newer") != text and len(numbers(derived(body, "a", "new", "newer"))) == 3


def test_numbers_of_extensions_are_not_used() -> None:
    text = derived("optional int64 a = 1; extensions 100 to max;", "a", "new", syntax="proto2")
    assert numbers(text) == {"a": 1, "new": 2} and "reserved 100 to 536870911;" in text


def test_a_message_without_a_free_number_is_refused() -> None:
    with pytest.raises(ValueError, match="no number left"):
        derived("int64 a = 1; reserved 2 to max;", "a", "new")


INNER = StructType().add("n", LongType())
IN_MAP = MapType(StringType(), INNER)


def message_names(text: str) -> dict[str, str]:
    return {
        field.name: field.message_type.name
        for field in ProtobufSchema(text).message().fields
        if field.message_type is not None
    }


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"item": INNER, "line_item": ArrayType(INNER)}, {"item": "Item", "line_item": "LineItem"}),
        ({"fooBar": INNER, "foobar": ArrayType(INNER)}, {"fooBar": "Foobar", "foobar": "Foobar_2"}),
        ({"Item": INNER}, {"Item": "Item_1"}),
        ({"n": INNER, "N": LongType(), "N_1": LongType()}, {"n": "N_1_1"}),
        ({"_1": INNER}, {"_1": "Message1"}),
    ],
)
def test_each_message_has_a_name_of_its_own(columns: dict[str, DataType], names: dict[str, str]) -> None:
    kind = StructType()
    for name, column in columns.items():
        kind = kind.add(name, column)
    text = proto_of(kind)
    assert message_names(text) == names
    assert proto_of(kind, ProtobufSchema(text).message()) == text


def test_messages_keep_their_names_when_columns_come_and_go() -> None:
    kind = StructType().add("foobar", INNER)
    latest = proto_of(kind)
    for columns, names in (
        (("fooBar", "foobar"), {"fooBar": "Foobar_2", "foobar": "Foobar"}),
        (("foobar", "fooBar"), {"fooBar": "Foobar_2", "foobar": "Foobar"}),
        (("fooBar",), {"fooBar": "Foobar_2"}),
        (("fooBar", "foobar"), {"fooBar": "Foobar_2", "foobar": "Foobar"}),
    ):
        kind = StructType()
        for name in columns:
            kind = kind.add(name, INNER)
        latest = proto_of(kind, ProtobufSchema(latest).message())
        assert message_names(latest) == names


def test_columns_of_one_message_get_one_each() -> None:
    text = """
        syntax = "proto3"; message A { N a = 2; map<string, N> b = 5; repeated N c = 7; }
        message N { int64 n = 4; int64 gone = 5; }
    """
    kind = StructType().add("c", ArrayType(INNER)).add("a", INNER).add("b", IN_MAP)
    found = proto_of(kind, ProtobufSchema(text).message())
    parts = [line.strip() for line in found.splitlines()]
    assert {"repeated N c = 7;", "N_2 a = 2;", "map<string, N_5> b = 5;"} <= {*parts}
    assert parts.count("optional int64 n = 4;") == parts.count("reserved 5;") == 3
    assert proto_of(kind, ProtobufSchema(found).message()) == found


@pytest.mark.parametrize("names", [("item_1", "item1"), ("foo_bar", "fooBar")])
def test_columns_of_one_json_name_are_refused(names: tuple[str, str]) -> None:
    for column in (INNER, LongType()):
        with pytest.raises(ValueError, match=f"do not allow {names[0]} beside {names[1]}.*rename one"):
            proto_of(StructType().add(names[0], column).add(names[1], column))

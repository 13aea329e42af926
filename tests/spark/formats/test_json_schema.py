"""JSON Schemas of a registry become types of Spark, or errors that say what is wrong."""

import json
from typing import Any

import pytest

from levada.spark.formats.json_schema import type_of_json_schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": {}},
        {"type": ["null", {}]},
        {"type": "string", "format": []},
        {"oneOf": 3},
        {"anyOf": None},
    ],
)
def test_a_keyword_of_another_type_is_reported(schema: Any) -> None:
    for whole in (schema, {"type": "object", "properties": {"a": schema}}):
        with pytest.raises(ValueError, match="this is not a JSON Schema"):
            type_of_json_schema(json.dumps(whole))


@pytest.mark.parametrize("properties", [[1], "a", 5])
def test_properties_that_are_no_object_are_reported(properties: Any) -> None:
    with pytest.raises(ValueError, match="this is not a JSON Schema"):
        type_of_json_schema(json.dumps({"type": "object", "properties": properties}))


def test_a_format_that_spark_does_not_have_is_a_string() -> None:
    found = type_of_json_schema('{"properties": {"a": {"type": "string", "format": "uuid"}}}')
    assert found.simpleString() == "struct<a:string>"

"""The Spark type of a JSON Schema, and the JSON Schema of a Spark type."""

import json
from typing import Any

from pyspark.sql import types as t

DEPTH_MAX = 64
DRAFT = "http://json-schema.org/draft-07/schema#"
PLAIN: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "integer": t.LongType(),
    "number": t.DoubleType(),
    "string": t.StringType(),
}
FORMATS: dict[str, t.DataType] = {"date-time": t.TimestampType(), "date": t.DateType()}
WRITTEN: dict[type[t.DataType], dict[str, str]] = {
    t.BooleanType: {"type": "boolean"},
    t.ByteType: {"type": "integer"},
    t.ShortType: {"type": "integer"},
    t.IntegerType: {"type": "integer"},
    t.LongType: {"type": "integer"},
    t.FloatType: {"type": "number"},
    t.DoubleType: {"type": "number"},
    t.DecimalType: {"type": "number"},
    t.StringType: {"type": "string"},
    t.DateType: {"type": "string", "format": "date"},
    t.TimestampType: {"type": "string", "format": "date-time"},
    t.TimestampNTZType: {"type": "string"},
}


def type_of_json_schema(text: str) -> t.StructType:
    """The Spark type of the objects that a JSON Schema describes; ValueError if it has none."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a JSON Schema is JSON: {error}") from None
    try:
        found = _type(schema, schema, 0)
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"this is not a JSON Schema: {error!r}") from None
    if not isinstance(found, t.StructType):
        raise ValueError("the JSON Schema must be that of an object with properties")
    return found


def _type(schema: Any, root: Any, depth: int) -> t.DataType:
    if depth > DEPTH_MAX:
        raise ValueError("the JSON Schema contains itself, or is nested too deeply")
    if not isinstance(schema, dict):
        raise ValueError(f"the JSON Schema {schema!r} has no type in Spark")
    if "$ref" in schema:
        return _type(_referenced(schema["$ref"], root), root, depth + 1)
    for word in ("oneOf", "anyOf"):
        if word in schema:
            return _type(_only([one for one in schema[word] if one != {"type": "null"}], schema), root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string" if "enum" in schema else None)
    if isinstance(kind, list):
        kind = _only([one for one in kind if one != "null"], schema)
    if kind == "object":
        return _object(schema, root, depth)
    if kind == "array":
        return t.ArrayType(_type(schema.get("items"), root, depth + 1))
    if kind == "string":
        return FORMATS.get(schema.get("format", ""), t.StringType())
    if kind not in PLAIN:
        raise ValueError(f"the JSON Schema {json.dumps(schema)[:200]} has no type in Spark")
    return PLAIN[kind]


def _object(schema: dict[str, Any], root: Any, depth: int) -> t.DataType:
    properties = schema.get("properties")
    if properties:
        return t.StructType([t.StructField(name, _type(one, root, depth + 1)) for name, one in properties.items()])
    return t.MapType(t.StringType(), _type(schema.get("additionalProperties"), root, depth + 1))


def _only(choices: list[Any], schema: Any) -> Any:
    if len(choices) != 1:
        raise ValueError(f"a JSON Schema can only offer null and one other type; found {json.dumps(schema)[:200]}")
    return choices[0]


def _referenced(reference: Any, root: Any) -> Any:
    """What a reference within the schema means."""
    found = root
    if not isinstance(reference, str) or not reference.startswith("#/"):
        raise ValueError(f"a reference of a JSON Schema can only be to a part of itself; found {reference!r}")
    for part in reference[2:].split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def json_schema_of(kind: t.DataType) -> str:
    """The JSON Schema of a Spark type; ValueError if it has none."""
    if not isinstance(kind, t.StructType):
        raise ValueError("only a struct has a JSON Schema")
    return json.dumps({"$schema": DRAFT, "title": "topLevelRecord"} | _schema(kind))


def _schema(kind: t.DataType) -> dict[str, Any]:
    if isinstance(kind, t.StructType):
        properties = {field.name: _nullable(_schema(field.dataType), field.nullable) for field in kind.fields}
        required = [field.name for field in kind.fields if not field.nullable]
        return {"type": "object", "properties": properties} | ({"required": required} if required else {})
    if isinstance(kind, t.ArrayType):
        return {"type": "array", "items": _nullable(_schema(kind.elementType), kind.containsNull)}
    if isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
        values = _nullable(_schema(kind.valueType), kind.valueContainsNull)
        return {"type": "object", "additionalProperties": values}
    if type(kind) not in WRITTEN:
        raise ValueError(f"JSON has no type for {kind.simpleString()}; cast it to string")
    return dict(WRITTEN[type(kind)])


def _nullable(schema: dict[str, Any], nullable: bool) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, schema]} if nullable else schema

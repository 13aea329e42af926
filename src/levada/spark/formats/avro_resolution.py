"""Prepares a pair of Avro schemas for fastavro, which resolves values of the writer's schema to the reader's.

fastavro alone converts a value by the writer's logical type and never by the reader's, and takes defaults as they are
in the JSON of the schema. Here the writer's schema gets the logical types of the reader's, and defaults become values.
Two types that both have a logical type keep their own, so that a timestamp in milliseconds is the same instant when it
is read as one in microseconds.
"""

from collections.abc import Mapping
from typing import Any

from fastavro.read import LOGICAL_READERS

from levada.spark.formats.rows import MALFORMED

LOGICAL_KEYS = ("logicalType", "precision", "scale")
INNER = {"array": "items", "map": "values"}
SAME_ENCODING = {("int", "long"), ("string", "bytes")}  # promotions that do not change the bytes of a value


def expanded(found: Any, named: Mapping[str, Any]) -> Any:
    """A parsed schema with definitions in place of names, and plain types as their names; it is not recursive."""
    if isinstance(found, list):
        return [expanded(one, named) for one in found]
    if isinstance(found, str):
        return expanded(named[found], named) if found in named else found
    kind = found["type"]
    if kind in ("record", "error"):
        fields = [field | {"type": expanded(field["type"], named)} for field in found["fields"]]
        return found | {"fields": fields}
    if kind in INNER:
        return found | {INNER[kind]: expanded(found[INNER[kind]], named)}
    return found if kind in ("enum", "fixed") or "logicalType" in found else kind


def with_logical_types_of(reader: Any, writer: Any) -> Any:
    """An expanded schema of a writer, with a logical type only where the reader's has one, too."""
    if isinstance(writer, list):
        return [with_logical_types_of(reader, one) for one in writer]
    if isinstance(reader, list):
        reader = next(one for one in reader if one != "null")
    wanted, known = _as_dict(reader), _as_dict(writer)
    pair = kind, other = known["type"], wanted["type"]
    if kind == other == "record":
        return known | {"fields": _fields(wanted, known)}
    if kind == other and kind in INNER:
        return known | {INNER[kind]: with_logical_types_of(wanted[INNER[kind]], known[INNER[kind]])}
    if "logicalType" in known and "logicalType" not in wanted:
        return {key: one for key, one in known.items() if key not in LOGICAL_KEYS} if kind == "fixed" else kind
    if "logicalType" in wanted and "logicalType" not in known and (kind == other or pair in SAME_ENCODING):
        return known | {"type": other} | {key: wanted[key] for key in LOGICAL_KEYS if key in wanted}
    return writer


def _as_dict(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {"type": found}


def _fields(reader: dict[str, Any], writer: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of a writer's record; fastavro, too, finds the reader's by name, and then by alias."""
    types = {alias: field["type"] for field in reader["fields"] for alias in field.get("aliases", ())}
    types |= {field["name"]: field["type"] for field in reader["fields"]}
    return [
        field | {"type": with_logical_types_of(types[field["name"]], field["type"])}
        if field["name"] in types
        else field
        for field in writer["fields"]
    ]


def with_default_values(found: Any) -> Any:
    """An expanded schema of a reader with values as defaults; one that is not of its type is left out."""
    if isinstance(found, list):
        return [with_default_values(one) for one in found]
    if not isinstance(found, dict):
        return found
    kind = found["type"]
    if kind in INNER:
        return found | {INNER[kind]: with_default_values(found[INNER[kind]])}
    return found | {"fields": [_field(field) for field in found["fields"]]} if kind == "record" else found


def _field(field: dict[str, Any]) -> dict[str, Any]:
    converted = field | {"type": with_default_values(field["type"])}
    if "default" in field:
        try:
            converted["default"] = _value(field["type"], field["default"])
        except MALFORMED:
            del converted["default"]
    return converted


def _value(found: Any, default: Any) -> Any:
    """The value that a default in JSON stands for."""
    if isinstance(found, list):
        return None if default is None else _value(next(one for one in found if one != "null"), default)
    found = _as_dict(found)
    kind = found["type"]
    if kind == "record":
        values = {field["name"]: field["default"] for field in found["fields"] if "default" in field} | default
        return {field["name"]: _value(field["type"], values[field["name"]]) for field in found["fields"]}
    if kind == "array":
        return [_value(found["items"], one) for one in default]
    if kind == "map":
        return {key: _value(found["values"], one) for key, one in default.items()}
    value = default.encode("latin-1") if kind in ("bytes", "fixed") else default
    convert = LOGICAL_READERS.get(f"{kind}-{found.get('logicalType')}")
    return convert(value, found, None) if convert else value

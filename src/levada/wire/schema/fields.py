"""Describes the fields of a message, read from kio's classes, whose fields carry Kafka's types as metadata.

The compiler works from these descriptions, so no other module depends on how kio declares its classes.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import MISSING
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Kafka's default of a field that declares none; only records default to null.
IMPLICIT_DEFAULTS: dict[str, Any] = {
    "string": "",
    "bytes": b"",
    "records": None,
    "uuid": None,
    "bool": False,
    "float64": 0.0,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "datetime_i64": EPOCH,
}


class Field(NamedTuple):
    """One field of a struct, as one version declares it."""

    name: str
    kafka_type: str  # Kafka's name of the type, of the element for arrays; "struct" for nested structs
    struct: "Struct | None"
    is_array: bool
    nullable: bool  # of the array, for arrays
    tag: int | None
    declared_default: Any

    @property
    def default(self) -> Any:
        """The value in messages that do not carry the field."""
        if self.declared_default is not MISSING:
            return self.declared_default
        if self.is_array:
            return ()
        if self.struct is not None:
            return self.struct.default()
        return IMPLICIT_DEFAULTS.get(self.kafka_type, 0)


class Struct(NamedTuple):
    """The fields of one message class in wire order."""

    cls: type
    flexible: bool
    fields: tuple[Field, ...]

    def find(self, name: str) -> Field | None:
        return next((field for field in self.fields if field.name == name), None)

    def default(self) -> Any:
        return self.cls(**{field.name: field.default for field in self.fields})

    def untagged(self) -> Iterator[Field]:
        return (field for field in self.fields if field.tag is None)

    def tagged(self) -> list[Field]:
        return sorted((field for field in self.fields if field.tag is not None), key=lambda f: f.tag or 0)


@cache
def struct_of(cls: Any) -> Struct:
    """Describe a message class."""
    return Struct(cls, cls.__flexible__, tuple(_field(field) for field in dataclasses.fields(cls)))


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) is not UnionType:
        return annotation, False
    (inner,) = (argument for argument in get_args(annotation) if argument is not NoneType)
    return inner, True


def _field(field: "dataclasses.Field[Any]") -> Field:
    annotation, nullable = _without_none(field.type)
    is_array = get_origin(annotation) is tuple
    if is_array:
        annotation, _ = _without_none(get_args(annotation)[0])
    struct: Struct | None = struct_of(annotation) if hasattr(annotation, "__flexible__") else None
    kafka_type = "struct" if struct is not None else field.metadata["kafka_type"]
    return Field(field.name, kafka_type, struct, is_array, nullable, field.metadata.get("tag"), field.default)

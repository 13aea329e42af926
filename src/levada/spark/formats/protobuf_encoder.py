"""Encodes Python values as Protocol Buffers, and derives the .proto file of a Spark type.

A derived schema keeps the field numbers of the subject's latest one: by number, not by name, readers know a field.
"""

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import types as t

from levada.spark.formats.protobuf import TIMESTAMP, WRAPPERS, is_map

MESSAGE = "TopLevelRecord"
NUMBER_MAX = 536_870_911
RESERVED_NUMBERS = range(19_000, 20_000)  # of Protocol Buffers itself
PLAIN: dict[type[t.DataType], str] = {
    t.BooleanType: "bool",
    t.ByteType: "int32",
    t.ShortType: "int32",
    t.IntegerType: "int32",
    t.LongType: "int64",
    t.FloatType: "float",
    t.DoubleType: "double",
    t.StringType: "string",
    t.BinaryType: "bytes",
    t.TimestampType: TIMESTAMP,
}
KEYS = (t.BooleanType, t.IntegerType, t.LongType, t.StringType)

Setter = Callable[[Any, Any], None]  # (message, value)


def protobuf_encoder(message: Descriptor) -> Callable[[Any], bytes]:
    """A function that encodes Python values as a message."""
    new, fill = GetMessageClass(message), _filler(message)

    def encode(value: Any) -> bytes:
        found = new()
        fill(found, value)
        data: bytes = found.SerializeToString()
        return data

    return encode


def _filler(message: Descriptor) -> Setter:
    if message.full_name == TIMESTAMP:
        return _set_timestamp
    if message.full_name in WRAPPERS:
        return lambda target, value: setattr(target, "value", value)
    setters = {field.name: _setter(field) for field in message.fields}

    def fill(target: Any, value: Any) -> None:
        target.SetInParent()
        for name, one in value.items():
            if one is not None:
                setters[name](target, one)

    return fill


def _set_timestamp(target: Any, value: datetime) -> None:
    target.SetInParent()
    target.FromDatetime(value)


def _setter(field: FieldDescriptor) -> Setter:
    if is_map(field):
        return _map_setter(field.name, field.message_type.fields_by_name["value"])
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _message_setter(field)
    name, convert = field.name, _converter(field)
    if field.is_repeated:
        return lambda target, value: getattr(target, name).extend(map(convert, value))
    return lambda target, value: setattr(target, name, convert(value))


def _message_setter(field: FieldDescriptor) -> Setter:
    name, fill = field.name, _filler(field.message_type)
    if not field.is_repeated:
        return lambda target, value: fill(getattr(target, name), value)

    def extend(target: Any, value: Any) -> None:
        for one in value:
            fill(getattr(target, name).add(), one)

    return extend


def _map_setter(name: str, field: FieldDescriptor) -> Setter:
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        convert = _converter(field)
        return lambda target, value: getattr(target, name).update({key: convert(one) for key, one in value.items()})
    fill = _filler(field.message_type)

    def update(target: Any, value: Any) -> None:
        for key, one in value.items():
            fill(getattr(target, name)[key], one)

    return update


def _converter(field: FieldDescriptor) -> Callable[[Any], Any]:
    """From Spark's value to one that the field accepts."""
    if field.enum_type is not None:
        numbers = {value.name: value.number for value in field.enum_type.values}
        return lambda value: numbers[value]
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return int  # Spark has a decimal
    return lambda value: value


def proto_of(kind: t.DataType, previous: Descriptor | None = None) -> str:
    """The text of a .proto file with a message for a struct; ValueError if a type has none.

    `previous` is the message of the subject's latest schema: its fields keep their numbers, and none is used again.
    """
    if not isinstance(kind, t.StructType):
        raise ValueError("only a struct has a Protocol Buffers message")
    name = previous.name if previous is not None else MESSAGE
    package = previous.file.package if previous is not None else ""
    body = _message(kind, name, previous, 0)
    head = ['syntax = "proto3";']
    head += [f"package {package};"] if package else []
    head += ['import "google/protobuf/timestamp.proto";'] if TIMESTAMP in "".join(body) else []
    return "\n".join([*head, *body, ""])


def _message(kind: t.StructType, name: str, previous: Descriptor | None, depth: int) -> list[str]:
    _check_json_names(kind)
    known = {field.name: field for field in previous.fields} if previous is not None else {}
    kept = {known[field.name].number for field in kind.fields if field.name in known}
    used = [*_reserved(previous), *(_one(field.number) for field in known.values())]
    gone = _merged([*_reserved(previous), *(_one(one.number) for one in known.values() if one.number not in kept)])
    numbers: dict[str, int] = {}
    for field in kind.fields:
        numbers[field.name] = known[field.name].number if field.name in known else _next_number(used)
        used.append(_one(numbers[field.name]))
    names = _message_names(kind, known, numbers)
    lines, nested = [], []
    for field in kind.fields:
        old = _part(known.get(field.name))
        text, inner = _field_type(field.name, field.dataType, names.get(field.name, ""), old, depth + 1)
        lines.append(f"  {text} {field.name} = {numbers[field.name]};")
        nested += inner
    reserved = [f"  reserved {', '.join(map(_range_text, gone))};"] if gone else []
    indent = "  " * depth
    return [f"{indent}{line}" for line in [f"message {name} {{", *reserved, *lines]] + nested + [f"{indent}}}"]


def _message_names(kind: t.StructType, known: dict[str, FieldDescriptor], numbers: dict[str, int]) -> dict[str, str]:
    """The names of the messages of structs: those of the latest schema, others by field; no name twice."""
    taken, found = set(numbers), {}
    for field in sorted(kind.fields, key=lambda field: field.name not in known):
        if not isinstance(_part_of(field.dataType), t.StructType):
            continue
        old = _part(known.get(field.name))
        if old is not None and old.message_type is not None:
            name = old.message_type.name
        else:
            name = "".join(part.capitalize() for part in field.name.split("_"))
            name = name if name.isidentifier() else f"Message{name}"
        while name in taken:
            name += f"_{numbers[field.name]}"
        taken.add(name)
        found[field.name] = name
    return found


def _check_json_names(kind: t.StructType) -> None:
    """ValueError if two fields have the same name in JSON, which protoc refuses."""
    found: dict[str, str] = {}
    for field in kind.fields:
        json_name = re.sub("_+([^_]?)", lambda match: match[1].upper(), field.name)
        if found.setdefault(json_name, field.name) != field.name:
            raise ValueError(
                f"Protocol Buffers do not allow {found[json_name]} beside {field.name}, because both are {json_name} "
                "in JSON; rename one"
            )


def _part(field: FieldDescriptor | None) -> FieldDescriptor | None:
    """The field of the values of a map, or else the field itself."""
    return field.message_type.fields_by_name["value"] if field is not None and is_map(field) else field


def _part_of(kind: t.DataType) -> t.DataType:
    """The type of an item of an array or a value of a map, or else the type itself."""
    if isinstance(kind, t.ArrayType):
        return kind.elementType
    return kind.valueType if isinstance(kind, t.MapType) else kind


def _reserved(previous: Descriptor | None) -> list[range]:
    """The numbers that no field of a message may have; they may be millions."""
    if previous is None:
        return []
    found = DescriptorProto()
    previous.CopyToProto(found)
    return [range(one.start, min(one.end, NUMBER_MAX + 1)) for one in (*found.reserved_range, *found.extension_range)]


def _one(number: int) -> range:
    return range(number, number + 1)


def _range_text(numbers: range) -> str:
    return str(numbers.start) if len(numbers) == 1 else f"{numbers.start} to {numbers.stop - 1}"


def _merged(ranges: Iterable[range]) -> list[range]:
    """The same numbers in as few ranges as possible, in order."""
    found: list[range] = []
    for one in sorted(ranges, key=lambda numbers: numbers.start):
        if found and one.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, one.stop))
        else:
            found.append(one)
    return found


def _next_number(used: Iterable[range]) -> int:
    """The number after all that are used, or else the first of the highest gap; ValueError if none is left."""
    merged = _merged(used)
    starts, stops = [1, *(one.stop for one in merged)], [*(one.start for one in merged), NUMBER_MAX + 1]
    for start, stop in zip(reversed(starts), reversed(stops), strict=True):
        first = RESERVED_NUMBERS.stop if start in RESERVED_NUMBERS else start
        if first < stop:
            return first
    raise ValueError("the message has no number left for another field")


def _field_type(
    name: str, kind: t.DataType, message: str, old: FieldDescriptor | None, depth: int
) -> tuple[str, list[str]]:
    """The type of a field with its label, and the message that it needs."""
    part, label, end = kind, "optional ", ""
    if not isinstance(_part_of(kind), t.ArrayType | t.MapType):
        if isinstance(kind, t.ArrayType):
            part, label = kind.elementType, "repeated "
        elif isinstance(kind, t.MapType) and isinstance(kind.keyType, KEYS):
            part, label, end = kind.valueType, f"map<{PLAIN[type(kind.keyType)]}, ", ">"
    if isinstance(part, t.StructType):
        previous = old.message_type if old is not None else None
        text, nested = message, _message(part, message, previous, depth)
    elif type(part) in PLAIN:
        text, nested = PLAIN[type(part)], []
    else:
        raise ValueError(f"Protocol Buffers have no type for {name} {part.simpleString()}; cast it to string")
    if part is kind and (nested or text == TIMESTAMP):
        label = ""
    return f"{label}{text}{end}", nested

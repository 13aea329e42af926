"""Decodes and encodes Protocol Buffers of Spark's types, by schemas that are known at run time only.

A schema is the text of a .proto file, which protoc compiles, or a serialized FileDescriptorProto in base64, which
Confluent's Python serializer registers. A value is parsed with the schema that it was written with; its fields then
become those of the reader's message by their numbers.
"""

import base64
import binascii
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import types as t

from levada.spark.errors import ProtocError
from levada.spark.formats.rows import decode_rows

SCHEMA_FILE = "schema.proto"
PROTOC_TIMEOUT_S = 60
LOG_LINES = re.compile(r"^(WARNING: All log messages before absl|[IWEF]\d{4} ).*\n?", re.MULTILINE)  # of protoc itself
PROTOC_ADVICE = "The driver and each executor need grpcio-tools and room in their temporary folder"
COMPILED_MAX = 256  # schemas that a process keeps
WELL_KNOWN = "google/"
TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
UNSIGNED_64 = t.DecimalType(20, 0)
PLAIN: dict[int, t.DataType] = {
    FieldDescriptor.CPPTYPE_INT32: t.IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: t.LongType(),
    FieldDescriptor.CPPTYPE_UINT32: t.LongType(),
    FieldDescriptor.CPPTYPE_UINT64: UNSIGNED_64,
    FieldDescriptor.CPPTYPE_DOUBLE: t.DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: t.FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: t.BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: t.StringType(),
    FieldDescriptor.CPPTYPE_STRING: t.StringType(),
}
# Types that a reader's wider type can hold.
WIDER = {(t.IntegerType(), t.LongType()), (t.FloatType(), t.DoubleType())}

Getter = Callable[[Any], Any]


class ProtobufSchema:
    """A compiled .proto file."""

    def __init__(self, text: str, references: Iterable[tuple[str, str]] = ()) -> None:
        files = _compile(text, dict(references))
        pool = DescriptorPool()
        for file in files:
            try:
                pool.Add(file)
            except TypeError as error:
                raise ValueError(f"the schema is not valid: {error}") from None
        self._pool, self._file = pool, files[-1]

    def message_at(self, indexes: Sequence[int]) -> Descriptor:
        """The message at a path of indexes, as Confluent's wire format names it; ValueError if there is none."""
        names, within = [self._file.package] if self._file.package else [], self._file.message_type
        for index in indexes:
            if not 0 <= index < len(within):
                raise ValueError(f"the schema has no message with the indexes {list(indexes)}")
            names.append(within[index].name)
            within = within[index].nested_type
        return self._find(".".join(names))

    def message(self, name: str = "") -> Descriptor:
        """The message with a name, with or without its package; the first one without a name."""
        if not name:
            return self.message_at([0])
        full_name = name if not self._file.package or name.startswith(f"{self._file.package}.") else None
        return self._find(full_name or f"{self._file.package}.{name}")

    def indexes(self, message: Descriptor) -> list[int]:
        """The path of indexes to a message."""
        names = message.full_name[len(self._file.package) + 1 if self._file.package else 0 :].split(".")
        found, within = [], self._file.message_type
        for name in names:
            found.append([one.name for one in within].index(name))
            within = within[found[-1]].nested_type
        return found

    def _find(self, full_name: str) -> Descriptor:
        try:
            found: Descriptor = self._pool.FindMessageTypeByName(full_name)
        except KeyError:
            raise ValueError(f"the schema has no message {full_name}") from None
        return found


def _compile(text: str, references: dict[str, str]) -> Sequence[FileDescriptorProto]:
    """The file and those that it imports, itself last; ValueError if the schema is wrong."""
    own = _serialized(text)
    if own is None:
        compiled = _protoc(text, tuple(references.items()))
        if isinstance(compiled, str):
            raise ValueError(compiled)
        return compiled
    files: dict[str, FileDescriptorProto] = {}
    for name, reference in references.items():
        imported = _serialized(reference)
        if imported is None:
            raise ValueError(f"the schema is serialized, and {name}, which it imports, is not")
        imported.name = name
        _add_well_known(imported, files)
        files[name] = imported
    _add_well_known(own, files)
    return [*files.values(), own]


def _add_well_known(file: FileDescriptorProto, files: dict[str, FileDescriptorProto]) -> None:
    """Add the files of Google's own types that a file imports, before those that import them."""
    for name in file.dependency:
        if name in files or not name.startswith(WELL_KNOWN):
            continue
        try:
            module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        except ImportError:
            raise ValueError(f"the schema imports {name}, which is not known") from None
        found = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(found)
        _add_well_known(found, files)
        files[name] = found


def _serialized(text: str) -> FileDescriptorProto | None:
    """A FileDescriptorProto in base64; None for the text of a .proto file."""
    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None


@lru_cache(COMPILED_MAX)
def _protoc(text: str, references: tuple[tuple[str, str], ...]) -> tuple[FileDescriptorProto, ...] | str:
    """What protoc makes of a schema, or what is wrong with the schema.

    A failure of protoc itself is no error of the schema: it raises ProtocError, and the next call tries again.
    """
    own = SCHEMA_FILE
    while any(name.startswith(own) for name, _ in references):
        own = f"_{own}"
    try:
        with tempfile.TemporaryDirectory(prefix="levada-protoc-") as folder:
            root = Path(folder).resolve()
            for name, content in (*references, (own, text)):
                target = (root / name).resolve()
                if not target.is_relative_to(root):
                    return f"the schema imports {name}, which is not a path within it"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(content, "utf-8")
            output = root / f"{own}.out"
            done = _run_protoc(root, own, output.name)
            if not done.returncode:
                return tuple(FileDescriptorSet.FromString(output.read_bytes()).file)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProtocError(f"protoc cannot be run: {error}. {PROTOC_ADVICE}") from None
    why = LOG_LINES.sub("", done.stderr).strip()
    if done.returncode > 0 and re.search(rf"^{re.escape(own)}:(\d+:\d+:)? (?!warning:)", why, re.MULTILINE):
        return f"protoc cannot compile the schema: {why}"
    raise ProtocError(f"protoc ends with {done.returncode}: {why or 'no output'}. {PROTOC_ADVICE}")


def _run_protoc(root: Path, schema: str, output: str) -> "subprocess.CompletedProcess[str]":
    # -P: Python would import from the folder, whose files come from the registry.
    command = [sys.executable, "-P", "-m", "grpc_tools.protoc", "-I.", "--include_imports"]
    command += [f"--descriptor_set_out={output}", schema]
    return subprocess.run(  # noqa: S603 (protoc only parses)
        command, check=False, cwd=root, capture_output=True, text=True, timeout=PROTOC_TIMEOUT_S
    )


def type_of_message(message: Descriptor, within: tuple[str, ...] = ()) -> t.DataType:
    """The Spark type of a message; ValueError if it has none."""
    if message.full_name == TIMESTAMP:
        return t.TimestampType()
    if message.full_name in WRAPPERS:
        return _type(message.fields[0], within)
    if message.full_name in within:
        raise ValueError(f"the message {message.full_name} contains itself, which has no type in Spark")
    if not message.fields:
        raise ValueError(f"the message {message.full_name} needs at least one field")
    deeper = (*within, message.full_name)
    return t.StructType([t.StructField(field.name, _type(field, deeper)) for field in message.fields])


def _type(field: FieldDescriptor, within: tuple[str, ...]) -> t.DataType:
    if is_map(field):
        entry = field.message_type.fields_by_name
        return t.MapType(_type(entry["key"], within), _type(entry["value"], within))
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        found = type_of_message(field.message_type, within)
    else:
        found = _plain_type(field)
    return t.ArrayType(found) if field.is_repeated else found


def _plain_type(field: FieldDescriptor) -> t.DataType:
    return t.BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else PLAIN[field.cpp_type]


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is a map, which is stored as repeated entries."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


class ProtobufDecoder:
    """Decodes values of one message as structs of the reader's message."""

    def __init__(self, message: Descriptor, kind: Any, reader: Descriptor) -> None:
        if message.full_name != reader.full_name:
            raise ValueError(f"the value is a {message.full_name}, and the reader's message is {reader.full_name}")
        self._parse, self._get, self._kind = GetMessageClass(message).FromString, message_getter(message, reader), kind

    def decode_one(self, value: bytes) -> Any:
        """One value as Python's types; ValueError if it is not of this message."""
        try:
            return self._get(self._parse(value))
        except DecodeError as error:
            raise ValueError(str(error)) from None

    def decode(self, values: Any) -> tuple[Any, Any]:
        """An array of structs, and an array that is true where a value is not of this message."""
        return decode_rows(values, self.decode_one, self._kind)


def message_getter(writer: Descriptor, reader: Descriptor) -> Getter:
    """A function from a message to the reader's fields; ValueError if a field has another type in both."""
    if reader.full_name == TIMESTAMP:
        return lambda found: found.ToDatetime(tzinfo=UTC)
    if reader.full_name in WRAPPERS:
        return lambda found: found.value
    by_number = writer.fields_by_number
    parts = [(field.name, _field_getter(by_number.get(field.number), field)) for field in reader.fields]
    return lambda found: {name: get(found) for name, get in parts}


def _field_getter(writer: FieldDescriptor | None, reader: FieldDescriptor) -> Getter:
    if writer is None:
        missing = _missing(reader)
        return lambda _: missing
    part = _part_getter(writer, reader)
    name = writer.name
    if is_map(reader):
        return lambda found: [(key, part(value)) for key, value in getattr(found, name).items()]
    if reader.is_repeated:
        return lambda found: [part(one) for one in getattr(found, name)]
    if writer.has_presence:
        return lambda found: part(getattr(found, name)) if found.HasField(name) else None
    return lambda found: part(getattr(found, name))


def _missing(field: FieldDescriptor) -> Any:
    """The value of a field that the writer did not know."""
    if field.is_repeated:
        return []
    if field.has_presence:
        return None
    return field.enum_type.values_by_number[0].name if field.enum_type else field.default_value


def _part_getter(writer: FieldDescriptor, reader: FieldDescriptor) -> Getter:
    """A function for one value, one item of a list or one value of a map."""
    is_message = reader.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    same_shape = writer.is_repeated == reader.is_repeated and is_map(writer) == is_map(reader)
    if not same_shape or is_message != (writer.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE):
        raise ValueError(f"the field {reader.full_name} has another type in the schema of the value")
    if is_map(reader):
        ours, theirs = reader.message_type.fields_by_name, writer.message_type.fields_by_name
        _check_plain(theirs["key"], ours["key"])
        return _part_getter(theirs["value"], ours["value"])
    if is_message:
        return message_getter(writer.message_type, reader.message_type)
    _check_plain(writer, reader)
    if reader.enum_type is not None:
        names = {value.number: value.name for value in writer.enum_type.values} if writer.enum_type else {}
        return lambda number: names.get(number, str(number))
    return lambda found: found


def _check_plain(writer: FieldDescriptor, reader: FieldDescriptor) -> None:
    kinds = (_plain_type(writer), _plain_type(reader))
    is_enum = [one.enum_type is not None for one in (writer, reader)]
    if (kinds[0] != kinds[1] and kinds not in WIDER) or is_enum[0] != is_enum[1]:
        raise ValueError(f"the field {reader.full_name} has another type in the schema of the value")

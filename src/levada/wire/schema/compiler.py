"""Compiles functions that read and write messages, the way `dataclasses` compiles `__init__`.

kio's writers are pure Python and far slower than straight-line code; its native readers allocate from counts on the
wire before they check them. So both directions are compiled from the fields of kio's message classes, for one
version each and from or to the one shape per API (`levada.wire.schema.versions`): adjacent fixed-width fields become
one Struct, nested structs become nested loops. Tests compare the results with kio's readers and writers.

This module holds what both directions share; `readers` and `writers` hold one each.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cache
from struct import Struct as Packer
from typing import Any, NamedTuple

from levada.errors import ErrorCode, KafkaError
from levada.wire.schema.fields import EPOCH, Field, Struct

# Kafka's fixed-width types as format characters of `struct`.
FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "uuid": "16s",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}

MEMO_ENTRIES_MAX = 1_024
NO_UUID = bytes(16)
MILLISECOND = timedelta(milliseconds=1)


class Memo(dict[Any, Any]):
    """A bounded cache of converted values, cleared when it is full: peers choose the keys."""

    __slots__ = ("convert", "entries_max")

    def __init__(self, convert: Callable[[Any], Any], entries_max: int = MEMO_ENTRIES_MAX) -> None:
        super().__init__()
        self.convert = convert
        self.entries_max = entries_max

    def __missing__(self, value: Any) -> Any:
        converted = self.convert(value)
        if len(self) >= self.entries_max:
            self.clear()
        self[value] = converted
        return converted


class Source:
    """Builds a function from lines of Python source and the global names they use."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.depth = 1
        self._count = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, prefix: str) -> str:
        """A local name that no other line uses."""
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, value: Any) -> str:
        """The global name of a constant."""
        if value is None or value is True or value is False:
            return repr(value)
        name = self.fresh("k")
        self.names[name] = value
        return name

    def function(self, name: str, parameters: str) -> Callable[..., Any]:
        text = f"def {name}({parameters}):\n" + "\n".join(self.lines) + "\n"
        exec(compile(text, f"<{self.message}>", "exec"), self.names)  # noqa: S102  no text of a peer
        compiled: Callable[..., Any] = self.names[name]
        return compiled


class PathStep(NamedTuple):
    """A step of a path into a shape: a field's name, and which element of it."""

    name: str
    element: str  # "" for a struct or the field itself, "[0]" for the only element, "[]" for every element


def parse_path(path: str) -> list[PathStep]:
    """Split a path such as `groups[0].topics`."""
    steps = []
    for part in path.split("."):
        name, bracket, rest = part.partition("[")
        steps.append(PathStep(name, bracket + rest))
    return steps


def only(elements: Sequence[Any]) -> Any:
    """Return the one element that a version without the array carries; raise for any other number."""
    if len(elements) != 1:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"this version carries one element, not {len(elements)}")
    return elements[0]


def not_null(value: Any) -> Any:
    """Return the value; raise if it is null and this version has no null for it."""
    if value is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "this version has no null for the field")
    return value


def milliseconds(duration: timedelta) -> int:
    """Convert a duration to milliseconds."""
    return duration // MILLISECOND


def timestamp(time: datetime) -> int:
    """Convert a time to milliseconds since the epoch."""
    return (time - EPOCH) // MILLISECOND


@cache
def packer(fields: str) -> Packer:
    """A Struct of fixed-width fields in network byte order."""
    return Packer(">" + fields)


def require(struct: Struct, name: str, path: str) -> Field:
    """Find a field that a rule of `versions` names; a missing one is a bug."""
    field = struct.find(name)
    assert field is not None, f"{path} has no field {name}"
    return field

"""Compiles what writes and reads a message, the way `dataclasses` writes `__init__`.

kio's own writers are pure Python and 30 times slower than straight-line code; its native readers are fast, but they
allocate from counts on the wire before they check them: twenty hostile bytes end the process. So both directions
are compiled here, from the fields of kio's message classes, for one version each and from or to the one shape per
API (`levada.wire.schema.versions`): fixed-width fields that stand together become one Struct, nested structs become
nested loops. kio's writers and readers are what the tests compare with.

This module has what both directions share; `writing` and `reading` hold one each.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cache
from struct import Struct as Packer
from typing import Any, NamedTuple

from levada.errors import ErrorCode, KafkaError
from levada.wire.schema.fields import EPOCH, Field, Struct

# Kafka's fixed-width types as struct characters.
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
    """What was made from values that come again and again; never more than a few, so that no peer can fill it."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[Any], Any]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, value: Any) -> Any:
        made = self.make(value)
        if len(self) >= MEMO_ENTRIES_MAX:
            self.clear()
        self[value] = made
        return made


class Source:
    """Lines of Python and the names they use, on their way to a function."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.depth = 1
        self._count = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, prefix: str) -> str:
        """A local name that is used nowhere else."""
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, value: Any) -> str:
        """The name under which the function sees a value."""
        if value is None or value is True or value is False:
            return repr(value)
        name = self.fresh("k")
        self.names[name] = value
        return name

    def function(self, name: str, parameters: str) -> Callable[..., Any]:
        text = f"def {name}({parameters}):\n" + "\n".join(self.lines) + "\n"
        exec(compile(text, f"<{self.message}>", "exec"), self.names)  # noqa: S102  made of our own words only
        compiled: Callable[..., Any] = self.names[name]
        return compiled


class Place(NamedTuple):
    """A step of a path into a shape: a name, and how it is entered."""

    name: str
    entry: str  # "" a struct or the field itself, "[0]" the only element, "[]" every element


def parse_path(path: str) -> list[Place]:
    """`groups[0].topics` as places."""
    places = []
    for part in path.split("."):
        name, bracket, inside = part.partition("[")
        places.append(Place(name, bracket + inside))
    return places


def only(elements: Sequence[Any]) -> Any:
    """The one element that a version without arrays can carry."""
    if len(elements) != 1:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"one element fits this version, not {len(elements)}")
    return elements[0]


def not_null(value: Any) -> Any:
    """What a version without null for it can carry."""
    if value is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "this version cannot say null")
    return value


def milliseconds(duration: timedelta) -> int:
    """A duration as Kafka writes it."""
    return duration // MILLISECOND


def timestamp(moment: datetime) -> int:
    """A moment as Kafka writes it: milliseconds since 1970."""
    return (moment - EPOCH) // MILLISECOND


@cache
def packer(fields: str) -> Packer:
    """Fixed-width fields without gaps, as the network orders bytes."""
    return Packer(">" + fields)


def require(struct: Struct, name: str, path: str) -> Field:
    """A field that must be there: a rule that names a missing one is a bug of ours."""
    field = struct.find(name)
    assert field is not None, f"{path} has no field {name}"
    return field

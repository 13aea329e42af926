"""Records as text: kcat's formats, and JSON lines that `consume` writes and `produce` reads."""

import base64
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from levada.cli.errors import did_you_mean

if TYPE_CHECKING:
    from levada.model import ConsumerRecord

ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_TOKEN = re.compile(rb"%(.)", re.DOTALL)

# The fields of a record in JSON. `consume` writes topic and offset, which `produce` reads over.
RECORD_FIELDS = frozenset(
    {"topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers"}
)
HEADER_FIELDS = frozenset({"name", "value", "value_base64"})

# Tokens of other tools.
OTHER_TOKENS = {
    "v": "the value is %s",
    "V": "the length of the value is %S",
    "d": "the timestamp is %T",
    "H": "headers are %h",
    "n": "a new line is \\n",
}

Formatter = Callable[["ConsumerRecord"], bytes]


def unescape(text: str) -> bytes:
    r"""The bytes of a text with \n, \t, \r, \0, \\ and \xNN."""

    def replace(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code[1:], 16)]) if code[:1] == b"x" and len(code) == 3 else ESCAPES.get(code, match[0])

    return _ESCAPE.sub(replace, text.encode())


def formatter(template: str, null: bytes = b"") -> Formatter:
    """A function that fills a format string of kcat; ValueError for an unknown token."""

    def or_null(value: bytes | None) -> bytes:
        return null if value is None else value

    fields: dict[bytes, Formatter] = {
        b"s": lambda record: or_null(record.value),
        b"S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
        b"R": lambda record: (-1 if record.value is None else len(record.value)).to_bytes(4, "big", signed=True),
        b"k": lambda record: or_null(record.key),
        b"K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
        b"t": lambda record: record.topic.encode(),
        b"p": lambda record: b"%d" % record.partition,
        b"o": lambda record: b"%d" % record.offset,
        b"T": lambda record: b"%d" % record.timestamp,
        b"h": lambda record: b",".join(name.encode() + b"=" + or_null(value) for name, value in record.headers),
        b"%": lambda record: b"%",
    }
    parts = _TOKEN.split(unescape(template))
    for token in parts[1::2]:
        if token not in fields:
            name = token.decode(errors="replace")
            hint = OTHER_TOKENS.get(name, f"use {', '.join(_names(fields))}")
            raise ValueError(f"unknown token %{name}: {hint}")
    steps = [fields[part] if odd else part for index, part in enumerate(parts) for odd in (index % 2,)]

    def fill(record: "ConsumerRecord") -> bytes:
        return b"".join(step if isinstance(step, bytes) else step(record) for step in steps)

    return fill


def _names(fields: dict[bytes, Formatter]) -> list[str]:
    return [f"%{token.decode()}" for token in fields]


def to_json(record: "ConsumerRecord") -> dict[str, Any]:
    """A record as JSON; bytes that are not UTF-8 are base64 in `key_base64` or `value_base64`."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_text("key", record.key),
        **_text("value", record.value),
        "headers": [{"name": name, **_text("value", value)} for name, value in record.headers],
    }


def _text(name: str, value: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value or b"").decode()}


def parse_json(text: bytes) -> Any:
    """A JSON document; ValueError also for NaN and Infinity, which are no JSON, and for a field that comes twice."""
    import json

    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_fields_once)


def _no_constant(name: str) -> None:
    raise ValueError(f"not JSON ({name} is not a number of JSON)")


def _fields_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {next(name for name in names if names.count(name) > 1)!r} comes twice")
    return fields


def from_json(fields: Any) -> dict[str, Any]:
    """The arguments of `Producer.send` from a JSON object; ValueError if it is not a record.

    A tombstone is an explicit null: an object without a value is more likely a mistake.
    """
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    _check_fields(fields, RECORD_FIELDS, "a record")
    headers = fields.get("headers") or []
    if isinstance(headers, dict):
        headers = [{"name": name, "value": value} for name, value in headers.items()]
    if not isinstance(headers, list) or not all(isinstance(one, dict) and "name" in one for one in headers):
        raise ValueError("headers must be objects with name and value")
    for header in headers:
        _check_fields(header, HEADER_FIELDS, "a header")
    return {
        "key": _bytes(fields, "key"),
        "value": _bytes(fields, "value"),
        "headers": [(str(header["name"]), _bytes(header, "value")) for header in headers],
        "partition": _number(fields, "partition"),
        "timestamp": _number(fields, "timestamp"),
    }


def _check_fields(fields: dict[str, Any], known: frozenset[str], kind: str) -> None:
    """Raise ValueError for a field that is not known, and without a value."""
    for name in fields.keys() - known:
        raise ValueError(f"{kind} has no field {name!r}{did_you_mean(name, known)}")
    if "value" not in fields and "value_base64" not in fields:
        raise ValueError(f'{kind} needs the field "value", which may be null')


def _number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and not (type(value) is int and -1 <= value < 1 << 63):
        raise ValueError(f"{name} must be an integer, not {value!r}")
    return value


def _bytes(fields: dict[str, Any], name: str) -> bytes | None:
    if name in fields and f"{name}_base64" in fields:
        raise ValueError(f"{name!r} and '{name}_base64' exclude each other")
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    import json

    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        raise ValueError(f"{name} has a number that is too large") from None

"""Reads and writes messages of every API and version, as objects of one shape per API.

The functions of an API and version are compiled on first use and cached. Readers raise KafkaError(INVALID_REQUEST) for
malformed bytes, never anything else; `levada.wire.schema.versions` describes the shapes.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from struct import Struct as Packer
from struct import error as StructError
from typing import Any, NamedTuple

from levada.errors import ErrorCode, KafkaError
from levada.wire.primitives import ELEMENTS_MAX
from levada.wire.schema.fields import Struct, struct_of
from levada.wire.schema.lazy_imports import import_now
from levada.wire.schema.readers import MalformedError, Reader, compile_reader, skip_tagged_fields
from levada.wire.schema.versions import APIS, SHAPES, Api
from levada.wire.schema.writers import compile_writer

RESPONSE_ELEMENTS_MAX = 10_000_000

API_VERSIONS = 18
HEADER = Packer(">hhih")  # api key, version, correlation id, length of the client id
SIZE_AND_ID = Packer(">ii")

MALFORMED = (MalformedError, StructError, IndexError, UnicodeDecodeError)


class RequestHeader(NamedTuple):
    """The header of a request and the position of its body."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int


def api(api_key: int, version: int) -> Api:
    """The API with this key; raise UNSUPPORTED_VERSION unless it has this version."""
    known = APIS.get(api_key)
    if known is None or not known.first <= version <= known.last:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"API key {api_key} version {version}")
    return known


def api_key(name: str) -> int:
    """The key of an API by its name, such as "find_coordinator"."""
    return next(known.key for known in APIS.values() if known.name == name)


def versions_known(api_key: int) -> range:
    """The versions of an API that can be read and written; empty for an unknown API."""
    known = APIS.get(api_key)
    return range(0) if known is None else range(known.first, known.last + 1)


@lru_cache(1_024)
def request_header_is_flexible(api_key: int, version: int) -> bool:
    """Whether the request header has tagged fields after the client id."""
    known = APIS.get(api_key)
    return known is not None and known.flexible <= version <= known.last


def response_header_is_flexible(api_key: int, version: int) -> bool:
    """Whether the response header has tagged fields; never for ApiVersions, sent before versions are negotiated."""
    return api_key != API_VERSIONS and request_header_is_flexible(api_key, version)


def read_request_header(view: memoryview | bytes) -> RequestHeader:
    """Read the header of a request; that of an unknown version is read without tagged fields."""
    try:
        api_key, version, correlation_id, length = HEADER.unpack_from(view)
        position = HEADER.size + max(length, 0)
        if length < -1 or position > len(view):
            raise MalformedError("the client id ends early")
        client_id = None if length < 0 else str(view[HEADER.size : position], "utf-8")
        if request_header_is_flexible(api_key, version):
            if view[position]:
                position, _ = skip_tagged_fields(view, position, ELEMENTS_MAX)
            else:
                position += 1
            if position > len(view):
                raise MalformedError("the header ends early")
    except MALFORMED as problem:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"request header: {problem}") from problem
    return RequestHeader(api_key, version, correlation_id, client_id, position)


def write_response_frame(api_key: int, version: int, correlation_id: int, response: Any) -> bytes:
    """Write a whole response frame: its size, its header and its body."""
    body = _writer(api_key, version, "response")(response)
    if response_header_is_flexible(api_key, version):
        return SIZE_AND_ID.pack(len(body) + 5, correlation_id) + b"\0" + body
    return SIZE_AND_ID.pack(len(body) + 4, correlation_id) + body


def read_request(api_key: int, version: int, view: memoryview | bytes, offset: int = 0) -> Any:
    """Read a request of any version into the API's shape."""
    return _read(_reader(api_key, version, "request"), view, offset, ELEMENTS_MAX)


def read_response(api_key: int, version: int, view: memoryview | bytes, offset: int = 0) -> Any:
    """Read a response of any version into the API's shape."""
    return _read(_reader(api_key, version, "response"), view, offset, RESPONSE_ELEMENTS_MAX)


def write_request(api_key: int, version: int, request: Any) -> bytes:
    """Write the body of a request in a version."""
    return _writer(api_key, version, "request")(request)


def write_response(api_key: int, version: int, response: Any) -> bytes:
    """Write the body of a response in a version."""
    return _writer(api_key, version, "response")(response)


def _read(read: Reader, view: memoryview | bytes, offset: int, elements: int) -> Any:
    try:
        return read(bytes(view), offset, elements)
    except MALFORMED as problem:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(problem)) from problem


@cache
def _reader(api_key: int, version: int, kind: str) -> Reader:
    message, wire, shape = structs(api(api_key, version), version, kind)
    return compile_reader(message, version, wire, shape)


@cache
def _writer(api_key: int, version: int, kind: str) -> Callable[[Any], bytes]:
    message, wire, shape = structs(api(api_key, version), version, kind)
    return compile_writer(message, version, wire, shape)


def structs(known: Api, version: int, kind: str) -> tuple[str, Struct, Struct]:
    """A message's path in the rules of `versions`, its struct in a version and its shape."""
    name = "".join(part.title() for part in known.name.split("_")) + kind.title()
    wire = getattr(import_now(f"kio.schema.{known.name}.v{version}.{kind}"), name)
    module = (
        f"levada.wire.schema.shapes.{known.name}"
        if known.name in SHAPES
        else f"kio.schema.{known.name}.v{known.last}.{kind}"
    )
    shape = getattr(import_now(module), name)
    return f"{known.name}.{kind}", struct_of(wire), struct_of(shape)

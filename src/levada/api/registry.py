"""Declares the handlers of API keys, and dispatches each frame to its handler.

Each API key has one handler, declared where it is written; ApiVersions derives from these declarations. Handlers of
Produce and Fetch take the frame itself, the others a decoded request in one shape for all versions. An API may also
have a fast path, which decodes its frequent requests in place; `levada.fast.paths=false` turns all of them off.
A client's mistake is a `KafkaError`; a frame that cannot be decoded closes its connection, as in Kafka. Every frame
passes `dispatch`, so a check of all requests belongs there.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from struct import Struct
from typing import Any, TypeVar

from levada import api
from levada.api.request import HEADER_BYTES, Handler, Request
from levada.api.scheduler import RequestScheduler
from levada.broker.broker import Broker
from levada.broker.faults import Faults
from levada.errors import ErrorCode, KafkaError
from levada.net.connection import Connection, Dispatch
from levada.wire.schema import messages

HEADER = Struct(">hhih")  # api key, version, correlation id, length of the client id
PRODUCE = messages.api_key("produce")
# Of a request on a fast path: a larger one is not fast, and the scheduler limits it.
FAST_BYTES_MAX = 8 * 1024

# broker, connection, view, position, stop, version, correlation id
FrameHandler = Callable[[Broker, Connection, memoryview, int, int, int, int], None]
FastPath = Callable[[Broker, Connection, memoryview, int, int, int, int], bool]


_handlers: dict[int, Handler] = {}
_fast_paths: dict[int, tuple[range, Callable[[], FastPath]]] = {}

Function = TypeVar("Function", bound=Callable[..., Any])


def handles(name: str, versions: range) -> Callable[[Function], Function]:
    """Declare the handler of an API, by kio's name for it: a function of (context, request) to a response."""

    def declare(function: Function) -> Function:
        _add(Handler(messages.api_key(name), name, versions, versions.start, function, takes_frame=False))
        return function

    return declare


def handles_frames(name: str, versions: range, advertised_from: int | None = None) -> Callable[[Function], Function]:
    """Declare a handler on the hot path, a `FrameHandler`.

    It decodes its request from view[position:stop] in place and responds through the connection.
    """

    def declare(function: Function) -> Function:
        first = versions.start if advertised_from is None else advertised_from
        _add(Handler(messages.api_key(name), name, versions, first, function, takes_frame=True))
        return function

    return declare


def fast_path(name: str, versions: range) -> Callable[[Callable[[], FastPath]], Callable[[], FastPath]]:
    """Declare what makes the fast path of an API: a function like a `FrameHandler`.

    It returns False, and has changed nothing, where it leaves a request to the handler. Each broker makes its own, so
    that the caches of a fast path are the broker's; what it caches of a connection is in `Connection.caches`.
    """

    def declare(make: Callable[[], FastPath]) -> Callable[[], FastPath]:
        _fast_paths[messages.api_key(name)] = versions, make
        return make

    return declare


def _add(handler: Handler) -> None:
    assert handler.api_key not in _handlers, f"{handler.name} has two handlers"
    _handlers[handler.api_key] = handler


@cache
def handlers() -> dict[int, Handler]:
    """Every handler, by API key. The first call imports all modules of `levada.api`, which declare them."""
    for module in walk_packages(api.__path__, f"{api.__name__}."):
        import_module(module.name)
    return _handlers


def dispatcher(broker: Broker, faults: Faults) -> Dispatch:
    """The function that takes every frame of every connection."""
    frame_handlers = _frame_handlers(broker.config.levada_fast_paths)
    counts = broker.request_metrics.counts
    unpack = HEADER.unpack_from
    scheduler = RequestScheduler(broker.clock.monotonic, broker.call_later)

    def dispatch(connection: Connection, view: memoryview, start: int, stop: int) -> None:
        position = start + HEADER_BYTES
        if position > stop:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a request shorter than its header")
        api_key, version, correlation_id, client_id_bytes = unpack(view, start)
        if client_id_bytes > 0:
            position += client_id_bytes
        handler = frame_handlers.get((api_key, version))
        if handler is not None and not faults and (stop - start < FAST_BYTES_MAX or api_key == PRODUCE):
            counts[api_key] += 1
            taken = handler(broker, connection, view, position, stop, version, correlation_id)
            if taken is not False:
                return
            counts[api_key] -= 1
        declared = _handlers.get(api_key)
        if declared is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown API key {api_key}")
        request = Request(broker, connection, declared, bytes(view[start:stop]), faults)
        if scheduler.admits() or not scheduler.queue(request):
            request.begin()
        else:
            connection.muted = True

    return dispatch


def _frame_handlers(fast_paths: bool) -> dict[tuple[int, int], FrameHandler | FastPath]:
    """What takes a frame without a `Request`, by API key and version."""
    frame_handlers: dict[tuple[int, int], FrameHandler | FastPath] = {}
    for handler in handlers().values():
        if handler.takes_frame:
            frame_handlers |= {(handler.api_key, version): handler.function for version in handler.versions}
    if fast_paths:
        for api_key, (versions, make) in _fast_paths.items():
            frame_handlers |= dict.fromkeys([(api_key, version) for version in versions], make())
    return frame_handlers

"""From a frame to its handler and back.

Each API key has one handler, declared where it is written; what ApiVersions says is derived from these declarations.
Produce and Fetch take the frame itself, the others get a request in one shape, whatever version the client spoke.
A client's mistake is a `KafkaError`; a frame that cannot be read closes its connection, as in Kafka.
"""

from collections.abc import Awaitable, Callable
from importlib import import_module
from pkgutil import walk_packages
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from levada import api
from levada.api.error_responses import error_response
from levada.api.scheduler import Pace
from levada.broker.broker import Broker
from levada.broker.faults import Fault, Faults
from levada.broker.purgatory import Deferred
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.model import KafkaPrincipal
from levada.net.listener import Connection, Dispatch
from levada.wire.schema import messages

log = EventLog(__name__)

HEADER = Struct(">hhih")  # api key, version, correlation id, length of the client id
HEADER_BYTES = HEADER.size
API_VERSIONS_KEY = 18


class RequestContext:
    """The broker that handles a request, and where the request comes from.

    Listener, principal and client id belong to the connection, so that fast paths, which make no context, know the
    same.
    """

    __slots__ = ("api_version", "broker", "client_id", "connection")

    def __init__(self, broker: Broker, connection: Connection, api_version: int) -> None:
        self.broker = broker
        self.connection = connection
        self.api_version = api_version
        self.client_id = connection.client_id

    @property
    def listener(self) -> str:
        return self.connection.listener_name

    @property
    def principal(self) -> KafkaPrincipal:
        return self.connection.principal


class Handler(NamedTuple):
    """What answers one API key."""

    api_key: int
    name: str
    versions: range
    advertised_from: int
    function: Callable[..., Any]
    reads_frames: bool


READ_BYTES_MAX = 16 << 20  # of a request that is read into objects, which take many times its bytes
# Of a Fetch, a commit or what a member says: one that is longer is not quick, and waits for its turn.
LARGE_BYTES = 8 * 1024
PRODUCE = messages.api_key("produce")
_PENDING = object()

HANDLERS: dict[int, Handler] = {}
SHORTCUTS: dict[tuple[int, int], Callable[..., bool]] = {}  # by API key and version

Function = TypeVar("Function", bound=Callable[..., Any])


def handles(name: str, versions: range) -> Callable[[Function], Function]:
    """Declare the handler of an API, by kio's name for it: a function of (context, request) to a response."""

    def declare(function: Function) -> Function:
        _add(Handler(messages.api_key(name), name, versions, versions.start, function, reads_frames=False))
        return function

    return declare


def handles_frames(
    name: str, versions: range, advertised_from: int | None = None
) -> Callable[[Function], Function]:
    """Declare a handler on the hot path.

    It is called with (broker, connection, view, position, stop, version, correlation id), reads its request from
    view[position:stop] in place and answers through the connection.
    """

    def declare(function: Function) -> Function:
        first = versions.start if advertised_from is None else advertised_from
        _add(Handler(messages.api_key(name), name, versions, first, function, reads_frames=True))
        return function

    return declare


def takes_frames(name: str, versions: range) -> Callable[[Function], Function]:
    """Declare a shortcut for the usual requests of an API that has a handler.

    It is called as those on the hot path are, and tells whether it has taken the request.
    """

    def declare(function: Function) -> Function:
        SHORTCUTS.update({(messages.api_key(name), version): function for version in versions})
        return function

    return declare


def _add(handler: Handler) -> None:
    assert handler.api_key not in HANDLERS, f"{handler.name} has two handlers"
    HANDLERS[handler.api_key] = handler


def load_handlers() -> None:
    """Import every module of `levada.api`, so that each handler declares itself."""
    for module in walk_packages(api.__path__, f"{api.__name__}."):
        import_module(module.name)


def dispatcher(broker: Broker, faults: Faults) -> Dispatch:
    """The function that gets every frame of every connection."""
    frame_handlers: dict[tuple[int, int], Callable[..., bool | None]] = {
        (handler.api_key, version): handler.function
        for handler in HANDLERS.values()
        if handler.reads_frames
        for version in handler.versions
    }
    frame_handlers |= SHORTCUTS
    counts = broker.request_counts
    unpack = HEADER.unpack_from
    pace = Pace(broker.clock.monotonic, broker.call_later)

    def dispatch(connection: Connection, view: memoryview, start: int, stop: int) -> None:
        position = start + HEADER_BYTES
        if position > stop:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a request shorter than its header")
        api_key, version, correlation_id, client_id_bytes = unpack(view, start)
        counts[api_key] += 1
        if client_id_bytes > 0:
            position += client_id_bytes
        handler = frame_handlers.get((api_key, version))
        if handler is not None and not faults and (stop - start < LARGE_BYTES or api_key == PRODUCE):
            taken = handler(broker, connection, view, position, stop, version, correlation_id)
            if taken is not False:
                return
        request = _Request(broker, connection, bytes(view[start:stop]), faults)
        if pace.admits() or not pace.park(request):
            request.begin()
        else:
            connection.delayed = True

    return dispatch


class _Request(RequestContext):
    """A request off the hot path, and the place of its answer where that has to wait."""

    __slots__ = (
        "_answer",
        "_content",
        "_faults",
        "_result",
        "api_key",
        "correlation_id",
        "frame",
        "handler",
        "position",
        "size",
    )

    def __init__(self, broker: Broker, connection: Connection, frame: bytes, faults: Faults) -> None:
        header = messages.read_request_header(frame)
        self.api_key, version, self.correlation_id, connection.client_id, self.position = header
        handler = HANDLERS.get(self.api_key)
        if handler is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown API key {self.api_key}")
        if version not in handler.versions and self.api_key != API_VERSIONS_KEY:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{handler.name} version {version} is not served")
        super().__init__(broker, connection, version)
        self.size = len(frame)
        if self.size > READ_BYTES_MAX and not handler.reads_frames:
            what = f"{handler.name} with {self.size} bytes; at most {READ_BYTES_MAX}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, what)
        self.frame = frame
        self._faults = faults
        self.handler = handler
        self._content: object = None
        self._answer: bytes | None = None
        self._result: object = _PENDING

    def begin(self) -> None:
        """Carry it out now, or suffer what a test ordered."""
        fault = self._faults.decide(self.api_key) if self._faults else None
        if fault is None:
            self.handle()
        else:
            self.suffer(fault)

    def carry_out(self) -> None:
        """Go on after a wait, during which nothing of its connection was begun."""
        self._resume(self.begin)

    def _resume(self, action: Callable[[], None]) -> None:
        connection = self.connection
        connection.delayed = False
        if connection.closed:
            return
        try:
            action()
        except KafkaError as error:
            connection.close(str(error))
        except Exception as error:  # a bug costs this client its connection, no more
            log.error("a request that waited failed", peer=connection.peer, exc_info=error)
            connection.crashed(error)
        connection.wake()

    def handle(self) -> None:
        """Read, decide, answer; or leave a task to do so."""
        function = self.handler.function
        if self.handler.reads_frames:
            frame = memoryview(bytearray(self.frame))
            body = HEADER_BYTES + len((self.client_id or "").encode())
            version, correlation_id = self.api_version, self.correlation_id
            function(self.broker, self.connection, frame, body, len(frame), version, correlation_id)
            return
        self._content = self._read()
        self.frame = b""  # it may be large, and the answer may wait for long
        try:
            result = function(self, self._content)
        except Exception as error:  # noqa: BLE001 (the one place where a bug becomes an answer)
            result = self._failed(error)
        if isinstance(result, Deferred):
            self.connection.outbox.add(self)  # nothing to send before `_hear` wakes the connection
            result.then(self._hear)
        elif hasattr(result, "__await__"):
            self.connection.outbox.add(self)
            self.broker.tasks.start(f"api-{self.handler.name}", self._await(result))
        else:
            answer = self._encode(result)
            self.connection.reply(answer, len(answer))

    def _read(self) -> object:
        """The request; None for ApiVersions in a version that is not known, refused in the oldest one."""
        if self.api_version not in self.handler.versions:
            self.api_version = 0
            return None
        return messages.read_request(self.api_key, self.api_version, self.frame, self.position)

    def _encode(self, response: object) -> bytes:
        return messages.write_response_frame(self.api_key, self.api_version, self.correlation_id, response)

    def _failed(self, error: Exception) -> object:
        if not isinstance(error, KafkaError):
            log.error(
                "a handler failed",
                peer=self.connection.peer,
                api=self.handler.name,
                version=self.api_version,
                exc_info=error,
            )
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a bug in the broker; its log has the trace")
        return error_response(self.api_key, self._content, error)

    # An answer that waits.

    def collect(self) -> bytes | None:
        if self._answer is None and self._result is not _PENDING:
            self._answer = self._encode(self._result)
        return self._answer

    def give_up(self) -> None:
        """Nothing to stop: what was begun (a topic being created) is finished without its client."""

    async def _await(self, result: Awaitable[object]) -> None:
        try:
            response = await result
        except Exception as error:  # noqa: BLE001 (the same for handlers that wait)
            response = error
        self._hear(response)

    def _hear(self, result: object) -> None:
        """Write the answer, or keep the response for when there is room: many may be heard of at once."""
        try:
            self._result = self._failed(result) if isinstance(result, Exception) else result
            if not self.connection.is_full:
                self._answer = self._encode(self._result)
                self._result = None
                self.connection.outbox.queued_bytes += len(self._answer)
        except Exception as error:
            log.error(
                "a response cannot be written",
                peer=self.connection.peer,
                api=self.handler.name,
                exc_info=error,
            )
            self.connection.close("a bug in the broker; its log has the trace")
        self.connection.wake()

    # Faults.

    def suffer(self, fault: Fault) -> None:
        """Carry out a fault that a test ordered."""
        if fault.delay_s:
            self.connection.delayed = True
            self.broker.call_later(fault.delay_s, self._after_delay, fault._replace(delay_s=0.0))
        elif fault.drop:
            self.connection.close("dropped by an ordered fault")
        elif fault.error is not None:
            request = self._read()
            if getattr(request, "acks", None) == 0:
                self.connection.close("an ordered fault of a Produce that expects no answer")
                return
            ordered = KafkaError(fault.error, "an ordered fault")
            answer = self._encode(error_response(self.api_key, request, ordered))
            self.connection.reply(answer, len(answer))
        else:
            self.handle()

    def _after_delay(self, rest: Fault) -> None:
        self._resume(lambda: self.suffer(rest))

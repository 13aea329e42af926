"""The general path of a request: it is decoded from a copy of its frame, and its handler responds now or later."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, NamedTuple

from levada.api.error_responses import error_codes, error_response
from levada.broker.broker import Broker
from levada.broker.faults import Fault, Faults
from levada.broker.purgatory import DelayedResponse, DelayedResult
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.model import KafkaPrincipal, Requester
from levada.net.connection import Connection
from levada.wire.schema import messages

log = EventLog(__name__)

HEADER_BYTES = 10  # api key, version, correlation id, length of the client id
API_VERSIONS_KEY = 18
UNTHROTTLED = timedelta(0)  # the throttle time of responses: there are no quotas
AUTHORIZED_OPERATIONS_OMITTED = -(2**31)  # the client did not request them
DECODED_BYTES_MAX = 16 << 20  # of a request that is decoded into objects, which take many times its bytes


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

    @property
    def requester(self) -> Requester:
        """The client, for log lines."""
        return Requester(self.client_id, self.connection.peer, self.principal)


class Handler(NamedTuple):
    """The handler of one API key."""

    api_key: int
    name: str
    versions: range
    advertised_from: int
    function: Callable[..., Any]
    takes_frame: bool


class Request(RequestContext):
    """A request on the general path: decoded from a copy of its frame, which may be queued."""

    __slots__ = (
        "_began",
        "_content",
        "_faults",
        "api_key",
        "correlation_id",
        "frame",
        "handler",
        "position",
        "size",
    )

    def __init__(self, broker: Broker, connection: Connection, handler: Handler, frame: bytes, faults: Faults) -> None:
        header = messages.read_request_header(frame)
        self.api_key, version, self.correlation_id, connection.client_id, self.position = header
        if version not in handler.versions and self.api_key != API_VERSIONS_KEY:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{handler.name} version {version} is not served")
        super().__init__(broker, connection, version)
        self.size = len(frame)
        if self.size > DECODED_BYTES_MAX and not handler.takes_frame:
            what = f"{handler.name} with {self.size} bytes; at most {DECODED_BYTES_MAX}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, what)
        self._began = broker.request_metrics.begin()
        self.frame = frame
        self._faults = faults
        self.handler = handler
        self._content: object = None

    def begin(self) -> None:
        """Handle it now, or inject the fault that a test has requested."""
        fault = self._faults.decide(self.api_key) if self._faults else None
        if fault is None:
            self.handle()
        else:
            self._inject(fault)

    def run_queued(self) -> None:
        """Handle it after a wait, during which its connection was muted."""
        self._resume(self.begin)

    def _resume(self, action: Callable[[], None]) -> None:
        connection = self.connection
        connection.muted = False
        if connection.closed:
            return
        try:
            action()
        except KafkaError as error:
            connection.close(str(error))
        except Exception as error:  # a bug costs this client its connection, no more
            log.error("a queued request failed", peer=connection.peer, exc_info=error)
            connection.crashed(error)
        connection.wake()

    def handle(self) -> None:
        """Decode the request, call its handler, respond; or have the result complete the response later."""
        function = self.handler.function
        if self.handler.takes_frame:
            self.broker.request_metrics.counts[self.api_key] += 1
            frame = memoryview(bytearray(self.frame))
            body = HEADER_BYTES + len((self.client_id or "").encode())
            version, correlation_id = self.api_version, self.correlation_id
            function(self.broker, self.connection, frame, body, len(frame), version, correlation_id)
            return
        self._content = self._decode()
        self.frame = b""  # it may be large, and the response may be delayed for long
        try:
            result = function(self, self._content)
        except Exception as error:  # noqa: BLE001 (the one place where a bug becomes a response)
            result = self.error_response(error)
        if isinstance(result, DelayedResult):
            delayed = _DelayedRequest(self)
            self.connection.outbox.add(delayed)  # nothing to send before it is complete
            result.add_done_callback(delayed.complete)
        elif hasattr(result, "__await__"):
            delayed = _DelayedRequest(self)
            self.connection.outbox.add(delayed)
            self.broker.tasks.start(f"api-{self.handler.name}", _await(result, delayed))
        else:
            response = self.encode(result)
            self.connection.respond(response, len(response))

    def _decode(self) -> object:
        """The request; None for ApiVersions in an unknown version, whose response has the oldest one."""
        if self.api_version not in self.handler.versions:
            self.api_version = 0
            return None
        return messages.read_request(self.api_key, self.api_version, self.frame, self.position)

    def encode(self, response: object) -> bytes:
        """The frame of the response, which is counted."""
        metrics = self.broker.request_metrics
        metrics.complete(self.api_key, self._began)
        for code in error_codes(self.api_key, response):
            metrics.error(self.api_key, code)
        return messages.write_response_frame(self.api_key, self.api_version, self.correlation_id, response)

    def error_response(self, error: Exception) -> object:
        """The response for a request that failed; a bug is logged with its trace."""
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

    def _inject(self, fault: Fault) -> None:
        if fault.delay_s:
            self.connection.muted = True
            self.broker.call_later(fault.delay_s, self._after_delay, fault._replace(delay_s=0.0))
        elif fault.drop:
            self.connection.close("dropped by an injected fault")
        elif fault.error is not None:
            request = self._decode()
            if getattr(request, "acks", None) == 0:
                self.connection.close("an injected fault of a Produce without acks")
                return
            injected = KafkaError(fault.error, "an injected fault")
            response = self.encode(error_response(self.api_key, request, injected))
            self.connection.respond(response, len(response))
        else:
            self.handle()

    def _after_delay(self, rest: Fault) -> None:
        self._resume(lambda: self._inject(rest))


class _DelayedRequest(DelayedResponse):
    """The response to a request whose handler returned a delayed result, or awaits something."""

    __slots__ = ("_request",)
    connection: Connection

    def __init__(self, request: Request) -> None:
        super().__init__(request.connection)
        self._request = request

    def complete(self, result: Any) -> None:
        """Encode the result now if the outbox has room for it; otherwise when it is sent: many may complete at once."""
        request, connection = self._request, self.connection
        try:
            self.result = request.error_response(result) if isinstance(result, Exception) else result
            if not connection.is_outbox_full:
                self.result = request.encode(self.result)
                connection.outbox.count(len(self.result))
        except Exception as error:
            api = request.handler.name
            log.error("a response cannot be written", peer=connection.peer, api=api, exc_info=error)
            connection.close("a bug in the broker; its log has the trace")
        connection.wake()

    def encode(self, result: Any) -> bytes:
        return result if isinstance(result, bytes) else self._request.encode(result)


async def _await(result: Awaitable[object], delayed: DelayedResponse) -> None:
    try:
        response = await result
    except Exception as error:  # noqa: BLE001 (the same for handlers that wait)
        response = error
    delayed.complete(response)

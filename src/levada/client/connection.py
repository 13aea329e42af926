"""Connections to brokers: requests are pipelined, responses matched by correlation id.

A request that gets no response in time closes the connection: a broker responds in order, so every later response would
be late as well.
"""

import asyncio
import os
from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, Protocol, TypeVar, cast

from levada.client.errors import BrokerNotResponding, ConnectionFailed, RequestTimedOut
from levada.client.metadata import (
    API_VERSIONS,
    METADATA,
    Api,
    ApiVersions,
    ClusterMetadata,
    read_api_versions,
    read_metadata,
    write_api_versions,
    write_metadata,
)
from levada.client.reader import MessageReader
from levada.errors import ErrorCode, KafkaError

RESPONSE_BYTES_MAX = 256 * 1024 * 1024
CLOSE_TIMEOUT_S = 1.0
RECEIVE_BUFFER_BYTES = 64 * 1024  # a response that does not fit is received into memory of its own

_SIZE = Struct(">i")
_START = Struct(">ii")  # size and correlation id
_HEADER = Struct(">hhih")

Response = TypeVar("Response")
Allocate = Callable[[int], memoryview]  # writable, of so many bytes
MALFORMED = (ValueError, IndexError, StructError)  # raised by the reader of a malformed response


class Address(NamedTuple):
    """Where to connect."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Reply(Protocol):
    """What is completed with the body of a response, or with why there is none; a future, for example."""

    def done(self) -> bool: ...

    def set_result(self, body: memoryview, /) -> None: ...

    def set_exception(self, failure: Exception, /) -> None: ...


class _InFlight(NamedTuple):
    response: Reply
    timer: asyncio.TimerHandle
    flexible: bool
    allocate: Allocate


def _allocate(size: int) -> memoryview:
    return memoryview(bytearray(size))


class Connection(asyncio.BufferedProtocol):
    """A connection to one broker; `Connection.open` connects and learns the versions that the broker supports."""

    def __init__(self, address: Address, client_id: str, response_bytes_max: int = RESPONSE_BYTES_MAX) -> None:
        self.address = address
        self.api_versions = ApiVersions({}, {})
        self.closed = False
        self._client_id = client_id.encode()
        self._response_bytes_max = response_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._lost = asyncio.Event()
        self._in_flight: dict[int, _InFlight] = {}  # by correlation id
        self._correlation_id = 0
        self._buffer = _allocate(RECEIVE_BUFFER_BYTES)
        self._frame: memoryview | None = None  # a response that is received into memory of its own
        self._filled = 0  # bytes of that response, or of the buffer

    @classmethod
    async def open(
        cls,
        address: Address,
        client_id: str,
        *,
        timeout_s: float,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
    ) -> "Connection":
        """Connect and send ApiVersions."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: cls(address, client_id, response_bytes_max), address.host, address.port
                )
        except TimeoutError:
            raise ConnectionFailed(f"{address} did not accept a connection within {timeout_s:g} s") from None
        except OSError as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
            raise ConnectionFailed(f"cannot connect to {address}: {why}") from error
        try:
            body = await connection.send(
                API_VERSIONS.key,
                API_VERSIONS.versions.start,
                write_api_versions(),
                timeout_s=timeout_s,
                flexible_response=False,
            )
            connection.api_versions = connection.parse(read_api_versions, body)
        except RequestTimedOut:
            raise BrokerNotResponding(f"{address} accepts connections and does not respond: is it a broker?") from None
        except BaseException:
            connection.close()
            raise
        return connection

    def version(self, api: Api) -> int:
        """The highest version of an API that both sides support."""
        supported, known = self.api_versions.apis.get(api.key), api.versions
        if supported is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{self.address} does not support {api.name}")
        highest = min(supported.stop, known.stop) - 1
        if highest < max(supported.start, known.start):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.address} supports {api.name} {supported.start}-{supported.stop - 1}, "
                f"this client {known.start}-{known.stop - 1}",
            )
        return highest

    async def metadata(self, topics: list[str] | None, *, create: bool, timeout_s: float) -> ClusterMetadata:
        version = self.version(METADATA)
        request = write_metadata(version, topics, create=create)
        return self.parse(read_metadata, await self.send(METADATA.key, version, request, timeout_s=timeout_s))

    async def send(
        self,
        api_key: int,
        version: int,
        body: bytes | bytearray | memoryview,
        *,
        timeout_s: float,
        flexible: bool = True,
        flexible_response: bool = True,
        allocate: Allocate | None = None,
    ) -> memoryview:
        """Send a request and wait for the body of its response; a large one is received into memory from `allocate`."""
        correlation_id = await self._write(api_key, version, body, flexible)
        response: asyncio.Future[memoryview] = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._expire, correlation_id, timeout_s)
        self._in_flight[correlation_id] = _InFlight(response, timer, flexible_response, allocate or _allocate)
        try:
            return await response
        finally:
            timer.cancel()

    def post(
        self,
        api_key: int,
        version: int,
        body: bytes | bytearray,
        reply: Reply,
        *,
        timeout_s: float,
        allocate: Allocate | None = None,
    ) -> None:
        """Send a request at once; `reply` is completed when the response arrives, within the callback of the loop."""
        correlation_id = self._write_now(api_key, version, body, flexible=True)
        timer = self._loop.call_later(timeout_s, self._expire, correlation_id, timeout_s)
        self._in_flight[correlation_id] = _InFlight(reply, timer, True, allocate or _allocate)

    async def send_without_response(
        self, api_key: int, version: int, body: bytes | bytearray | memoryview, *, flexible: bool = True
    ) -> None:
        """Send a request that has no response: Produce with acks=0."""
        await self._write(api_key, version, body, flexible)

    async def _write(self, api_key: int, version: int, body: bytes | bytearray | memoryview, flexible: bool) -> int:
        while not self.closed and not self._writable.is_set():
            await self._writable.wait()
        return self._write_now(api_key, version, body, flexible)

    def _write_now(self, api_key: int, version: int, body: bytes | bytearray | memoryview, flexible: bool) -> int:
        if self.closed or self._transport is None:
            raise ConnectionFailed(f"the connection to {self.address} is closed")
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = _HEADER.pack(api_key, version, correlation_id, len(self._client_id)) + self._client_id
        if flexible:
            header += b"\0"
        head = _SIZE.pack(len(header) + len(body)) + header
        # asyncio's transports since Python 3.12 keep an empty chunk for ever, and so never close.
        self._transport.writelines((head, body) if body else (head,))
        return correlation_id

    def parse(self, read: Callable[[memoryview], Response], body: memoryview) -> Response:
        """Decode a response; a malformed one closes the connection."""
        try:
            return read(body)
        except MALFORMED as error:
            failure = ConnectionFailed(f"{self.address} sent a malformed response: {error}")
            self._fail(failure)
            raise failure from None

    def close(self) -> None:
        """Close at once; requests in flight fail."""
        self._fail(ConnectionFailed(f"the connection to {self.address} was closed"))

    async def drain_and_close(self) -> None:
        """Close after the written bytes are sent, which matters to requests without a response."""
        if self._transport is not None and not self.closed:
            self._transport.close()
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._lost.wait()
            except TimeoutError:
                self.close()

    def _fail(self, failure: Exception) -> None:
        """Close, and fail the requests in flight."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        self._writable.set()
        pending, self._in_flight = self._in_flight, {}
        for request in pending.values():
            request.timer.cancel()
            if not request.response.done():
                request.response.set_exception(failure)
        self._frame, self._filled = None, 0

    def _expire(self, correlation_id: int, timeout_s: float) -> None:
        request = self._in_flight.pop(correlation_id, None)
        if request is None:
            return
        if not request.response.done():
            request.response.set_exception(RequestTimedOut(f"{self.address} did not respond within {timeout_s:g} s"))
        self._fail(ConnectionFailed(f"the connection to {self.address} was closed after a timeout"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()
        reason = f": {exc}" if exc else ""
        self._fail(ConnectionFailed(f"{self.address} closed the connection{reason}"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return (self._buffer if self._frame is None else self._frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._frame is None:
            self._read_frames()
        elif self._filled == len(self._frame):
            frame, self._frame, self._filled = self._frame, None, 0
            self._receive(frame)

    def _read_frames(self) -> None:
        """Take whole frames out of the buffer; the rest of a partial frame is received into its own memory.

        Fewer than 8 bytes stay in the buffer until the correlation id has arrived.
        """
        position, filled = 0, self._filled
        while filled - position >= _SIZE.size:
            size = _SIZE.unpack_from(self._buffer, position)[0]
            if not self._check_size(size):
                return
            if filled - position < _START.size:
                break
            start = position + _SIZE.size
            position = start + size
            if position > filled:
                self._begin_frame(self._buffer[start:filled], size)
                return
            self._receive(memoryview(bytes(self._buffer[start:position])))
            if self.closed:
                return
        self._filled = filled - position
        self._buffer[: self._filled] = bytes(self._buffer[position:filled])

    def _begin_frame(self, beginning: memoryview, size: int) -> None:
        request = self._in_flight.get(_SIZE.unpack_from(beginning)[0])
        self._frame = (request.allocate if request else _allocate)(size)
        self._filled = len(beginning)
        self._frame[: self._filled] = beginning

    def _check_size(self, size: int) -> bool:
        if _SIZE.size <= size <= self._response_bytes_max:
            return True
        self._fail(
            ConnectionFailed(
                f"{self.address} announced a response of {size} bytes, the limit is {self._response_bytes_max} "
                "(response_bytes_max): is it a Kafka listener without TLS?"
            )
        )
        return False

    def _receive(self, frame: memoryview) -> None:
        correlation_id = _SIZE.unpack_from(frame)[0]
        request = self._in_flight.pop(correlation_id, None)
        if request is None:
            self._fail(
                ConnectionFailed(f"{self.address} sent a response without a request (correlation id {correlation_id})")
            )
            return
        request.timer.cancel()
        start = _SIZE.size
        if request.flexible:
            header = MessageReader(frame, start)
            try:
                header.tags()
            except MALFORMED:
                self._in_flight[correlation_id] = request
                self._fail(ConnectionFailed(f"{self.address} sent a malformed response header"))
                return
            start = header.position
        if not request.response.done():  # the caller still waits
            request.response.set_result(frame[start:].toreadonly())


class ConnectionPool:
    """At most one connection to each address, opened when it is first needed, and again after it was lost.

    A broker responds in the order of the requests of a connection, so long polls have a pool of their own: no other
    request waits behind them.
    """

    def __init__(self, client_id: str, *, connect_timeout_s: float, response_bytes_max: int) -> None:
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self._response_bytes_max = response_bytes_max
        self._connections: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        self.closed = False

    def any_open(self) -> Connection | None:
        """An open connection, if there is one."""
        return next((one for one in self._connections.values() if not one.closed), None)

    async def get(self, address: Address) -> Connection:
        """The connection to an address."""
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        if self.closed:
            raise ConnectionFailed("the client is closed")
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.create_task(self._open(address), name=f"connect to {address}")
            opening.add_done_callback(_retrieve_exception)  # the caller may have been cancelled
            self._opening[address] = opening
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Close every connection after the written bytes are sent."""
        self.closed = True
        for opening in self._opening.values():
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await asyncio.gather(*(connection.drain_and_close() for connection in self._connections.values()))
        self._connections.clear()

    async def _open(self, address: Address) -> Connection:
        try:
            connection = await Connection.open(
                address,
                self._client_id,
                timeout_s=self._connect_timeout_s,
                response_bytes_max=self._response_bytes_max,
            )
            self._connections[address] = connection
            return connection
        finally:
            del self._opening[address]


def _retrieve_exception(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled():
        task.exception()

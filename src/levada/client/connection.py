"""One socket to one broker: requests go out as they come, answers are matched by correlation id.

Any number of requests may be on the way at once. A request that gets no answer in time closes the connection,
because a broker answers in order: whatever follows is late as well.
"""

import asyncio
import os
from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, TypeVar, cast

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
FINISH_TIMEOUT_S = 1.0

INBOX_BYTES = 64 * 1024  # answers that fit are cut out of it, the rest of others comes to memory of their own

_SIZE = Struct(">i")
_START = Struct(">ii")  # size and correlation id
_HEADER = Struct(">hhih")

Answer = TypeVar("Answer")
Allocate = Callable[[int], memoryview]  # writable, of so many bytes
BROKEN = (ValueError, IndexError, StructError)  # what reading bytes that are no answer raises


class Address(NamedTuple):
    """Where to connect."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Pending(NamedTuple):
    answer: asyncio.Future[memoryview]
    timer: asyncio.TimerHandle
    flexible: bool
    allocate: Allocate


def _allocate(size: int) -> memoryview:
    return memoryview(bytearray(size))


class Connection(asyncio.BufferedProtocol):
    """A socket that speaks Kafka's frames; `Connection.open` makes it and learns what the broker serves."""

    def __init__(
        self, address: Address, client_id: str, response_bytes_max: int = RESPONSE_BYTES_MAX
    ) -> None:
        self.address = address
        self.api_versions = ApiVersions({}, {})
        self.closed = False
        self._client_id = client_id.encode()
        self._response_bytes_max = response_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._lost = asyncio.Event()
        self._pending: dict[int, _Pending] = {}  # exactly the requests sent and not yet answered
        self._correlation_id = 0
        self._inbox = _allocate(INBOX_BYTES)
        self._frame: memoryview | None = None  # an answer of which only the beginning has come
        self._filled = 0  # bytes of that answer, or of the inbox

    @classmethod
    async def open(
        cls,
        address: Address,
        client_id: str,
        *,
        timeout_s: float,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
    ) -> "Connection":
        """Connect and ask which versions the broker serves."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: cls(address, client_id, response_bytes_max), address.host, address.port
                )
        except TimeoutError:
            raise ConnectionFailed(f"{address} does not take a connection within {timeout_s:g} s") from None
        except OSError as error:
            why = (
                os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
            )
            raise ConnectionFailed(f"cannot connect to {address}: {why}") from error
        try:
            body = await connection.send(
                API_VERSIONS.key,
                API_VERSIONS.versions.start,
                write_api_versions(),
                timeout_s=timeout_s,
                flexible_reply=False,
            )
            connection.api_versions = connection.parse(read_api_versions, body)
        except RequestTimedOut:
            raise BrokerNotResponding(
                f"{address} takes connections and does not answer: is it a broker?"
            ) from None
        except BaseException:
            connection.close()
            raise
        return connection

    def version(self, api: Api) -> int:
        """The highest version of an API that both sides know."""
        served, known = self.api_versions.apis.get(api.key), api.versions
        if served is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{self.address} does not serve {api.name}")
        highest = min(served.stop, known.stop) - 1
        if highest < max(served.start, known.start):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.address} serves {api.name} {served.start}-{served.stop - 1}, "
                f"this client knows {known.start}-{known.stop - 1}",
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
        flexible_reply: bool = True,
        allocate: Allocate | None = None,
    ) -> memoryview:
        """Send one request and wait for the body of its answer; a large one is received into memory from `allocate`."""
        correlation_id = await self._write(api_key, version, body, flexible)
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._expire, correlation_id, timeout_s)
        self._pending[correlation_id] = _Pending(answer, timer, flexible_reply, allocate or _allocate)
        try:
            return await answer
        finally:
            timer.cancel()

    async def send_without_response(
        self, api_key: int, version: int, body: bytes | bytearray | memoryview, *, flexible: bool = True
    ) -> None:
        """Send a request to which the protocol has no answer: Produce with acks=0."""
        await self._write(api_key, version, body, flexible)

    async def _write(
        self, api_key: int, version: int, body: bytes | bytearray | memoryview, flexible: bool
    ) -> int:
        while not self.closed and not self._writable.is_set():
            await self._writable.wait()
        if self.closed or self._transport is None:
            raise ConnectionFailed(f"the connection to {self.address} is closed")
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = _HEADER.pack(api_key, version, correlation_id, len(self._client_id)) + self._client_id
        if flexible:
            header += b"\0"
        head = _SIZE.pack(len(header) + len(body)) + header
        # asyncio's transports since Python 3.12 never get rid of an empty chunk, and so never close.
        self._transport.writelines((head, body) if body else (head,))
        return correlation_id

    def parse(self, read: Callable[[memoryview], Answer], body: memoryview) -> Answer:
        """Read an answer; one that cannot be read closes the connection."""
        try:
            return read(body)
        except BROKEN as error:
            failure = ConnectionFailed(f"{self.address} sent an answer that cannot be read: {error}")
            self._fail(failure)
            raise failure from None

    def close(self) -> None:
        """Stop at once; requests on the way fail."""
        self._fail(ConnectionFailed(f"the connection to {self.address} was closed"))

    async def finish(self) -> None:
        """Close after what was written has left, which matters to requests without an answer."""
        if self._transport is not None and not self.closed:
            self._transport.close()
            try:
                async with asyncio.timeout(FINISH_TIMEOUT_S):
                    await self._lost.wait()
            except TimeoutError:
                self.close()

    def _fail(self, failure: Exception) -> None:
        """Close, and tell everybody who waits."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        self._writable.set()
        pending, self._pending = self._pending, {}
        for request in pending.values():
            request.timer.cancel()
            if not request.answer.done():
                request.answer.set_exception(failure)
        self._frame, self._filled = None, 0

    def _expire(self, correlation_id: int, timeout_s: float) -> None:
        request = self._pending.pop(correlation_id, None)
        if request is None:
            return
        if not request.answer.done():
            request.answer.set_exception(
                RequestTimedOut(f"{self.address} gave no answer within {timeout_s:g} s")
            )
        self._fail(ConnectionFailed(f"the connection to {self.address} was closed after a timeout"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are transports by what they do only
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
        return (self._inbox if self._frame is None else self._frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._frame is None:
            self._read_inbox()
        elif self._filled == len(self._frame):
            frame, self._frame, self._filled = self._frame, None, 0
            self._receive(frame)

    def _read_inbox(self) -> None:
        """Take out whole frames; one that is not whole goes on in memory of its own, and fewer than 8 bytes wait."""
        position, filled = 0, self._filled
        while filled - position >= _SIZE.size:
            size = _SIZE.unpack_from(self._inbox, position)[0]
            if not self._size_is_sane(size):
                return
            if filled - position < _START.size:
                break
            start = position + _SIZE.size
            position = start + size
            if position > filled:
                self._begin_frame(self._inbox[start:filled], size)
                return
            self._receive(memoryview(bytes(self._inbox[start:position])))
            if self.closed:
                return
        self._filled = filled - position
        self._inbox[: self._filled] = bytes(self._inbox[position:filled])

    def _begin_frame(self, beginning: memoryview, size: int) -> None:
        request = self._pending.get(_SIZE.unpack_from(beginning)[0])
        self._frame = (request.allocate if request else _allocate)(size)
        self._filled = len(beginning)
        self._frame[: self._filled] = beginning

    def _size_is_sane(self, size: int) -> bool:
        if _SIZE.size <= size <= self._response_bytes_max:
            return True
        self._fail(
            ConnectionFailed(
                f"{self.address} announced an answer of {size} bytes, at most {self._response_bytes_max} "
                "are taken: is it a Kafka listener without TLS?"
            )
        )
        return False

    def _receive(self, frame: memoryview) -> None:
        correlation_id = _SIZE.unpack_from(frame)[0]
        request = self._pending.pop(correlation_id, None)
        if request is None:
            self._fail(
                ConnectionFailed(f"{self.address} answered a request that was not sent ({correlation_id})")
            )
            return
        request.timer.cancel()
        start = _SIZE.size
        if request.flexible:
            header = MessageReader(frame, start)
            try:
                header.tags()
            except BROKEN:
                self._pending[correlation_id] = request
                self._fail(ConnectionFailed(f"{self.address} sent a broken response header"))
                return
            start = header.position
        if not request.answer.done():  # somebody still waits
            request.answer.set_result(frame[start:].toreadonly())


class ConnectionPool:
    """At most one connection to each address.

    A broker answers the requests of a connection in order, so whoever keeps a long poll open has a pool of its own:
    nothing else shall wait behind it.
    """

    def __init__(self, client_id: str, *, connect_timeout_s: float, response_bytes_max: int) -> None:
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self._response_bytes_max = response_bytes_max
        self._connections: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        self.closed = False

    def any_open(self) -> Connection | None:
        """A connection that is open, if there is one."""
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
            opening.add_done_callback(_look_at)  # who asked for it may be gone
            self._opening[address] = opening
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Close every connection after what was written has left."""
        self.closed = True
        for opening in self._opening.values():
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await asyncio.gather(*(connection.finish() for connection in self._connections.values()))
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


def _look_at(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled():
        task.exception()

"""A listener on a loop of its own thread, and a handler that acknowledges what it receives."""

import asyncio
import contextlib
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tests.support.waiting import until

from levada.broker.purgatory import DelayedResponse
from levada.loop import new_event_loop
from levada.net.buffer_pool import BufferPool
from levada.net.connection import Connection, RequestLimits
from levada.net.flush import FlushQueue
from levada.net.listener import ConnectionLimits, Listener

T = TypeVar("T")


TIMEOUT_S = 20.0


KIB, MIB = 1 << 10, 1 << 20


LIMITS = RequestLimits(
    frame_bytes_max=100 * MIB, requests_in_flight_max=1_000, queued_bytes_max=64 * MIB, idle_ms_max=-1
)


class Journal:
    """Like a partition: what is queued during a turn is looked at when it ends."""

    def __init__(self, iteration: FlushQueue) -> None:
        self._flush_queue = iteration
        self._queue: list[tuple[DelayedResponse, memoryview]] = []

    def take(self, connection: Connection, view: memoryview) -> None:
        if not self._queue:
            self._flush_queue.add_publisher(self)
        answer = DelayedResponse(connection)
        self._queue.append((answer, view))
        connection.respond(answer)

    def publish(self) -> None:
        queue, self._queue = self._queue, []
        for answer, view in queue:
            answer.complete(receipt(view))

    def crashed(self, error: Exception) -> None:
        raise error


class Server:
    """A listener on a loop of its own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.dispatched = 0
        self.received_bytes = 0
        self.handle: Callable[[Connection, memoryview], None] = lambda c, view: self.journal.take(c, view)
        self.listeners: list[Listener] = []

    async def start(
        self, limits: RequestLimits, frames_bytes_max: int, connection_limits: ConnectionLimits, count: int
    ) -> None:
        self.flush_queue = FlushQueue(self.loop.call_soon)
        self.pool = BufferPool(frames_bytes_max)
        self.flush_queue.after_flush(self.pool.reset)
        self.journal = Journal(self.flush_queue)
        self.places = []
        for _ in range(count):
            one = Listener("PLAINTEXT", self._dispatch, self.flush_queue, self.pool, limits, connection_limits)
            self.places.append(("127.0.0.1", one.bind("127.0.0.1", 0, 50)))
            self.listeners.append(one)
            await one.serve()

    def _dispatch(self, connection: Connection, view: memoryview, start: int, stop: int) -> None:
        self.handle(connection, view[start:stop])
        self.dispatched += 1

    def note_received(self, nbytes: int) -> None:
        self.received_bytes += nbytes

    def wait_for(self, condition: Callable[[], bool]) -> None:
        until(condition, "it never came", TIMEOUT_S)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the loop."""

        async def on_loop() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(on_loop(), self.loop).result(TIMEOUT_S)

    def connect(self, number: int = 0, source: str = "127.0.0.1") -> socket.socket:
        one = socket.create_connection(self.places[number], TIMEOUT_S, source_address=(source, 0))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return one

    def connections(self) -> list[Connection]:
        return self.call(lambda: list(self.listeners[0].connections))


@contextlib.contextmanager
def serving(
    limits: RequestLimits = LIMITS,
    frames_bytes_max: int = -1,
    connection_limits: ConnectionLimits | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
    listeners: int = 1,
) -> Iterator[Server]:
    loop = loop or new_event_loop()
    server = Server(loop)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(TIMEOUT_S)

    try:
        run(server.start(limits, frames_bytes_max, connection_limits or ConnectionLimits(10_000, 10_000), listeners))
        yield server
        for one in server.listeners:
            run(one.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT_S)
        loop.close()


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def receipt(content: bytes | memoryview) -> bytes:
    """What the journal answers: size and checksum of what it was handed, as it is when the turn ends."""
    return struct.pack(">iI", len(content), zlib.crc32(content))


def receive(one: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = one.recv(min(size - len(received), MIB))
        assert piece, f"closed after {len(received)} of {size} bytes"
        received += piece
    return bytes(received)


def ask_until(one: socket.socket, condition: Callable[[], bool]) -> None:
    """Send requests until the server is in the state that is waited for."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        ask(one, b"how is it going?")


def ask(one: socket.socket, content: bytes) -> None:
    """Send a frame; it must have arrived as it was sent."""
    one.sendall(framed(content))
    assert receive(one, 8) == receipt(content)

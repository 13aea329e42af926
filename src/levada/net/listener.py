"""Sockets to frames: one asyncio protocol object per client, and the listener that limits how many there are.

The first half of the hot path. Bytes are received into the shared arena, cut into frames in place and handed to
`dispatch` without a copy, a task or a queue; answers are sent at the end of the turn, in one write.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, cast

from levada.errors import KafkaError
from levada.logs import EventLog
from levada.net.memory import ReceiveMemory
from levada.net.turn import Turn
from levada.wire.connection import SIZE_BYTES, Outbox, Pending, Reply, frame_end

log = EventLog(__name__)

BACKLOG = 1024
UNSENT_BYTES_HIGH = 256 * 1024  # the socket's own queue: above it, no further request of this client is begun

Dispatch = Callable[["Connection", memoryview, int, int], None]


class Limits(NamedTuple):
    """What clients may take, by Kafka's settings."""

    frame_bytes_max: int
    requests_in_flight_max: int
    queued_bytes_max: int
    connections_max: int
    connections_per_ip_max: int
    idle_ms_max: int


class Connection(asyncio.BufferedProtocol):
    """One client."""

    __slots__ = (
        "_dispatch",
        "_frame",
        "_frame_filled",
        "_frame_size",
        "_held",
        "_listener",
        "_memory",
        "_queued",
        "_reading",
        "_slow",
        "_turn",
        "client_id",
        "closed",
        "delayed",
        "last_active",
        "listener_name",
        "outbox",
        "peer",
        "transport",
    )

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._dispatch = listener.dispatch
        self._memory = listener.memory
        self._turn = listener.turn
        self._frame: bytearray | None = None  # a frame that has not arrived whole
        self._frame_filled = 0
        self._frame_size = 0
        self._held = b""  # whole and partial frames not begun, because the client is slow or asks too much
        self._queued = False  # whether the turn knows of this connection
        self._reading = True
        self._slow = False
        self.listener_name = listener.name
        self.outbox = Outbox()
        self.closed = False
        self.delayed = False  # no further request is begun while the answer to one is held back
        self.client_id: str | None = None
        self.last_active = 0.0
        self.peer = ""
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)

    # The socket side, called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES_HIGH)
        self._listener.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._listener.forget(self)
        if self._frame is not None:
            self._memory.discard(self._frame)
            self._frame = None
        for waiter in self.outbox.clear():
            waiter.give_up()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None:
            return self._memory.room()
        if self._frame_filled == len(self._frame):
            self._frame = self._memory.grow(self._frame, self._frame_size)
        return memoryview(self._frame)[self._frame_filled : min(self._frame_size, len(self._frame))]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._listener.now()
        if self._frame is not None:
            self._fill(nbytes)
            return
        memory = self._memory
        start = memory.position
        memory.position = start + nbytes
        self._cut(memory.arena, start, start + nbytes)

    def pause_writing(self) -> None:
        self._slow = True

    def resume_writing(self) -> None:
        self._slow = False
        self.wake()

    # Frames.

    def _cut(self, view: memoryview, position: int, stop: int) -> None:
        """Hand on every whole frame of view[position:stop] and keep the rest."""
        dispatch = self._dispatch
        frame_bytes_max = self._listener.limits.frame_bytes_max
        in_flight_max = self._listener.limits.requests_in_flight_max
        try:
            while stop - position >= SIZE_BYTES:
                end = frame_end(view, position, frame_bytes_max)
                if end > stop:
                    break
                if self._slow or self.delayed or len(self.outbox) >= in_flight_max:
                    self._hold(view[position:stop])
                    return
                dispatch(self, view, position + SIZE_BYTES, end)
                if self.closed:
                    return
                position = end
        except KafkaError as error:
            self.close(str(error))
            return
        if position < stop:
            self._keep(view[position:stop])

    def _keep(self, rest: memoryview) -> None:
        """Begin a buffer for a frame of which only `rest` has come."""
        if len(rest) >= SIZE_BYTES:
            self._frame_size = frame_end(rest, 0, self._listener.limits.frame_bytes_max)
        else:
            self._frame_size = SIZE_BYTES
        self._frame = self._memory.lend(self._frame_size, len(rest))
        self._frame[: len(rest)] = rest
        self._frame_filled = len(rest)

    def _fill(self, nbytes: int) -> None:
        assert self._frame is not None
        self._frame_filled += nbytes
        if self._frame_filled < self._frame_size:
            return
        view = memoryview(self._frame)
        if self._frame_size == SIZE_BYTES:
            self._memory.discard(self._frame)
            rest, self._frame = view[:SIZE_BYTES], None
            try:
                self._keep(rest)
            except KafkaError as error:
                self.close(str(error))
            return
        buffer, self._frame = self._frame, None
        self._memory.give_back(buffer)
        self._cut(view, 0, self._frame_size)

    # A client that does not read its answers, or asks more than it may have open, is not read from until it does.

    def _hold(self, rest: memoryview) -> None:
        self._held = bytes(rest)
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    def _is_held_back(self) -> bool:
        return self._slow or self.delayed

    def _resume(self) -> None:
        held, self._held = self._held, b""
        self._cut(memoryview(bytearray(held)), 0, len(held))
        if not self._held and not self.closed:
            self._reading = True
            self.transport.resume_reading()

    # Answers.

    def reply(self, place: Reply | Pending) -> None:
        """Take the next place in the order of answers."""
        self.outbox.add(place)
        if not self._queued:
            self._queued = True
            self._turn.add_sender(self)

    def wake(self) -> None:
        """An answer has become ready: look again at the end of the turn."""
        if not self._queued:
            self._queued = True
            self._turn.add_sender(self)

    def send(self) -> None:
        self._queued = False
        if self.closed or self._slow:
            return
        buffers = self.outbox.collect()
        if buffers:
            if len(buffers) == 1:
                self.transport.write(buffers[0])
            elif all(isinstance(buffer, bytes) for buffer in buffers):
                self.transport.write(b"".join(buffers))
            else:
                self.transport.writelines(buffers)
            if self.transport.get_write_buffer_size() > self._listener.limits.queued_bytes_max:
                self.close("the client does not read its answers")
                return
        if not self._reading and not self._is_held_back():
            self._resume()

    def close(self, reason: str) -> None:
        """End the conversation; `reason` is for the log."""
        if self.closed:
            return
        self.closed = True
        log.info("connection closed", peer=self.peer, client_id=self.client_id, reason=reason)
        self.transport.abort()


class Listener:
    """One address that clients connect to."""

    def __init__(
        self, name: str, dispatch: Dispatch, turn: Turn, memory: ReceiveMemory, limits: Limits
    ) -> None:
        self.name = name
        self.dispatch = dispatch
        self.turn = turn
        self.memory = memory
        self.limits = limits
        self.connections: set[Connection] = set()
        self.connections_total = 0
        self._per_ip: Counter[str] = Counter()
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._idle_timer: asyncio.TimerHandle | None = None

    def bind(self, host: str, port: int) -> int:
        """Take the address, so that it can be told to clients before they are served; port 0 takes a free one."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        return int(self._socket.getsockname()[1])

    async def serve(self) -> None:
        """Let clients in."""
        assert self._socket is not None
        self._server = await self._loop.create_server(
            lambda: Connection(self), sock=self._socket, backlog=BACKLOG
        )
        self._close_idle()

    async def stop(self) -> None:
        """Accept nobody, and let everybody go."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        for connection in list(self.connections):
            connection.transport.close()
        if self._server is not None:
            await self._server.wait_closed()

    def admit(self, connection: Connection) -> None:
        """Count a new client, or turn it away."""
        address = connection.transport.get_extra_info("peername") or ("", 0)
        connection.peer = f"{address[0]}:{address[1]}"
        connection.last_active = self.now()
        self.connections_total += 1
        self.connections.add(connection)
        self._per_ip[str(address[0])] += 1
        if len(self.connections) > self.limits.connections_max:
            connection.close(f"max.connections={self.limits.connections_max} is reached")
        elif self._per_ip[str(address[0])] > self.limits.connections_per_ip_max:
            connection.close(f"max.connections.per.ip={self.limits.connections_per_ip_max} is reached")

    def forget(self, connection: Connection) -> None:
        """A client is gone."""
        if connection in self.connections:
            self.connections.discard(connection)
            host = connection.peer.rpartition(":")[0]
            self._per_ip[host] -= 1
            if not self._per_ip[host]:
                del self._per_ip[host]

    def _close_idle(self) -> None:
        if self.limits.idle_ms_max < 0:
            return
        seconds_max = self.limits.idle_ms_max / 1000
        now = self.now()
        for connection in list(self.connections):
            if now - connection.last_active > seconds_max and not len(connection.outbox):
                connection.close("idle for longer than connections.max.idle.ms")
        self._idle_timer = self._loop.call_later(max(1.0, seconds_max / 10), self._close_idle)

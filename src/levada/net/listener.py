"""Sockets to frames: one asyncio protocol object per client, and the listener that limits how many there are.

The first half of the hot path. Bytes are received into the shared arena, cut into frames in place and handed to
`dispatch` without a copy, a task or a queue; answers leave at the end of the turn, in one write, or at once (`tell`).
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from levada.errors import KafkaError
from levada.logs import EventLog
from levada.model import ANONYMOUS
from levada.net.buffer_pool import PARSED_BYTES_MAX, POSITION_MAX, ReceiveMemory
from levada.net.connection_limits import Admission
from levada.net.flush import Turn
from levada.net.idle_reaper import Silence
from levada.net.memory_limit import Relief
from levada.wire.frames import SIZE_BYTES, Buffer, Outbox, PendingResponse, Response, frame_end

log = EventLog(__name__)

UNSENT_BYTES_HIGH = 256 * 1024  # the socket's own queue: above it, no further request of this client is begun
STOP_SECONDS = 1.0  # for clients to take their last answers when the broker stops

Dispatch = Callable[["Connection", memoryview, int, int], None]


class Limits(NamedTuple):
    """What a client may take, by Kafka's settings."""

    frame_bytes_max: int
    requests_in_flight_max: int
    queued_bytes_max: int
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
        "caches",
        "client_id",
        "closed",
        "heard",
        "host",
        "listener_name",
        "muted",
        "outbox",
        "peer",
        "principal",
        "silent_since",
        "transport",
    )

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._dispatch = listener.dispatch
        self._memory = listener.memory
        self._turn = listener.turn
        self._frame: bytearray | None = None  # a frame that has not arrived whole
        self._frame_filled = self._frame_size = 0
        self._held = bytearray()  # of one receive, not begun: the client is slow, waits or asks too much
        self._queued = False  # whether the turn knows of this connection
        self._reading = True
        self._slow = False
        self.listener_name = listener.name
        self.outbox = Outbox(UNSENT_BYTES_HIGH)
        self.caches: dict[int, Any] = {}  # by API key: what fast paths keep of this connection
        self.closed = False
        self.muted = False  # as Kafka mutes a channel: no further request is dispatched while one is queued or verified
        self.client_id: str | None = None
        self.principal = ANONYMOUS
        self.heard = True  # since silence was last looked for
        self.silent_since = 0.0  # when `Silence` last found it heard of, or waiting
        self.host = self.peer = ""
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)

    # The socket side, called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES_HIGH)
        self._listener.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._listener.forget(self)
        self._memory.waiting.pop(self, None)
        if self._frame is not None:
            self._memory.discard(self, self._frame, self._frame_size)
            self._frame = None
        self.outbox.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None:
            return self._memory.room()
        return memoryview(self._frame)[self._frame_filled : min(self._frame_size, len(self._frame))]

    def buffer_updated(self, nbytes: int) -> None:
        self.heard = True
        memory = self._memory
        if self._frame is not None:
            self._fill(nbytes)
        else:
            start = memory.position
            memory.position = start + nbytes
            self._cut(memory.arena, start, start + nbytes)
        if memory.position > POSITION_MAX or memory.parsed_bytes > PARSED_BYTES_MAX:
            self._turn.end()  # not in get_buffer: a connection that is closed inside it takes the process with it

    def pause_writing(self) -> None:
        self._slow = True
        if self._frame is not None:
            self._pause()  # it must not become whole before it may be begun

    def resume_writing(self) -> None:
        self._slow = False
        self.heard = True
        self.wake()

    # Frames.

    def _cut(self, view: memoryview, position: int, stop: int) -> None:
        """Hand on every whole frame of view[position:stop] and keep the rest."""
        dispatch = self._dispatch
        frame_bytes_max, in_flight_max, queued_bytes_max, _ = self._listener.limits
        outbox = self.outbox
        try:
            while position < stop:
                if (
                    self._slow
                    or self.muted
                    or len(outbox.slots) >= in_flight_max
                    or outbox.queued_bytes > queued_bytes_max
                ):
                    self._hold(view[position:stop])
                    return
                if stop - position < SIZE_BYTES or (end := frame_end(view, position, frame_bytes_max)) > stop:
                    self._keep(view[position:stop])
                    return
                dispatch(self, view, position + SIZE_BYTES, end)
                if self.closed:
                    return
                position = end
        except KafkaError as error:
            self.close(str(error))
        except Exception as error:  # a bug in a handler costs its client the connection, no more
            log.error("a request failed", peer=self.peer, client_id=self.client_id, exc_info=error)
            self.crashed(error)

    def _keep(self, rest: memoryview) -> None:
        """Begin a buffer for a frame of which only `rest` has come."""
        size = SIZE_BYTES
        if len(rest) >= SIZE_BYTES:
            size = frame_end(rest, 0, self._listener.limits.frame_bytes_max)
        if self._memory.is_full(size):
            self._memory.waiting[self] = None
            self._listener.relief.look_later()
            self._hold(rest)
            return
        self._memory.waiting.pop(self, None)
        self._frame_size = size
        self._frame = self._memory.lend(self, size, len(rest), self._listener.now())
        self._frame[: len(rest)] = rest
        self._frame_filled = len(rest)
        self._make_room(self._frame)

    def _make_room(self, frame: bytearray) -> bool:
        """Whether the buffer of a frame that is not whole can take more: it is read on only then."""
        if self._frame_filled == len(frame):
            bigger = self._memory.grow(self, frame, self._frame_size, self._listener.now())
            if bigger is None:
                self._listener.relief.look_later()
                self._pause()
                return False
            self._frame = bigger
        return True

    def _fill(self, nbytes: int) -> None:
        assert self._frame is not None
        self._frame_filled += nbytes
        if self._frame_filled < self._frame_size:
            self._make_room(self._frame)
            return
        view = memoryview(self._frame)
        if self._frame_size == SIZE_BYTES:
            self._memory.discard(self, self._frame, SIZE_BYTES)
            rest, self._frame = view[:SIZE_BYTES], None
            try:
                self._keep(rest)
            except KafkaError as error:
                self.close(str(error))
            return
        buffer, self._frame = self._frame, None
        self._memory.give_back(self, buffer, self._frame_size)
        self._cut(view, 0, self._frame_size)

    # A client that does not read its answers, waits for its turn, asks more than it may have open, or begins a frame
    # for which there is no memory is not read from until that has changed: what had come with one receive is held,
    # and no frame is gathered that may not be begun.

    def _hold(self, rest: memoryview) -> None:
        self._held = bytearray(rest)
        self._pause()

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    def _resume(self) -> None:
        held, self._held = self._held, bytearray()
        self._cut(memoryview(held), 0, len(held))
        if self._held or self.closed or not (self._frame is None or self._make_room(self._frame)):
            return
        self._reading = True
        self.transport.resume_reading()

    # Answers.

    def respond(self, slot: Response | PendingResponse, size: int = 0) -> None:
        """Take the next slot of the outbox; `size` is that of a response which is encoded."""
        self.outbox.add(slot, size)
        if not self._queued:
            self._queued = True
            self._turn.add_sender(self)

    @property
    def can_send_now(self) -> bool:
        """Whether the outbox has one slot and the client reads: its response need not wait for the flush."""
        is_free = self._reading and not (self._queued or self._slow or self.closed)
        return is_free and len(self.outbox.slots) == 1

    def send_now(self, response: bytes) -> None:
        """Send the response of the only slot, before the flush."""
        self.outbox.empty()
        self._turn.has_begun()
        self.transport.write(response)

    def wake(self) -> None:
        """A response may be complete: collect it at the next flush."""
        if not self._queued:
            self._queued = True
            self._turn.add_sender(self)

    def send(self) -> None:
        self._queued = False
        outbox = self.outbox
        while not (self.closed or self._slow):
            buffers = outbox.collect()
            if buffers:
                self._write(buffers)
            if not outbox.more:
                break
        if not (self._reading or self._slow or self.muted or self.closed):
            self._resume()

    def _write(self, buffers: list[Buffer]) -> None:
        if len(buffers) == 1:
            self.transport.write(buffers[0])
        elif all(isinstance(buffer, bytes) for buffer in buffers):
            self.transport.write(b"".join(buffers))
        else:
            self.transport.writelines(buffers)

    def crashed(self, error: Exception) -> None:
        self.close("a bug in the broker; its log has the trace")

    @property
    def is_outbox_full(self) -> bool:
        """Whether encoded responses wait for others before them, or for the client, up to the limit."""
        return self.outbox.queued_bytes > self._listener.limits.queued_bytes_max

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is owed that is not known yet, or not given on purpose."""
        return self.muted or (bool(self.outbox.slots) and not self._slow)

    @property
    def is_read(self) -> bool:
        """Whether the loop reads from it, and so tells when the client closes it."""
        return self._reading

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
        self,
        name: str,
        dispatch: Dispatch,
        turn: Turn,
        memory: ReceiveMemory,
        limits: Limits,
        admission: Admission,
    ) -> None:
        self.name = name
        self.dispatch = dispatch
        self.turn = turn
        self.memory = memory
        self.limits = limits
        self.connections: set[Connection] = set()
        self.connections_total = 0
        self._admission = admission
        self._socket: socket.socket | None = None
        self._backlog = 0
        self._server: asyncio.Server | None = None
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._silence = Silence(self.connections, limits.idle_ms_max, self._loop)
        self.relief = Relief(memory, self._loop)
        self._deserted = asyncio.Event()  # when stopping: the last client is gone

    def bind(self, host: str, port: int, backlog: int) -> int:
        """Take the address, so that it can be told to clients before they are served; port 0 takes a free one.

        `backlog` clients may wait to be accepted.
        """
        self._backlog = backlog
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=backlog)
        except OSError as error:
            why = str(error.strerror).partition(" (while")[0]
            raise OSError(f"cannot listen on {host}:{port}: {why}") from error
        # Those who connect inherit it; asyncio's own loop sets it only for sockets that name their protocol.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return int(self._socket.getsockname()[1])

    async def serve(self) -> None:
        """Let clients in."""
        assert self._socket is not None
        self._server = await self._loop.create_server(
            lambda: Connection(self), sock=self._socket, backlog=self._backlog
        )
        self._silence.watch()

    async def stop(self) -> None:
        """Accept nobody, and let everybody go; who does not take its last answers is cut off."""
        self.relief.stop()
        self._silence.stop()
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        if self.connections:
            for connection in self.connections:
                connection.transport.close()
            timer = self._loop.call_later(STOP_SECONDS, self._cut_off)
            await self._deserted.wait()
            timer.cancel()
        if self._server is not None:
            await self._server.wait_closed()

    def _cut_off(self) -> None:
        for connection in list(self.connections):
            connection.close("the broker stops")

    def admit(self, connection: Connection) -> None:
        """Count a new client, or turn it away."""
        host, port, *_ = connection.transport.get_extra_info("peername") or ("", 0)
        connection.host = str(host)
        connection.peer = f"{host}:{port}"
        refusal = self._admission.enter(connection.host)
        if refusal:
            connection.close(refusal)
        else:
            self.connections_total += 1
            self.connections.add(connection)

    def forget(self, connection: Connection) -> None:
        """A client is gone."""
        if connection in self.connections:
            self.connections.discard(connection)
            self._admission.leave(connection.host)
            if not self.connections:
                self._deserted.set()

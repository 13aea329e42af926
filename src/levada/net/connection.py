"""A connection: cuts received bytes into frames, hands them to `dispatch`, and sends the responses in order.

The first part of the hot path. Bytes are received into the shared arena, cut into frames in place and dispatched
without a copy, a task or a queue. Responses are sent in the flush, in one write, or at once (`send_now`).
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from levada.errors import KafkaError
from levada.logs import EventLog
from levada.model import ANONYMOUS
from levada.net.buffer_pool import PARSED_BYTES_MAX, POSITION_MAX
from levada.wire.frames import (
    FRAME_BYTES_MIN,
    SIZE,
    SIZE_BYTES,
    Buffer,
    Outbox,
    PendingResponse,
    Response,
    frame_end,
    invalid_size,
)

if TYPE_CHECKING:
    from levada.net.listener import Listener

log = EventLog(__name__)

UNSENT_BYTES_HIGH = 256 * 1024  # in the socket's queue: above it no further request of the connection is dispatched

unpack_size = SIZE.unpack_from

Dispatch = Callable[["Connection", memoryview, int, int], None]


class RequestLimits(NamedTuple):
    """What each connection may use, by Kafka's settings."""

    frame_bytes_max: int
    requests_in_flight_max: int
    queued_bytes_max: int
    idle_ms_max: int


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    __slots__ = (
        "_dispatch",
        "_flush_queue",
        "_frame",
        "_frame_filled",
        "_frame_size",
        "_held",
        "_listener",
        "_reading",
        "_send_queued",
        "_write_paused",
        "active",
        "buffer_pool",
        "caches",
        "client_id",
        "closed",
        "host",
        "idle_since",
        "listener_name",
        "muted",
        "outbox",
        "peer",
        "principal",
        "transport",
    )

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._dispatch = listener.dispatch
        self.buffer_pool = listener.buffer_pool
        self._flush_queue = listener.flush_queue
        self._frame: bytearray | None = None  # of a frame that has not arrived whole
        self._frame_filled = self._frame_size = 0
        self._held = bytearray()  # the rest of one receive that may not be dispatched yet
        self._send_queued = False  # whether the flush queue has this connection
        self._reading = True
        self._write_paused = False
        self.listener_name = listener.name
        self.outbox = Outbox(UNSENT_BYTES_HIGH)
        self.caches: dict[int, Any] = {}  # by API key: what fast paths keep of this connection
        self.closed = False
        self.muted = False  # as Kafka mutes a channel: nothing is dispatched while a request is queued or verified
        self.client_id: str | None = None
        self.principal = ANONYMOUS
        self.active = True  # since the idle reaper's last check
        self.idle_since = 0.0  # the last check that found it active or waiting
        self.host = self.peer = ""
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES_HIGH)
        self._listener.accept(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._listener.remove(self)
        self.buffer_pool.waiting.pop(self, None)
        if self._frame is not None:
            self.buffer_pool.discard(self, self._frame, self._frame_size)
            self._frame = None
        self.outbox.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None:
            return self.buffer_pool.receive_buffer()
        return memoryview(self._frame)[self._frame_filled : min(self._frame_size, len(self._frame))]

    def buffer_updated(self, nbytes: int) -> None:
        self.active = True
        pool = self.buffer_pool
        if self._frame is not None:
            self._fill_frame(nbytes)
        else:
            start = pool.position
            pool.position = start + nbytes
            self._dispatch_frames(pool.arena, start, start + nbytes)
        if pool.position > POSITION_MAX or pool.parsed_bytes > PARSED_BYTES_MAX:
            self._flush_queue.flush()  # not in get_buffer: closing a connection inside it crashes the process

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._frame is not None:
            self._pause_reading()  # it must not become whole before it may be dispatched

    def resume_writing(self) -> None:
        self._write_paused = False
        self.active = True
        self.wake()

    # Frames.

    def _dispatch_frames(self, view: memoryview, position: int, stop: int) -> None:
        """Dispatch every whole frame of view[position:stop] and keep the rest."""
        dispatch = self._dispatch
        frame_bytes_max, in_flight_max, queued_bytes_max, _ = self._listener.limits
        outbox = self.outbox
        try:
            while position < stop:
                if (
                    self._write_paused
                    or self.muted
                    or len(outbox.slots) >= in_flight_max
                    or outbox.queued_bytes > queued_bytes_max
                ):
                    self._hold(view[position:stop])
                    return
                start = position + SIZE_BYTES
                if start > stop or (end := start + unpack_size(view, position)[0]) > stop:
                    self._begin_frame(view[position:stop])
                    return
                if not FRAME_BYTES_MIN <= end - start <= frame_bytes_max:
                    raise invalid_size(end - start, frame_bytes_max)
                dispatch(self, view, start, end)
                if self.closed:
                    return
                position = end
        except KafkaError as error:
            self.close(str(error))
        except Exception as error:  # a bug in a handler costs its client the connection, no more
            log.error("a request failed", peer=self.peer, client_id=self.client_id, exc_info=error)
            self.crashed(error)

    def _begin_frame(self, rest: memoryview) -> None:
        """Allocate a buffer for a frame of which only `rest` has arrived."""
        pool, size = self.buffer_pool, SIZE_BYTES
        if len(rest) >= SIZE_BYTES:
            size = frame_end(rest, 0, self._listener.limits.frame_bytes_max)
        if pool.is_full(size):
            pool.waiting[self] = None
            self._listener.memory_limit.check_later()
            self._hold(rest)
            return
        pool.waiting.pop(self, None)
        self._frame_size = size
        self._frame = pool.allocate(self, size, len(rest), self._listener.now())
        self._frame[: len(rest)] = rest
        self._frame_filled = len(rest)
        self._ensure_room(self._frame)

    def _ensure_room(self, frame: bytearray) -> bool:
        """Grow the buffer of a partial frame when it is full; without memory, pause reading and return False."""
        if self._frame_filled == len(frame):
            larger = self.buffer_pool.grow(self, frame, self._frame_size, self._listener.now())
            if larger is None:
                self._listener.memory_limit.check_later()
                self._pause_reading()
                return False
            self._frame = larger
        return True

    def _fill_frame(self, nbytes: int) -> None:
        assert self._frame is not None
        self._frame_filled += nbytes
        if self._frame_filled < self._frame_size:
            self._ensure_room(self._frame)
            return
        view = memoryview(self._frame)
        if self._frame_size == SIZE_BYTES:
            self.buffer_pool.discard(self, self._frame, SIZE_BYTES)
            rest, self._frame = view[:SIZE_BYTES], None
            try:
                self._begin_frame(rest)
            except KafkaError as error:
                self.close(str(error))
            return
        buffer, self._frame = self._frame, None
        self.buffer_pool.release(self, buffer, self._frame_size)
        self._dispatch_frames(view, 0, self._frame_size)

    # Back-pressure. Reading pauses while the client does not read its responses, the connection is muted, has too
    # many requests or bytes pending, or has no memory for its next frame. The rest of one receive is held.

    def _hold(self, rest: memoryview) -> None:
        self._held = bytearray(rest)
        self._pause_reading()

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        held, self._held = self._held, bytearray()
        self._dispatch_frames(memoryview(held), 0, len(held))
        if self._held or self.closed or not (self._frame is None or self._ensure_room(self._frame)):
            return
        self._reading = True
        self.transport.resume_reading()

    # Responses.

    def respond(self, slot: Response | PendingResponse, size: int = 0) -> None:
        """Take the next slot of the outbox; `size` is that of a response which is encoded."""
        self.outbox.add(slot, size)
        if not self._send_queued:
            self._send_queued = True
            self._flush_queue.add_sender(self)

    @property
    def can_send_now(self) -> bool:
        """Whether the outbox has one slot and the client reads: its response need not wait for the flush."""
        is_free = self._reading and not (self._send_queued or self._write_paused or self.closed)
        return is_free and len(self.outbox.slots) == 1

    def send_now(self, response: bytes) -> None:
        """Send the response of the only slot, before the flush."""
        self.outbox.empty()
        self._flush_queue.ensure_scheduled()
        self.transport.write(response)

    def wake(self) -> None:
        """A response may be complete, or memory free: check in the next flush."""
        if not self._send_queued:
            self._send_queued = True
            self._flush_queue.add_sender(self)

    def send(self) -> None:
        self._send_queued = False
        outbox = self.outbox
        while not (self.closed or self._write_paused):
            buffers = outbox.collect()
            if buffers:
                self._write(buffers)
            if not outbox.more:
                break
        if not (self._reading or self._write_paused or self.muted or self.closed):
            self._resume_reading()

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
        """Whether the client waits for the broker: a response is pending, or the connection is muted."""
        return self.muted or (bool(self.outbox.slots) and not self._write_paused)

    @property
    def is_read(self) -> bool:
        """Whether the loop reads from it, and so notices when the client closes it."""
        return self._reading

    def close(self, reason: str) -> None:
        """Close the connection at once; `reason` is for the log."""
        if self.closed:
            return
        self.closed = True
        log.info("connection closed", peer=self.peer, client_id=self.client_id, reason=reason)
        self.transport.abort()

"""Cuts a connection's bytes into frames and keeps its responses in the order of its requests, without the socket.

Kafka's protocol answers in order, and clients pipeline: a Produce behind a long-polling Fetch waits for it. So each
request takes a slot in the outbox when it is dispatched. The slot holds the response's bytes where they are known, and
otherwise a pending response, which is collected when all slots before it have been sent.
"""

from collections import deque
from struct import Struct
from typing import Protocol

from levada.errors import ErrorCode, KafkaError

SIZE = Struct(">i")
SIZE_BYTES = 4
FRAME_BYTES_MIN = 8  # api key, version, correlation id

Buffer = bytes | memoryview
Response = bytes | list[Buffer]  # a whole frame, size included
ENCODED = (bytes, list)  # the types of a Response


class PendingResponse(Protocol):
    """A slot of the outbox whose response may not be known yet."""

    def collect(self) -> Response | None:
        """The response, or None until it is complete."""
        ...

    def cancel(self) -> None:
        """The connection is closed: stop waiting."""
        ...


class Outbox:
    """The responses of one connection, oldest first. Its connection reads `slots` and `queued_bytes` as they are."""

    __slots__ = ("_flush_bytes_max", "more", "queued_bytes", "slots")

    def __init__(self, flush_bytes_max: int) -> None:
        self.slots: deque[Response | PendingResponse] = deque()  # one for each request without a sent response
        self._flush_bytes_max = flush_bytes_max
        self.more = False  # whether the last `collect` left responses for the next
        self.queued_bytes = 0  # of responses added since the outbox was last empty

    def add(self, slot: Response | PendingResponse, size: int = 0) -> None:
        """Append a response of `size` bytes, or the pending response that will give it."""
        self.slots.append(slot)
        if size:
            self.queued_bytes += size

    def count(self, size: int) -> None:
        """Add the size of a pending response that is complete now, and waits for others before it."""
        self.queued_bytes += size

    def remove_last(self) -> None:
        """Take back the slot that was added last: its request is dispatched another way."""
        self.slots.pop()

    def empty(self) -> None:
        """Drop every slot; their responses have been sent."""
        self.slots.clear()
        self.queued_bytes = 0

    def collect(self) -> list[Buffer]:
        """The buffers that can be sent now: all responses before the first pending one.

        It stops early at `flush_bytes_max`, since the client may be slow to read them: the next responses are read
        from the log, or encoded, once it has.
        """
        buffers: list[Buffer] = []
        slots, room = self.slots, self._flush_bytes_max
        self.more = False
        while slots:
            slot = slots[0]
            response = slot if isinstance(slot, ENCODED) else slot.collect()
            if response is None:
                break
            slots.popleft()
            if isinstance(response, bytes):
                buffers.append(response)
                room -= len(response)
            else:
                buffers += response
                room -= sum(map(len, response))
            if room <= 0 and slots:
                self.more = True
                return buffers
        if not slots:
            self.queued_bytes = 0
        return buffers

    def cancel(self) -> None:
        """The connection is closed: drop every response and cancel the pending ones."""
        pending = [slot for slot in self.slots if not isinstance(slot, ENCODED)]
        self.slots.clear()
        for response in pending:
            response.cancel()


def frame_end(view: memoryview, position: int, frame_bytes_max: int) -> int:
    """Where the frame that starts at `position` (with its size) ends, once its four size bytes are there."""
    (size,) = SIZE.unpack_from(view, position)
    if FRAME_BYTES_MIN <= size <= frame_bytes_max:
        return position + SIZE_BYTES + int(size)
    raise invalid_size(size, frame_bytes_max)


def invalid_size(size: int, frame_bytes_max: int) -> KafkaError:
    """The error of a frame that is too small or too large."""
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"a request of {size} bytes; socket.request.max.bytes allows {FRAME_BYTES_MIN} to {frame_bytes_max}",
    )

"""One client's conversation, without its socket: bytes become frames, answers leave in the order of the requests.

Kafka's protocol has no way to answer out of order, and clients pipeline: a Produce behind a long-polling Fetch waits
for it. So each request takes a place in the outbox when it is read; answers that are known stay there as bytes, the
others as objects that are asked when their turn comes.
"""

from collections import deque
from struct import Struct
from typing import Protocol

from levada.errors import ErrorCode, KafkaError

SIZE = Struct(">i")
SIZE_BYTES = 4
FRAME_BYTES_MIN = 8  # api key, version, correlation id

Buffer = bytes | memoryview
Reply = bytes | list[Buffer]
KNOWN = (bytes, list)  # the types of a Reply


class Pending(Protocol):
    """A place in the outbox whose answer may not be known yet."""

    def collect(self) -> Reply | None:
        """The answer, or None while it must be waited for."""
        ...

    def give_up(self) -> None:
        """The client is gone: stop waiting."""
        ...


class Outbox:
    """The answers of one connection, oldest first."""

    __slots__ = ("_at_once_max", "more", "places", "queued_bytes")

    def __init__(self, at_once_max: int) -> None:
        self.places: deque[Reply | Pending] = deque()  # one for each request that is not answered
        self._at_once_max = at_once_max
        self.more = False  # whether the last `collect` left answers for the next
        self.queued_bytes = 0  # of answers added since the outbox was last empty

    def add(self, place: Reply | Pending, size: int = 0) -> None:
        """Take the next place, with an answer of `size` bytes or with what will give it."""
        self.places.append(place)
        if size:
            self.queued_bytes += size

    def collect(self) -> list[Buffer]:
        """What can be sent now: all answers before the first that is still unknown.

        It ends early when that is much, since the client may be slow to take it: what comes next is read from the log,
        or written, when it has.
        """
        buffers: list[Buffer] = []
        places, room = self.places, self._at_once_max
        self.more = False
        while places:
            place = places[0]
            reply = place if isinstance(place, KNOWN) else place.collect()
            if reply is None:
                break
            places.popleft()
            if isinstance(reply, bytes):
                buffers.append(reply)
                room -= len(reply)
            else:
                buffers += reply
                room -= sum(map(len, reply))
            if room <= 0 and places:
                self.more = True
                return buffers
        if not places:
            self.queued_bytes = 0
        return buffers

    def clear(self) -> list[Pending]:
        """Forget everything (the client is gone); what was still awaited is returned, to be given up."""
        left = [place for place in self.places if not isinstance(place, KNOWN)]
        self.places.clear()
        return left


def frame_end(view: memoryview, position: int, frame_bytes_max: int) -> int:
    """Where the frame that starts at `position` (with its size) ends, once its four size bytes are there."""
    (size,) = SIZE.unpack_from(view, position)
    if FRAME_BYTES_MIN <= size <= frame_bytes_max:
        return position + SIZE_BYTES + int(size)
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"a request of {size} bytes; socket.request.max.bytes allows {FRAME_BYTES_MIN} to {frame_bytes_max}",
    )

"""A reader that goes on: the same Fetch again and again, but for the offset.

Outside of a session a consumer of one partition says everything anew with each Fetch. What has been read once is
known by comparing bytes, at a fifth of the cost of reading them, and its answer is written from a template. Whatever
else a client asks is not known here; `levada.wire.fast.fetch` reads and answers it, and is the oracle in the tests.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from levada.wire.fast.fetch import (
    CONSUMER,
    FLEXIBLE_FROM,
    NO_ABORTED,
    TOPIC_IDS_FROM,
    FetchRequest,
    PartitionFetch,
    aborted_bytes,
)
from levada.wire.primitives import encode_nullable_string, encode_uvarint

REPEATED_BYTES_MAX: Final = 512  # of a request; a longer one is not kept
OUTSIDE_SESSIONS: Final = (0, -1)
ONE: Final = b"\x02"  # a count is one more than it says
NO_REPLICA: Final = b"\xff\xff\xff\xff"
END: Final = b"\0\0\0"  # no tagged fields of the partition, the topic and the response

_OFFSET = Struct(">q")
_SESSION_AND_LIMITS_BYTES = 13 + 8


class Repeated(NamedTuple):
    """A Fetch of one partition, and all of its answer that does not change."""

    version: int
    before: bytes  # the body up to the offset
    after: bytes  # and behind it
    request: FetchRequest
    topic: bytes
    partition: int
    leader_epoch: int
    max_bytes: int
    min_bytes: int
    isolation_level: int
    answer: Struct  # size and correlation id, `head`, three offsets
    head: bytes

    def at(self, offset: int) -> FetchRequest:
        """The request with another offset."""
        (wanted,) = self.request.partitions
        return self.request._replace(partitions=[wanted._replace(fetch_offset=offset)])

    def write_answer(
        self,
        correlation_id: int,
        high_watermark: int,
        last_stable_offset: int,
        log_start_offset: int,
        records: Sequence[memoryview | bytes],
        size: int,
        aborted: Sequence[tuple[int, int]] | None,
    ) -> list[bytes | memoryview]:
        """The whole frame with `size` bytes of records, as buffers to be sent one after the other."""
        rest = NO_ABORTED[True] if aborted is None else aborted_bytes(aborted, True)
        rest += NO_REPLICA + encode_uvarint(size + 1)
        frame_bytes = self.answer.size - 4 + len(rest) + size + len(END)
        offsets = (high_watermark, last_stable_offset, log_start_offset)
        return [self.answer.pack(frame_bytes, correlation_id, self.head, *offsets) + rest, *records, END]


class Repeats:
    """The Fetch that one connection sent last."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: Repeated | None = None

    def find(self, view: memoryview, position: int, stop: int, version: int) -> tuple[Repeated, int] | None:
        """The Fetch whose body is view[position:stop], with its offset, if it is the last one again."""
        last = self._last
        if last is None or version != last.version:
            return None
        at = position + len(last.before)
        if view[position:at] == last.before and view[at + _OFFSET.size : stop] == last.after:
            return last, _OFFSET.unpack_from(view, at)[0]
        return None

    def learn(self, view: memoryview, position: int, stop: int, version: int, request: FetchRequest) -> None:
        """Keep what `view[position:stop]` was found to say, if its like can be known again."""
        self._last = None
        if (
            len(request.partitions) == 1
            and version >= FLEXIBLE_FROM
            and (request.session_id, request.session_epoch) == OUTSIDE_SESSIONS
            and request.replica_id == CONSUMER
            and stop - position <= REPEATED_BYTES_MAX
        ):
            (wanted,) = request.partitions
            body = bytes(view[position:stop])
            at = _offset_at(body, wanted, version)
            if at:
                self._last = _repeated(body, at, version, request, wanted)


def _offset_at(body: bytes, wanted: PartitionFetch, version: int) -> int:
    """Where the offset stands; 0 if there are tagged fields or counts written in another way before it."""
    topics_at = 1 + (4 if version < 15 else 0) + _SESSION_AND_LIMITS_BYTES
    topic_bytes = _topic_bytes(wanted.topic, version)
    before = ONE + topic_bytes + ONE
    if body[0] or body[topics_at : topics_at + len(before)] != before:
        return 0
    return topics_at + len(before) + 4 + 4  # after the partition and its leader's epoch


def _topic_bytes(topic: bytes, version: int) -> bytes:
    return topic if version >= TOPIC_IDS_FROM else encode_nullable_string(topic, True)


def _repeated(body: bytes, at: int, version: int, request: FetchRequest, wanted: PartitionFetch) -> Repeated:
    throttle_error_session = bytes(4 + 2 + 4)
    head = b"\0" + throttle_error_session + ONE + _topic_bytes(wanted.topic, version) + ONE
    head += wanted.partition.to_bytes(4, "big", signed=True) + bytes(2)  # no error
    return Repeated(
        version,
        body[:at],
        body[at + _OFFSET.size :],
        request,
        wanted.topic,
        wanted.partition,
        wanted.current_leader_epoch,
        min(wanted.max_bytes, request.max_bytes),
        request.min_bytes,
        request.isolation_level,
        Struct(f">ii{len(head)}sqqq"),
        head,
    )

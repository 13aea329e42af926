"""The usual OffsetCommit by hand: offsets of one topic, without metadata, as consumers send it after every poll.

Everything before the offsets is the same in each commit of a member, so what it means is kept and found again by
its bytes; the offsets are read in one go and the answer is put together from what was said. Any other OffsetCommit,
also a broken one, is not usual and left to the general codec, which is the oracle in the tests.

v8 flexible, v9 members of the newer protocol (KIP-848), v10 topic ids.
"""

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple
from uuid import UUID

from levada.wire.primitives import INT, read_uvarint

VERSIONS: Final = range(8, 11)
TOPIC_IDS_FROM: Final = 10
ONE_BYTE_MAX: Final = 0x7F  # of a varint; what is longer is not usual
ONE_TOPIC: Final = 2  # counts are one more than they say
EMPTY_MAX: Final = 1  # the length of metadata that is null or empty
HEADS_MAX: Final = 2_000  # members that commit now
_END = b"\0\0"  # no tagged fields of the topic and of the request

_PARTITION = Struct(">iqiBB")  # index, offset, leader epoch, length of the metadata, number of tagged fields
_ONE = Struct(">iqiBBh")  # the only partition, and the end
_ONE_BYTES = _ONE.size
_COUNT_ONE = 2  # the length of a compact array of one
_ANSWERED = Struct(">ihx")  # index, error, no tagged fields
_ONE_ANSWERED = Struct(">ihx2x")  # the same, and the end
_SIZE_AND_ID = Struct(">ii")

Partition = tuple[int, int, int, int, int]


class Head(NamedTuple):
    """Who commits, and offsets of which topic."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    topic: str  # empty where there is an id
    topic_id: UUID | None
    answer: bytes  # the response as far as it is known: from the header's tagged fields to the partitions


_HEADS: Final[dict[int, dict[bytes, Head]]] = {version: {} for version in VERSIONS}


def read(view: memoryview, position: int, stop: int, version: int) -> tuple[Head, list[Partition]] | None:
    """The commit whose body (after the client id) is view[position:stop]; None if it is not usual."""
    at = stop - _ONE_BYTES
    known = _HEADS[version].get(bytes(view[position:at])) if at > position else None
    if known is not None and view[at - 1] == _COUNT_ONE:
        index, offset, leader_epoch, metadata, tags, end = _ONE.unpack_from(view, at)
        if end or metadata > EMPTY_MAX or tags:
            return None
        return known, [(index, offset, leader_epoch, metadata, tags)]
    try:
        start = _partitions_at(view, position, stop, version)
        if not start:
            return None
        head = _head(bytes(view[position:start]), version)
        partitions = list(_PARTITION.iter_unpack(view[start : stop - len(_END)]))
    except (IndexError, StructError, UnicodeDecodeError):
        return None
    for partition in partitions:
        if partition[3] > EMPTY_MAX or partition[4]:
            return None
    return head, partitions


def _partitions_at(view: memoryview, position: int, stop: int, version: int) -> int:
    """Where the partitions begin, if there is nothing but what is usual before and after them; 0 otherwise."""
    group = view[position + 1]
    at = position + 1 + group + 4
    member = view[at]
    at += member
    instance = view[at]
    at += instance or 1
    topics = view[at]
    topic = 16 if version >= TOPIC_IDS_FROM else view[at + 1]
    at += 1 + topic
    partitions = view[at]
    if (
        view[position]
        or topics != ONE_TOPIC
        or max(group, member, instance, topic, partitions) > ONE_BYTE_MAX
        or not (group and member and topic and partitions)
        or at + 1 + (partitions - 1) * _PARTITION.size + len(_END) != stop
        or view[stop - len(_END) : stop] != _END
    ):
        return 0
    return at + 1


def _head(data: bytes, version: int) -> Head:
    known = _HEADS[version]
    head = known.get(data)
    if head is None:
        head = _read_head(data, version)
        if len(known) >= HEADS_MAX:
            known.clear()
        known[data] = head
    return head


def _read_head(data: bytes, version: int) -> Head:
    group_id, position = _text(data, 1)
    (generation,) = INT.unpack_from(data, position)
    member_id, position = _text(data, position + INT.size)
    instance_id, position = _text(data, position) if data[position] else (None, position + 1)
    position += 1
    said, topic, topic_id = data[position:], "", None
    if version >= TOPIC_IDS_FROM:
        topic_id = UUID(bytes=said[:16])
        if not topic_id.int:
            raise IndexError("no topic")
    else:
        topic, _ = _text(data, position)
    throttle = bytes(4)
    answer = b"\0" + throttle + bytes((ONE_TOPIC,)) + said
    return Head(group_id, generation, member_id, instance_id, topic, topic_id, answer)


def _text(data: bytes, position: int) -> tuple[str, int]:
    length, position = read_uvarint(data, position)
    end = position + length - 1
    return data[position:end].decode(), end


def write_answer(
    correlation_id: int, head: Head, partitions: Sequence[Partition], codes: Sequence[int]
) -> bytes:
    """The whole frame of the response, with an error code for each partition."""
    if len(partitions) == 1:
        body = head.answer + _ONE_ANSWERED.pack(partitions[0][0], codes[0])
    else:
        pack = _ANSWERED.pack
        parts = [pack(partition[0], code) for partition, code in zip(partitions, codes, strict=True)]
        body = head.answer + b"".join(parts) + _END
    return _SIZE_AND_ID.pack(INT.size + len(body), correlation_id) + body

"""Reads and writes simple OffsetCommits by hand: offsets of one topic without metadata, as consumers send them.

Everything before the partitions is the same in each commit of a member and is decoded once; the partitions are read in
one call and the response is put together from the request's bytes. All other OffsetCommits, malformed ones included,
are left to the general codec, with which tests compare.

v8 flexible, v9 members of the consumer protocol (KIP-848), v10 topic ids.
"""

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple
from uuid import UUID

from levada.wire.fast.prefix_cache import PrefixCache
from levada.wire.primitives import INT, INT_PAIR, read_uvarint

VERSIONS: Final = range(8, 11)
TOPIC_IDS_FROM: Final = 10
ONE_BYTE_MAX: Final = 0x7F  # of a varint; longer lengths are left to the general codec
ONE: Final = 2  # the length of a compact array of one
EMPTY_MAX: Final = 1  # the compact length of metadata that is null or empty
CACHED_PREFIXES_MAX: Final = 5_000  # members that commit
CACHED_BYTES_MAX: Final = 1_000
_NO_TAGS = b"\0\0"  # tagged fields of the topic and the request

_PARTITION = Struct(">iqiBB")  # index, offset, leader epoch, length of the metadata, number of tagged fields
_ONLY_PARTITION = Struct(">iqiBBh")  # the same, and the tagged fields of the topic and the request
_ONLY_PARTITION_BYTES = _ONLY_PARTITION.size
_PARTITION_RESPONSE = Struct(">ihx")  # index, error, no tagged fields
_ONLY_PARTITION_RESPONSE = Struct(">ihx2x")  # the same, and no tagged fields of the topic and the response

Partition = tuple[int, int, int, int, int]


class CommitPrefix(NamedTuple):
    """The fields before the partitions, and the response up to its partitions."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    topic: str  # empty where there is an id
    topic_id: UUID | None
    response: bytes  # from the header's tagged fields up to the partitions


def commit_cache() -> PrefixCache[CommitPrefix]:
    """The cache of a broker: the bytes from the client id to the partitions are the prefix."""
    return PrefixCache(CACHED_PREFIXES_MAX, CACHED_BYTES_MAX)


def read(
    cache: PrefixCache[CommitPrefix], view: memoryview, position: int, stop: int, version: int
) -> tuple[CommitPrefix, list[Partition]] | None:
    """Read the commit whose body (after the client id) is view[position:stop]; None if it is not a simple one."""
    at = stop - _ONLY_PARTITION_BYTES
    known = cache.get((version, bytes(view[position:at]))) if at > position else None
    if known is not None and view[at - 1] == ONE:
        index, offset, leader_epoch, metadata, tags, end = _ONLY_PARTITION.unpack_from(view, at)
        if end or metadata > EMPTY_MAX or tags:
            return None
        return known, [(index, offset, leader_epoch, metadata, tags)]
    try:
        start = _partitions_at(view, position, stop, version)
        if not start:
            return None
        data = bytes(view[position:start])
        prefix = cache.get((version, data)) or cache.store((version, data), _read_prefix(data, version))
        partitions = list(_PARTITION.iter_unpack(view[start : stop - len(_NO_TAGS)]))
    except (IndexError, StructError, UnicodeDecodeError):
        return None
    for partition in partitions:
        if partition[3] > EMPTY_MAX or partition[4]:
            return None
    return prefix, partitions


def _partitions_at(view: memoryview, position: int, stop: int, version: int) -> int:
    """The position of the partitions; 0 if the commit is not a simple one."""
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
        or topics != ONE
        or max(group, member, instance, topic, partitions) > ONE_BYTE_MAX
        or not (group and member and topic and partitions)
        or at + 1 + (partitions - 1) * _PARTITION.size + len(_NO_TAGS) != stop
        or view[stop - len(_NO_TAGS) : stop] != _NO_TAGS
    ):
        return 0
    return at + 1


def _read_prefix(data: bytes, version: int) -> CommitPrefix:
    group_id, position = _text(data, 1)
    (generation,) = INT.unpack_from(data, position)
    member_id, position = _text(data, position + INT.size)
    instance_id, position = _text(data, position) if data[position] else (None, position + 1)
    position += 1
    topic_bytes, topic, topic_id = data[position:], "", None
    if version >= TOPIC_IDS_FROM:
        topic_id = UUID(bytes=topic_bytes[:16])
        if not topic_id.int:
            raise IndexError("no topic")
    else:
        topic, _ = _text(data, position)
    throttle_time = bytes(4)
    response = b"\0" + throttle_time + bytes((ONE,)) + topic_bytes
    return CommitPrefix(group_id, generation, member_id, instance_id, topic, topic_id, response)


def _text(data: bytes, position: int) -> tuple[str, int]:
    length, position = read_uvarint(data, position)
    end = position + length - 1
    return data[position:end].decode(), end


def write_response(
    correlation_id: int, prefix: CommitPrefix, partitions: Sequence[Partition], codes: Sequence[int]
) -> bytes:
    """Write the whole frame of the response, with an error code for each partition."""
    if len(partitions) == 1:
        body = prefix.response + _ONLY_PARTITION_RESPONSE.pack(partitions[0][0], codes[0])
    else:
        pack = _PARTITION_RESPONSE.pack
        parts = [pack(partition[0], code) for partition, code in zip(partitions, codes, strict=True)]
        body = prefix.response + b"".join(parts) + _NO_TAGS
    return INT_PAIR.pack(INT.size + len(body), correlation_id) + body

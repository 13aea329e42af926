"""A Fetch that is the last one again is read and answered as the general way reads and answers it (R4, R5)."""

from random import Random
from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.kio_codec import HEADER_TAGS, kio_bytes
from tests.support.random_messages import random_message

from levada.errors import ErrorCode
from levada.wire.fast import fetch
from levada.wire.fast.prefix_cache import Repeats
from levada.wire.schema.versions import APIS

VERSIONS = range(fetch.FLEXIBLE_FROM, fetch.VERSIONS.stop)
LIMITS = Struct(">iiibii")
PARTITION = Struct(">iiqiqi")
OFFSETS = st.integers(-(2**63), 2**63 - 1)

FETCH = 1


def topic_key(version: int) -> bytes:
    return bytes(range(16)) if version >= fetch.TOPIC_IDS_FROM else b"orders"


def one_partition(
    version: int, offset: int, *, session: tuple[int, int] = (0, -1), tags: bytes = b"\0"
) -> bytes:
    """A body as librdkafka sends it: one partition, no session."""
    topic = topic_key(version)
    name = topic if version >= fetch.TOPIC_IDS_FROM else bytes((len(topic) + 1,)) + topic
    replica = b"\xff\xff\xff\xff" if version < 15 else b""
    partition = PARTITION.pack(3, 7, offset, -1, -1, 1 << 20)
    limits = LIMITS.pack(500, 1, 1 << 22, 1, *session)
    return tags + replica + limits + b"\x02" + name + b"\x02" + partition + b"\0\0\x01\x01\0"


def teach(repeats: Repeats, body: bytes, version: int) -> fetch.FetchRequest:
    view = memoryview(body)
    request = fetch.read_request(view, 0, len(body), version)
    repeats.learn(view, 0, len(body), version, request)
    return request


@pytest.mark.parametrize("version", VERSIONS)
@given(first=OFFSETS, second=OFFSETS)
def test_another_offset_is_all_that_may_differ(version: int, first: int, second: int) -> None:
    repeats = Repeats()
    teach(repeats, one_partition(version, first), version)
    body = b"before" + one_partition(version, second)
    found = repeats.find(memoryview(body + b"next"), 6, len(body), version)
    assert found is not None
    known, offset = found
    assert known.at(offset) == fetch.read_request(memoryview(body), 6, len(body), version)
    assert repeats.find(memoryview(body + b"next"), 6, len(body) + 4, version) is None
    assert repeats.find(memoryview(body), 6, len(body) - 1, version) is None
    assert repeats.find(memoryview(body), 6, len(body), version - 1) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_changed_byte_is_no_repetition(version: int) -> None:
    repeats = Repeats()
    body = one_partition(version, 5)
    request = teach(repeats, body, version)
    for place in range(len(body)):
        changed = bytearray(body)
        changed[place] ^= 1
        found = repeats.find(memoryview(changed), 0, len(changed), version)
        if found is not None:
            known, offset = found
            assert offset != request.partitions[0].fetch_offset
            assert known.at(offset) == fetch.read_request(memoryview(changed), 0, len(changed), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_sessions_and_tagged_fields_are_left_alone(version: int) -> None:
    for body in (
        one_partition(version, 5, session=(0, 0)),
        one_partition(version, 5, session=(9, 1)),
        one_partition(version, 5, tags=b"\x01\x07\x01x"),
    ):
        repeats = Repeats()
        teach(repeats, body, version)
        assert repeats.find(memoryview(body), 0, len(body), version) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_whatever_is_sent_twice_is_read_alike(version: int) -> None:
    random = Random(version)
    repeats = Repeats()
    for _ in range(50):
        data = HEADER_TAGS + kio_bytes(random_message(random, APIS[FETCH], version, "request"))
        request = teach(repeats, data, version)
        found = repeats.find(memoryview(data), 0, len(data), version)
        if found is not None:
            known, offset = found
            assert known.at(offset) == request


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("aborted", [None, [], [(7, 40), (8, 41)]])
@pytest.mark.parametrize("size", [1, 126, 127, 20_000])
def test_the_answer_is_the_same(version: int, aborted: list[tuple[int, int]] | None, size: int) -> None:
    repeats = Repeats()
    body = one_partition(version, 5)
    teach(repeats, body, version)
    found = repeats.find(memoryview(body), 0, len(body), version)
    assert found is not None
    records: list[bytes | memoryview] = [b"a" * (size - size // 2), memoryview(b"b" * (size // 2))]
    answer = found[0].write_answer(99, 50, 48, 2, records, size, aborted)
    data = fetch.PartitionData(
        topic_key(version), 3, ErrorCode.NONE, 50, 48, 2, records, size, aborted=aborted
    )
    assert b"".join(answer) == b"".join(fetch.write_response(version, 99, 0, 0, [data]))

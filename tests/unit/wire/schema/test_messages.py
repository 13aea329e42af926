"""Decoding of untrusted requests: headers, hostile counts, truncated and corrupted bytes."""

import struct
import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kio_codec import IDS, READ, kio_bytes
from tests.support.random_messages import MESSAGES, random_message

from levada.errors import ErrorCode, KafkaError
from levada.wire.primitives import ELEMENTS_MAX, encode_uvarint
from levada.wire.schema import messages
from levada.wire.schema.versions import Api

METADATA, HEARTBEAT, ELECT_LEADERS, PRODUCE, OFFSET_COMMIT = 3, 12, 43, 0, 8
DAYS_MAX_MS = 999_999_999 * 86_400_000
MEBIBYTE = 1 << 20
NO_TOPICS_AND_FLAGS = b"\x01\x00\x00"


def refused(api_key: int, version: int, data: bytes) -> str:
    with pytest.raises(KafkaError) as caught:
        messages.read_request(api_key, version, memoryview(data), 0)
    assert caught.value.code == ErrorCode.INVALID_REQUEST
    return caught.value.detail


def read_or_refused(read: Callable[..., Any], *arguments: Any) -> Any:
    """What was read, or None for INVALID_REQUEST; any other exception fails the test."""
    try:
        return read(*arguments)
    except KafkaError as error:
        if error.code != ErrorCode.INVALID_REQUEST:
            raise
        return None


HOSTILE = {
    "count of all": (METADATA, 1, struct.pack(">i", 2**31 - 1) + bytes(20)),
    "negative count": (METADATA, 1, struct.pack(">i", -2)),
    "compact count of all": (METADATA, 13, encode_uvarint(2**31 - 1) + bytes(20)),
    "compact count beyond 32 bits": (METADATA, 13, encode_uvarint(2**35 - 1) + bytes(20)),
    "endless varint": (METADATA, 13, b"\xff" * 100),
    "string of 4 GiB": (METADATA, 13, encode_uvarint(2) + bytes(16) + encode_uvarint(2**32) + b"abc"),
    "tags of 4 GiB": (METADATA, 13, NO_TOPICS_AND_FLAGS + encode_uvarint(2**32)),
    "a tag of 32 GiB": (METADATA, 13, NO_TOPICS_AND_FLAGS + b"\x01\x05" + encode_uvarint(2**35 - 1)),
    "numbers without end": (ELECT_LEADERS, 2, b"\x00\x02\x02a" + encode_uvarint(2**31) + bytes(8)),
    "records of 2 GiB": (
        PRODUCE,
        9,
        b"\x00" + bytes(6) + b"\x02\x02a\x02" + bytes(4) + encode_uvarint(2**31),
    ),
    "no UTF-8": (HEARTBEAT, 0, b"\x00\x02\xff\xfe" + bytes(6)),
    "null group": (HEARTBEAT, 0, b"\xff\xff" + bytes(6)),
    "negative length": (HEARTBEAT, 0, b"\xff\xf0" + bytes(6)),
    "nothing": (HEARTBEAT, 0, b""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused_without_much_memory(name: str) -> None:
    """Nothing is allocated from a count on the wire before it is checked."""
    tracemalloc.start()
    try:
        refused(*HOSTILE[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEBIBYTE


def test_a_flood_of_tiny_elements_is_refused_before_it_is_read() -> None:
    """A frame full of the smallest elements would take a hundred times its size in memory."""
    topic = b"\x00\x00"  # v9: a null name would be one byte, an empty one and no tags are two
    flood = encode_uvarint(ELEMENTS_MAX + 2) + topic * (ELEMENTS_MAX + 1)
    assert "too many" in refused(METADATA, 9, flood + bytes(4))
    tags = encode_uvarint(ELEMENTS_MAX + 1) + b"\x05\x00" * (ELEMENTS_MAX + 1)
    assert "too many" in refused(METADATA, 13, NO_TOPICS_AND_FLAGS + tags)


def test_the_budget_is_one_for_the_whole_message() -> None:
    """Many arrays of an allowed size are a flood too."""
    count = ELEMENTS_MAX // 5
    partitions = struct.pack(">i", count) + bytes(4 * count)
    topics = (struct.pack(">h", 1) + b"t" + partitions) * 5
    assert "too many" in refused(ELECT_LEADERS, 1, b"\x00" + struct.pack(">i", 5) + topics + bytes(4))
    topics = (struct.pack(">h", 1) + b"t" + partitions) * 4
    data = b"\x00" + struct.pack(">i", 4) + topics + bytes(4)
    request = messages.read_request(ELECT_LEADERS, 1, data, 0)
    assert sum(len(topic.partitions) for topic in request.topic_partitions) == 4 * count


@pytest.mark.parametrize("retention_ms", [-(2**63), -1, 0, 86_400_000, 2**63 - 1])
def test_durations_beyond_pythons_are_as_long_as_can_be(retention_ms: int) -> None:
    """OffsetCommit v2 with a retention of Long.MAX_VALUE means forever; it is no mistake of the client."""
    data = b"\x00\x01g" + struct.pack(">ihqi", 1, 0, retention_ms, 0)
    retention = messages.read_request(OFFSET_COMMIT, 2, data, 0).retention_time
    assert retention == timedelta(milliseconds=max(min(retention_ms, DAYS_MAX_MS), -DAYS_MAX_MS))


def test_unknown_tags_are_passed_over() -> None:
    """A newer client may send tagged fields that no version knew yet (KIP-482)."""
    data = NO_TOPICS_AND_FLAGS + b"\x02" + b"\x63\x03abc" + encode_uvarint(10_000) + b"\x00"
    assert messages.read_request(METADATA, 13, data, 0).topics == ()


@pytest.mark.parametrize(("api", "kind"), MESSAGES, ids=IDS)
def test_bytes_cut_short_are_no_message_and_more_bytes_are_ignored(api: Api, kind: str) -> None:
    """As in Kafka: librdkafka's Metadata v13 for all topics is three bytes too long."""
    random = Random(f"{api.name} {kind} cut")
    for version in messages.versions_known(api.key):
        data = kio_bytes(random_message(random, api, version, kind))
        for length in {random.randrange(len(data)) for _ in data[:5]} | {max(len(data) - 1, 0)} - {len(data)}:
            with pytest.raises(KafkaError) as caught:
                READ[kind](api.key, version, data[:length])
            assert caught.value.code == ErrorCode.INVALID_REQUEST
        assert READ[kind](api.key, version, data + b"\x00") == READ[kind](api.key, version, data)


@pytest.mark.parametrize(("api", "kind"), MESSAGES, ids=IDS)
def test_twisted_bytes_are_read_or_refused(api: Api, kind: str) -> None:
    """Whatever the bytes: a message, or INVALID_REQUEST; never another exception."""
    random = Random(f"{api.name} {kind} twisted")
    for version in messages.versions_known(api.key):
        data = bytearray(kio_bytes(random_message(random, api, version, kind)))
        for _ in range(10):
            twisted = data.copy()
            for _ in range(random.randint(1, 4)):
                at = random.randint(0, len(twisted))
                twisted[at : at + random.choice((0, 1, 1, 4))] = random.choice(
                    (
                        b"\xff",
                        b"\x7f",
                        b"\x80",
                        b"\x00",
                        random.randbytes(1),
                        b"\x7f\xff\xff\xff",
                        b"\xff\xff\xff\xff",
                    )
                )
            read_or_refused(READ[kind], api.key, version, bytes(twisted))


@settings(derandomize=True, deadline=None)
@given(st.binary(max_size=64))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    header = read_or_refused(messages.read_request_header, memoryview(data))
    assert header is None or header.body <= len(data)


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "é"])
@pytest.mark.parametrize(("api_key", "version"), [(METADATA, 8), (METADATA, 9), (18, 4), (999, 3)])
def test_a_header_is_read_up_to_its_body(api_key: int, version: int, client_id: str | None) -> None:
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    tags = b"\0" if messages.request_header_is_flexible(api_key, version) else b""
    data = struct.pack(">hhih", api_key, version, 77, length) + name + tags
    header = messages.read_request_header(memoryview(data + b"body"))
    assert header == (api_key, version, 77, client_id, len(data))


def test_tagged_fields_of_a_header_are_passed_over() -> None:
    data = struct.pack(">hhih", METADATA, 13, 1, -1) + b"\x01\x07\x02xy"
    assert messages.read_request_header(data + b"body").body == len(data)


@pytest.mark.parametrize(("api_key", "version"), [(METADATA, 14), (PRODUCE, 2), (4, 0), (-1, 0), (METADATA, -1)])
def test_unknown_versions_are_unsupported(api_key: int, version: int) -> None:
    for read in (messages.read_request, messages.read_response):
        with pytest.raises(KafkaError) as caught:
            read(api_key, version, b"", 0)
        assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION

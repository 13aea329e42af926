"""Produce and Fetch by hand, against the general codec: the same bytes mean the same, in every version."""

from contextlib import suppress
from datetime import timedelta
from random import Random

import pytest
from tests.support.kio_codec import HEADER_TAGS, kio_bytes
from tests.support.random_messages import random_message, read_response_header

from levada.errors import ErrorCode, KafkaError
from levada.wire.fast import fetch, produce
from levada.wire.primitives import TAGGED_FIELDS_MAX
from levada.wire.schema import messages
from levada.wire.schema.versions import APIS

PRODUCE, FETCH = 0, 1
EXAMPLES = 30
MILLISECOND = timedelta(milliseconds=1)


def topic_key(topic: object, name: str, by_id: bool) -> bytes:
    identity = getattr(topic, "topic_id", None)
    if by_id:
        return identity.bytes if identity is not None else bytes(16)
    return str(getattr(topic, name)).encode()


@pytest.mark.parametrize("version", produce.VERSIONS)
def test_produce_is_read_as_the_codec_reads_it(version: int) -> None:
    random = Random(version)
    for _ in range(EXAMPLES):
        data = kio_bytes(random_message(random, APIS[PRODUCE], version, "request"))
        shape = messages.read_request(PRODUCE, version, data)
        tags = HEADER_TAGS if version >= produce.FLEXIBLE_FROM else b""
        view = memoryview(b"some client" + tags + data)
        request = produce.read_request(view, 11, len(view), version)
        assert request.acks == shape.acks
        assert request.timeout_ms == shape.timeout // MILLISECOND
        assert request.transactional_id == shape.transactional_id
        expected = [
            (topic_key(topic, "name", version >= produce.TOPIC_IDS_FROM), part.index, part.records or b"")
            for topic in shape.topic_data
            for part in topic.partition_data
        ]
        found = [(topic, index, bytes(view[start:end])) for topic, index, start, end in request.partitions]
        assert found == expected
        longer = memoryview(bytes(view) + b"more")
        assert produce.read_request(longer, 11, len(longer), version) == request
        with pytest.raises(KafkaError):  # the rest of it may be the next frame in the arena
            produce.read_request(longer, 11, len(view) - 1, version)


@pytest.mark.parametrize(("count", "allowed"), [(TAGGED_FIELDS_MAX, True), (TAGGED_FIELDS_MAX + 1, False)])
def test_unknown_fields_are_passed_over_if_they_are_few(count: int, allowed: bool) -> None:
    """A Produce may have a hundred mebibytes, of which two are enough for one of them."""
    tags = bytes((count,)) + b"".join(bytes((100 + tag, 0)) for tag in range(count))
    data = kio_bytes(random_message(Random(0), APIS[PRODUCE], 9, "request"))
    view = memoryview(tags + data)
    if allowed:
        assert produce.read_request(view, 0, len(view), 9)
    else:
        with pytest.raises(KafkaError):
            produce.read_request(view, 0, len(view), 9)


@pytest.mark.parametrize("version", fetch.VERSIONS)
def test_fetch_is_read_as_the_codec_reads_it(version: int) -> None:
    random = Random(version)
    for _ in range(EXAMPLES):
        data = kio_bytes(random_message(random, APIS[FETCH], version, "request"))
        shape = messages.read_request(FETCH, version, data)
        tags = HEADER_TAGS if version >= fetch.FLEXIBLE_FROM else b""
        view = memoryview(b"me" + tags + data)
        request = fetch.read_request(view, 2, len(view), version)
        by_id = version >= fetch.TOPIC_IDS_FROM
        assert request.max_wait_ms == shape.max_wait // MILLISECOND
        assert (request.min_bytes, request.max_bytes) == (shape.min_bytes, shape.max_bytes)
        assert request.isolation_level == shape.isolation_level
        if version >= fetch.SESSIONS_FROM:
            assert (request.session_id, request.session_epoch) == (shape.session_id, shape.session_epoch)
        expected = [
            fetch.PartitionFetch(
                topic_key(topic, "topic", by_id),
                part.partition,
                part.current_leader_epoch,
                part.fetch_offset,
                part.last_fetched_epoch,
                part.log_start_offset,
                part.partition_max_bytes,
            )
            for topic in shape.topics
            for part in topic.partitions
        ]
        assert request.partitions == expected
        forgotten = [
            (topic_key(topic, "topic", by_id), index)
            for topic in shape.forgotten_topics_data
            for index in topic.partitions
        ]
        assert request.forgotten == forgotten
        longer = memoryview(bytes(view) + b"more")
        assert fetch.read_request(longer, 2, len(longer), version) == request
        with pytest.raises(KafkaError):  # the rest of it may be the next frame in the arena
            fetch.read_request(longer, 2, len(view) - 1, version)


def results(version: int) -> list[produce.PartitionResult]:
    by_id = version >= produce.TOPIC_IDS_FROM
    first, second = (b"a" * 16, b"b" * 16) if by_id else (b"orders", b"payments")
    return [
        produce.PartitionResult(first, 0, ErrorCode.NONE, 17, -1, 3),
        produce.PartitionResult(first, 5, ErrorCode.NONE, 2**40, 1_700_000_000_000, 0),
        produce.PartitionResult(
            second,
            1,
            ErrorCode.INVALID_RECORD,
            error_message="ärger",
            record_errors=((0, "no key"), (7, "x")),
        ),
    ]


@pytest.mark.parametrize("version", produce.VERSIONS)
def test_the_codec_reads_produce_responses(version: int) -> None:
    frame = produce.write_response(version, 99, results(version))
    correlation_id, position = read_response_header(PRODUCE, version, frame[4:])
    response = messages.read_response(PRODUCE, version, frame[4:], position)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert correlation_id == 99
    flat = [
        (
            topic_key(topic, "name", version >= produce.TOPIC_IDS_FROM),
            part.index,
            part.error_code,
            part.base_offset,
        )
        for topic in response.responses
        for part in topic.partition_responses
    ]
    assert flat == [(r.topic, r.partition, r.error, r.base_offset) for r in results(version)]
    if version >= 8:
        refused = response.responses[1].partition_responses[0]
        assert refused.error_message == "ärger"
        assert [(e.batch_index, e.batch_index_error_message) for e in refused.record_errors] == [
            (0, "no key"),
            (7, "x"),
        ]


@pytest.mark.parametrize("version", produce.VERSIONS)
def test_templates_write_what_the_long_way_writes(version: int) -> None:
    topic = b"i" * 16 if version >= produce.TOPIC_IDS_FROM else b"a topic of some length" * 7
    fill = produce.response_template(topic, 4, version)
    result = produce.PartitionResult(topic, 4, ErrorCode.NONE, 123_456, 1_700_000_000_000, 99)
    assert fill(31, 123_456, 1_700_000_000_000, 99) == produce.write_response(version, 31, [result])


@pytest.mark.parametrize("version", fetch.VERSIONS)
def test_the_codec_reads_fetch_responses(version: int) -> None:
    by_id = version >= fetch.TOPIC_IDS_FROM
    first, second = (b"a" * 16, b"b" * 16) if by_id else (b"orders", b"payments")
    parts = [
        fetch.PartitionData(first, 0, ErrorCode.NONE, 10, 9, 1, [memoryview(b"abc"), b"defg"], 7),
        fetch.PartitionData(first, 1, ErrorCode.NONE, 5, 5, 0),
        fetch.PartitionData(second, 0, ErrorCode.OFFSET_OUT_OF_RANGE),
    ]
    buffers = fetch.write_response(version, 7, ErrorCode.NONE, 42, parts)
    frame = b"".join(buffers)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, position = read_response_header(FETCH, version, frame[4:])
    response = messages.read_response(FETCH, version, frame[4:], position)
    assert correlation_id == 7
    if version >= fetch.SESSIONS_FROM:
        assert response.session_id == 42
    flat = [
        (
            topic_key(topic, "topic", by_id),
            part.partition_index,
            part.error_code,
            part.high_watermark,
            part.last_stable_offset,
            part.records or b"",
        )
        for topic in response.responses
        for part in topic.partitions
    ]
    assert flat == [
        (
            data.topic,
            data.partition,
            data.error,
            data.high_watermark,
            data.last_stable_offset,
            b"".join(data.records),
        )
        for data in parts
    ]


@pytest.mark.parametrize(("api_key", "read", "versions"), [
    (PRODUCE, produce.read_request, produce.VERSIONS),
    (FETCH, fetch.read_request, fetch.VERSIONS),
])  # fmt: skip
def test_cut_and_damaged_requests_are_refused(api_key: int, read: object, versions: range) -> None:
    """Any prefix is refused, and a flipped byte never raises anything but KafkaError."""
    random = Random(api_key)
    for version in versions:
        data = kio_bytes(random_message(random, APIS[api_key], version, "request"))
        tags = HEADER_TAGS if messages.request_header_is_flexible(api_key, version) else b""
        whole = tags + data
        for cut in range(0, len(whole), max(1, len(whole) // 50)):
            with pytest.raises(KafkaError):
                read(memoryview(whole[:cut]), 0, cut, version)  # type: ignore[operator]
        for _ in range(200):
            damaged = bytearray(whole)
            damaged[random.randrange(len(damaged))] = random.randrange(256)
            with suppress(KafkaError):
                read(memoryview(damaged), 0, len(damaged), version)  # type: ignore[operator]


@pytest.mark.parametrize("version", produce.VERSIONS)
def test_cached_requests_are_read_as_decoded_ones(version: int) -> None:
    """Requests that repeat, change, are cut or damaged: the result is that of `read_request`, or its error."""
    random = Random(version)
    pool = [kio_bytes(random_message(random, APIS[PRODUCE], version, "request")) for _ in range(12)]
    cache = produce.produce_cache()
    tags = HEADER_TAGS if version >= produce.FLEXIBLE_FROM else b""
    for _ in range(600):
        frame = bytearray(b"client" + tags + random.choice(pool))
        if random.random() < 0.3:
            frame[random.randrange(6, len(frame))] = random.randrange(256)
        if random.random() < 0.1:
            del frame[random.randrange(7, len(frame)) :]
        view = memoryview(frame)
        spoken = random.choice((version, version, version, produce.VERSIONS[0], produce.VERSIONS[-1]))
        try:
            expected = produce.read_request(view, 6, len(view), spoken)
        except KafkaError:
            with pytest.raises(KafkaError):
                produce.read_cached(cache, view, 6, len(view), spoken)
        else:
            assert produce.read_cached(cache, view, 6, len(view), spoken) == expected

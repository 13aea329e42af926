"""The prefix cache is bounded; a Fetch found in it is decoded and answered as any other."""

from random import Random
from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.kio_codec import HEADER_TAGS, kio_bytes
from tests.support.random_messages import random_message

from levada.errors import ErrorCode
from levada.wire.fast import fetch
from levada.wire.fast.prefix_cache import PrefixCache
from levada.wire.schema.versions import APIS

VERSIONS = range(fetch.FLEXIBLE_FROM, fetch.VERSIONS.stop)
LIMITS = Struct(">iiibii")
PARTITION = Struct(">iiqiqi")
OFFSETS = st.integers(-(2**63), 2**63 - 1)

FETCH = 1


def test_the_cache_is_cleared_when_it_is_full_and_keeps_no_long_keys() -> None:
    cache = PrefixCache[str](2, 5)
    assert [cache.store((3, b"abc", part), "x") for part in (b"1", b"2", b"23456")] == ["x"] * 3
    assert list(cache) == [(3, b"abc", b"1"), (3, b"abc", b"2")] and cache.prefix_bytes == 3
    cache.store((3, b"ab"), "y")
    assert cache == {(3, b"ab"): "y"} and cache.prefix_bytes == 2


def test_a_key_is_repeated_until_too_many_others_were_seen() -> None:
    cache = PrefixCache[str](10, 5)
    assert [cache.is_repeated((3, b"ab")) for _ in range(3)] == [False, True, True]
    assert not any(cache.is_repeated((3, bytes((number,)))) for number in range(50))
    assert not cache.is_repeated((3, b"ab"))


def topic_key(version: int) -> bytes:
    return bytes(range(16)) if version >= fetch.TOPIC_IDS_FROM else b"orders"


def one_partition(version: int, offset: int, *, session: tuple[int, int] = (0, -1), tags: bytes = b"\0") -> bytes:
    """A body as librdkafka sends it: one partition, no session."""
    topic = topic_key(version)
    name = topic if version >= fetch.TOPIC_IDS_FROM else bytes((len(topic) + 1,)) + topic
    replica = b"\xff\xff\xff\xff" if version < 15 else b""
    partition = PARTITION.pack(3, 7, offset, -1, -1, 1 << 20)
    limits = LIMITS.pack(500, 1, 1 << 22, 1, *session)
    return tags + replica + limits + b"\x02" + name + b"\x02" + partition + b"\0\0\x01\x01\0"


def store(cache: PrefixCache[fetch.CachedFetch], body: bytes, version: int) -> fetch.FetchRequest:
    view = memoryview(body)
    request = fetch.read_request(view, 0, len(body), version)
    fetch.store(cache, view, 0, len(body), version, request)
    return request


@pytest.mark.parametrize("version", VERSIONS)
@given(first=OFFSETS, second=OFFSETS)
def test_another_offset_is_all_that_may_differ(version: int, first: int, second: int) -> None:
    cache = fetch.fetch_cache()
    store(cache, one_partition(version, first), version)
    body = b"before" + one_partition(version, second)
    found = fetch.read_cached(cache, memoryview(body + b"next"), 6, len(body), version)
    assert found is not None
    cached, offset = found
    assert cached.at(offset) == fetch.read_request(memoryview(body), 6, len(body), version)
    assert fetch.read_cached(cache, memoryview(body + b"next"), 6, len(body) + 4, version) is None
    assert fetch.read_cached(cache, memoryview(body), 6, len(body) - 1, version) is None
    assert fetch.read_cached(cache, memoryview(body), 6, len(body), version - 1) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_changed_byte_is_not_recognised(version: int) -> None:
    cache = fetch.fetch_cache()
    body = one_partition(version, 5)
    request = store(cache, body, version)
    for place in range(len(body)):
        changed = bytearray(body)
        changed[place] ^= 1
        found = fetch.read_cached(cache, memoryview(changed), 0, len(changed), version)
        if found is not None:
            cached, offset = found
            assert offset != request.partitions[0].fetch_offset
            assert cached.at(offset) == fetch.read_request(memoryview(changed), 0, len(changed), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_sessions_and_tagged_fields_are_not_cached(version: int) -> None:
    for body in (
        one_partition(version, 5, session=(0, 0)),
        one_partition(version, 5, session=(9, 1)),
        one_partition(version, 5, tags=b"\x01\x07\x01x"),
    ):
        cache = fetch.fetch_cache()
        store(cache, body, version)
        assert fetch.read_cached(cache, memoryview(body), 0, len(body), version) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_sent_twice_are_read_alike(version: int) -> None:
    random = Random(version)
    cache = fetch.fetch_cache()
    for _ in range(50):
        data = HEADER_TAGS + kio_bytes(random_message(random, APIS[FETCH], version, "request"))
        request = store(cache, data, version)
        found = fetch.read_cached(cache, memoryview(data), 0, len(data), version)
        if found is not None:
            cached, offset = found
            assert cached.at(offset) == request


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("aborted", [None, [], [(7, 40), (8, 41)]])
@pytest.mark.parametrize("size", [1, 126, 127, 20_000])
def test_the_response_is_the_same(version: int, aborted: list[tuple[int, int]] | None, size: int) -> None:
    cache = fetch.fetch_cache()
    body = one_partition(version, 5)
    store(cache, body, version)
    found = fetch.read_cached(cache, memoryview(body), 0, len(body), version)
    assert found is not None
    records: list[bytes | memoryview] = [b"a" * (size - size // 2), memoryview(b"b" * (size // 2))]
    response = found[0].write_response(99, 50, 48, 2, records, size, aborted)
    data = fetch.PartitionData(topic_key(version), 3, ErrorCode.NONE, 50, 48, 2, records, size, aborted=aborted)
    assert b"".join(response) == b"".join(fetch.write_response(version, 99, 0, 0, [data]))

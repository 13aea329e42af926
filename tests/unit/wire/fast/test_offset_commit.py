"""OffsetCommit of the fast path against the general codec: the same bytes mean the same."""

from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest
from tests.support.kio_codec import HEADER_TAGS, kio_bytes
from tests.support.random_messages import random_message, read_response_header

from levada.errors import ErrorCode
from levada.wire.fast import offset_commit
from levada.wire.schema import messages
from levada.wire.schema.versions import APIS

OFFSET_COMMIT = 8


EXAMPLES = 400


PARTITION_BYTES = 4 + 8 + 4 + 1 + 1


TEXTS = ["", "a", "orders", "é✓", "x" * 126]


def simple_commit(random: Random, version: int) -> Any:
    """A random commit, mostly one that the fast path takes."""
    request = random_message(random, APIS[OFFSET_COMMIT], version, "request")
    request = replace(request, group_id=random.choice(TEXTS), member_id=random.choice(TEXTS), group_instance_id=None)
    topics = request.topics
    if topics and random.random() < 0.9:
        parts = tuple(replace(part, committed_metadata=random.choice((None, ""))) for part in topics[0].partitions)
        name: dict[str, Any] = {"topic_id": UUID(int=7)} if version >= 10 else {"name": random.choice(TEXTS)}
        topics = (replace(topics[0], partitions=parts, **name),)
    return replace(request, topics=topics)


@pytest.mark.parametrize("version", offset_commit.VERSIONS)
def test_simple_commits_are_decoded_as_by_the_codec(version: int) -> None:
    random, taken, cache = Random(version), 0, offset_commit.commit_cache()
    for _ in range(EXAMPLES):
        data = kio_bytes(simple_commit(random, version))
        view = memoryview(b"client" + HEADER_TAGS + data + b"the next frame")
        found = offset_commit.read(cache, view, 6, 7 + len(data), version)
        if found is None:
            continue
        taken += 1
        prefix, partitions = found
        shape = messages.read_request(OFFSET_COMMIT, version, data)
        (topic,) = shape.topics
        assert prefix[:4] == (
            shape.group_id,
            shape.generation_id_or_member_epoch,
            shape.member_id,
            shape.group_instance_id,
        )
        assert (prefix.topic, prefix.topic_id) == (topic.name, topic.topic_id)
        assert [partition[:3] for partition in partitions] == [
            (part.partition_index, part.committed_offset, part.committed_leader_epoch) for part in topic.partitions
        ]
        assert not any(part.committed_metadata for part in topic.partitions)
    assert taken > EXAMPLES / 4


@pytest.mark.parametrize("version", offset_commit.VERSIONS)
def test_truncated_and_corrupted_commits_are_not_mistaken_for_others(version: int) -> None:
    """What is taken of a damaged request is what the codec reads; of a cut one nothing is."""
    random, cache = Random(version), offset_commit.commit_cache()
    for _ in range(EXAMPLES):
        frame = bytearray(HEADER_TAGS + kio_bytes(simple_commit(random, version)))
        cut = random.randrange(len(frame))
        assert offset_commit.read(cache, memoryview(frame), 0, cut, version) is None
        assert offset_commit.read(cache, memoryview(frame[:cut]), 0, cut, version) is None
        frame[random.randrange(1, len(frame))] = random.randrange(256)
        found = offset_commit.read(cache, memoryview(frame), 0, len(frame), version)
        if found is not None:
            shape = messages.read_request(OFFSET_COMMIT, version, bytes(frame[1:]))
            assert [one[1] for one in found[1]] == [one.committed_offset for one in shape.topics[0].partitions]
            assert (found[0].group_id, found[0].member_id) == (shape.group_id, shape.member_id)


@pytest.mark.parametrize("version", offset_commit.VERSIONS)
def test_a_cached_prefix_needs_the_right_number_of_partitions(version: int) -> None:
    """The prefix is cached but announces more partitions than there are."""
    random, cache = Random(version), offset_commit.commit_cache()
    wanted = simple_commit(random, version)
    while len(wanted.topics) != 1 or not wanted.topics[0].partitions:
        wanted = simple_commit(random, version)
    (topic,) = wanted.topics
    part = replace(topic.partitions[0], committed_metadata="")
    one, two = (
        HEADER_TAGS + kio_bytes(replace(wanted, topics=(replace(topic, partitions=(part,) * count),)))
        for count in (1, 2)
    )
    for frame, count in ((two, 2), (one, 1), (one, 1)):
        found = offset_commit.read(cache, memoryview(frame), 0, len(frame), version)
        assert found is not None and len(found[1]) == count
    cut = two[:-PARTITION_BYTES]
    assert offset_commit.read(cache, memoryview(cut), 0, len(cut), version) is None
    not_simple = bytearray(one)
    not_simple[-1] = 1  # tagged fields
    assert offset_commit.read(cache, memoryview(not_simple), 0, len(not_simple), version) is None


@pytest.mark.parametrize("version", offset_commit.VERSIONS)
def test_the_codec_reads_the_response(version: int) -> None:
    random, cache = Random(version), offset_commit.commit_cache()
    for _ in range(EXAMPLES):
        data = kio_bytes(simple_commit(random, version))
        found = offset_commit.read(cache, memoryview(HEADER_TAGS + data), 0, 1 + len(data), version)
        if found is None:
            continue
        prefix, partitions = found
        codes = [random.choice((ErrorCode.NONE, ErrorCode.NOT_COORDINATOR)) for _ in partitions]
        frame = offset_commit.write_response(77, prefix, partitions, codes)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        correlation_id, position = read_response_header(OFFSET_COMMIT, version, frame[4:])
        response = messages.read_response(OFFSET_COMMIT, version, frame[4:], position)
        assert correlation_id == 77
        (topic,) = response.topics
        assert (topic.name, topic.topic_id) == (prefix.topic, prefix.topic_id)
        assert [(part.partition_index, part.error_code) for part in topic.partitions] == [
            (partition[0], code) for partition, code in zip(partitions, codes, strict=True)
        ]

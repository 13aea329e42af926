"""Committed offsets: a group's place in each partition, kept by its coordinator.

Topics come by name or, in the newest versions, by id; either way offsets are kept under the name, as in Kafka.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from levada.api.groups import MILLISECOND, check_group_id, each_group, error_of
from levada.api.registry import handles
from levada.api.request import RequestContext
from levada.api.response_fields import UNTHROTTLED
from levada.broker.purgatory import DelayedResult
from levada.config.settings import LONG_MAX
from levada.core.cluster.image import ClusterImage
from levada.core.groups.machine import GroupsMachine
from levada.core.groups.offsets import CommitRequest, FetchedOffset
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartitionKey
from levada.wire.internal.group_records import NO_EXPIRY, OffsetCommitValue
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.offset_delete.v0 as offset_delete_v0

    import levada.wire.schema.shapes.offset_commit as offset_commit_v10
    import levada.wire.schema.shapes.offset_fetch as offset_fetch_v10

NO_OFFSET = -1
NOT_FOUND_FROM = 9  # versions of OffsetCommit that say of a group that it is gone
NO_RETENTION = timedelta(milliseconds=-1)
# What a coordinator's write that does not fit is called here.
TOO_LARGE = frozenset((ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE))


def known_topic(image: ClusterImage, name: str, topic_id: UUID | None) -> tuple[str, int, ErrorCode]:
    """The name of a topic given by name or id, how many partitions it has, and the error for any other."""
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic_id is not None:
        name = image.topic_names.get(topic_id, "")
        error = error if name else ErrorCode.UNKNOWN_TOPIC_ID
    topic = image.topics.get(name)
    return name, 0 if topic is None else len(topic.partitions), error


@handles("offset_commit", versions=range(2, 11))
def offset_commit(
    context: RequestContext, request: "offset_commit_v10.OffsetCommitRequest"
) -> "DelayedResult | offset_commit_v10.OffsetCommitResponse":
    """Keep offsets for a member, or for a client that only stores them here (no member, generation -1).

    v6 adds leader epochs (KIP-320), v7 static members, v9 members of the newer protocol (KIP-848), v10 topic ids.
    """
    now_ms = context.broker.clock.now_ms()
    expire_ms = NO_EXPIRY
    if request.retention_time != NO_RETENTION:
        expire_ms = min(now_ms + request.retention_time // MILLISECOND, LONG_MAX)
    offsets: list[tuple[TopicPartitionKey, OffsetCommitValue]] = []
    errors: list[ErrorCode | None] = []  # of each partition in the request; None where the group decides
    for topic in request.topics:
        name, count, error = known_topic(context.broker.image, topic.name, topic.topic_id)
        for part in topic.partitions:
            if not 0 <= part.partition_index < count:
                errors.append(error)
                continue
            errors.append(None)
            value = OffsetCommitValue(
                part.committed_offset,
                part.committed_leader_epoch,
                part.committed_metadata or "",
                now_ms,
                expire_ms,
            )
            offsets.append(((name, part.partition_index), value))
    commit = CommitRequest(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        offsets,
        api_version=context.api_version,
    )
    try:
        return context.broker.groups.shard(request.group_id).submit(
            lambda machine, at_ms, handle: machine.commit(commit, at_ms, handle),
            lambda codes: _committed(request, errors, codes),
        )
    except KafkaError as error:
        return _committed(request, errors, [_refusal(context, error.code)] * len(offsets))


def _committed(
    request: "offset_commit_v10.OffsetCommitRequest",
    errors: list[ErrorCode | None],
    decided: Sequence[ErrorCode],
) -> "offset_commit_v10.OffsetCommitResponse":
    partition = offset_commit_v10.response.OffsetCommitResponsePartition
    rest = iter(decided)
    codes = iter([next(rest) if error is None else error for error in errors])
    return offset_commit_v10.OffsetCommitResponse(
        throttle_time=UNTHROTTLED,
        topics=tuple(
            [
                offset_commit_v10.OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=tuple(
                        [
                            partition(partition_index=part.partition_index, error_code=next(codes))
                            for part in topic.partitions
                        ]
                    ),
                )
                for topic in request.topics
            ]
        ),
    )


def _refusal(context: RequestContext, code: ErrorCode) -> ErrorCode:
    """What a refused commit is called in this version."""
    if code in TOO_LARGE:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    if code is ErrorCode.GROUP_ID_NOT_FOUND and context.api_version < NOT_FOUND_FROM:
        return ErrorCode.ILLEGAL_GENERATION
    return code


@handles("offset_fetch", versions=range(1, 11))
def offset_fetch(context: RequestContext, request: "offset_fetch_v10.OffsetFetchRequest") -> DelayedResult:
    """Committed offsets of groups; -1 for what was never committed, also of a group that is not there.

    v2 asks for all partitions with null, v7 for stable offsets (KIP-447), v8 for many groups (KIP-709), v9 says who
    asks (KIP-848), v10 uses topic ids.
    """
    asked = {group.group_id: group for group in request.groups}

    def look(machine: GroupsMachine, group_id: str) -> tuple[tuple[()], list[FetchedOffset]]:
        places = _places(context, asked[group_id])
        group = asked[group_id]
        return (), machine.fetch(
            group_id,
            places,
            require_stable=request.require_stable,
            member_id=group.member_id,
            member_epoch=group.member_epoch,
        )

    def fetched(results: dict[str, Any]) -> Any:
        return offset_fetch_v10.OffsetFetchResponse(
            throttle_time=UNTHROTTLED,
            groups=tuple([_fetched(context, group, results[group_id]) for group_id, group in asked.items()]),
        )

    return each_group(context, asked, look, fetched)


def _places(
    context: RequestContext, group: "offset_fetch_v10.OffsetFetchRequestGroup"
) -> list[TopicPartitionKey] | None:
    """What a group is asked for; topics that are not known by their id are left out."""
    if group.topics is None:
        return None
    return [
        (name, index)
        for topic in group.topics
        if (name := _name(context, topic)) is not None
        for index in topic.partition_indexes
    ]


def _name(context: RequestContext, topic: "offset_fetch_v10.OffsetFetchRequestTopics") -> str | None:
    if topic.topic_id is None:
        return topic.name
    return context.broker.image.topic_names.get(topic.topic_id)


def _fetched(context: RequestContext, group: "offset_fetch_v10.OffsetFetchRequestGroup", result: Any) -> Any:
    error = error_of(result)
    topics: tuple[Any, ...] = ()
    if error is ErrorCode.NONE:
        topics = (
            _all_topics(context, result)
            if group.topics is None
            else _asked_topics(context, group.topics, result)
        )
    return offset_fetch_v10.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error, topics=topics)


def _asked_topics(
    context: RequestContext, topics: Sequence[Any], result: list[FetchedOffset]
) -> tuple[Any, ...]:
    answers = []
    found = iter(result)
    for topic in topics:
        known = _name(context, topic) is not None
        partitions = [
            _partition(index, *next(found)[1:])
            if known
            else _partition(index, None, ErrorCode.UNKNOWN_TOPIC_ID)
            for index in topic.partition_indexes
        ]
        answers.append(
            offset_fetch_v10.OffsetFetchResponseTopics(
                name=topic.name, topic_id=topic.topic_id, partitions=tuple(partitions)
            )
        )
    return tuple(answers)


def _all_topics(context: RequestContext, result: list[FetchedOffset]) -> tuple[Any, ...]:
    by_topic: dict[str, list[Any]] = {}
    for (name, index), value, error in result:
        by_topic.setdefault(name, []).append(_partition(index, value, error))
    known = context.broker.image.topics
    return tuple(
        offset_fetch_v10.OffsetFetchResponseTopics(
            name=name, topic_id=known[name].id, partitions=tuple(partitions)
        )
        for name, partitions in by_topic.items()
        if name in known
    )


def _partition(index: int, value: OffsetCommitValue | None, error: ErrorCode) -> Any:
    return offset_fetch_v10.response.OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=NO_OFFSET if value is None else value.offset,
        committed_leader_epoch=-1 if value is None else value.leader_epoch,
        metadata="" if value is None else value.metadata,
        error_code=error,
    )


@handles("offset_delete", versions=range(1))
def offset_delete(context: RequestContext, request: "offset_delete_v0.OffsetDeleteRequest") -> DelayedResult:
    """Forget offsets of topics that the group does not read (KIP-496)."""
    check_group_id(request.group_id)
    image = context.broker.image
    places: list[TopicPartitionKey] = [
        (topic.name, part.partition_index)
        for topic in request.topics
        if topic.name in image.topics
        for part in topic.partitions
        if 0 <= part.partition_index < len(image.topics[topic.name].partitions)
    ]
    return context.broker.groups.shard(request.group_id).submit(
        lambda machine, _, handle: machine.delete_offsets(request.group_id, places, handle),
        lambda errors: _deleted(request, dict(zip(places, errors, strict=True))),
    )


def _deleted(
    request: "offset_delete_v0.OffsetDeleteRequest", errors: dict[TopicPartitionKey, ErrorCode]
) -> Any:
    answer = offset_delete_v0.response
    return answer.OffsetDeleteResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        topics=tuple(
            answer.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    answer.OffsetDeleteResponsePartition(
                        partition_index=part.partition_index,
                        error_code=errors.get(
                            (topic.name, part.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    )
                    for part in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )

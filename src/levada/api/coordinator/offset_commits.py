"""OffsetCommit, OffsetFetch, OffsetDelete and TxnOffsetCommit: the committed offsets of groups.

Requests have topic names or, in the newest versions, topic ids; offsets are stored by name, as in Kafka.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import repeat
from typing import Any
from uuid import UUID

from levada.api.coordinator.groups import MILLISECOND, error_of, for_each_group, validate_group_id
from levada.api.registry import handles
from levada.api.request import UNTHROTTLED, RequestContext
from levada.broker.coordinator.groups import OFFSETS_TOPIC
from levada.broker.partition.verification import Verification, produce_error
from levada.broker.purgatory import DelayedResult
from levada.config.settings import LONG_MAX
from levada.core.cluster.image import ClusterImage
from levada.core.groups.machine import GroupsMachine
from levada.core.groups.offsets import CommitRequest, FetchedOffset
from levada.core.transactions.state import ProducerIdAndEpoch
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.model import TopicPartitionKey
from levada.wire.internal.group_records import NO_EXPIRY, OffsetCommitValue
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.offset_delete.v0 as offset_delete_v0
    import kio.schema.txn_offset_commit.v5 as txn_offset_commit_v5

    import levada.wire.schema.shapes.offset_commit as offset_commit_v10
    import levada.wire.schema.shapes.offset_fetch as offset_fetch_v10

log = EventLog(__name__)

NO_OFFSET = -1
TRANSACTION_VERSION_2_FROM = 5  # versions of TxnOffsetCommit
ABORTABLE_FROM = 4
# By version of TxnOffsetCommit: the version of Produce whose clients know the same errors.
PRODUCE_VERSIONS = {TRANSACTION_VERSION_2_FROM: 12, ABORTABLE_FROM: 11}
NOT_FOUND_FROM = 9  # versions of OffsetCommit with GROUP_ID_NOT_FOUND
NO_RETENTION = timedelta(milliseconds=-1)
# Errors of a journal batch that becomes INVALID_COMMIT_OFFSET_SIZE.
TOO_LARGE = frozenset((ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE))


def known_topic(image: ClusterImage, name: str, topic_id: UUID | None) -> tuple[str, int, ErrorCode]:
    """The name of a topic given by name or id, its number of partitions, and the error of an unknown partition."""
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
    """Commit offsets of a member, or of a client that only stores offsets (no member id, generation -1).

    v6 adds leader epochs (KIP-320), v7 static members, v9 member epochs (KIP-848), v10 topic ids.
    """
    now_ms = context.broker.clock.now_ms()
    expire_ms = NO_EXPIRY
    if request.retention_time != NO_RETENTION:
        expire_ms = min(now_ms + request.retention_time // MILLISECOND, LONG_MAX)
    offsets: list[tuple[TopicPartitionKey, OffsetCommitValue]] = []
    errors: list[ErrorCode | None] = []  # of each partition in the request; None: the coordinator decides
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
        return _committed(request, errors, [_commit_error(context, error.code)] * len(offsets))


def _committed(
    request: "offset_commit_v10.OffsetCommitRequest",
    errors: list[ErrorCode | None],
    decided: Sequence[ErrorCode],
) -> "offset_commit_v10.OffsetCommitResponse":
    rest, response = iter(decided), offset_commit_v10.response
    codes = iter([next(rest) if error is None else error for error in errors])
    topics = [
        offset_commit_v10.OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=_partitions(response.OffsetCommitResponsePartition, topic, codes),
        )
        for topic in request.topics
    ]
    return offset_commit_v10.OffsetCommitResponse(throttle_time=UNTHROTTLED, topics=tuple(topics))


def _partitions(partition_type: Any, topic: Any, codes: Iterator[ErrorCode]) -> tuple[Any, ...]:
    """The partitions of a topic in a response, each with the next error code."""
    return tuple(
        [partition_type(partition_index=part.partition_index, error_code=next(codes)) for part in topic.partitions]
    )


def _commit_error(context: RequestContext, code: ErrorCode) -> ErrorCode:
    """The error code of a failed commit in this version."""
    if code in TOO_LARGE:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    if code is ErrorCode.GROUP_ID_NOT_FOUND and context.api_version < NOT_FOUND_FROM:
        return ErrorCode.ILLEGAL_GENERATION
    return code


@handles("offset_fetch", versions=range(1, 11))
def offset_fetch(context: RequestContext, request: "offset_fetch_v10.OffsetFetchRequest") -> DelayedResult:
    """Fetch the committed offsets of groups; -1 where nothing was committed, also if the group does not exist.

    v2 fetches all partitions with null, v7 adds stable offsets (KIP-447), v8 several groups (KIP-709), v9 the member
    (KIP-848), v10 topic ids.
    """
    groups = {group.group_id: group for group in request.groups}

    def fetch(machine: GroupsMachine, group_id: str) -> tuple[tuple[()], list[FetchedOffset]]:
        topic_partitions = _topic_partitions(context, groups[group_id])
        group = groups[group_id]
        return (), machine.fetch(
            group_id,
            topic_partitions,
            require_stable=request.require_stable,
            member_id=group.member_id,
            member_epoch=group.member_epoch,
        )

    def response_of(results: dict[str, Any]) -> Any:
        return offset_fetch_v10.OffsetFetchResponse(
            throttle_time=UNTHROTTLED,
            groups=tuple([_fetched(context, group, results[group_id]) for group_id, group in groups.items()]),
        )

    return for_each_group(context, groups, fetch, response_of)


def _topic_partitions(
    context: RequestContext, group: "offset_fetch_v10.OffsetFetchRequestGroup"
) -> list[TopicPartitionKey] | None:
    """The partitions to fetch of a group, without unknown topic ids."""
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
            _all_topics(context, result) if group.topics is None else _fetched_topics(context, group.topics, result)
        )
    return offset_fetch_v10.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error, topics=topics)


def _fetched_topics(context: RequestContext, topics: Sequence[Any], result: list[FetchedOffset]) -> tuple[Any, ...]:
    topics_found = []
    found = iter(result)
    for topic in topics:
        known = _name(context, topic) is not None
        partitions = [
            _partition(index, *next(found)[1:]) if known else _partition(index, None, ErrorCode.UNKNOWN_TOPIC_ID)
            for index in topic.partition_indexes
        ]
        topics_found.append(
            offset_fetch_v10.OffsetFetchResponseTopics(
                name=topic.name, topic_id=topic.topic_id, partitions=tuple(partitions)
            )
        )
    return tuple(topics_found)


def _all_topics(context: RequestContext, result: list[FetchedOffset]) -> tuple[Any, ...]:
    by_topic: dict[str, list[Any]] = {}
    for (name, index), value, error in result:
        by_topic.setdefault(name, []).append(_partition(index, value, error))
    known = context.broker.image.topics
    return tuple(
        offset_fetch_v10.OffsetFetchResponseTopics(name=name, topic_id=known[name].id, partitions=tuple(partitions))
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
    """Delete offsets of topics that the group does not subscribe to (KIP-496)."""
    validate_group_id(request.group_id)
    image = context.broker.image
    topic_partitions: list[TopicPartitionKey] = [
        (topic.name, part.partition_index)
        for topic in request.topics
        if topic.name in image.topics
        for part in topic.partitions
        if 0 <= part.partition_index < len(image.topics[topic.name].partitions)
    ]

    def deleted(errors: Sequence[ErrorCode]) -> Any:
        if count := sum(error is ErrorCode.NONE for error in errors):
            requester = context.requester.log_fields()
            log.info("group offsets deleted", group=request.group_id, partitions=count, **requester)
        return _deleted(request, dict(zip(topic_partitions, errors, strict=True)))

    return context.broker.groups.shard(request.group_id).submit(
        lambda machine, _, handle: machine.delete_offsets(request.group_id, topic_partitions, handle), deleted
    )


def _deleted(request: "offset_delete_v0.OffsetDeleteRequest", errors: dict[TopicPartitionKey, ErrorCode]) -> Any:
    response, unknown = offset_delete_v0.response, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    codes = iter(
        [
            errors.get((topic.name, part.partition_index), unknown)
            for topic in request.topics
            for part in topic.partitions
        ]
    )
    topics = [
        response.OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=_partitions(response.OffsetDeleteResponsePartition, topic, codes),
        )
        for topic in request.topics
    ]
    return response.OffsetDeleteResponse(throttle_time=UNTHROTTLED, error_code=ErrorCode.NONE, topics=tuple(topics))


@handles("txn_offset_commit", versions=range(6))
def txn_offset_commit(context: RequestContext, request: "txn_offset_commit_v5.TxnOffsetCommitRequest") -> DelayedResult:
    """Commit offsets in a transaction: they are pending until the transaction is committed.

    The partition of `__consumer_offsets` is verified, or added, as in any other partition (KIP-890). v3 adds the member
    (KIP-447), v5 is of transaction version 2: AddOffsetsToTxn is not needed.
    """
    delayed = DelayedResult(lambda result: _txn_response(context, request, result))
    try:
        _verify_and_commit(context, request, delayed)
    except KafkaError as error:
        delayed.complete([error])
    return delayed


def _verify_and_commit(
    context: RequestContext, request: "txn_offset_commit_v5.TxnOffsetCommitRequest", delayed: DelayedResult
) -> None:
    if not request.transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    broker = context.broker
    broker.groups.shard(request.group_id)
    partition = broker.partition(OFFSETS_TOPIC, broker.groups.partition_for(request.group_id))
    client = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)

    def on_verified(errors: list[ErrorCode]) -> None:
        try:
            if errors[0] is not ErrorCode.NONE:
                raise KafkaError(errors[0])
            _commit_in_transaction(context, request, delayed)
        except KafkaError as error:
            delayed.complete([error])

    if partition.transactions.has_open(*client):
        on_verified([ErrorCode.NONE])
        return
    version = 2 if context.api_version >= TRANSACTION_VERSION_2_FROM else 1
    map_error = partial(produce_error, version=PRODUCE_VERSIONS.get(context.api_version, 0))
    Verification(broker, request.transactional_id, client, [partition], version, map_error, on_verified).start()


def _commit_in_transaction(
    context: RequestContext, request: "txn_offset_commit_v5.TxnOffsetCommitRequest", delayed: DelayedResult
) -> None:
    broker = context.broker
    partition = broker.partition(OFFSETS_TOPIC, broker.groups.partition_for(request.group_id))
    partition.producers.check_epoch(request.producer_id, request.producer_epoch)
    partition.transactions.check(request.producer_id, request.producer_epoch)
    commit = CommitRequest(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        _transaction_offsets(context, request),
        request.producer_id,
        request.producer_epoch,
    )
    broker.groups.shard(request.group_id).submit(
        lambda machine, now_ms, handle: machine.commit(commit, now_ms, handle)
    ).add_done_callback(lambda result: delayed.complete([result] if isinstance(result, Exception) else result))


def _transaction_offsets(
    context: RequestContext, request: "txn_offset_commit_v5.TxnOffsetCommitRequest"
) -> list[tuple[TopicPartitionKey, OffsetCommitValue]]:
    """The offsets of topics that exist."""
    now_ms = context.broker.clock.now_ms()
    return [
        (
            (topic.name, part.partition_index),
            OffsetCommitValue(
                part.committed_offset, part.committed_leader_epoch, part.committed_metadata or "", now_ms
            ),
        )
        for topic in request.topics
        if topic.name in context.broker.image.topics
        for part in topic.partitions
    ]


def _txn_response(
    context: RequestContext, request: "txn_offset_commit_v5.TxnOffsetCommitRequest", result: list[Any]
) -> Any:
    """`result` has one error for all offsets, or an error code for each offset of an existing topic."""
    response = txn_offset_commit_v5.response
    failed = result[0] if result and isinstance(result[0], Exception) else None
    if failed is None:
        rest, known = iter(result), context.broker.image.topics
        codes: Iterator[ErrorCode] = (
            next(rest, ErrorCode.NONE) if topic.name in known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for topic in request.topics
            for _ in topic.partitions
        )
    else:
        code = error_of(failed)
        codes = repeat(ErrorCode.INVALID_COMMIT_OFFSET_SIZE if code in TOO_LARGE else code)
    topics = [
        response.TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=_partitions(response.TxnOffsetCommitResponsePartition, topic, codes),
        )
        for topic in request.topics
    ]
    return response.TxnOffsetCommitResponse(throttle_time=UNTHROTTLED, topics=tuple(topics))

"""Handlers of ListOffsets, DeleteRecords and OffsetForLeaderEpoch."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from levada.api.registry import handles
from levada.api.request import UNTHROTTLED, RequestContext
from levada.api.slices import map_in_slices
from levada.broker.partition.partition import READ_COMMITTED, Partition
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.storage.log.segment import CorruptBatchError
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.delete_records.v2 as delete_records_v2
    import kio.schema.list_offsets.v11 as list_offsets_v11
    import kio.schema.offset_for_leader_epoch.v4 as offset_for_leader_epoch_v4

log = EventLog(__name__)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
# The version that added each.
TIMESTAMP_VERSIONS = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
OFFSET_NOT_AVAILABLE_FROM = 5
NOT_FOUND = (-1, -1)
HIGH_WATERMARK = -1  # DeleteRecords: all records up to it
PARTITIONS_PER_ITERATION = 200  # a search by timestamp reads from the log of each
DELETIONS_PER_ITERATION = 20  # each stores the leader epochs

TopicResults: TypeAlias = tuple[tuple[str, tuple[Any, ...]], ...]  # the results of the partitions of each topic
Response = TypeVar("Response")


@handles("list_offsets", versions=range(1, 12))
def list_offsets(
    context: RequestContext, request: "list_offsets_v11.ListOffsetsRequest"
) -> "list_offsets_v11.ListOffsetsResponse | Awaitable[Any]":
    """Return the offset for a timestamp, or the earliest or latest one.

    v2 isolation level; v4 leader epochs; v7 max timestamp (KIP-734); v8, v9 and v11 tiered storage, of which there is
    none; v10 a timeout for it.
    """
    response = list_offsets_v11.response
    times = Counter(
        (topic.name, requested.partition_index) for topic in request.topics for requested in topic.partitions
    )

    def handle(partition: Partition, requested: Any) -> Any:
        if times[partition.topic, partition.index] > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a partition may appear only once")
        partition.check_leader_epoch(requested.current_leader_epoch)
        if context.api_version < TIMESTAMP_VERSIONS.get(requested.timestamp, 0):
            raise _unsupported_timestamp(requested.timestamp)
        timestamp, offset = _find(partition, requested.timestamp, request.isolation_level, context.api_version)
        return response.ListOffsetsPartitionResponse(
            partition_index=requested.partition_index,
            error_code=ErrorCode.NONE,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=partition.leader_epoch if offset >= 0 else -1,
        )

    def failure(requested: Any, error: KafkaError) -> Any:
        return response.ListOffsetsPartitionResponse(partition_index=requested.partition_index, error_code=error.code)

    def respond(results: TopicResults) -> "list_offsets_v11.ListOffsetsResponse":
        topics = tuple(
            response.ListOffsetsTopicResponse(name=name, partitions=partitions) for name, partitions in results
        )
        return response.ListOffsetsResponse(throttle_time=UNTHROTTLED, topics=topics)

    topics = [(topic.name, _each_once(topic.partitions)) for topic in request.topics]
    return _for_each_partition(context, topics, handle, failure, respond)


def _each_once(requested: Iterable[Any]) -> Sequence[Any]:
    """Each partition once, even if the request repeats it."""
    return list({partition.partition_index: partition for partition in requested}.values())


def _find(partition: Partition, timestamp: int, isolation_level: int, api_version: int) -> tuple[int, int]:
    """(timestamp, offset); the timestamp is -1 for the earliest and latest offset."""
    partition.publish_queued()
    if not partition.is_leader:
        raise partition.not_leader()
    if partition.offline:
        raise partition.storage_error()
    committed = isolation_level == READ_COMMITTED
    end_offset = partition.last_stable_offset if committed else partition.high_watermark
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, partition.log_start_offset
    _check_available(partition, api_version)
    if timestamp == LATEST:
        return -1, end_offset
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOT_FOUND
    if timestamp < 0 and timestamp != MAX_TIMESTAMP:
        raise _unsupported_timestamp(timestamp)
    try:
        by_time = partition.log.offset_for_timestamp
        found = partition.log.max_timestamp() if timestamp == MAX_TIMESTAMP else by_time(timestamp)
    except (OSError, CorruptBatchError) as error:
        raise partition.failed(error) from None
    return found if found is not None and found[1] < end_offset else NOT_FOUND


def _check_available(partition: Partition, api_version: int) -> None:
    """Raise OFFSET_NOT_AVAILABLE until a new leader knows the high watermark of the one before.

    It has at least that once its own reaches the start of the leader epoch: no client sees the end step back.
    """
    replicas = partition.replicas
    if replicas is not None and partition.high_watermark < replicas.epoch_start_offset:
        is_known = api_version >= OFFSET_NOT_AVAILABLE_FROM
        code = ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE
        detail = f"the high watermark of {partition.topic}-{partition.index} has not reached its leader epoch"
        raise KafkaError(code, detail)


def _unsupported_timestamp(timestamp: int) -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} is not supported in this version")


@handles("delete_records", versions=range(3))
def delete_records(
    context: RequestContext, request: "delete_records_v2.DeleteRecordsRequest"
) -> "Awaitable[delete_records_v2.DeleteRecordsResponse]":
    """Delete the records of partitions before an offset: the log start offset advances, durably, in the whole ISR."""
    response = delete_records_v2.response
    advanced: dict[tuple[str, int], Partition] = {}

    def handle(partition: Partition, requested: Any) -> Any:
        low = partition.delete_records(
            partition.high_watermark if requested.offset == HIGH_WATERMARK else requested.offset
        )
        advanced[partition.topic, partition.index] = partition
        return response.DeleteRecordsPartitionResult(
            partition_index=requested.partition_index, low_watermark=low, error_code=ErrorCode.NONE
        )

    def failure(requested: Any, error: KafkaError) -> Any:
        return response.DeleteRecordsPartitionResult(
            partition_index=requested.partition_index, low_watermark=-1, error_code=error.code
        )

    topics = [(topic.name, topic.partitions) for topic in request.topics]
    results = _for_each_partition(context, topics, handle, failure, tuple, per_iteration=DELETIONS_PER_ITERATION)
    return _when_durable(context, request.timeout.total_seconds(), advanced, results)


async def _when_durable(
    context: RequestContext,
    timeout_s: float,
    advanced: Mapping[tuple[str, int], Partition],
    results: TopicResults | Awaitable[TopicResults],
) -> "delete_records_v2.DeleteRecordsResponse":
    """The response once the log start offsets are on disk and followers have them.

    A partition whose disk fails is offline by then; followers may take longer than the request's timeout.
    """
    topics = results if isinstance(results, tuple) else await results
    if advanced:
        await context.broker.log_dirs.checkpoints.durable(advanced.values())
    replication = context.broker.replication
    waiting = [(one, one.log.log_start_offset) for one in advanced.values() if one.replicas is not None]
    done = await asyncio.gather(*[replication.deleted(*each, timeout_s) for each in waiting])
    late = {(one.topic, one.index) for (one, _), is_done in zip(waiting, done, strict=True) if not is_done}
    response = delete_records_v2.response

    def checked(topic: str, result: Any) -> Any:
        partition = advanced.get((topic, result.partition_index))
        if partition is None or result.error_code != ErrorCode.NONE:
            return result
        if partition.offline:
            return replace(result, low_watermark=-1, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        if (topic, result.partition_index) in late:
            return replace(result, low_watermark=-1, error_code=ErrorCode.REQUEST_TIMED_OUT)
        return result

    checked_topics = tuple(
        response.DeleteRecordsTopicResult(name=name, partitions=tuple(checked(name, result) for result in partitions))
        for name, partitions in topics
    )
    for topic in checked_topics:
        deleted = sum(result.error_code == ErrorCode.NONE for result in topic.partitions)
        if deleted:
            log.info("records deleted", topic=topic.name, partitions=deleted, **context.requester.log_fields())
    return response.DeleteRecordsResponse(throttle_time=UNTHROTTLED, topics=checked_topics)


@handles("offset_for_leader_epoch", versions=range(2, 5))
def offset_for_leader_epoch(
    context: RequestContext, request: "offset_for_leader_epoch_v4.OffsetForLeaderEpochRequest"
) -> "offset_for_leader_epoch_v4.OffsetForLeaderEpochResponse | Awaitable[Any]":
    """Return the end offset of a leader epoch, by which consumers and followers detect that logs diverged.

    v2 adds the current leader epoch (KIP-320), v3 the replica id.
    """
    response = offset_for_leader_epoch_v4.response

    def handle(partition: Partition, requested: Any) -> Any:
        partition.check_leader_epoch(requested.current_leader_epoch)
        if not partition.is_leader:
            raise partition.not_leader()
        epoch, end_offset = partition.epoch_end(requested.leader_epoch)
        return response.EpochEndOffset(
            error_code=ErrorCode.NONE,
            partition=requested.partition,
            leader_epoch=epoch,
            end_offset=end_offset,
        )

    def failure(requested: Any, error: KafkaError) -> Any:
        return response.EpochEndOffset(error_code=error.code, partition=requested.partition)

    def respond(results: TopicResults) -> "offset_for_leader_epoch_v4.OffsetForLeaderEpochResponse":
        topics = tuple(
            response.OffsetForLeaderTopicResult(topic=name, partitions=partitions) for name, partitions in results
        )
        return response.OffsetForLeaderEpochResponse(throttle_time=UNTHROTTLED, topics=topics)

    topics = [(topic.topic, topic.partitions) for topic in request.topics]
    return _for_each_partition(context, topics, handle, failure, respond, attrgetter("partition"))


def _for_each_partition(
    context: RequestContext,
    topics: Sequence[tuple[str, Sequence[Any]]],
    handle: Callable[[Partition, Any], Any],
    failure: Callable[[Any, KafkaError], Any],
    respond: Callable[[TopicResults], Response],
    index_of: Callable[[Any], int] = attrgetter("partition_index"),
    per_iteration: int = PARTITIONS_PER_ITERATION,
) -> Response | Awaitable[Response]:
    """The response from the results of `handle` for each requested partition, or of `failure` where it fails."""

    def result(item: tuple[str, Any]) -> Any:
        topic, requested = item
        try:
            partition = context.broker.partition(topic, index_of(requested))
            try:
                return handle(partition, requested)
            except OSError as error:
                raise partition.failed(error) from None
        except KafkaError as error:
            return failure(requested, error)

    def by_topic(results: Iterable[Any]) -> TopicResults:
        rest = iter(results)
        return tuple((name, tuple(islice(rest, len(requested)))) for name, requested in topics)

    async def handle_in_slices() -> Response:
        return respond(by_topic(await map_in_slices(context.broker, result, items, per_iteration)))

    items = [(name, requested) for name, partitions in topics for requested in partitions]
    if len(items) > per_iteration:
        return handle_in_slices()
    return respond(by_topic(map(result, items)))

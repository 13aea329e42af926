"""Places in a log: ListOffsets finds them, DeleteRecords moves the first, OffsetForLeaderEpoch tells epochs apart."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from levada.api.registry import handles
from levada.api.request import RequestContext
from levada.api.throttling import UNTHROTTLED
from levada.broker.partition.partition import READ_COMMITTED, Partition
from levada.errors import ErrorCode, KafkaError
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.delete_records.v2 as delete_records_v2
    import kio.schema.list_offsets.v11 as list_offsets_v11
    import kio.schema.offset_for_leader_epoch.v4 as offset_for_leader_epoch_v4

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}  # by version
NOWHERE = (-1, -1)
HIGH_WATERMARK = -1  # DeleteRecords: everything that is committed


@handles("list_offsets", versions=range(1, 12))
def list_offsets(
    context: RequestContext, request: "list_offsets_v11.ListOffsetsRequest"
) -> "list_offsets_v11.ListOffsetsResponse":
    """Offsets by time or by name. v4 adds leader epochs, v7 the largest timestamp, v8 and v9 tiers (none here)."""
    answer = list_offsets_v11.response
    times = Counter(
        (topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions
    )

    def of_partition(partition: Partition, asked: Any) -> Any:
        if times[partition.topic, partition.index] > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a partition is asked about once")
        partition.check_leader_epoch(asked.current_leader_epoch)
        if context.api_version < SINCE.get(asked.timestamp, 0):
            raise _meaningless(asked.timestamp)
        timestamp, offset = _find(partition, asked.timestamp, request.isolation_level)
        return answer.ListOffsetsPartitionResponse(
            partition_index=asked.partition_index,
            error_code=ErrorCode.NONE,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=partition.leader_epoch if offset >= 0 else -1,
        )

    def refused(asked: Any, error: KafkaError) -> Any:
        return answer.ListOffsetsPartitionResponse(
            partition_index=asked.partition_index, error_code=error.code
        )

    topics = tuple(
        answer.ListOffsetsTopicResponse(
            name=topic.name,
            partitions=_answers(context, topic.name, _each_once(topic.partitions), of_partition, refused),
        )
        for topic in request.topics
    )
    return answer.ListOffsetsResponse(throttle_time=UNTHROTTLED, topics=topics)


def _each_once(asked: Sequence[Any]) -> Iterable[Any]:
    """One place for each partition: one that is named again is answered once."""
    return {place.partition_index: place for place in asked}.values()


def _find(partition: Partition, timestamp: int, isolation_level: int) -> tuple[int, int]:
    """(timestamp, offset); the timestamp is -1 for a place that has a name."""
    partition.settle()
    if partition.offline:
        raise partition.storage_error()
    committed = isolation_level == READ_COMMITTED
    end_offset = partition.last_stable_offset if committed else partition.high_watermark
    if timestamp == LATEST:
        return -1, end_offset
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, partition.log_start_offset
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOWHERE
    if timestamp == MAX_TIMESTAMP:
        found: tuple[int, int] | None = partition.log.max_timestamp()
    elif timestamp < 0:
        raise _meaningless(timestamp)
    else:
        found = partition.log.offset_for_timestamp(timestamp)
    return found if found is not None and found[1] < end_offset else NOWHERE


def _meaningless(timestamp: int) -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning in this version")


@handles("delete_records", versions=range(3))
def delete_records(
    context: RequestContext, request: "delete_records_v2.DeleteRecordsRequest"
) -> "delete_records_v2.DeleteRecordsResponse":
    """Trim the beginning of logs on request (R19)."""
    answer = delete_records_v2.response

    def of_partition(partition: Partition, asked: Any) -> Any:
        low = partition.delete_records(
            partition.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
        )
        return answer.DeleteRecordsPartitionResult(
            partition_index=asked.partition_index, low_watermark=low, error_code=ErrorCode.NONE
        )

    def refused(asked: Any, error: KafkaError) -> Any:
        return answer.DeleteRecordsPartitionResult(
            partition_index=asked.partition_index, low_watermark=-1, error_code=error.code
        )

    topics = tuple(
        answer.DeleteRecordsTopicResult(
            name=topic.name, partitions=_answers(context, topic.name, topic.partitions, of_partition, refused)
        )
        for topic in request.topics
    )
    return answer.DeleteRecordsResponse(throttle_time=UNTHROTTLED, topics=topics)


@handles("offset_for_leader_epoch", versions=range(2, 5))
def offset_for_leader_epoch(
    context: RequestContext, request: "offset_for_leader_epoch_v4.OffsetForLeaderEpochRequest"
) -> "offset_for_leader_epoch_v4.OffsetForLeaderEpochResponse":
    """Where an epoch ended, so that a reader or follower can tell that its log has diverged."""
    answer = offset_for_leader_epoch_v4.response

    def of_partition(partition: Partition, asked: Any) -> Any:
        partition.check_leader_epoch(asked.current_leader_epoch)
        epoch, end_offset = partition.epoch_end(asked.leader_epoch)
        return answer.EpochEndOffset(
            error_code=ErrorCode.NONE, partition=asked.partition, leader_epoch=epoch, end_offset=end_offset
        )

    def refused(asked: Any, error: KafkaError) -> Any:
        return answer.EpochEndOffset(error_code=error.code, partition=asked.partition)

    topics = tuple(
        answer.OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=_answers(
                context, topic.topic, topic.partitions, of_partition, refused, attrgetter("partition")
            ),
        )
        for topic in request.topics
    )
    return answer.OffsetForLeaderEpochResponse(throttle_time=UNTHROTTLED, topics=topics)


def _answers(
    context: RequestContext,
    topic: str,
    asked: Iterable[Any],
    of_partition: Callable[[Partition, Any], Any],
    refused: Callable[[Any, KafkaError], Any],
    index_of: Callable[[Any], int] = attrgetter("partition_index"),
) -> tuple[Any, ...]:
    """One answer for each partition of a topic that was asked about; one that fails does not fail the others."""

    def answer(place: Any) -> Any:
        try:
            partition = context.broker.partition(topic, index_of(place))
            try:
                return of_partition(partition, place)
            except OSError as error:
                raise partition.failed(error) from None
        except KafkaError as error:
            return refused(place, error)

    return tuple(answer(place) for place in asked)

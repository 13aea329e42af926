"""Transactions: what their clients ask of the coordinator, and what brokers ask of partitions (R26).

The rules are those of `levada.core.transactions.machine`; here requests and responses change their shape. Every answer
leaves when the coordinator's journal is committed.
"""

from collections.abc import Awaitable, Iterable
from typing import Any

from levada.api.producers import error_for_version, with_producer_id
from levada.api.registry import handles
from levada.api.request import RequestContext
from levada.api.response_fields import UNTHROTTLED
from levada.broker.coordinator.groups import OFFSETS_TOPIC
from levada.broker.coordinator.transactions import write_marker
from levada.broker.purgatory import DelayedResult, gather
from levada.core.machine import Outcome
from levada.core.transactions.machine import EndRequest
from levada.core.transactions.state import TRANSACTION_VERSION_2, ProducerIdAndEpoch
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartitionKey
from levada.wire.control_records import Marker
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.add_offsets_to_txn.v4 as add_offsets_to_txn_v4
    import kio.schema.add_partitions_to_txn.v5 as add_partitions_to_txn_v5
    import kio.schema.end_txn.v5 as end_txn_v5
    import kio.schema.write_txn_markers.v2 as write_txn_markers_v2

VERSION_2_FROM = {"add_partitions_to_txn": 5, "end_txn": 5}  # request versions of transactions of version 2


def _check_id(transactional_id: str) -> str:
    if not transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
    return transactional_id


@handles("add_partitions_to_txn", versions=range(6))
def add_partitions_to_txn(
    context: RequestContext, request: "add_partitions_to_txn_v5.AddPartitionsToTxnRequest"
) -> DelayedResult:
    """Say where a transaction will write. v4 lets brokers ask for many at once, or only whether it may (KIP-890)."""
    asked = [_add_partitions(context, transaction) for transaction in request.transactions]
    return gather(asked, _added)


def _added(results: list[Any]) -> Any:
    return add_partitions_to_txn_v5.AddPartitionsToTxnResponse(
        throttle_time=UNTHROTTLED, error_code=ErrorCode.NONE, results_by_transaction=tuple(results)
    )


def _add_partitions(
    context: RequestContext, asked: "add_partitions_to_txn_v5.request.AddPartitionsToTxnTransaction"
) -> DelayedResult:
    topic_partitions = [(topic.name, index) for topic in asked.topics for index in topic.partitions]
    unknown = {
        topic_partition for topic_partition in topic_partitions if not _exists(context, topic_partition)
    }
    answer = DelayedResult(lambda errors: _added_to_one(asked, errors))
    if unknown:
        missing, not_tried = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
        answer.complete(
            [missing if topic_partition in unknown else not_tried for topic_partition in topic_partitions]
        )
        return answer
    client = ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch)
    version = 2 if context.api_version >= VERSION_2_FROM["add_partitions_to_txn"] else 1

    def hear(result: Any) -> None:
        if isinstance(result, KafkaError):
            code = error_for_version("add_partitions_to_txn", context.api_version, result).code
            answer.complete([code] * len(topic_partitions))
        else:
            answer.complete(result or [ErrorCode.NONE] * len(topic_partitions))

    try:
        name = _check_id(asked.transactional_id)
        shard = context.broker.transactions.shard(name)
        if asked.verify_only:
            shard.submit(
                lambda machine, _, handle: Outcome(
                    responses=[(handle, machine.verify(name, client, topic_partitions))]
                )
            ).add_done_callback(hear)
        else:
            shard.submit(
                lambda machine, now_ms, handle: machine.add(
                    name, client, topic_partitions, version, now_ms, handle
                )
            ).add_done_callback(hear)
    except KafkaError as error:
        hear(error)
    return answer


def _exists(context: RequestContext, topic_partition: TopicPartitionKey) -> bool:
    topic = context.broker.image.topics.get(topic_partition[0])
    return topic is not None and 0 <= topic_partition[1] < len(topic.partitions)


def _added_to_one(
    asked: "add_partitions_to_txn_v5.request.AddPartitionsToTxnTransaction", errors: Iterable[ErrorCode]
) -> Any:
    answer, codes = add_partitions_to_txn_v5.response, iter(errors)
    return answer.AddPartitionsToTxnResult(
        transactional_id=asked.transactional_id,
        topic_results=tuple(
            [
                answer.AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=tuple(
                        [
                            answer.AddPartitionsToTxnPartitionResult(
                                partition_index=index, partition_error_code=next(codes)
                            )
                            for index in topic.partitions
                        ]
                    ),
                )
                for topic in asked.topics
            ]
        ),
    )


@handles("add_offsets_to_txn", versions=range(5))
def add_offsets_to_txn(
    context: RequestContext, request: "add_offsets_to_txn_v4.AddOffsetsToTxnRequest"
) -> DelayedResult:
    """Say that a transaction will commit offsets of a group. Clients of version 2 need not."""
    name = _check_id(request.transactional_id)
    client = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    topic_partitions = [(OFFSETS_TOPIC, context.broker.groups.partition_for(request.group_id))]
    try:
        return context.broker.transactions.shard(name).submit(
            lambda machine, now_ms, handle: machine.add(name, client, topic_partitions, 1, now_ms, handle),
            lambda _: add_offsets_to_txn_v4.AddOffsetsToTxnResponse(
                throttle_time=UNTHROTTLED, error_code=ErrorCode.NONE
            ),
        )
    except KafkaError as error:
        raise error_for_version("add_offsets_to_txn", context.api_version, error) from None


@handles("end_txn", versions=range(6))
def end_txn(context: RequestContext, request: "end_txn_v5.EndTxnRequest") -> "DelayedResult | Awaitable[Any]":
    """Commit or abort. v5 is of transactions of version 2: the client goes on with a new epoch (KIP-890)."""
    bumps = context.api_version >= VERSION_2_FROM["end_txn"]
    name = _check_id(request.transactional_id)
    client = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    wanted = EndRequest(name, client, request.committed, TRANSACTION_VERSION_2 if bumps else 0)
    shard = context.broker.transactions.shard(name)
    try:
        return with_producer_id(
            context.broker,
            lambda new_id: shard.submit(
                lambda machine, now_ms, handle: machine.end(
                    wanted._replace(new_producer_id=new_id), now_ms, handle
                ),
                _ended,
            ),
        )
    except KafkaError as error:
        raise error_for_version("end_txn", context.api_version, error) from None


def _ended(client: ProducerIdAndEpoch) -> Any:
    return end_txn_v5.EndTxnResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        producer_id=client.producer_id,
        producer_epoch=client.epoch,
    )


@handles("write_txn_markers", versions=range(1, 3))
def write_txn_markers(
    context: RequestContext, request: "write_txn_markers_v2.WriteTxnMarkersRequest"
) -> DelayedResult:
    """End transactions in partitions, as their coordinator or an operator says. v2 tells the version."""
    answer = write_txn_markers_v2.response

    def of_one(marker: "write_txn_markers_v2.request.WritableTxnMarker") -> DelayedResult:
        topic_partitions = [
            (topic.name, index) for topic in marker.topics for index in topic.partition_indexes
        ]

        def written(results: list[Any]) -> Any:
            codes = iter([_code(result) for result in results])
            topics = [
                answer.WritableTxnMarkerTopicResult(
                    name=topic.name,
                    partitions=tuple(
                        [
                            answer.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=next(codes)
                            )
                            for index in topic.partition_indexes
                        ]
                    ),
                )
                for topic in marker.topics
            ]
            return answer.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=tuple(topics))

        return gather(
            [_write(context, topic_partition, marker) for topic_partition in topic_partitions], written
        )

    return gather(
        [of_one(marker) for marker in request.markers],
        lambda results: answer.WriteTxnMarkersResponse(markers=tuple(results)),
    )


def _write(
    context: RequestContext,
    topic_partition: TopicPartitionKey,
    marker: "write_txn_markers_v2.request.WritableTxnMarker",
) -> DelayedResult:
    try:
        return write_marker(
            context.broker,
            topic_partition,
            ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch),
            Marker(marker.transaction_result, marker.coordinator_epoch),
            bumped=marker.transaction_version >= TRANSACTION_VERSION_2,
        )
    except KafkaError as error:
        refused = DelayedResult()
        refused.complete(error)
        return refused


def _code(result: Any) -> ErrorCode:
    if isinstance(result, KafkaError):
        return result.code
    return ErrorCode.UNKNOWN_SERVER_ERROR if isinstance(result, Exception) else ErrorCode.NONE

"""TxnOffsetCommit: offsets that count once the transaction they belong to is committed (R26).

The records go to the group's coordinator, in the name of the producer; what opens a transaction there is the same
as in any other partition (KIP-890).
"""

from functools import partial
from typing import Any

from levada.api.groups import error_of
from levada.api.registry import handles
from levada.api.request import RequestContext
from levada.api.response_fields import UNTHROTTLED
from levada.broker.coordinator.groups import OFFSETS_TOPIC
from levada.broker.partition.verification import Verification, produce_error
from levada.broker.purgatory import DelayedResult
from levada.core.groups.offsets import CommitRequest
from levada.core.transactions.state import ProducerIdAndEpoch
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartitionKey
from levada.wire.internal.group_records import OffsetCommitValue
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.txn_offset_commit.v5 as txn_offset_commit_v5

VERSION_2_FROM = 5
ABORTABLE_FROM = 4
# By the version of this API: that of Produce whose clients know the same errors.
AS_PRODUCE = {VERSION_2_FROM: 12, ABORTABLE_FROM: 11}
TOO_LARGE = frozenset((ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE))


@handles("txn_offset_commit", versions=range(6))
def txn_offset_commit(
    context: RequestContext, request: "txn_offset_commit_v5.TxnOffsetCommitRequest"
) -> DelayedResult:
    """Commit offsets in a transaction. v3 says which member commits (KIP-447), v5 adds the group itself (KIP-890)."""
    answer = DelayedResult(lambda result: _response(context, request, result))
    try:
        _ask(context, request, answer)
    except KafkaError as error:
        answer.complete([error])
    return answer


def _ask(
    context: RequestContext, request: "txn_offset_commit_v5.TxnOffsetCommitRequest", answer: DelayedResult
) -> None:
    if not request.transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "an empty group id")
    broker = context.broker
    broker.groups.shard(request.group_id)
    partition = broker.partition(OFFSETS_TOPIC, broker.groups.partition_for(request.group_id))
    client = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)

    def hear(errors: list[ErrorCode]) -> None:
        try:
            if errors[0] is not ErrorCode.NONE:
                raise KafkaError(errors[0])
            _commit(context, request, answer)
        except KafkaError as error:
            answer.complete([error])

    if partition.transactions.has_open(*client):
        hear([ErrorCode.NONE])
        return
    version = 2 if context.api_version >= VERSION_2_FROM else 1
    map_error = partial(produce_error, version=AS_PRODUCE.get(context.api_version, 0))
    Verification(broker, request.transactional_id, client, [partition], version, map_error, hear).start()


def _commit(
    context: RequestContext, request: "txn_offset_commit_v5.TxnOffsetCommitRequest", answer: DelayedResult
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
        _offsets(context, request),
        request.producer_id,
        request.producer_epoch,
    )
    broker.groups.shard(request.group_id).submit(
        lambda machine, now_ms, handle: machine.commit(commit, now_ms, handle)
    ).add_done_callback(lambda result: answer.complete([result] if isinstance(result, Exception) else result))


def _offsets(
    context: RequestContext, request: "txn_offset_commit_v5.TxnOffsetCommitRequest"
) -> list[tuple[TopicPartitionKey, OffsetCommitValue]]:
    """What is committed: everything in topics that exist."""
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


def _response(
    context: RequestContext, request: "txn_offset_commit_v5.TxnOffsetCommitRequest", result: list[Any]
) -> Any:
    """`result` is an error for all, or an error code for each offset that was committed."""
    shape = txn_offset_commit_v5.response
    failed = result[0] if result and isinstance(result[0], Exception) else None
    codes = iter(() if failed is not None else result)

    def code(topic: str) -> ErrorCode:
        if failed is not None:
            whole = error_of(failed)
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if whole in TOO_LARGE else whole
        known = topic in context.broker.image.topics
        return next(codes, ErrorCode.NONE) if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    return shape.TxnOffsetCommitResponse(
        throttle_time=UNTHROTTLED,
        topics=tuple(
            [
                shape.TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        [
                            shape.TxnOffsetCommitResponsePartition(
                                partition_index=part.partition_index, error_code=code(topic.name)
                            )
                            for part in topic.partitions
                        ]
                    ),
                )
                for topic in request.topics
            ]
        ),
    )

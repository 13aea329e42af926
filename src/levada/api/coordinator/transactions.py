"""The transaction APIs: of clients, of brokers (KIP-890), and of operators (KIP-664).

The rules are in `levada.core.transactions.machine`; the handlers convert requests and responses. A response is sent
when the coordinator's record is committed.
"""

from collections.abc import Awaitable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain, groupby
from time import thread_time
from typing import Any

from levada.api.coordinator.producers import error_for_version, with_producer_id
from levada.api.registry import handles
from levada.api.request import UNTHROTTLED, RequestContext
from levada.api.slices import map_in_slices
from levada.broker.coordinator.gather import gather
from levada.broker.coordinator.groups import OFFSETS_TOPIC
from levada.broker.coordinator.transactions import write_marker
from levada.broker.purgatory import DelayedResult
from levada.core.machine import Outcome
from levada.core.patterns import Pattern
from levada.core.transactions.machine import EndRequest
from levada.core.transactions.state import TRANSACTION_VERSION_2, ProducerIdAndEpoch, Transaction
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartitionKey
from levada.wire.control_records import Marker
from levada.wire.internal.transaction_records import Status
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.add_offsets_to_txn.v4 as add_offsets_to_txn_v4
    import kio.schema.add_partitions_to_txn.v5 as add_partitions_to_txn_v5
    import kio.schema.describe_transactions.v0 as describe_transactions_v0
    import kio.schema.end_txn.v5 as end_txn_v5
    import kio.schema.list_transactions.v2 as list_transactions_v2
    import kio.schema.write_txn_markers.v2 as write_txn_markers_v2

MARKERS_PER_ITERATION = 100
TRANSACTIONS_PER_ITERATION = 1_000  # listed
MILLISECOND = timedelta(milliseconds=1)
EPOCH = datetime.fromtimestamp(0, UTC)
STATE_NAMES = frozenset(status.title for status in Status)
UNLISTED_STATES = frozenset(("Dead", "PrepareEpochFence"))  # states of Kafka that are never listed
VERSION_2_FROM = {"add_partitions_to_txn": 5, "end_txn": 5}  # request versions of transaction version 2


def _validate_id(transactional_id: str) -> str:
    if not transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    return transactional_id


@handles("add_partitions_to_txn", versions=range(6))
def add_partitions_to_txn(
    context: RequestContext, request: "add_partitions_to_txn_v5.AddPartitionsToTxnRequest"
) -> DelayedResult:
    """Add partitions to transactions. v4 is sent by brokers, for several transactions or only to verify (KIP-890)."""
    return gather([_add_partitions(context, transaction) for transaction in request.transactions], _added)


def _added(results: list[Any]) -> Any:
    return add_partitions_to_txn_v5.AddPartitionsToTxnResponse(
        throttle_time=UNTHROTTLED, error_code=ErrorCode.NONE, results_by_transaction=tuple(results)
    )


def _add_partitions(
    context: RequestContext, transaction: "add_partitions_to_txn_v5.request.AddPartitionsToTxnTransaction"
) -> DelayedResult:
    topic_partitions = [(topic.name, index) for topic in transaction.topics for index in topic.partitions]
    exist = [_exists(context, topic_partition) for topic_partition in topic_partitions]
    delayed = DelayedResult(lambda errors: _added_to_transaction(transaction, errors))
    if not all(exist):
        unknown, not_attempted = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
        delayed.complete([not_attempted if exists else unknown for exists in exist])
        return delayed
    client = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    version = 2 if context.api_version >= VERSION_2_FROM["add_partitions_to_txn"] else 1

    def on_result(result: Any) -> None:
        if isinstance(result, KafkaError):
            code = error_for_version("add_partitions_to_txn", context.api_version, result).code
            delayed.complete([code] * len(topic_partitions))
        else:
            delayed.complete(result or [ErrorCode.NONE] * len(topic_partitions))

    try:
        name = _validate_id(transaction.transactional_id)
        shard = context.broker.transactions.shard(name)
        if transaction.verify_only:
            shard.submit(
                lambda machine, _, handle: Outcome(responses=[(handle, machine.verify(name, client, topic_partitions))])
            ).add_done_callback(on_result)
        else:
            shard.submit(
                lambda machine, now_ms, handle: machine.add(name, client, topic_partitions, version, now_ms, handle)
            ).add_done_callback(on_result)
    except KafkaError as error:
        on_result(error)
    return delayed


def _exists(context: RequestContext, topic_partition: TopicPartitionKey) -> bool:
    topic = context.broker.image.topics.get(topic_partition[0])
    return topic is not None and 0 <= topic_partition[1] < len(topic.partitions)


def _added_to_transaction(
    transaction: "add_partitions_to_txn_v5.request.AddPartitionsToTxnTransaction", errors: Iterable[ErrorCode]
) -> Any:
    response, codes = add_partitions_to_txn_v5.response, iter(errors)
    return response.AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=tuple(
            [
                response.AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=tuple(
                        [
                            response.AddPartitionsToTxnPartitionResult(
                                partition_index=index, partition_error_code=next(codes)
                            )
                            for index in topic.partitions
                        ]
                    ),
                )
                for topic in transaction.topics
            ]
        ),
    )


@handles("add_offsets_to_txn", versions=range(5))
def add_offsets_to_txn(
    context: RequestContext, request: "add_offsets_to_txn_v4.AddOffsetsToTxnRequest"
) -> DelayedResult:
    """Add the offsets partition of a group to a transaction. Not needed in transaction version 2."""
    name = _validate_id(request.transactional_id)
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
    """Commit or abort a transaction. v5 is of transaction version 2: the response has a new epoch (KIP-890)."""
    bumps = context.api_version >= VERSION_2_FROM["end_txn"]
    name = _validate_id(request.transactional_id)
    client = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    wanted = EndRequest(name, client, request.committed, TRANSACTION_VERSION_2 if bumps else 0)
    shard = context.broker.transactions.shard(name)
    try:
        return with_producer_id(
            context.broker,
            lambda new_id: shard.submit(
                lambda machine, now_ms, handle: machine.end(wanted._replace(new_producer_id=new_id), now_ms, handle),
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
async def write_txn_markers(
    context: RequestContext, request: "write_txn_markers_v2.WriteTxnMarkersRequest"
) -> "write_txn_markers_v2.WriteTxnMarkersResponse":
    """Write transaction markers, for a coordinator or an operator. v2 adds the transaction version."""
    response = write_txn_markers_v2.response
    items = [
        (marker, (topic.name, index))
        for marker in request.markers
        for topic in marker.topics
        for index in topic.partition_indexes
    ]
    written = await map_in_slices(
        context.broker, lambda item: _write(context, item[1], item[0]), items, MARKERS_PER_ITERATION
    )
    codes = iter([_code(result) for result in await gather(written, lambda results: results)])

    def of_topic(topic: "write_txn_markers_v2.request.WritableTxnMarkerTopic") -> Any:
        result = response.WritableTxnMarkerPartitionResult
        return response.WritableTxnMarkerTopicResult(
            name=topic.name,
            partitions=tuple(
                [result(partition_index=index, error_code=next(codes)) for index in topic.partition_indexes]
            ),
        )

    return response.WriteTxnMarkersResponse(
        markers=tuple(
            [
                response.WritableTxnMarkerResult(
                    producer_id=marker.producer_id, topics=tuple([of_topic(topic) for topic in marker.topics])
                )
                for marker in request.markers
            ]
        )
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


# Administration (KIP-664).


@handles("list_transactions", versions=range(3))
async def list_transactions(
    context: RequestContext, request: "list_transactions_v2.ListTransactionsRequest"
) -> "list_transactions_v2.ListTransactionsResponse":
    """List the transactional ids of this broker. v1 filters by duration, v2 by a regular expression."""
    response = list_transactions_v2.response
    unknown = [name for name in request.state_filters if name not in STATE_NAMES | UNLISTED_STATES]
    pattern = Pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
    transactions, now_ms = list(_transactions(context)), context.broker.clock.now_ms()

    def listed(first: int) -> list[Any]:
        found = {
            name: transaction
            for name, transaction in transactions[first : first + TRANSACTIONS_PER_ITERATION]
            if (not request.state_filters or transaction.status.title in request.state_filters)
            and (not request.producer_id_filters or transaction.producer_id in request.producer_id_filters)
            and (request.duration_filter < 0 or now_ms - transaction.start_ms > request.duration_filter)
        }
        matching = found if pattern is None else pattern.matching(found, thread_time)
        return [_listed(name, transaction) for name, transaction in found.items() if name in matching]

    parts = await map_in_slices(context.broker, listed, range(0, len(transactions), TRANSACTIONS_PER_ITERATION), 1)
    return response.ListTransactionsResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        unknown_state_filters=tuple(unknown),
        transaction_states=tuple(chain.from_iterable(parts)),
    )


def _listed(name: str, transaction: Transaction) -> Any:
    return list_transactions_v2.response.TransactionState(
        transactional_id=name, producer_id=transaction.producer_id, transaction_state=transaction.status.title
    )


def _transactions(context: RequestContext) -> Iterator[tuple[str, Transaction]]:
    if context.broker.transactions.is_opening:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the logs of coordinators are being opened")
    for shard in context.broker.transactions:
        yield from shard.ready.transactions.items()


@handles("describe_transactions", versions=range(1))
def describe_transactions(
    context: RequestContext, request: "describe_transactions_v0.DescribeTransactionsRequest"
) -> "describe_transactions_v0.DescribeTransactionsResponse":
    """Describe the state, the producer and the partitions of transactional ids."""
    return describe_transactions_v0.DescribeTransactionsResponse(
        throttle_time=UNTHROTTLED,
        transaction_states=tuple([_described(context, name) for name in request.transactional_ids]),
    )


def _described(context: RequestContext, name: str) -> Any:
    response = describe_transactions_v0.response
    try:
        transaction = context.broker.transactions.shard(_validate_id(name)).ready.transactions.get(name)
        if transaction is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"transactional id {name!r} does not exist")
    except KafkaError as error:
        return response.TransactionState(
            error_code=error.code,
            transactional_id=name,
            transaction_state="",
            transaction_timeout=timedelta(0),
            transaction_start_time=EPOCH,
            producer_id=-1,
            producer_epoch=-1,
            topics=(),
        )
    by_topic = groupby(sorted(transaction.partitions), key=lambda topic_partition: topic_partition[0])
    return response.TransactionState(
        error_code=ErrorCode.NONE,
        transactional_id=name,
        transaction_state=transaction.status.title,
        transaction_timeout=transaction.timeout_ms * MILLISECOND,
        transaction_start_time=EPOCH + transaction.start_ms * MILLISECOND,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=tuple(
            [
                response.TopicData(topic=topic, partitions=tuple(index for _, index in topic_partitions))
                for topic, topic_partitions in by_topic
            ]
        ),
    )

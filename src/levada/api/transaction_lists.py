"""What operators ask about transactions (KIP-664): which there are, and how each stands."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from levada.api.registry import handles
from levada.api.request import RequestContext
from levada.api.response_fields import UNTHROTTLED
from levada.core.regex.matcher import Pattern
from levada.core.transactions.state import Transaction
from levada.errors import ErrorCode, KafkaError
from levada.wire.internal.transaction_records import Status
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.describe_transactions.v0 as describe_transactions_v0
    import kio.schema.list_transactions.v2 as list_transactions_v2

MILLISECOND = timedelta(milliseconds=1)
EPOCH = datetime.fromtimestamp(0, UTC)
TITLES = {status.title: status for status in Status}
OTHER_TITLES = frozenset(("Dead", "PrepareEpochFence"))  # states of Kafka that are never listed


@handles("list_transactions", versions=range(3))
def list_transactions(
    context: RequestContext, request: "list_transactions_v2.ListTransactionsRequest"
) -> "list_transactions_v2.ListTransactionsResponse":
    """The transactional ids of this broker. v1 asks for those open for long, v2 for those that match a pattern."""
    answer = list_transactions_v2.response
    unknown = [name for name in request.state_filters if name not in TITLES and name not in OTHER_TITLES]
    pattern = Pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
    now_ms = context.broker.clock.now_ms()
    found = [
        answer.TransactionState(
            transactional_id=name,
            producer_id=transaction.producer_id,
            transaction_state=transaction.status.title,
        )
        for name, transaction in _transactions(context)
        if (not request.state_filters or transaction.status.title in request.state_filters)
        and (not request.producer_id_filters or transaction.producer_id in request.producer_id_filters)
        and (request.duration_filter < 0 or now_ms - transaction.start_ms > request.duration_filter)
        and (pattern is None or pattern.matches(name))
    ]
    return answer.ListTransactionsResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        unknown_state_filters=tuple(unknown),
        transaction_states=tuple(found),
    )


def _transactions(context: RequestContext) -> Iterator[tuple[str, Transaction]]:
    for shard in context.broker.transactions:
        yield from shard.ready.transactions.items()


@handles("describe_transactions", versions=range(1))
def describe_transactions(
    context: RequestContext, request: "describe_transactions_v0.DescribeTransactionsRequest"
) -> "describe_transactions_v0.DescribeTransactionsResponse":
    """The state, the producer and the partitions of transactional ids."""
    return describe_transactions_v0.DescribeTransactionsResponse(
        throttle_time=UNTHROTTLED,
        transaction_states=tuple([_described(context, name) for name in request.transactional_ids]),
    )


def _described(context: RequestContext, name: str) -> Any:
    answer = describe_transactions_v0.response
    try:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
        transaction = context.broker.transactions.shard(name).ready.transactions.get(name)
        if transaction is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"no transactional id {name!r}")
    except KafkaError as error:
        return answer.TransactionState(
            error_code=error.code,
            transactional_id=name,
            transaction_state="",
            transaction_timeout=timedelta(0),
            transaction_start_time=EPOCH,
            producer_id=-1,
            producer_epoch=-1,
            topics=(),
        )
    by_topic = groupby(sorted(transaction.partitions), key=lambda place: place[0])
    return answer.TransactionState(
        error_code=ErrorCode.NONE,
        transactional_id=name,
        transaction_state=transaction.status.title,
        transaction_timeout=transaction.timeout_ms * MILLISECOND,
        transaction_start_time=EPOCH + transaction.start_ms * MILLISECOND,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=tuple(
            [
                answer.TopicData(topic=topic, partitions=tuple(index for _, index in places))
                for topic, places in by_topic
            ]
        ),
    )

"""Producers: InitProducerId gives them an identity (R25, R26), DescribeProducers tells what partitions know of them."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from levada.api.registry import handles
from levada.api.request import RequestContext
from levada.api.throttling import UNTHROTTLED
from levada.broker.broker import Broker
from levada.broker.coordinator.shard import Shard
from levada.broker.purgatory import DelayedResult
from levada.core.transactions.machine import (
    InitRequest,
    InitResult,
    NeedsProducerIdError,
    TransactionsMachine,
)
from levada.core.transactions.state import ProducerIdAndEpoch
from levada.errors import ErrorCode, KafkaError
from levada.wire.internal.transaction_records import NO_PRODUCER_ID
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.describe_producers.v0 as describe_producers_v0
    import kio.schema.init_producer_id.v6 as init_producer_id_v6

MILLISECOND = timedelta(milliseconds=1)
ABORT_WAITS_S = (0.001, 0.005, 0.02, 0.05, 0.1)
FENCED_FROM = {"init_producer_id": 4, "add_partitions_to_txn": 2, "add_offsets_to_txn": 2, "end_txn": 2}


def told_before(api: str, version: int, error: KafkaError) -> KafkaError:
    """The error as a client of that version knows it: PRODUCER_FENCED came late (KIP-588)."""
    if error.code is ErrorCode.PRODUCER_FENCED and version < FENCED_FROM[api]:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, error.detail)
    return error


def with_producer_id(
    broker: Broker, submit: Callable[[int], DelayedResult]
) -> DelayedResult | Awaitable[Any]:
    """What `submit` gives; it is called with a producer id that nobody has had if it needs one."""
    try:
        return submit(NO_PRODUCER_ID)
    except NeedsProducerIdError:
        return _with_new_producer_id(broker, submit)


async def _with_new_producer_id(broker: Broker, submit: Callable[[int], DelayedResult]) -> Any:
    return await submit(await broker.next_producer_id())


@handles("init_producer_id", versions=range(7))
def init_producer_id(
    context: RequestContext, request: "init_producer_id_v6.InitProducerIdRequest"
) -> "Awaitable[init_producer_id_v6.InitProducerIdResponse]":
    """Give out an id that nobody had before, or the next epoch of a transactional id.

    v3 lets a producer name its old identity (KIP-360), v6 prepares transactions (KIP-939).
    """
    broker, name = context.broker, request.transactional_id
    if name is None:
        return _new_producer(broker)
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
    wanted = InitRequest(
        name,
        request.transaction_timeout // MILLISECOND,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        request.enable2_pc,
        request.keep_prepared_txn,
    )
    return _init(context, broker.transactions.shard(name), wanted)


async def _init(context: RequestContext, shard: Shard[TransactionsMachine], wanted: InitRequest) -> Any:
    """What was left open is aborted first, which the client need not ask for twice if it is soon done."""
    waits_s = iter(ABORT_WAITS_S)
    while True:
        try:
            return await with_producer_id(
                context.broker,
                lambda new_id: shard.submit(
                    lambda machine, now_ms, handle: machine.init(
                        wanted._replace(new_producer_id=new_id), now_ms, handle
                    ),
                    _given,
                ),
            )
        except KafkaError as error:
            wait_s = next(waits_s, None)
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or wait_s is None:
                raise told_before("init_producer_id", context.api_version, error) from None
        await asyncio.sleep(wait_s)


async def _new_producer(broker: Broker) -> Any:
    return _given(InitResult(ProducerIdAndEpoch(await broker.next_producer_id(), 0)))


def _given(reply: InitResult) -> Any:
    return init_producer_id_v6.InitProducerIdResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        producer_id=reply.client.producer_id,
        producer_epoch=reply.client.epoch,
        ongoing_txn_producer_id=reply.ongoing.producer_id,
        ongoing_txn_producer_epoch=reply.ongoing.epoch,
    )


@handles("describe_producers", versions=range(1))
def describe_producers(
    context: RequestContext, request: "describe_producers_v0.DescribeProducersRequest"
) -> "describe_producers_v0.DescribeProducersResponse":
    """Who has written to partitions, and whose transactions are open there (KIP-664)."""
    answer = describe_producers_v0.response
    return answer.DescribeProducersResponse(
        throttle_time=UNTHROTTLED,
        topics=tuple(
            [
                answer.TopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        [_producers(context, topic.name, index) for index in topic.partition_indexes]
                    ),
                )
                for topic in request.topics
            ]
        ),
    )


def _producers(context: RequestContext, topic: str, index: int) -> Any:
    answer = describe_producers_v0.response
    try:
        partition = context.broker.partition(topic, index)
    except KafkaError as error:
        return answer.PartitionResponse(
            partition_index=index, error_code=error.code, error_message=error.detail, active_producers=()
        )
    producers = tuple(
        [
            answer.ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.batches[-1][1] if producer.batches else -1,
                last_timestamp=producer.timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_first_offset,
            )
            for producer_id, producer in partition.producers.items()
        ]
    )
    return answer.PartitionResponse(
        partition_index=index, error_code=ErrorCode.NONE, error_message=None, active_producers=producers
    )

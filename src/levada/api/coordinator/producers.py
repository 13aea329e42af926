"""Handlers of InitProducerId and DescribeProducers."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import islice
from typing import Any

from levada.api.registry import handles
from levada.api.request import UNTHROTTLED, RequestContext
from levada.api.slices import map_in_slices
from levada.broker.broker import Broker
from levada.broker.coordinator.shard import CoordinatorShard
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
PARTITIONS_PER_ITERATION = 500  # described
RETRY_BACKOFFS_S = (0.001, 0.005, 0.02, 0.05, 0.1)
PRODUCER_FENCED_FROM = {
    "init_producer_id": 4,
    "add_partitions_to_txn": 2,
    "add_offsets_to_txn": 2,
    "end_txn": 2,
}


def error_for_version(api: str, version: int, error: KafkaError) -> KafkaError:
    """Replace PRODUCER_FENCED (KIP-588) in versions that do not have it."""
    if error.code is ErrorCode.PRODUCER_FENCED and version < PRODUCER_FENCED_FROM[api]:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, error.detail)
    return error


def with_producer_id(broker: Broker, submit: Callable[[int], DelayedResult]) -> DelayedResult | Awaitable[Any]:
    """Return the result of `submit`, called with a new producer id if it needs one."""
    try:
        return submit(NO_PRODUCER_ID)
    except NeedsProducerIdError:
        return _with_new_producer_id(broker, submit)


async def _with_new_producer_id(broker: Broker, submit: Callable[[int], DelayedResult]) -> Any:
    return await submit(await broker.producer_ids.next())


@handles("init_producer_id", versions=range(7))
def init_producer_id(
    context: RequestContext, request: "init_producer_id_v6.InitProducerIdRequest"
) -> "Awaitable[init_producer_id_v6.InitProducerIdResponse]":
    """Return a new producer id, or the next epoch of a transactional id.

    v3 adds the producer's current id and epoch (KIP-360), v4 PRODUCER_FENCED (KIP-588), v5 TRANSACTION_ABORTABLE
    (KIP-890), v6 two-phase commit (KIP-939).
    """
    broker, name = context.broker, request.transactional_id
    if name is None:
        return _new_producer(broker)
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id must not be empty")
    wanted = InitRequest(
        name,
        request.transaction_timeout // MILLISECOND,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        request.enable2_pc,
        request.keep_prepared_txn,
    )
    return _init(context, broker.transactions.shard(name), wanted)


async def _init(context: RequestContext, shard: CoordinatorShard[TransactionsMachine], wanted: InitRequest) -> Any:
    """Retry while the coordinator aborts an open transaction, so that most clients need not retry themselves."""
    backoffs_s = iter(RETRY_BACKOFFS_S)
    while True:
        try:
            return await with_producer_id(
                context.broker,
                lambda new_id: shard.submit(
                    lambda machine, now_ms, handle: machine.init(
                        wanted._replace(new_producer_id=new_id), now_ms, handle
                    ),
                    _init_response,
                ),
            )
        except KafkaError as error:
            backoff_s = next(backoffs_s, None)
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or backoff_s is None:
                raise error_for_version("init_producer_id", context.api_version, error) from None
        await asyncio.sleep(backoff_s)


async def _new_producer(broker: Broker) -> Any:
    return _init_response(InitResult(ProducerIdAndEpoch(await broker.producer_ids.next(), 0)))


def _init_response(result: InitResult) -> Any:
    return init_producer_id_v6.InitProducerIdResponse(
        throttle_time=UNTHROTTLED,
        error_code=ErrorCode.NONE,
        producer_id=result.client.producer_id,
        producer_epoch=result.client.epoch,
        ongoing_txn_producer_id=result.ongoing.producer_id,
        ongoing_txn_producer_epoch=result.ongoing.epoch,
    )


@handles("describe_producers", versions=range(1))
async def describe_producers(
    context: RequestContext, request: "describe_producers_v0.DescribeProducersRequest"
) -> "describe_producers_v0.DescribeProducersResponse":
    """Return the active producers of partitions and their open transactions (KIP-664)."""
    response = describe_producers_v0.response
    items = [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    found = iter(
        await map_in_slices(context.broker, lambda item: _producers(context, *item), items, PARTITIONS_PER_ITERATION)
    )
    return response.DescribeProducersResponse(
        throttle_time=UNTHROTTLED,
        topics=tuple(
            [
                response.TopicResponse(name=topic.name, partitions=tuple(islice(found, len(topic.partition_indexes))))
                for topic in request.topics
            ]
        ),
    )


def _producers(context: RequestContext, topic: str, index: int) -> Any:
    response = describe_producers_v0.response
    try:
        partition = context.broker.partition(topic, index)
    except KafkaError as error:
        return response.PartitionResponse(
            partition_index=index, error_code=error.code, error_message=error.detail, active_producers=()
        )
    producers = tuple(
        [
            response.ProducerState(
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
    return response.PartitionResponse(
        partition_index=index, error_code=ErrorCode.NONE, error_message=None, active_producers=producers
    )

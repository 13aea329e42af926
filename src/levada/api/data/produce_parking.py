"""Parks a Produce that cannot be appended at once, and continues with `append` of `api/data/produce.py`.

It waits until its transaction is verified, until a thread has prepared a large batch, or for the loop iterations of its
slices.
"""

from functools import partial
from typing import Any

from levada.api.data.large_batches import NOT_CHECKED, CheckedRules, park_and_prepare
from levada.api.data.parked_produce import PRODUCE, Append, ParkedProduce
from levada.api.data.unverified_produce import await_verification
from levada.broker.broker import Broker
from levada.broker.partition.record_validation import InvalidRecordsError
from levada.errors import KafkaError
from levada.net.connection import Connection
from levada.wire.fast.produce import PartitionResult, ProduceRequest


def is_unverified(
    append: Append,
    broker: Broker,
    connection: Connection,
    view: memoryview,
    request: ProduceRequest,
    version: int,
    correlation_id: int,
    began: float | None,
) -> bool:
    """Whether the transaction is not verified yet; the request is parked then until it is."""
    resume = _resume(append, broker, connection, version, correlation_id)
    return began is None and await_verification(broker, connection, view, request, version, resume)


def park_in_slices(
    append: Append,
    broker: Broker,
    connection: Connection,
    view: memoryview,
    request: ProduceRequest,
    version: int,
    correlation_id: int,
    began: float | None,
    entries: list[Any],
    checked: CheckedRules,
) -> None:
    """Park a request for many partitions, and append it in the next loop iterations."""
    resume = _resume(append, broker, connection, version, correlation_id, entries, checked)
    ParkedProduce(broker, connection, view, request, resume, began).resume_in_slices()


def park_large(
    append: Append,
    broker: Broker,
    connection: Connection,
    view: memoryview,
    request: ProduceRequest,
    first: int,
    version: int,
    correlation_id: int,
    began: float | None,
    entries: list[Any],
    slices: ParkedProduce | None,
) -> None:
    """Park the batches of a request from `first` on, which is a large one, until a thread has prepared them."""
    rest = request.partitions[first:] + ([] if slices is None else slices.end_slices())
    resume = _resume(append, broker, connection, version, correlation_id, entries)
    failed = partial(fail, broker, entries)
    park_and_prepare(broker, connection, view, request._replace(partitions=rest), version, resume, failed, began)


def fail(broker: Broker, entries: list[Any], topic: bytes, index: int, error: KafkaError) -> None:
    """Add the error of a batch to the results of its request."""
    broker.request_metrics.error(PRODUCE, error.code)
    record_errors = tuple(error.record_errors) if isinstance(error, InvalidRecordsError) else ()
    result = PartitionResult(topic, index, error.code, error_message=error.detail or None, record_errors=record_errors)
    entries.append(result)


def _resume(
    append: Append,
    broker: Broker,
    connection: Connection,
    version: int,
    correlation_id: int,
    entries: list[Any] | None = None,
    checked: CheckedRules = NOT_CHECKED,
) -> Append:
    """Return how a parked Produce continues."""
    return partial(
        append,
        broker,
        connection,
        version=version,
        correlation_id=correlation_id,
        entries=entries,
        checked=checked,
    )

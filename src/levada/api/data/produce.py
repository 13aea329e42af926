"""Produce: appends the batches of a request to their logs, and responds once they are acknowledged as acks demands."""

from asyncio import TimerHandle
from typing import Any, NamedTuple, TypeAlias

from levada.api.data.large_batches import NOT_CHECKED, CheckedRules
from levada.api.data.parked_produce import ACKS_NONE, PARTITIONS_PER_ITERATION, PRODUCE, ParkedProduce
from levada.api.data.produce_parking import fail, is_unverified, park_in_slices, park_large
from levada.api.registry import handles_frames
from levada.broker.broker import Broker
from levada.broker.partition.partition import Partition
from levada.broker.partition.record_validation import LargeBatchError
from levada.broker.purgatory import PENDING, DelayedResponse
from levada.errors import ErrorCode, KafkaError
from levada.model import Codec
from levada.net.connection import Connection
from levada.wire.batches import CODEC_AT, CODEC_MASK, HEADER_BYTES
from levada.wire.fast.produce import (
    VERSIONS,
    PartitionResult,
    ProduceRequest,
    read_request,
    response_template,
    write_response,
)

ACKS_ALL = -1
ACKS_LEADER = 1
ZSTD_FROM = 7

Entries: TypeAlias = "list[AppendedBatch | PartitionResult]"
new_tuple = tuple.__new__  # makes a named tuple without a Python call, for each batch


class AppendedBatch(NamedTuple):
    """A batch that is queued in its partition: it is done when the high watermark reaches `required_offset`."""

    topic: bytes
    partition: Partition
    base_offset: int
    required_offset: int
    append_time_ms: int


class DelayedProduce(DelayedResponse):
    """The response to one Produce: complete when each of its batches is committed or has failed."""

    __slots__ = ("_began", "_broker", "_correlation_id", "_entries", "_timeout_ms", "_version")

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        version: int,
        correlation_id: int,
        timeout_ms: int,
        entries: Entries,
        began: float | None,
    ) -> None:
        # What `super().__init__` would do: there is one for each Produce, so it saves a call.
        self.connection = connection
        self.result: Any = PENDING
        self._timer: TimerHandle | None = None
        self._broker = broker
        self._version = version
        self._correlation_id = correlation_id
        self._timeout_ms = timeout_ms
        self._entries = entries
        self._began = began  # in an earlier loop iteration; None until it is known to wait

    def collect(self) -> bytes | None:
        entries = self._entries
        from_template = len(entries) == 1
        for each in entries:
            if type(each) is not AppendedBatch:
                from_template = False
            elif each.partition.high_watermark < each.required_offset:
                if not each.partition.offline and self.result is PENDING:
                    self._wait()
                    return None
                from_template = False
        entry = entries[0] if from_template else None
        if self._timer is not None:
            self.cancel()
        if self._began:
            self._broker.request_metrics.complete(PRODUCE, self._began)
        if type(entry) is not AppendedBatch:
            results = [self._result(each) if isinstance(each, AppendedBatch) else each for each in entries]
            return write_response(self._version, self._correlation_id, results)
        _, partition, base_offset, _, append_time_ms = entry
        fill = partition.response_templates.get(self._version)
        if fill is None:
            fill = partition.response_templates[self._version] = response_template(
                entry.topic, partition.index, self._version
            )
        return fill(self._correlation_id, base_offset, append_time_ms, partition.log.log_start_offset)

    def _wait(self) -> None:
        if self._timer is None:
            self._began = self._began or self._broker.request_metrics.delay(PRODUCE)
            partitions = [entry.partition for entry in self._entries if isinstance(entry, AppendedBatch)]
            self.watch(partitions, max(self._timeout_ms, 0), self._broker.call_later)

    def _result(self, batch: AppendedBatch) -> PartitionResult:
        partition = batch.partition
        if partition.high_watermark < batch.required_offset:
            failed = partition.offline
            error = ErrorCode.KAFKA_STORAGE_ERROR if failed else ErrorCode.REQUEST_TIMED_OUT
            self._broker.request_metrics.error(PRODUCE, error)
            return PartitionResult(batch.topic, partition.index, error)
        return PartitionResult(
            batch.topic,
            partition.index,
            ErrorCode.NONE,
            batch.base_offset,
            batch.append_time_ms,
            partition.log.log_start_offset,
        )


@handles_frames("produce", versions=VERSIONS, advertised_from=0)
def produce(
    broker: Broker,
    connection: Connection,
    view: memoryview,
    position: int,
    stop: int,
    version: int,
    correlation_id: int,
) -> None:
    """Append one batch for each partition. Advertised from 0, since older librdkafka (KAFKA-18659) would
    otherwise send compressed batches uncompressed; 3 and later are served."""
    append(broker, connection, view, read_request(view, position, stop, version), version, correlation_id)


def append(
    broker: Broker,
    connection: Connection,
    view: memoryview,
    request: ProduceRequest,
    version: int,
    correlation_id: int,
    began: float | None = None,  # of a request that was parked
    entries: "Entries | None" = None,  # the results of its other batches
    checked: CheckedRules = NOT_CHECKED,  # those that a thread has prepared
    slices: ParkedProduce | None = None,  # if this is a slice of a request for many partitions
) -> None:
    """Append the batches of a request, whose positions are those of `view`; respond as its acks demand."""
    acks, timeout_ms, txn_id, parts = request
    if txn_id is not None and is_unverified(append, broker, connection, view, request, version, correlation_id, began):
        return
    now_ms, entries = broker.clock.now_ms(), [] if entries is None else entries
    if len(parts) > PARTITIONS_PER_ITERATION:
        park_in_slices(append, broker, connection, view, request, version, correlation_id, began, entries, checked)
        return
    for topic, index, start, end in parts:
        try:
            partition = broker.route(topic, index, version)
            if acks != ACKS_LEADER and (acks != ACKS_ALL or partition.in_sync_replicas < partition.min_insync_replicas):
                _check_acks(acks, partition)
            if version < ZSTD_FROM:
                _check_codec(view, start, end, partition)
            base_offset = partition.append(view, start, end, now_ms, checked[topic, index] if checked else None)
            append_ms = now_ms if partition.rules.log_append_time else -1
            batch = topic, partition, base_offset, partition.log.next_offset, append_ms
            entries.append(new_tuple(AppendedBatch, batch))
        except KafkaError as error:
            fail(broker, entries, topic, index, error)
        except LargeBatchError:
            at = parts.index((topic, index, start, end))
            park_large(append, broker, connection, view, request, at, version, correlation_id, began, entries, slices)
            return
    if acks == ACKS_NONE or slices is not None:
        _end(broker, connection, request, version, correlation_id, began, entries, slices)
    else:
        connection.respond(DelayedProduce(broker, connection, version, correlation_id, timeout_ms, entries, began))


def _end(
    broker: Broker,
    connection: Connection,
    request: ProduceRequest,
    version: int,
    correlation_id: int,
    began: float | None,
    entries: Entries,
    slices: ParkedProduce | None,
) -> None:
    """Respond to the last slice of a request; without acks there is no response."""
    if slices is not None and slices.following:
        return
    if request.acks == ACKS_NONE:
        _close_if_failed(broker, connection, entries, began)
        return
    delayed = DelayedProduce(broker, connection, version, correlation_id, request.timeout_ms, entries, began)
    connection.respond(delayed)


def _close_if_failed(broker: Broker, connection: Connection, entries: Entries, began: float | None) -> None:
    """Without acks there is no response: as in Kafka, closing the connection reports the error."""
    if began:
        broker.request_metrics.complete(PRODUCE, began)
    for entry in entries:
        if isinstance(entry, PartitionResult):
            connection.close(f"a Produce without acks failed: {ErrorCode(entry.error).name}")


def _check_acks(acks: int, partition: Partition) -> None:
    if acks == ACKS_ALL:
        raise KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{partition.in_sync_replicas} in-sync replicas; {partition.topic} needs "
            f"{partition.min_insync_replicas} (min.insync.replicas)",
        )
    if acks != ACKS_NONE:
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}; 0, 1 and -1 (all) are possible")


def _check_codec(view: memoryview, start: int, end: int, partition: Partition) -> None:
    own = partition.rules.recompression  # the batch may be recompressed already
    is_zstd = end - start > HEADER_BYTES and view[start + CODEC_AT] & CODEC_MASK == Codec.ZSTD
    if is_zstd and (own is None or own.codec is not Codec.ZSTD):
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later")

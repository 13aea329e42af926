"""Produce: appends the batches of a request to their logs, and responds once they are acknowledged as acks demands."""

from asyncio import TimerHandle
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from levada.api.data.large_batches import NOT_CHECKED, CheckedRules, park_and_prepare
from levada.api.data.leader_hints import LEADER_CHANGED, current_leader, node_endpoints
from levada.api.data.parked_produce import ACKS_NONE, PRODUCE, Append
from levada.api.data.unverified_produce import await_verification
from levada.api.registry import handles_frames
from levada.broker.broker import Broker
from levada.broker.partition.partition import Partition
from levada.broker.partition.record_validation import InvalidRecordsError, LargeBatchError
from levada.broker.purgatory import PENDING, DelayedResponse, Watched
from levada.errors import ErrorCode, KafkaError
from levada.model import Codec
from levada.net.connection import Connection
from levada.wire.batches import CODEC_AT, CODEC_MASK, HEADER_BYTES
from levada.wire.fast.produce import (
    LEADER_HINTS_FROM,
    TOPIC_IDS_FROM,
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
    """A batch that is queued in its partition: it is done when the high watermark reaches `required_offset`.

    With acks=1 it is done when the leader has written it. The offset belongs to the leader epoch of the append.
    """

    topic: bytes
    partition: Partition
    base_offset: int
    required_offset: int
    append_time_ms: int
    leader_epoch: int


class DelayedProduce(DelayedResponse):
    """The response to one Produce: complete when each of its batches is committed or has failed."""

    connection: Connection
    __slots__ = ("_acks", "_began", "_broker", "_correlation_id", "_entries", "_timeout_ms", "_version")

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        version: int,
        correlation_id: int,
        request: ProduceRequest,
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
        self._acks, self._timeout_ms, _, _ = request
        self._entries = entries
        self._began = began  # in an earlier loop iteration; None until it is known to wait

    def collect(self) -> bytes | None:
        entries = self._entries
        from_template = len(entries) == 1
        for each in entries:
            if type(each) is not AppendedBatch:
                from_template = False
                continue
            _, partition, _, required_offset, _, epoch = each
            if partition.leader_epoch != epoch:
                from_template = False
            elif partition.high_watermark < required_offset and (
                self._acks == ACKS_ALL or partition.written_offset < required_offset
            ):
                if not partition.offline and self.result is PENDING:
                    self._wait()
                    return None
                from_template = False
        if self._timer is not None:
            from_template &= self._acks != ACKS_ALL  # the ISR may have shrunk meanwhile
            self.cancel()
        entry = entries[0] if from_template else None
        if self._began:
            self._broker.request_metrics.complete(PRODUCE, self._began)
        if type(entry) is not AppendedBatch:
            results = [self._result(each) if isinstance(each, AppendedBatch) else each for each in entries]
            return self._write(results)
        _, partition, base_offset, _, append_time_ms, _ = entry
        fill = partition.response_templates.get(self._version)
        if fill is None:
            fill = partition.response_templates[self._version] = response_template(
                entry.topic, partition.index, self._version
            )
        return fill(self._correlation_id, base_offset, append_time_ms, partition.log.log_start_offset)

    def _write(self, results: list[PartitionResult]) -> bytes:
        """The frame; clients learn who leads the partitions that this broker does not lead."""
        if self._version < LEADER_HINTS_FROM or all(result.error not in LEADER_CHANGED for result in results):
            return write_response(self._version, self._correlation_id, results)
        by_id = self._version >= TOPIC_IDS_FROM
        for position, result in enumerate(results):
            if result.error in LEADER_CHANGED:
                leader = current_leader(self._broker, result.topic, result.partition, by_id)
                results[position] = result._replace(current_leader=leader)
        leaders = [result.current_leader for result in results]
        endpoints = node_endpoints(self._broker, self.connection.listener_name, leaders)
        return write_response(self._version, self._correlation_id, results, endpoints)

    def _wait(self) -> None:
        if self._timer is None:
            self._began = self._began or self._broker.request_metrics.delay(PRODUCE)
            partitions = [entry.partition for entry in self._entries if isinstance(entry, AppendedBatch)]
            watched: list[Watched] = list(partitions)
            if self._acks == ACKS_LEADER:
                watched += [partition.log_end_watch for partition in partitions]
            self.watch(watched, max(self._timeout_ms, 0), self._broker.call_later)

    def _result(self, batch: AppendedBatch) -> PartitionResult:
        partition = batch.partition
        error = self._error(batch)
        if error is not ErrorCode.NONE:
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

    def _error(self, batch: AppendedBatch) -> ErrorCode:
        partition, required_offset = batch.partition, batch.required_offset
        if partition.leader_epoch != batch.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition.high_watermark >= required_offset:
            lacks_replicas = self._acks == ACKS_ALL and partition.in_sync_replicas < partition.min_insync_replicas
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if lacks_replicas else ErrorCode.NONE
        if self._acks == ACKS_LEADER and partition.written_offset >= required_offset:
            return ErrorCode.NONE
        return ErrorCode.KAFKA_STORAGE_ERROR if partition.offline else ErrorCode.REQUEST_TIMED_OUT


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
    entries: "Entries | None" = None,  # this and the next: of one whose other batches a thread has prepared
    checked: CheckedRules = NOT_CHECKED,
) -> None:
    """Append the batches of a request, whose positions are those of `view`; respond as its acks demand."""
    acks, _, transactional_id, parts = request
    if transactional_id is not None and began is None:
        resume = _resume(broker, connection, version, correlation_id)
        if await_verification(broker, connection, view, request, version, resume):
            return
    now_ms, entries = broker.clock.now_ms(), [] if entries is None else entries
    for topic, index, start, end in parts:
        try:
            partition = broker.route(topic, index, version)
            if acks != ACKS_LEADER and (acks != ACKS_ALL or partition.in_sync_replicas < partition.min_insync_replicas):
                _check_acks(acks, partition)
            if version < ZSTD_FROM:
                _check_codec(view, start, end, partition)
            base_offset = partition.append(view, start, end, now_ms, checked[topic, index] if checked else None)
        except KafkaError as error:
            _fail(broker, entries, topic, index, error)
        except LargeBatchError:
            rest = request._replace(partitions=parts[parts.index((topic, index, start, end)) :])
            resume = _resume(broker, connection, version, correlation_id, entries)
            park_and_prepare(broker, connection, view, rest, version, resume, partial(_fail, broker, entries), began)
            return
        else:
            append_ms = now_ms if partition.rules.log_append_time else -1
            batch = topic, partition, base_offset, partition.log.next_offset, append_ms, partition.leader_epoch
            entries.append(new_tuple(AppendedBatch, batch))
    if acks == ACKS_NONE:
        _close_if_failed(broker, connection, entries, began)
    else:
        connection.respond(DelayedProduce(broker, connection, version, correlation_id, request, entries, began))


def _resume(
    broker: Broker, connection: Connection, version: int, correlation_id: int, entries: "Entries | None" = None
) -> Append:
    """Return how a parked Produce continues."""
    return partial(append, broker, connection, version=version, correlation_id=correlation_id, entries=entries)


def _close_if_failed(broker: Broker, connection: Connection, entries: Entries, began: float | None) -> None:
    """Without acks there is no response: as in Kafka, closing the connection reports the error."""
    if began:
        broker.request_metrics.complete(PRODUCE, began)
    for entry in entries:
        if isinstance(entry, PartitionResult):
            connection.close(f"a Produce without acks failed: {ErrorCode(entry.error).name}")


def _check_acks(acks: int, partition: Partition) -> None:
    if acks == ACKS_ALL and not partition.is_leader:
        raise partition.not_leader()
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


def _fail(broker: Broker, entries: Entries, topic: bytes, index: int, error: KafkaError) -> None:
    broker.request_metrics.error(PRODUCE, error.code)
    record_errors = tuple(error.record_errors) if isinstance(error, InvalidRecordsError) else ()
    result = PartitionResult(topic, index, error.code, error_message=error.detail or None, record_errors=record_errors)
    entries.append(result)

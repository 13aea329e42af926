"""Produce: from the frame to the log (R20, R23, R25). Its answer leaves when the records are where acks wants them."""

from asyncio import TimerHandle
from typing import NamedTuple

from levada.api.parked_produce import Parked, unopened
from levada.api.registry import handles_frames
from levada.broker.broker import Broker
from levada.broker.partition.partition import Partition
from levada.broker.partition.validation import RefusedRecordsError
from levada.errors import ErrorCode, KafkaError
from levada.model import Codec
from levada.net.listener import Connection
from levada.wire.batches import CODEC_MASK, HEADER_BYTES
from levada.wire.fast.produce import (
    VERSIONS,
    PartitionResult,
    answer_template,
    write_response,
)

ACKS_ALL = -1
ACKS_LEADER = 1
ACKS_NONE = 0
ZSTD_FROM = 7
CODEC_AT = 22  # the byte of a batch that names its codec


class Taken(NamedTuple):
    """A batch that was queued: it is answered when the high watermark reaches `goal`."""

    topic: bytes
    partition: Partition
    base_offset: int
    goal: int
    append_time_ms: int


class ProduceReply:
    """The answer to one Produce, in its connection's outbox until all its batches are where they should be."""

    __slots__ = (
        "_broker",
        "_client",
        "_correlation_id",
        "_entries",
        "_expired",
        "_timeout_ms",
        "_timer",
        "_version",
    )

    def __init__(
        self,
        broker: Broker,
        client: Connection,
        version: int,
        correlation_id: int,
        timeout_ms: int,
        entries: list[Taken | PartitionResult],
    ) -> None:
        self._broker = broker
        self._client = client
        self._version = version
        self._correlation_id = correlation_id
        self._timeout_ms = timeout_ms
        self._entries = entries
        self._expired = False
        self._timer: TimerHandle | None = None

    def collect(self) -> bytes | None:
        entries = self._entries
        usual = len(entries) == 1
        for entry in entries:
            if type(entry) is not Taken:
                usual = False
            elif entry.partition.high_watermark < entry.goal:
                if not entry.partition.offline and not self._expired:
                    self._wait()
                    return None
                usual = False
        entry = entries[0]
        if not usual or type(entry) is not Taken:
            return self._encode()
        if self._timer is not None:
            self.give_up()
        _, partition, base_offset, _, append_time_ms = entry
        fill = partition.templates.get(self._version)
        if fill is None:
            fill = partition.templates[self._version] = answer_template(
                entry.topic, partition.index, self._version
            )
        return fill(self._correlation_id, base_offset, append_time_ms, partition.log.log_start_offset)

    def news(self, published_bytes: int) -> None:
        self._client.wake()

    def give_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            for entry in self._entries:
                if isinstance(entry, Taken):
                    entry.partition.waiters.discard(self)

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self._broker.call_later(max(self._timeout_ms, 0) / 1000, self._expire)
            for entry in self._entries:
                if isinstance(entry, Taken):
                    entry.partition.waiters.add(self)

    def _expire(self) -> None:
        self._expired = True
        self._client.wake()

    def _encode(self) -> bytes:
        self.give_up()
        results = [self._result(entry) if isinstance(entry, Taken) else entry for entry in self._entries]
        return write_response(self._version, self._correlation_id, results)

    def _result(self, taken: Taken) -> PartitionResult:
        partition = taken.partition
        if partition.high_watermark < taken.goal:
            failed = partition.offline
            error = ErrorCode.KAFKA_STORAGE_ERROR if failed else ErrorCode.REQUEST_TIMED_OUT
            return PartitionResult(taken.topic, partition.index, error)
        return PartitionResult(
            taken.topic,
            partition.index,
            ErrorCode.NONE,
            taken.base_offset,
            taken.append_time_ms,
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
    may_wait: bool = True,
) -> None:
    """Append one batch for each partition. Advertised from 0, since older librdkafka (KAFKA-18659) would
    otherwise send compressed batches uncompressed; 3 and later are served."""
    acks, timeout_ms, transactional_id, parts = connection.produces.read(view, position, stop, version)
    if transactional_id is not None and may_wait and (places := unopened(broker, view, parts, version)):
        parked = Parked(broker, connection, version, correlation_id, produce)
        if parked.waits(transactional_id, places, view, position, stop):
            return
    now_ms = broker.clock.now_ms()
    entries: list[Taken | PartitionResult] = []
    for topic, index, start, end in parts:
        try:
            partition = broker.route(topic, index, version)
            if acks != ACKS_LEADER and (
                acks != ACKS_ALL or partition.in_sync_replicas < partition.min_insync_replicas
            ):
                _check_acks(acks, partition)
            if version < ZSTD_FROM:
                _check_codec(view, start, end)
            base_offset = partition.append(view, start, end, now_ms)
        except KafkaError as error:
            entries.append(_refusal(topic, index, error))
        else:
            append_time_ms = now_ms if partition.stamps_append_time else -1
            entries.append(Taken(topic, partition, base_offset, partition.log.next_offset, append_time_ms))
    if acks != ACKS_NONE:
        if entries:
            connection.reply(ProduceReply(broker, connection, version, correlation_id, timeout_ms, entries))
        else:
            connection.reply(write_response(version, correlation_id, []))
    else:
        _close_if_refused(connection, entries)


def _close_if_refused(connection: Connection, entries: list[Taken | PartitionResult]) -> None:
    """Without acks there is no other way to say so."""
    for entry in entries:
        if isinstance(entry, PartitionResult):
            connection.close(f"a Produce without acks failed: {ErrorCode(entry.error).name}")


def _check_acks(acks: int, partition: Partition) -> None:
    if acks == ACKS_ALL:
        if partition.in_sync_replicas < partition.min_insync_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{partition.in_sync_replicas} in-sync replicas; {partition.topic} needs "
                f"{partition.min_insync_replicas} (min.insync.replicas)",
            )
    elif acks != ACKS_NONE:
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}; 0, 1 and -1 (all) are possible")


def _check_codec(view: memoryview, start: int, end: int) -> None:
    if end - start > HEADER_BYTES and view[start + CODEC_AT] & CODEC_MASK == Codec.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later")


def _refusal(topic: bytes, index: int, error: KafkaError) -> PartitionResult:
    record_errors = tuple(error.record_errors) if isinstance(error, RefusedRecordsError) else ()
    message = error.detail or None
    return PartitionResult(topic, index, error.code, error_message=message, record_errors=record_errors)

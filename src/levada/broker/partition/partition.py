"""A partition as its leader runs it: what a batch must be to enter the log, and who hears of it afterwards.

The middle of the hot path. `append` checks a batch where it was received, sets its offset and queues it; `publish`,
at the end of the turn, writes what was queued and only then moves the high watermark, so that nobody sees or is told
of a record that is not in the file (append reserves, publish publishes). With `levada.acks.wait.for.fsync` the
watermark waits for the disk as well.
"""

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from levada.broker.partition.transactions import StableEnd, Transactions, load_producers
from levada.broker.partition.validation import (
    RefusedRecordsError,
    check_deletable,
    check_keys,
    misplaced,
    misshapen,
    untimely,
)
from levada.broker.purgatory import Watcher
from levada.config.settings import LONG_MAX
from levada.config.topic import TopicConfig
from levada.core.cluster.topic_names import is_internal
from levada.errors import ErrorCode, KafkaError
from levada.logs import EventLog
from levada.model import Codec
from levada.net.flush import FlushQueue
from levada.storage.log.log import Log
from levada.storage.log.slices import Slice
from levada.wire.batches import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    OFFSET_LENGTH_EPOCH,
    TRANSACTIONAL_BIT,
    Record,
    decode,
    read_header,
    set_log_append_time,
)
from levada.wire.fast.produce import Fill

log = EventLog(__name__)

READ_COMMITTED = 1

_UNUSUAL = CONTROL_BIT | TRANSACTIONAL_BIT
_CODEC_MAX = int(Codec.ZSTD)
# The fields of a batch's header that decide over it; the rest is not looked at.
_unpack_checked = Struct(">8xi4xbIhi8xqqhii").unpack_from
_unpack_own = Struct(">8xi23xqq6xi").unpack_from  # the same of batches that need no check
_pack_place = OFFSET_LENGTH_EPOCH.pack_into


class PartitionContext(NamedTuple):
    """What a partition needs of the broker around it."""

    flush_queue: FlushQueue
    sync_soon: Callable[["Partition"], None]  # have the log fsynced by the group commit, then call `synced`
    failed: Callable[["Partition", OSError], None]  # the disk under this partition is broken


class Partition:
    """One log that this broker leads."""

    __slots__ = (
        "_after_max_ms",
        "_announced_bytes",
        "_before_max_ms",
        "_context",
        "_dirty_since_ms",
        "_flush_messages",
        "_flush_ms",
        "_inspects",
        "_internal",
        "_keyed",
        "_message_bytes_max",
        "_queued",
        "_unflushed",
        "_waits_for_fsync",
        "bytes_in",
        "bytes_out",
        "high_watermark",
        "in_sync_replicas",
        "index",
        "leader_epoch",
        "log",
        "messages_in",
        "min_insync_replicas",
        "offline",
        "producers",
        "stable_end",
        "stamps_append_time",
        "templates",
        "topic",
        "topic_id",
        "transactions",
        "watchers",
    )

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        index: int,
        leader_epoch: int,
        segments: Log,
        context: PartitionContext,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.leader_epoch = leader_epoch
        self.log = segments
        self.producers = load_producers(segments)
        self.in_sync_replicas = 1
        self.high_watermark = segments.log_end_offset
        self.offline = False
        self.watchers: set[Watcher] = set()
        self.stable_end = StableEnd()
        self.transactions = Transactions(self)
        self.templates: dict[int, Fill] = {}  # answers to a single batch, by version
        self.messages_in = self.bytes_in = self.bytes_out = 0
        self._context = context
        self._internal = is_internal(topic)  # written by coordinators only
        self._announced_bytes = 0  # of bytes_in, those that watchers have been notified of
        self._queued = False  # whether the turn knows of appends here
        self._unflushed = 0  # messages since the last fsync
        self._dirty_since_ms = 0  # when unsynced data was first seen; 0 if there is none
        segments.assign_epoch(leader_epoch)
        segments.on_roll = self._rolled
        self.configure(segments.config)

    def configure(self, config: TopicConfig) -> None:
        """Take over the topic's settings."""
        self.log.config = config
        self.stamps_append_time = config.message_timestamp_type == "LogAppendTime"
        self.min_insync_replicas = config.min_insync_replicas
        self._message_bytes_max = config.max_message_bytes
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._keyed = "compact" in config.cleanup_policy
        self._inspects = self._keyed or config.message_timestamp_before_max_ms < LONG_MAX
        self._flush_messages = config.flush_messages
        self._flush_ms = config.flush_ms
        self._waits_for_fsync = config.levada_acks_wait_for_fsync

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed readers stop; without open transactions it is the high watermark."""
        producers = self.producers
        if not producers.open and not producers.ended:
            return self.high_watermark
        first = producers.first_unstable_offset()
        assert first is not None
        return max(self.log.log_start_offset, min(first, self.high_watermark))

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    # Writing.

    def append(self, view: memoryview, start: int, stop: int, now_ms: int) -> int:
        """Check and queue the batch view[start:stop]; its base offset, also when it is a duplicate."""
        size = stop - start
        if size < HEADER_BYTES or self._internal:
            raise misplaced(self.topic, self._internal, size)
        fields = _unpack_checked(view, start)
        length, magic, crc, attributes, delta, max_timestamp, producer_id, epoch, sequence, count = fields
        if length + LOG_OVERHEAD != size or magic != MAGIC or size > self._message_bytes_max:
            raise misshapen(self.topic, length, magic, size, self._message_bytes_max)
        batch = view[start:stop]
        if crc32c(batch[ATTRIBUTES_OFFSET:]) != crc:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match its bytes")
        if (
            count != delta + 1
            or not 0 < count < size
            or attributes & _UNUSUAL
            or attributes & CODEC_MASK > _CODEC_MAX
            or self._inspects
        ):
            self._check_unusual(batch, attributes, delta, count, producer_id, now_ms)
        if self.stamps_append_time:
            set_log_append_time(batch, now_ms)
            max_timestamp = now_ms
        elif max_timestamp - now_ms > self._after_max_ms:
            raise self._untimely(decode(batch), now_ms)
        if producer_id < 0:
            return self.take(batch, length, count, max_timestamp, now_ms)
        if sequence < 0:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a producer id without a sequence number")
        if attributes & TRANSACTIONAL_BIT:
            append = self.transactions.append
            return append(batch, length, count, max_timestamp, now_ms, producer_id, epoch, sequence)
        first = self.producers.check(producer_id, epoch, sequence, count)
        if first >= 0:
            return first
        base_offset = self.take(batch, length, count, max_timestamp, now_ms)
        self.producers.apply(producer_id, epoch, sequence, base_offset + delta, count, max_timestamp)
        return base_offset

    def append_own(self, batch: bytearray, now_ms: int) -> int:
        """Queue a batch that this broker made itself; where the log ends with it."""
        view = memoryview(batch)
        length, max_timestamp, producer_id, count = _unpack_own(batch)
        self.take(view, length, count, max_timestamp, now_ms)
        if producer_id >= 0:
            try:
                self.transactions.observe(read_header(batch), view)
            except OSError as error:
                self._context.failed(self, error)
                raise self.storage_error() from None
        return self.log.next_offset

    def take(self, batch: memoryview, length: int, count: int, max_timestamp: int, now_ms: int) -> int:
        """Set the batch's offset and leader epoch in place, and queue it for the end of the turn."""
        if self.offline:
            raise self.storage_error()
        segments = self.log
        base_offset = segments.next_offset
        _pack_place(batch, 0, base_offset, length, self.leader_epoch)
        try:
            segments.reserve(batch, count, max_timestamp, now_ms)
        except OSError as error:
            raise self.failed(error) from None
        self.messages_in += count
        self.bytes_in += len(batch)
        if not self._queued:
            self._queued = True
            self._context.flush_queue.add_publisher(self)
        return base_offset

    def _check_unusual(
        self,
        batch: memoryview,
        attributes: int,
        last_offset_delta: int,
        count: int,
        producer_id: int,
        now_ms: int,
    ) -> None:
        """A batch that must be refused or looked into: more records than bytes, keys that must be there, old times."""
        if attributes & CONTROL_BIT:
            raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control records")
        if attributes & TRANSACTIONAL_BIT and producer_id < 0:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "no producer, no transaction")
        if count <= 0 or count != last_offset_delta + 1:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"{count} records, but offsets for {last_offset_delta + 1}"
            )
        if count < len(batch) and attributes & CODEC_MASK <= _CODEC_MAX and not self._inspects:
            return
        records = decode(batch)
        if self._keyed:
            check_keys(records)
        if not self.stamps_append_time:
            late = self._untimely(records, now_ms)
            if late.record_errors:
                raise late

    def _untimely(self, records: list[Record], now_ms: int) -> RefusedRecordsError:
        return untimely(records, now_ms - self._before_max_ms, now_ms + self._after_max_ms)

    def publish(self) -> None:
        """Write what was queued; then move the high watermark, or have the disk asked to."""
        self._queued = False
        if self.offline:
            return
        segments = self.log
        try:
            segments.publish()
        except OSError as error:
            self._context.failed(self, error)
            return
        if self._waits_for_fsync:
            self._context.sync_soon(self)
            return
        published = segments.log_end_offset - self.high_watermark
        self._advance(segments.log_end_offset)
        if self._flush_messages <= (unflushed := self._unflushed + published):
            self._context.sync_soon(self)
        else:
            self._unflushed = unflushed

    def crashed(self, error: Exception) -> None:
        """A bug while publishing: what the log holds is not known any more."""
        self.go_offline()

    def synced(self) -> None:
        """The group commit has brought everything below the recovery point to the disk."""
        self._unflushed = self.log.log_end_offset - self.log.recovery_point
        if self.log.recovery_point > self.high_watermark:
            self._advance(self.log.recovery_point)

    def flush_if_due(self, now_ms: int) -> None:
        """Ask for an fsync when data has waited for it as long as flush.ms allows."""
        if self.log.recovery_point >= self.log.log_end_offset:
            self._dirty_since_ms = 0
        elif not self._dirty_since_ms:
            self._dirty_since_ms = now_ms
        elif now_ms - self._dirty_since_ms >= self._flush_ms:
            self._dirty_since_ms = now_ms
            self._context.sync_soon(self)

    def _advance(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        if self.producers.ended:
            self.producers.settle(high_watermark)
        fresh = self.bytes_in - self._announced_bytes
        self._announced_bytes = self.bytes_in
        if self.watchers:
            for watcher in list(self.watchers):
                watcher.try_complete(fresh)
        if self.stable_end.watchers:
            self.stable_end.moved(self.last_stable_offset, self.bytes_in)

    def go_offline(self) -> None:
        """Stop serving: the disk is broken, or the partition is deleted. Its watchers complete now."""
        self.offline = True
        for watcher in [*self.watchers, *self.stable_end.watchers]:
            watcher.try_complete(0)

    def failed(self, error: OSError) -> KafkaError:
        """The disk under the log is broken: it goes offline. What to tell the client."""
        self._context.failed(self, error)
        return self.storage_error()

    def storage_error(self) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {self.topic}-{self.index} is offline")

    # Reading. Requests take effect in their order: who reads finds what was sent before, acknowledged or not.

    def settle(self) -> None:
        """Write what is queued now and not at the end of the turn."""
        if self._queued:
            self.publish()

    def read(self, offset: int, max_bytes: int, minimum_one: bool, committed: bool = False) -> Slice:
        """Batches from `offset` that readers may see, or that readers of `committed` records may."""
        if self._queued:
            self.publish()
        if self.offline:
            raise self.storage_error()
        end_offset = self.last_stable_offset if committed else self.high_watermark
        try:
            return self.log.read(offset, max_bytes, end_offset, minimum_one)
        except OSError as error:
            raise self.failed(error) from None

    def aborted(self, offset: int, size: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of what was aborted in a read of committed records from `offset`."""
        found = self.log.reader.aborted(offset, size, self.last_stable_offset)
        return [(transaction.producer_id, transaction.first_offset) for transaction in found]

    def delete_records(self, offset: int) -> int:
        """Trim the log's beginning; the new first offset."""
        if self.offline:
            raise self.storage_error()
        check_deletable(self.topic, self._internal, self.log.config.cleanup_policy)
        if not 0 <= offset <= self.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not in the log")
        self.log.delete_records(offset)
        return self.log.log_start_offset

    def epoch_end(self, leader_epoch: int) -> tuple[int, int]:
        """The largest epoch up to this one, and where it ends for readers."""
        epoch, end_offset = self.log.epoch_end_offset(leader_epoch)
        return epoch, min(end_offset, self.high_watermark)

    def check_leader_epoch(self, epoch: int) -> None:
        """A client that knows another epoch than ours must look for the leader again."""
        if epoch >= 0 and epoch != self.leader_epoch:
            older = epoch < self.leader_epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
            raise KafkaError(code, f"epoch {epoch}, but {self.leader_epoch} leads {self.topic}-{self.index}")

    def close(self) -> None:
        """A clean end: everything is on disk, and the next start need not read the log."""
        self.save_producers(self.log.log_end_offset)
        self.log.close(clean=True)

    def _rolled(self, offset: int) -> None:
        """A segment is full: recovery after a crash need not read it again if it is synced."""
        self.save_producers(offset)
        self._context.sync_soon(self)

    def save_producers(self, offset: int) -> None:
        """Keep what is known of producers with the log, as of `offset`, the base of the next batch."""
        if offset and offset not in self.log.snapshots():
            self.log.write_snapshot(offset, self.producers.encode_snapshot())

"""A partition as its leader runs it: validates and appends batches, advances the high watermark, serves reads.

The middle of the hot path. `append` validates a batch where it was received, sets its offset and queues it. `publish`,
in the flush, writes what was queued and only then advances the high watermark: no reader sees, and no response
acknowledges, a record that is not in the file. With `levada.acks.wait.for.fsync` it waits for the fsync as well.
"""

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from levada.broker.partition.transactions import LastStableWatch, Transactions, load_producers
from levada.broker.partition.validation import CODEC_MAX, CheckedBy, ValidationRules, not_appendable
from levada.broker.purgatory import Watcher
from levada.config.topic import TopicConfig
from levada.core.cluster.topic_names import check_deletable, is_internal
from levada.core.partition.producer_state import ProducerStates
from levada.errors import ErrorCode, KafkaError
from levada.net.flush import FlushQueue
from levada.storage.log.log import Log
from levada.storage.log.reader import Slice
from levada.storage.log.segment import CorruptBatchError
from levada.wire.batches import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    OFFSET_LENGTH_EPOCH,
    TRANSACTIONAL_BIT,
    read_header,
    set_log_append_time,
)
from levada.wire.fast.produce import ResponseTemplate

READ_COMMITTED = 1

_NOT_PLAIN = CONTROL_BIT | TRANSACTIONAL_BIT
# The fields of a batch's header that validation and the log need.
_unpack_checked = Struct(">8xi4xbIhi8xqqhii").unpack_from
_unpack_own = Struct(">8xi23xqq6xi").unpack_from  # the same of batches that need no validation
_pack_offset = OFFSET_LENGTH_EPOCH.pack_into


class PartitionContext(NamedTuple):
    """What a partition needs of its broker."""

    flush_queue: FlushQueue
    sync_soon: Callable[["Partition"], None]  # request an fsync of the log; `synced` follows
    failed: Callable[["Partition", OSError | CorruptBatchError], None]  # the disk is broken, or the log damaged


class Partition:
    """One log that this broker leads."""

    __slots__ = (
        "__weakref__",
        "_announced_bytes",
        "_context",
        "_dirty_since_ms",
        "_flush_messages",
        "_flush_ms",
        "_internal",
        "_queued",
        "_unflushed",
        "_waits_for_fsync",
        "bytes_in",
        "bytes_out",
        "high_watermark",
        "in_sync_replicas",
        "index",
        "last_stable_watch",
        "leader_epoch",
        "log",
        "messages_in",
        "min_insync_replicas",
        "offline",
        "producers",
        "response_templates",
        "rules",
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
        log: Log,
        context: PartitionContext,
        producers: ProducerStates | None = None,  # of the log, if a thread has loaded them
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.leader_epoch = leader_epoch
        self.log = log
        self.producers = load_producers(log) if producers is None else producers
        self.in_sync_replicas = 1
        self.high_watermark = log.log_end_offset
        self.offline = False
        self.watchers: set[Watcher] = set()
        self.last_stable_watch = LastStableWatch()
        self.transactions = Transactions(self)
        self.response_templates: dict[int, ResponseTemplate] = {}  # to a Produce of one batch, by version
        self.messages_in = self.bytes_in = self.bytes_out = 0
        self._context = context
        self._internal = is_internal(topic)  # written by coordinators only
        self._announced_bytes = 0  # of bytes_in, those that watchers have been notified of
        self._queued = False  # whether the flush queue has this partition
        self._unflushed = 0  # messages since the last fsync
        self._dirty_since_ms = 0  # when unsynced data was first seen; 0 if there is none
        log.assign_epoch(leader_epoch)
        log.on_roll = self._rolled
        self.configure(log.config)

    def configure(self, config: TopicConfig) -> None:
        """Apply the topic's settings."""
        self.log.config = config
        self.rules = ValidationRules.of(config)
        self.min_insync_replicas = config.min_insync_replicas
        self._flush_messages = config.flush_messages
        self._flush_ms = config.flush_ms
        self._waits_for_fsync = config.levada_acks_wait_for_fsync

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed readers stop; without open transactions it is the high watermark."""
        producers = self.producers
        if not producers.ongoing_txns and not producers.unreplicated_txns:
            return self.high_watermark
        first = producers.first_unstable_offset()
        assert first is not None
        return max(self.log.log_start_offset, min(first, self.high_watermark))

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    # Writing.

    def append(self, view: memoryview, start: int, stop: int, now_ms: int, checked_by: CheckedBy = None) -> int:
        """Validate and queue the batch view[start:stop]; its base offset, also when it is a duplicate."""
        size, rules = stop - start, self.rules
        if size < HEADER_BYTES or self._internal:
            raise not_appendable(self.topic, self._internal, size)
        header = _unpack_checked(view, start)
        length, magic, crc, attributes, delta, max_timestamp, producer_id, epoch, sequence, count = header
        if length + LOG_OVERHEAD != size or magic != MAGIC or size > rules.message_bytes_max:
            raise rules.invalid_size(self.topic, length, magic, size)
        batch = view[start:stop]
        if crc32c(batch[ATTRIBUTES_OFFSET:]) != crc:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match its bytes")
        if (
            count != delta + 1
            or not 0 < count < size
            or attributes & _NOT_PLAIN
            or attributes & CODEC_MASK > CODEC_MAX
            or rules.checks_batches
        ):
            recompressed = rules.check(batch, attributes, delta, count, producer_id, now_ms, checked_by is rules)
            if recompressed is not None:
                checked_by = rules if rules.checks_records else checked_by
                return self.append(recompressed, 0, len(recompressed), now_ms, checked_by)
        if rules.log_append_time:
            set_log_append_time(batch, now_ms)
            max_timestamp = now_ms
        elif max_timestamp - now_ms > rules.after_max_ms:
            raise rules.invalid_timestamp(batch, count, now_ms, checked_by is rules)
        if producer_id < 0:
            return self.reserve(batch, length, count, max_timestamp, now_ms)
        if sequence < 0:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a producer id without a sequence number")
        if attributes & TRANSACTIONAL_BIT:
            return self.transactions.append(batch, length, count, max_timestamp, now_ms, producer_id, epoch, sequence)
        first = self.producers.check(producer_id, epoch, sequence, count)
        if first >= 0:
            return first
        base_offset = self.reserve(batch, length, count, max_timestamp, now_ms)
        self.producers.apply(producer_id, epoch, sequence, base_offset + delta, count, max_timestamp)
        return base_offset

    def append_own(self, batch: bytearray, now_ms: int) -> int:
        """Queue a batch that this broker made itself; the log end offset with it."""
        view = memoryview(batch)
        length, max_timestamp, producer_id, count = _unpack_own(batch)
        self.reserve(view, length, count, max_timestamp, now_ms)
        if producer_id >= 0:
            try:
                self.transactions.observe(read_header(batch), view)
            except OSError as error:
                self._context.failed(self, error)
                raise self.storage_error() from None
        return self.log.next_offset

    def reserve(self, batch: memoryview, length: int, count: int, max_timestamp: int, now_ms: int) -> int:
        """Set the batch's offset and leader epoch in place, and queue it for the flush."""
        if self.offline:
            raise self.storage_error()
        log = self.log
        base_offset = log.next_offset
        _pack_offset(batch, 0, base_offset, length, self.leader_epoch)
        try:
            log.reserve(batch, count, max_timestamp, now_ms)
        except OSError as error:
            raise self.failed(error) from None
        self.messages_in += count
        self.bytes_in += len(batch)
        if not self._queued:
            self._queued = True
            self._context.flush_queue.add_publisher(self)
        return base_offset

    def publish(self) -> None:
        """Write what was queued; then advance the high watermark, or request the fsync that does."""
        self._queued = False
        if self.offline:
            return
        log = self.log
        try:
            log.publish()
        except OSError as error:
            self._context.failed(self, error)
            return
        if self._waits_for_fsync:
            self._context.sync_soon(self)
            return
        published = log.log_end_offset - self.high_watermark
        self._advance(log.log_end_offset)
        if self._flush_messages <= (unflushed := self._unflushed + published):
            self._context.sync_soon(self)
        else:
            self._unflushed = unflushed

    def crashed(self, error: Exception) -> None:
        """A bug in `publish`: what the log holds is unknown."""
        self.go_offline()

    def synced(self) -> None:
        """The group commit has fsynced everything below the recovery point."""
        self._unflushed = self.log.log_end_offset - self.log.recovery_point
        if self.log.recovery_point > self.high_watermark:
            self._advance(self.log.recovery_point)

    def flush_if_due(self, now_ms: int) -> None:
        """Request an fsync when data has been unsynced for flush.ms."""
        if self.log.recovery_point >= self.log.log_end_offset:
            self._dirty_since_ms = 0
        elif not self._dirty_since_ms:
            self._dirty_since_ms = now_ms
        elif now_ms - self._dirty_since_ms >= self._flush_ms:
            self._dirty_since_ms = now_ms
            self._context.sync_soon(self)

    def _advance(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        if self.producers.unreplicated_txns:
            self.producers.on_high_watermark_updated(high_watermark)
        fresh = self.bytes_in - self._announced_bytes
        self._announced_bytes = self.bytes_in
        if self.watchers:
            for watcher in list(self.watchers):
                watcher.try_complete(fresh)
        if self.last_stable_watch.watchers:
            self.last_stable_watch.advance(self.last_stable_offset, self.bytes_in)

    def go_offline(self) -> None:
        """Stop serving, since the disk is broken or the partition deleted; its watchers complete now."""
        self.offline = True
        for watcher in [*self.watchers, *self.last_stable_watch.watchers]:
            watcher.try_complete(0)

    def failed(self, error: OSError | CorruptBatchError) -> KafkaError:
        """Report a disk failure or damage, which takes the log offline; the error for the client."""
        self._context.failed(self, error)
        return self.storage_error()

    def storage_error(self) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {self.topic}-{self.index} is offline")

    # Reading. Requests take effect in their order: a Fetch finds what was sent before it, acknowledged or not.

    def publish_queued(self) -> None:
        """Publish now the batches that are queued for the flush."""
        if self._queued:
            self.publish()

    def read(self, offset: int, max_bytes: int, minimum_one: bool, committed: bool = False) -> Slice:
        """Batches from `offset` up to the high watermark, or to the last stable offset (`committed`)."""
        if self._queued:
            self.publish()
        if self.offline:
            raise self.storage_error()
        end_offset = self.last_stable_offset if committed else self.high_watermark
        try:
            return self.log.read(offset, max_bytes, end_offset, minimum_one)
        except (OSError, CorruptBatchError) as error:
            raise self.failed(error) from None

    def delete_records(self, offset: int) -> int:
        """Advance the log start offset; returns it."""
        if self.offline:
            raise self.storage_error()
        check_deletable(self.topic, self.log.config.cleanup_policy)
        if not 0 <= offset <= self.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not in the log")
        self.log.delete_records(offset)
        return self.log.log_start_offset

    def epoch_end(self, leader_epoch: int) -> tuple[int, int]:
        """The largest epoch up to this one, and its end offset for readers."""
        epoch, end_offset = self.log.epoch_end_offset(leader_epoch)
        return epoch, min(end_offset, self.high_watermark)

    def set_leader_epoch(self, leader_epoch: int) -> None:
        """Lead in a newer epoch, after an election."""
        if leader_epoch > self.leader_epoch:
            self.leader_epoch = leader_epoch
            self.log.assign_epoch(leader_epoch)

    def check_leader_epoch(self, epoch: int) -> None:
        """A client with another leader epoch must refresh its metadata."""
        if epoch >= 0 and epoch != self.leader_epoch:
            older = epoch < self.leader_epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
            raise KafkaError(code, f"epoch {epoch}, but {self.leader_epoch} leads {self.topic}-{self.index}")

    def close(self) -> None:
        """Close cleanly: everything is on disk, and the next start needs no recovery."""
        self.save_producers(self.log.log_end_offset)
        self.log.close(clean=True)

    def _rolled(self, offset: int) -> None:
        """Snapshot and fsync a segment that is closed, so that recovery need not read it."""
        self.save_producers(offset)
        self._context.sync_soon(self)

    def save_producers(self, offset: int) -> None:
        """Write a producer snapshot as of `offset`, the base offset of the next batch."""
        if offset and offset not in self.log.producer_snapshots.offsets():
            self.log.producer_snapshots.write(offset, self.producers.encode_snapshot(offset))

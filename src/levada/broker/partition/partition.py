"""A replica as its leader runs it: validates and appends batches, advances the high watermark, serves reads.

The middle of the hot path. `append` validates a batch where it was received, sets its offset and queues it. `publish`,
in the flush, writes what was queued and only then advances the written offset: no reader sees, and no response
acknowledges, a record that is not in the file. With `levada.acks.wait.for.fsync` it waits for the fsync as well. Where
there is one replica, the high watermark advances with it.
"""

from struct import Struct

from crc32c import crc32c

from levada.broker.partition.replica import PartitionContext, PartitionReplica
from levada.broker.partition.validation import CODEC_MAX, CheckedBy, not_appendable
from levada.errors import ErrorCode, KafkaError
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

__all__ = ["READ_COMMITTED", "Partition", "PartitionContext"]

READ_COMMITTED = 1

_NOT_PLAIN = CONTROL_BIT | TRANSACTIONAL_BIT
# The fields of a batch's header that validation and the log need.
_unpack_checked = Struct(">8xi4xbIhi8xqqhii").unpack_from
_unpack_own = Struct(">8xi23xqq6xi").unpack_from  # the same of batches that need no validation
_pack_offset = OFFSET_LENGTH_EPOCH.pack_into


class Partition(PartitionReplica):
    """One replica on this broker, with what clients do to it."""

    __slots__ = ()

    # Writing.

    def append(self, view: memoryview, start: int, stop: int, now_ms: int, checked_by: CheckedBy = None) -> int:
        """Validate and queue the batch view[start:stop]; its base offset, also when it is a duplicate."""
        size, rules = stop - start, self.rules
        if size < HEADER_BYTES or self._rejects_clients:
            raise not_appendable(self.topic, self._internal, size) if self.is_leader else self.not_leader()
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
        if not self.is_leader:
            raise self.not_leader()
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
        """Write what was queued; then advance the written offset, or request the fsync that does."""
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
            if self.replicas is not None:  # followers fetch and fsync at the same time
                self._notify_log_end()
            return
        end_offset = log.log_end_offset
        published = end_offset - self.written_offset
        if self.replicas is None:
            self.written_offset = end_offset
            self._advance(end_offset)
        else:
            self._written(end_offset)
        if self._flush_messages <= (unflushed := self._unflushed + published):
            self._context.sync_soon(self)
        else:
            self._unflushed = unflushed

    def sync_soon(self) -> None:
        self._context.sync_soon(self)

    def crashed(self, error: Exception) -> None:
        """A bug in `publish`: what the log holds is unknown."""
        self.go_offline()

    def failed(self, error: OSError | CorruptBatchError) -> KafkaError:
        self._context.failed(self, error)
        return self.storage_error()

    # Reading. Requests take effect in their order: a Fetch finds what was sent before it, acknowledged or not.

    def publish_queued(self) -> None:
        """Publish now the batches that are queued for the flush."""
        if self._queued:
            self.publish()

    def read(self, offset: int, max_bytes: int, minimum_one: bool, committed: bool = False) -> Slice:
        """Batches from `offset` up to the high watermark, or to the last stable offset (`committed`)."""
        if self._queued:
            self.publish()
        if self.offline or self.truncating:
            raise self.unreadable()
        end_offset = self.last_stable_offset if committed else self.high_watermark
        try:
            return self.log.read(offset, max_bytes, end_offset, minimum_one)
        except (OSError, CorruptBatchError) as error:
            raise self.failed(error) from None

    def read_to_end(self, offset: int, max_bytes: int, minimum_one: bool) -> Slice:
        """Batches from `offset` up to the log end, as followers read them."""
        self.publish_queued()
        if self.offline or self.truncating:
            raise self.unreadable()
        try:
            return self.log.read(offset, max_bytes, self.log.log_end_offset, minimum_one)
        except (OSError, CorruptBatchError) as error:
            raise self.failed(error) from None

"""The rules that a topic has for batches, and the errors of those that break them.

`Partition.append` compares the fields of each batch on the hot path. Only a batch that fails there, or whose topic has
rules for single records or a codec of its own, comes here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from levada.broker.partition.recompression import Recompression
from levada.broker.partition.record_validation import check_keys_and_timestamps, iterate_on_loop
from levada.config.settings import LONG_MAX, LONG_MIN
from levada.config.topic import TopicConfig
from levada.errors import ErrorCode, KafkaError
from levada.model import Codec
from levada.wire.batches import CODEC_MASK, CONTROL_BIT, LOG_OVERHEAD, MAGIC, TRANSACTIONAL_BIT, Record

CODEC_MAX = int(Codec.ZSTD)


@dataclass(frozen=True, slots=True)  # slots: the hot path reads its fields
class ValidationRules:
    """What a topic demands of its batches."""

    message_bytes_max: int
    before_max_ms: int
    after_max_ms: int
    log_append_time: bool  # the broker sets the timestamps
    needs_keys: bool
    checks_records: bool  # of every batch
    recompression: Recompression | None
    checks_batches: bool  # `check` is needed for every batch

    @staticmethod
    def of(config: TopicConfig) -> "ValidationRules":
        """The rules of a topic with these settings."""
        needs_keys = "compact" in config.cleanup_policy
        checks_records = needs_keys or config.message_timestamp_before_max_ms < LONG_MAX
        recompression = Recompression.of(config)
        return ValidationRules(
            config.max_message_bytes,
            config.message_timestamp_before_max_ms,
            config.message_timestamp_after_max_ms,
            config.message_timestamp_type == "LogAppendTime",
            needs_keys,
            checks_records,
            recompression,
            checks_records or recompression is not None,
        )

    def check(
        self,
        batch: memoryview,
        attributes: int,
        last_offset_delta: int,
        count: int,
        producer_id: int,
        now_ms: int,
        records_checked: bool,
    ) -> memoryview | None:
        """Check a batch that is not plain; return it with its topic's codec if it has another, else None."""
        if attributes & CONTROL_BIT:
            raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control records")
        if attributes & TRANSACTIONAL_BIT and producer_id < 0:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "a transactional batch without a producer id")
        if count <= 0 or count != last_offset_delta + 1:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"{count} records, but offsets for {last_offset_delta + 1}")
        codec = attributes & CODEC_MASK
        if codec > CODEC_MAX:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {codec}")
        if not records_checked and (self.checks_records or count >= len(batch)):
            self.check_records(iterate_on_loop(batch, count), now_ms)
        recompression = self.recompression
        return None if recompression is None or codec == recompression.codec else recompression.on_loop(batch)

    def check_records(self, records: Iterable[Record], now_ms: int) -> None:
        """InvalidRecordsError for records without a key, or with a timestamp too far from now."""
        first_ms, last_ms = now_ms - self.before_max_ms, now_ms + self.after_max_ms
        if self.log_append_time:
            first_ms, last_ms = LONG_MIN, LONG_MAX
        check_keys_and_timestamps(records, self.needs_keys, first_ms, last_ms)

    def invalid_timestamp(self, batch: memoryview, count: int, now_ms: int, records_checked: bool) -> KafkaError:
        """A batch whose greatest timestamp is too late, even if those of its records are not."""
        if not records_checked:
            self.check_records(iterate_on_loop(batch, count), now_ms)
        return KafkaError(ErrorCode.INVALID_TIMESTAMP, "the greatest timestamp of the batch is too far from now")

    def invalid_size(self, topic: str, length: int, magic: int, size: int) -> KafkaError:
        """A batch of another version, another size than its length field, or larger than max.message.bytes."""
        if magic != MAGIC:
            return KafkaError(ErrorCode.INVALID_RECORD, f"a batch of magic {magic}; only 2 is accepted")
        if length + LOG_OVERHEAD < size:
            return KafkaError(ErrorCode.INVALID_RECORD, "a Produce may carry one batch for a partition only")
        if length + LOG_OVERHEAD > size:
            return KafkaError(ErrorCode.INVALID_RECORD, "the batch is shorter than its length field")
        limit = self.message_bytes_max
        return KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes; max.message.bytes of {topic} is {limit}"
        )


CheckedBy: TypeAlias = ValidationRules | None  # the rules by which a thread has checked the records of a batch


def not_appendable(topic: str, internal: bool, size: int) -> KafkaError:
    """A topic that clients may not write to, or bytes that are too few for a batch."""
    if internal:
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}")
    return KafkaError(ErrorCode.INVALID_RECORD, f"{size} bytes are no record batch; a Produce must carry one")

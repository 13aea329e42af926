"""Record validation: the rules that a topic has for batches, and the errors of those that break them.

`Partition.append` compares the fields of each batch on the hot path. Only a batch that fails there, or whose topic has
rules for single records or a codec of its own, comes here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from levada.broker.partition.recompression import Recompression
from levada.config.settings import LONG_MAX
from levada.config.topic import TopicConfig
from levada.errors import ErrorCode, KafkaError
from levada.model import Codec
from levada.wire.batches import (
    CODEC_MASK,
    CONTROL_BIT,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    Record,
    decode,
)

CODEC_MAX = int(Codec.ZSTD)


class InvalidRecordsError(KafkaError):
    """A batch with invalid records: (index in the batch, message) of each, as Produce responses list them."""

    def __init__(self, code: ErrorCode, detail: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, detail)
        self.record_errors = record_errors


@dataclass(frozen=True, slots=True)  # slots: the hot path reads its fields
class ValidationRules:
    """What a topic demands of its batches."""

    message_bytes_max: int
    before_max_ms: int
    after_max_ms: int
    log_append_time: bool  # the broker sets the timestamps
    needs_keys: bool
    recompression: Recompression | None
    checks_batches: bool  # `check` is needed for every batch

    @staticmethod
    def of(config: TopicConfig) -> "ValidationRules":
        """The rules of a topic with these settings."""
        needs_keys = "compact" in config.cleanup_policy
        recompression = Recompression.of(config)
        return ValidationRules(
            config.max_message_bytes,
            config.message_timestamp_before_max_ms,
            config.message_timestamp_after_max_ms,
            config.message_timestamp_type == "LogAppendTime",
            needs_keys,
            recompression,
            needs_keys or config.message_timestamp_before_max_ms < LONG_MAX or recompression is not None,
        )

    def check(
        self,
        batch: memoryview,
        attributes: int,
        last_offset_delta: int,
        count: int,
        producer_id: int,
        now_ms: int,
    ) -> memoryview | None:
        """Check a batch that is not plain; return it with its topic's codec if it has another, else None."""
        if attributes & CONTROL_BIT:
            raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control records")
        if attributes & TRANSACTIONAL_BIT and producer_id < 0:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "a transactional batch without a producer id")
        if count <= 0 or count != last_offset_delta + 1:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"{count} records, but offsets for {last_offset_delta + 1}")
        codec = attributes & CODEC_MASK
        if count >= len(batch) or codec > CODEC_MAX or self.needs_keys or self.before_max_ms < LONG_MAX:
            self._check_records(batch, now_ms)
        recompression = self.recompression
        return None if recompression is None or codec == recompression.codec else recompression.on_loop(batch)

    def _check_records(self, batch: memoryview, now_ms: int) -> None:
        records = decode(batch)
        if self.needs_keys:
            _check_keys(records)
        if not self.log_append_time:
            invalid = self.invalid_timestamps(records, now_ms)
            if invalid.record_errors:
                raise invalid

    def invalid_timestamps(self, records: Sequence[Record], now_ms: int) -> InvalidRecordsError:
        """The records whose timestamp is too far from now."""
        first_ms, last_ms = now_ms - self.before_max_ms, now_ms + self.after_max_ms
        errors = [
            (position, f"timestamp {record.timestamp} is not within [{first_ms}, {last_ms}]")
            for position, record in enumerate(records)
            if not first_ms <= record.timestamp <= last_ms
        ]
        return InvalidRecordsError(ErrorCode.INVALID_TIMESTAMP, "timestamps too far from now", errors)

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


def _check_keys(records: Sequence[Record]) -> None:
    why = "a compacted topic needs a key"
    keyless = [(position, why) for position, record in enumerate(records) if record.key is None]
    if keyless:
        raise InvalidRecordsError(ErrorCode.INVALID_RECORD, "records without a key", keyless)


def not_appendable(topic: str, internal: bool, size: int) -> KafkaError:
    """A topic that clients may not write to, or bytes that are too few for a batch."""
    if internal:
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}")
    return KafkaError(ErrorCode.INVALID_RECORD, f"{size} bytes are no record batch; a Produce must carry one")

"""Why a batch may not enter a log, or records not be deleted, said as Kafka does.

The checks themselves are in the partition, those of batches in its hot path.
"""

from collections.abc import Sequence

from levada.errors import ErrorCode, KafkaError
from levada.wire.batches import LOG_OVERHEAD, MAGIC, Record


class RefusedRecordsError(KafkaError):
    """A batch refused for some of its records, which are told one by one as Kafka does: (position, why)."""

    def __init__(self, code: ErrorCode, detail: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, detail)
        self.record_errors = record_errors


def misplaced(topic: str, internal: bool, size: int) -> KafkaError:
    """Bytes that are no batch, or that clients may not write here."""
    if internal:
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}")
    return KafkaError(ErrorCode.INVALID_RECORD, f"{size} bytes are no record batch; a Produce must carry one")


def check_deletable(topic: str, internal: bool, cleanup_policy: Sequence[str]) -> None:
    """What coordinators wrote is not for clients to delete, and keys of a compacted log go by tombstones."""
    if internal:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}"
        )
    if "delete" not in cleanup_policy:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"the cleanup.policy of {topic} does not allow records to be deleted"
        )


def misshapen(topic: str, length: int, magic: int, size: int, size_max: int) -> KafkaError:
    """A batch of another version, or of another size than it says or than it may have."""
    if magic != MAGIC:
        return KafkaError(ErrorCode.INVALID_RECORD, f"a batch of magic {magic}; only 2 is accepted")
    if length + LOG_OVERHEAD < size:
        return KafkaError(ErrorCode.INVALID_RECORD, "a Produce may carry one batch for a partition only")
    if length + LOG_OVERHEAD > size:
        return KafkaError(ErrorCode.INVALID_RECORD, "the batch is shorter than it says")
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes; max.message.bytes of {topic} is {size_max}"
    )


def check_keys(records: Sequence[Record]) -> None:
    """A compacted topic needs a key in every record."""
    why = "a compacted topic needs a key"
    keyless = [(position, why) for position, record in enumerate(records) if record.key is None]
    if keyless:
        raise RefusedRecordsError(ErrorCode.INVALID_RECORD, "records without a key", keyless)


def untimely(records: Sequence[Record], first_ms: int, last_ms: int) -> RefusedRecordsError:
    """The records whose time is too far ahead or behind."""
    errors = [
        (position, f"timestamp {record.timestamp} is not within [{first_ms}, {last_ms}]")
        for position, record in enumerate(records)
        if not first_ms <= record.timestamp <= last_ms
    ]
    return RefusedRecordsError(ErrorCode.INVALID_TIMESTAMP, "timestamps too far from now", errors)

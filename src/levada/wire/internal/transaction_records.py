"""Declares the records of `__transaction_state`: each holds the whole state of a transactional id.

Values are written in the flexible version 1, as Kafka does since transaction version 1. The last producer epoch, which
Kafka keeps in memory only, is a tagged field that Kafka skips: so the coordinator recognises a producer that retries
InitProducerId after a restart of the coordinator.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from levada.wire.internal.record_types import (
    COMPACT_STRING,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    RecordFormat,
    RecordType,
    Tag,
    array,
    compact_array,
    struct,
)

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
LAST_EPOCH_TAG: Final = 10_000  # Levada's own, far above the tags that Kafka may add


class Status(IntEnum):
    """The states of a transaction, with their ids in Kafka's transaction log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        """The state's name in responses, such as PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class TransactionLogKey(NamedTuple):
    """A transactional id."""

    transactional_id: str


class TopicPartitions(NamedTuple):
    """Partitions of one topic in a transaction."""

    topic: str
    partition_ids: tuple[int, ...]


class TransactionLogValue(NamedTuple):
    """The state of a transactional id."""

    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_status: int
    transaction_partitions: tuple[TopicPartitions, ...] | None
    transaction_last_update_timestamp_ms: int
    transaction_start_timestamp_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_transaction_version: int = 0
    next_producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH


_FIELDS = {
    "producer_id": INT64,
    "producer_epoch": INT16,
    "transaction_timeout_ms": INT32,
    "transaction_status": INT8,
    "transaction_partitions": array(
        struct(TopicPartitions, {"topic": STRING, "partition_ids": array(INT32)}), null=True
    ),
    "transaction_last_update_timestamp_ms": INT64,
    "transaction_start_timestamp_ms": INT64,
}
_COMPACT_PARTITIONS = compact_array(
    struct(TopicPartitions, {"topic": COMPACT_STRING, "partition_ids": compact_array(INT32)}, flexible=True),
    null=True,
)
_TAGS = {
    0: Tag("previous_producer_id", INT64, NO_PRODUCER_ID),
    1: Tag("next_producer_id", INT64, NO_PRODUCER_ID),
    2: Tag("client_transaction_version", INT16, 0),
    3: Tag("next_producer_epoch", INT16, NO_EPOCH),
    LAST_EPOCH_TAG: Tag("last_producer_epoch", INT16, NO_EPOCH),
}

TRANSACTION: Final = RecordType(
    0,
    TransactionLogKey,
    struct(TransactionLogKey, {"transactional_id": STRING}),
    {
        0: struct(TransactionLogValue, _FIELDS),
        1: struct(
            TransactionLogValue,
            {**_FIELDS, "transaction_partitions": _COMPACT_PARTITIONS},
            flexible=True,
            tags=_TAGS,
        ),
    },
    write_version=1,
)
TRANSACTIONS: Final[RecordFormat[TransactionLogKey]] = RecordFormat(TRANSACTION)

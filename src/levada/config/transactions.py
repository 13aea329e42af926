"""Declares the settings of the transaction coordinator, under Kafka's names.

Defaults are Kafka's, except that the replication factor and min ISR are 1: a single broker must be able to create its
internal topics.
"""

from dataclasses import dataclass
from typing import Final

from levada.config.settings import Long, Short, setting

_MINUTE_MS: Final = 60_000
_WEEK_MS: Final = 7 * 24 * 60 * _MINUTE_MS


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TransactionSettings:
    """The transaction coordinator: the section `transactions` of `BrokerConfig`."""

    transaction_state_log_num_partitions: int = setting(50, "Partitions of __transaction_state.", minimum=1)
    transaction_state_log_replication_factor: Short = setting(1, "Replicas of __transaction_state.", minimum=1)
    transaction_state_log_min_isr: int = setting(1, "The min.insync.replicas of __transaction_state.", minimum=1)
    transaction_state_log_segment_bytes: int = setting(100 << 20, "Segment size of __transaction_state.", minimum=1)
    transaction_max_timeout_ms: int = setting(
        15 * _MINUTE_MS, "The greatest transaction timeout of a producer.", minimum=1
    )
    transactional_id_expiration_ms: int = setting(
        _WEEK_MS, "The idle time after which a transactional id expires.", minimum=1
    )
    transaction_partition_verification_enable: bool = setting(
        True,
        "Whether a partition verifies with the coordinator that it belongs to a transaction (KIP-890).",
        dynamic=True,
    )
    transaction_two_phase_commit_enable: bool = setting(
        True,
        "Whether producers can use two-phase commit (KIP-939), whose transactions wait for their owner. Kafka's "
        "default is false; the Spark sink requires it for exactly_once.",
    )
    levada_transaction_two_phase_commit_timeout_ms: Long = setting(
        _WEEK_MS,
        "The time after which a transaction of two-phase commit is aborted, unless its producer renews it: with "
        "InitProducerId that keeps it, or with a new partition. -1 for never, as in Kafka.",
        minimum=1,
        special=-1,
    )
    add_partitions_to_txn_retry_backoff_ms: int = setting(
        20, "The backoff of a Produce while the previous transaction is completing.", minimum=1
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = setting(
        100, "The longest such wait; then the client receives a retriable error.", minimum=0
    )

"""Settings of transactions, under Kafka's names with Kafka's defaults; `BrokerConfig` inherits them.

The replication factor and the in-sync replicas are 1 where Kafka has more, since a broker on its own must be able to
make its internal topics.
"""

from dataclasses import dataclass
from typing import Final

from levada.config.settings import Short, setting

_MINUTE_MS: Final = 60_000
_WEEK_MS: Final = 7 * 24 * 60 * _MINUTE_MS


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TransactionSettings:
    """How transactions are coordinated."""

    transaction_state_log_num_partitions: int = setting(50, "Partitions of __transaction_state.", minimum=1)
    transaction_state_log_replication_factor: Short = setting(
        1, "Replicas of __transaction_state.", minimum=1
    )
    transaction_state_log_min_isr: int = setting(
        1, "In-sync replicas that a write to __transaction_state needs.", minimum=1
    )
    transaction_state_log_segment_bytes: int = setting(
        100 << 20, "Segments of __transaction_state.", minimum=1
    )
    transaction_max_timeout_ms: int = setting(
        15 * _MINUTE_MS, "The longest time that a producer may ask for to keep a transaction open.", minimum=1
    )
    transactional_id_expiration_ms: int = setting(
        _WEEK_MS, "A transactional id that was not used for so long is forgotten.", minimum=1
    )
    transaction_partition_verification_enable: bool = setting(
        True,
        "Ask the coordinator whether a partition belongs to a transaction before a batch opens it there (KIP-890).",
        dynamic=True,
    )
    transaction_two_phase_commit_enable: bool = setting(
        True,
        "Let producers prepare transactions that only they may end (KIP-939); these never time out. Kafka's default is "
        "false; the Spark sink needs it for exactly_once.",
    )
    add_partitions_to_txn_retry_backoff_ms: int = setting(
        20, "How long a Produce waits between looks whether the transaction before has ended.", minimum=1
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = setting(
        100, "How long it waits for that at most; then its client has to ask again.", minimum=0
    )

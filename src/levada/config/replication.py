"""Declares the settings of replication, under Kafka's names and with Kafka's defaults."""

from dataclasses import dataclass
from typing import Final

from levada.config.settings import LONG_MAX, Long, setting

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReplicationSettings:
    """Replication: the section `replication` of `BrokerConfig`."""

    inter_broker_listener_name: str | None = setting(
        None, "The listener that other brokers connect to; the first one if it is not set."
    )
    num_replica_fetchers: int = setting(1, "Connections to each leader that partitions are spread over.", minimum=1)
    replica_lag_time_max_ms: Long = setting(
        30_000, "The time after which a follower that has not caught up leaves the ISR.", minimum=1
    )
    replica_fetch_wait_max_ms: int = setting(500, "How long a leader waits for new records.", minimum=1)
    replica_fetch_min_bytes: int = setting(1, "Bytes of new records that a leader waits for.", minimum=1)
    replica_fetch_max_bytes: int = setting(1 << 20, "Bytes of one partition that are fetched at a time.", minimum=0)
    replica_fetch_response_max_bytes: int = setting(10 << 20, "Bytes of the response to a follower.", minimum=0)
    replica_fetch_backoff_ms: int = setting(
        1000, "The longest backoff after a failed fetch; the first ones are shorter.", minimum=0
    )
    replica_socket_timeout_ms: int = setting(30_000, "The time after which a silent leader is disconnected.", minimum=1)
    replica_high_watermark_checkpoint_interval_ms: Long = setting(
        5_000, "The interval of high watermark checkpoints.", minimum=1
    )
    replica_selector_class: str | None = setting(
        None,
        "Which replica consumers read from: the leader if it is not set, else the closest one by client.rack and "
        "broker.rack (KIP-392).",
        choices=(RACK_AWARE_SELECTOR,),
    )
    leader_replication_throttled_rate: Long = setting(
        LONG_MAX,
        "Bytes a second that this broker sends to followers of leader.replication.throttled.replicas.",
        minimum=0,
        dynamic=True,
    )
    follower_replication_throttled_rate: Long = setting(
        LONG_MAX,
        "Bytes a second that this broker fetches for follower.replication.throttled.replicas.",
        minimum=0,
        dynamic=True,
    )

"""Declares the settings of a broker in its cluster: preferred leaders, and the moves of replicas."""

from dataclasses import dataclass

from levada.config.settings import Long, setting


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ClusterSettings:
    """What the controller does by itself: the section `cluster` of `BrokerConfig`."""

    auto_leader_rebalance_enable: bool = setting(
        True, "Whether the controller gives leaders back to preferred replicas."
    )
    leader_imbalance_check_interval_seconds: Long = setting(
        300, "The interval at which preferred leaders are balanced.", minimum=1
    )
    leader_imbalance_per_broker_percentage: int = setting(
        10, "Preferred leaders that a broker may lack before they are given back to it, in percent.", minimum=0
    )
    levada_auto_rebalance_enable: bool = setting(
        False, "Whether the controller moves replicas to brokers that have fewer, such as new ones.", dynamic=True
    )
    levada_broker_drain: bool = setting(
        False,
        "Set for one broker: whether the controller moves its leaders and replicas to other brokers, and new ones are "
        "placed elsewhere.",
        dynamic=True,
    )
    levada_reassignments_max: int = setting(
        20, "The largest number of partitions that the controller moves at once.", minimum=1, dynamic=True
    )

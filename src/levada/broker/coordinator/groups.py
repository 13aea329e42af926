"""The coordinators of groups: what the runtime needs to know of them, and what a deleted topic means to them."""

from typing import TYPE_CHECKING, Final

from levada.broker.coordinator.metrics import CountedGroups
from levada.broker.coordinator.runtime import Coordinators, InternalTopic
from levada.broker.coordinator.shard import Shard
from levada.config.groups import ASSIGNOR_CLASSES, ASSIGNORS, MINUTE_MS, GroupSettings
from levada.core.cluster.image import ClusterImage
from levada.core.groups.consumer.draft import ConsumerLimits
from levada.core.groups.group import GroupLimits
from levada.core.groups.machine import GroupsMachine

if TYPE_CHECKING:
    from levada.broker.broker import Broker

OFFSETS_TOPIC: Final = "__consumer_offsets"
GROUP_KEYS: Final = 0  # FindCoordinator's key type of groups

GroupCoordinators = Coordinators[GroupsMachine]


def group_coordinators(broker: "Broker") -> GroupCoordinators:
    """The coordinators of groups of a broker, following its image."""
    config = broker.config.groups
    topic = InternalTopic(
        OFFSETS_TOPIC,
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
    )
    limits, consumer_limits = _limits(config), _consumer_limits(config)

    def forget_gone_topics(shard: Shard[GroupsMachine]) -> None:
        topics = broker.image.topics
        shard.submit(
            lambda machine, _, handle: machine.on_topics_deleted(lambda name: name not in topics, handle)
        )

    def total_memory_bytes() -> int:
        return sum([shard.machine.memory_bytes for shard in coordinators if shard.machine is not None])

    def new_machine() -> GroupsMachine:
        machine = CountedGroups(
            limits,
            consumer_limits=consumer_limits,
            image=lambda: broker.image,
            total_memory_bytes=total_memory_bytes,
        )
        machine.figures = broker.coordination
        return machine

    coordinators = Coordinators(broker, topic, new_machine, forget_gone_topics)

    def follow(former: ClusterImage, image: ClusterImage) -> None:
        gone = {name for name, topic in former.topics.items() if image.topic_names.get(topic.id) != name}
        if gone:
            for shard in coordinators:
                if shard.machine is not None:
                    shard.submit(
                        lambda machine, _, handle: machine.on_topics_deleted(gone.__contains__, handle)
                    )

    broker.image_listeners.append(follow)
    return coordinators


def _limits(config: GroupSettings) -> GroupLimits:
    return GroupLimits(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * MINUTE_MS,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        members_bytes_max=config.levada_group_members_bytes_max,
    )


def _consumer_limits(config: GroupSettings) -> ConsumerLimits:
    policy = config.group_consumer_migration_policy
    assignors = config.group_consumer_assignors or ASSIGNORS
    return ConsumerLimits(
        session_timeout_ms=config.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        max_size=config.group_consumer_max_size,
        classic_max_size=config.group_max_size,
        assignors=tuple(ASSIGNOR_CLASSES.get(name, name) for name in assignors),
        upgrade=policy in ("bidirectional", "upgrade"),
        downgrade=policy in ("bidirectional", "downgrade"),
    )

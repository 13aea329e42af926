"""The group coordinators of a broker: the runtime of `__consumer_offsets`, its settings and its metrics."""

from time import thread_time
from typing import TYPE_CHECKING, Final

from levada.broker.coordinator.runtime import CoordinatorMetrics, CoordinatorRuntime, InternalTopic
from levada.broker.coordinator.shard import CoordinatorShard
from levada.config.groups import ASSIGNOR_CLASSES, ASSIGNORS, MINUTE_MS, GroupSettings
from levada.core.cluster.image import ClusterImage
from levada.core.groups.classic.group import ClassicGroup
from levada.core.groups.consumer.draft import ConsumerLimits, ConsumerRecord
from levada.core.groups.consumer.group import ConsumerGroup
from levada.core.groups.events import GroupChanged, GroupEvent, OffsetPut, VolatileEvent
from levada.core.groups.group import GroupLimits
from levada.core.groups.machine import GroupsMachine
from levada.logs import EventLog
from levada.wire.internal.consumer_group_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    MemberMetadataKey,
    MemberMetadataValue,
)

if TYPE_CHECKING:
    from levada.broker.broker import Broker

log = EventLog(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
GROUP_KEYS: Final = 0  # FindCoordinator's key type of groups

GroupCoordinators = CoordinatorRuntime[GroupsMachine]


class MeteredGroups(GroupsMachine):
    """A state machine of groups that counts its events and logs rebalances."""

    __slots__ = ("_changed", "metrics")
    metrics: CoordinatorMetrics
    _changed: MemberMetadataValue | None  # of the consumer group member that joined, changed or left last

    def apply(self, event: GroupEvent) -> None:
        if isinstance(event, OffsetPut):
            self.metrics.offsets_committed += event.value is not None
        elif isinstance(event, VolatileEvent):
            pass  # the most frequent events have no metric
        elif isinstance(event, GroupChanged):
            former = self.classic_group(event.group.id)
            if event.group.generation > (former.generation if former else 0):
                self.metrics.classic_rebalances += 1
                _log_generation(event.group)
        elif isinstance(event, ConsumerRecord):
            self._apply_record(event)
            return
        event.apply(self)

    def _apply_record(self, event: ConsumerRecord) -> None:
        key, value = event.key, event.value
        if isinstance(key, MemberMetadataKey):
            group = self.consumer_group(key.group_id)
            former = group.members.get(key.member_id) if group is not None else None
            known = None if former is None else former.metadata
            self._changed = value if isinstance(value, MemberMetadataValue) else known
        event.apply(self)
        if isinstance(key, ConsumerGroupMetadataKey) and isinstance(value, ConsumerGroupMetadataValue):
            self.metrics.consumer_rebalances += 1
            group = self.consumer_group(key.group_id)
            _log_epoch(key.group_id, value.epoch, len(group.members) if group else 0, self._changed)
            self._changed = None


def _log_generation(group: ClassicGroup) -> None:
    """Log that a generation begins, with its leader; a group that rebalances in a loop is rate-limited by the log."""
    leader = group.members.get(group.leader or "")
    client = {"client_id": leader.client_id, "address": leader.client_host} if leader else {}
    size = len(group.members)
    log.info("group rebalanced", group=group.id, protocol=group.kind, generation=group.generation, members=size,
             leader=group.leader or "", **client)  # fmt: skip


def _log_epoch(group_id: str, epoch: int, members: int, changed: MemberMetadataValue | None) -> None:
    """Log a new group epoch, with the member that caused it; without one, the subscribed topics have changed."""
    client = {"client_id": changed.client_id, "address": changed.client_host} if changed else {}
    kind = ConsumerGroup.kind
    log.info("group rebalanced", group=group_id, protocol=kind, group_epoch=epoch, members=members, **client)


def group_coordinators(broker: "Broker") -> GroupCoordinators:
    """Create the group coordinators of a broker."""
    config = broker.config.groups
    limits, consumer_limits = _limits(config), _consumer_limits(config)

    def remove_deleted_topics(shard: CoordinatorShard[GroupsMachine]) -> None:
        topics = broker.image.topics
        shard.submit(lambda machine, _, handle: machine.on_topics_deleted(lambda name: name not in topics, handle))

    def total_memory_bytes() -> int:
        return sum([shard.machine.memory_bytes for shard in coordinators if shard.machine is not None])

    def new_machine() -> GroupsMachine:
        machine = MeteredGroups(
            limits,
            consumer_limits=consumer_limits,
            image=lambda: broker.image,
            cpu_time=thread_time,
            total_memory_bytes=total_memory_bytes,
        )
        machine.metrics, machine._changed = broker.coordinator_metrics, None
        return machine

    coordinators = CoordinatorRuntime(broker, _offsets_topic(config), new_machine, remove_deleted_topics)

    def on_image(former: ClusterImage, image: ClusterImage) -> None:
        deleted = {name for name, topic in former.topics.items() if image.topic_names.get(topic.id) != name}
        if deleted:
            for shard in coordinators:
                if shard.machine is not None:
                    shard.submit(lambda machine, _, handle: machine.on_topics_deleted(deleted.__contains__, handle))

    broker.image_listeners.append(on_image)
    return coordinators


def _offsets_topic(config: GroupSettings) -> InternalTopic:
    return InternalTopic(
        OFFSETS_TOPIC,
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
    )


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

"""A shard with consumer groups: topics that are created, extended and deleted, and members that send heartbeats."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tests.support.classic_groups import World, header
from tests.support.clusters import topic_records

from levada.core.cluster.changes import TopicRemoved
from levada.core.cluster.image import ClusterImage, PartitionImage
from levada.core.groups.classic.group import ClassicGroup
from levada.core.groups.consumer import requests as consumer_requests
from levada.core.groups.consumer.assignors import Partitions
from levada.core.groups.consumer.draft import ConsumerLimits
from levada.core.groups.consumer.group import ConsumerGroup
from levada.core.groups.consumer.requests import HeartbeatRequest, HeartbeatResult
from levada.core.groups.machine import GroupsMachine
from levada.errors import ErrorCode, KafkaError
from levada.wire.internal.record_types import INT16, INT32, NULLABLE_BYTES, NULLABLE_STRING, STRING, array

ONE = PartitionImage((1,), (1,), 1)


def subscription(
    *topics: str, owned: Mapping[str, frozenset[int]] | None = None, version: int = 3, rack: str | None = None
) -> bytes:
    """The subscription of a classic member."""
    data = bytearray()
    INT16.write(data, version)
    array(STRING).write(data, topics)
    NULLABLE_BYTES.write(data, None)
    if version >= 1:
        INT32.write(data, len(owned or {}))
        for topic, partitions in (owned or {}).items():
            STRING.write(data, topic)
            array(INT32).write(data, sorted(partitions))
    if version >= 2:
        INT32.write(data, -1)
    if version >= 3:
        NULLABLE_STRING.write(data, rack)
    return bytes(data)


class ConsumerWorld(World):
    """One state machine with topics."""

    def __init__(self, consumer_limits: ConsumerLimits | None = None, **limits: Any) -> None:
        self.consumer_limits = consumer_limits or ConsumerLimits()
        self.image = ClusterImage()
        self._next_id = 1
        super().__init__(**limits)
        self.machine = self.new_machine()
        self._apply_outcome(self.machine.on_loaded(self.now_ms))

    def new_machine(self) -> GroupsMachine:
        return GroupsMachine(self.limits, consumer_limits=self.consumer_limits, image=lambda: self.image)

    def replayed(self) -> GroupsMachine:
        machine = self.new_machine()
        for (key, value), producer in self.journal:
            machine.replay(key, value, header(producer))
        return machine

    # Topics.

    def topic(self, name: str, partitions: int) -> UUID:
        """Create a topic, or add partitions."""
        former = self.image.topics.get(name)
        if former is None:
            self._next_id += 1
        topic_id = UUID(int=self._next_id) if former is None else former.id
        self.image = self.image.apply(topic_records(name, topic_id, (ONE,) * partitions))
        return topic_id

    def drop_topic(self, name: str) -> None:
        self.image = self.image.apply([TopicRemoved(name)])

    # Requests.

    def beat(self, member_id: str, epoch: int = 0, group: str = "g", **more: Any) -> int:
        fields: dict[str, Any] = {
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout_ms": -1,
            "topic_names": None,
            "topic_regex": None,
            "server_assignor": None,
            "owned": None,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            **more,
        }
        request = HeartbeatRequest(group, member_id, epoch, **fields)
        return self.submit(
            lambda machine, now_ms, handle: consumer_requests.heartbeat(machine, request, now_ms, handle)
        )

    def enter(self, member_id: str, *topics: str, **more: Any) -> HeartbeatResult:
        """A member joins."""
        fields = {"rebalance_timeout_ms": 60_000, "topic_names": topics, "owned": {}, **more}
        return self.received(self.beat(member_id, **fields))

    def stay(self, member_id: str, epoch: int, **more: Any) -> HeartbeatResult:
        return self.received(self.beat(member_id, epoch, **more))

    def refused(self, member_id: str, epoch: int = 0, **more: Any) -> ErrorCode:
        return self.error(self.beat(member_id, epoch, **more))

    def received(self, handle: int) -> HeartbeatResult:
        result = self.responses[handle]
        assert isinstance(result, HeartbeatResult), result
        return result

    # What is there.

    @property
    def consumers(self) -> ConsumerGroup:
        group = self.machine.groups["g"]
        assert isinstance(group, ConsumerGroup)
        return group

    @property
    def is_classic(self) -> bool:
        return isinstance(self.machine.groups.get("g"), ClassicGroup)

    def settle(self, *members: str, rounds: int = 12) -> None:
        """Let members do what they are told until nothing changes."""
        for _ in range(rounds):
            before = len(self.journal)
            for member_id in members:
                member = self.consumers.members[member_id]
                owned = {topic: frozenset(found) for topic, found in member.assigned.items()}
                self.stay(member_id, member.epoch, owned=owned)
            if len(self.journal) == before:
                return
        raise AssertionError("the group does not come to rest")

    def reads(self, member_id: str) -> dict[str, list[int]]:
        """What a member has, by topic."""
        names = self.image.topic_names
        assigned = self.consumers.members[member_id].assigned
        return {names.get(topic, str(topic)): sorted(found) for topic, found in assigned.items()}

    def error(self, handle: int) -> ErrorCode:
        result = self.responses[handle]
        if isinstance(result, KafkaError):
            return result.code
        return super().error(handle)


def parts(partitions: Partitions) -> set[tuple[UUID, int]]:
    return {(topic, partition) for topic, found in partitions.items() for partition in found}

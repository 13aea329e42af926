"""Deletes the topics and groups that a test has added to a broker, also groups that still have members.

A topic counts by its id: one that was deleted and created again is a new one. Internal topics stay, since creating them
costs more than a test.
"""

from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from levada.broker.broker import Broker
from levada.broker.coordinator.shard import CoordinatorShard
from levada.core.cluster.controller import DeleteTopic
from levada.core.cluster.topic_names import is_internal
from levada.core.groups.classic.group import ClassicGroup
from levada.core.groups.classic.requests import LeavingMember
from levada.core.groups.machine import GroupsMachine
from levada.core.machine import Outcome
from levada.errors import KafkaError


class TopicsAndGroups(NamedTuple):
    """What a broker has."""

    topics: frozenset[UUID]
    groups: frozenset[str]


def topics_and_groups(broker: Broker) -> TopicsAndGroups:
    """The topics and groups of now."""
    topics = frozenset(topic.id for name, topic in broker.image.topics.items() if not is_internal(name))
    machines = [shard.machine for shard in broker.groups if shard.machine is not None]
    return TopicsAndGroups(topics, frozenset(group_id for machine in machines for group_id in machine.groups))


async def delete_added(broker: Broker, before: TopicsAndGroups) -> None:
    """Delete the topics and groups that were not there before."""
    now = topics_and_groups(broker)
    for group_id in now.groups - before.groups:
        await _delete_group(broker.groups.shard(group_id), group_id)
    for topic_id in now.topics - before.topics:
        with suppress(KafkaError):  # a client has deleted it meanwhile
            await broker.controller.submit(DeleteTopic(topic_id))


async def _delete_group(shard: CoordinatorShard[GroupsMachine], group_id: str) -> None:
    """Remove the members, whose pending requests are answered, then the group; nothing comes between."""
    group = shard.ready.groups[group_id]
    pending = group.pending_members if isinstance(group, ClassicGroup) else ()
    leaving = [LeavingMember(member_id) for member_id in (*group.members, *pending)]
    shard.submit(lambda machine, now_ms, handle: machine.leave(group_id, leaving, now_ms, handle))
    with suppress(KafkaError):  # the group has ended with its last member
        await shard.submit(lambda machine, _, handle: Outcome(machine.delete_group(group_id), [(handle, None)]))

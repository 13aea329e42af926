"""Invariants of groups at any time, by the assignments that members got and report.

A partition has one owner at most, a member that lost it commits nothing more,
offsets in use are not removed, and the journal alone gives the state.
"""

from typing import TYPE_CHECKING, Any

from tests.sim.groups.offset_model import Key, offsets_of
from tests.sim.seeds import Invariant, Violation

from levada.core.groups.classic.group import ClassicGroup, State
from levada.core.groups.consumer.group import ConsumerGroup, GroupState
from levada.core.groups.machine import GroupsMachine
from levada.core.groups.offsets import CommitRequest
from levada.model import TopicPartitionKey

if TYPE_CHECKING:
    from tests.sim.groups.world import GroupWorld

RETENTION_MS = 60_000


class GroupChecks:
    """What members were told, and what follows from it."""

    def __init__(self, world: "GroupWorld") -> None:
        self.world = world
        self.owners: dict[Key, str] = {}  # to whom a partition was given last
        self.by_generation: dict[tuple[int, TopicPartitionKey], tuple[str, str | None]] = {}
        self.generation = 0
        self.generation_before = 0  # of a group that was deleted; one of its name counts from the start again

    # Responses.

    def assigned(
        self,
        group: str,
        member_id: str,
        instance_id: str | None,
        generation: int | None,
        topic_partitions: set[TopicPartitionKey],
    ) -> None:
        """A member's assignment leaves the coordinator: in a generation a partition has one owner."""
        for topic_partition in topic_partitions:
            self.owners[group, topic_partition] = member_id
        if generation is None or not isinstance(self.group(), ClassicGroup):
            return
        for topic_partition in topic_partitions:
            owner, static = self.by_generation.setdefault((generation, topic_partition), (member_id, instance_id))
            if owner != member_id and (static is None or static != instance_id):
                raise Violation(
                    Invariant.ONE_OWNER,
                    f"{topic_partition} of generation {generation} belongs to {owner} and {member_id}",
                )

    def commit_was_taken(self, request: CommitRequest, member_id: str) -> None:
        """No offset is put back by a member that has lost the partition."""
        if not member_id or request.generation <= self.generation_before:
            return
        for topic_partition, _ in request.offsets:
            owner = self.owners.get((request.group_id, topic_partition))
            if owner != member_id:
                raise Violation(
                    Invariant.COMMITS_OF_OWNERS,
                    f"{member_id}@{request.generation} committed {topic_partition}, which {owner} has",
                )

    def group(self) -> Any:
        machine = self.world.known
        return None if machine is None else machine.groups.get(self.world.group)

    # After every event.

    def look(self, machine: GroupsMachine) -> None:
        """Of the members that the group would listen to, no two read the same."""
        group = machine.groups.get(self.world.group)
        generation = 0
        if isinstance(group, ClassicGroup | ConsumerGroup):
            generation = group.generation if isinstance(group, ClassicGroup) else group.epoch
        if generation < self.generation:
            self.by_generation.clear()
            self.generation_before = max(self.generation_before, self.generation)
        self.generation = generation
        if group is None:
            return
        readers: dict[TopicPartitionKey, Any] = {}
        for member in self.world.members:
            if member.reads and member.is_member(group):
                for topic_partition in member.reads:
                    other = readers.setdefault(topic_partition, member)
                    if other is not member:
                        raise Violation(
                            Invariant.ONE_OWNER, f"{topic_partition} is read by {other} and {member}: {group}"
                        )

    def may_go(self, key: Key) -> bool:
        """Whether an offset may have been removed: it is old, and nobody is there to read on from it."""
        group_id, (topic, _) = key
        if topic not in self.world.image.topics:
            return True
        machine = self.world.known
        shard = self.world.broker.groups.shard_of_partition(0)
        machine = machine or (None if shard is None else shard.machine)
        assert machine is not None
        group: Any = machine.groups.get(group_id)
        in_use = group is not None and any(
            member.member_id in group.members and (topic in member.topics or not member.topics)
            for member in self.world.members
            if group_id == member.group and not group.is_empty
        )
        committed_ms = self.world.commit_times.get(self.world.model.offset(key), 0)
        return not in_use and committed_ms + RETENTION_MS <= self.world.clock.ms

    # The end.

    def at_rest(self, machine: GroupsMachine) -> bool:
        return not self.unrest(machine)

    def unrest(self, machine: GroupsMachine | None) -> str:
        """Why the group is not at rest, if so."""
        world = self.world
        if machine is None:
            return "the coordinator is not there"
        group = machine.groups.get(world.group)
        if group is None or group.state not in (State.STABLE, GroupState.STABLE):
            return f"{group}"
        members = [member for member in world.members if member.settled and member.is_member(group)]
        if len(members) < len(world.members):
            return f"only {members} of {world.members} are settled in {group}"
        read = sorted(topic_partition for member in members for topic_partition in member.reads)
        if read != sorted(world.topic_partitions()):
            return f"{read} are read, {sorted(world.topic_partitions())} are there: {group}"
        assert isinstance(group, ClassicGroup | ConsumerGroup)
        return "" if len(group.members) == len(members) else f"there are others in {group}"

    def journal(self) -> None:
        """Replaying it gives the state."""
        world = self.world
        world.settle()
        shard = world.broker.groups.shard_of_partition(0)
        assert shard is not None and shard.machine is not None
        live = shard.machine
        replayed = shard._new_machine()
        for entry in shard._journal.replay():
            replayed.replay(entry.key, entry.value, entry.batch)
        if offsets_of(replayed) != offsets_of(live):
            raise Violation(Invariant.JOURNAL_REPLAY, f"replayed {offsets_of(replayed)}, but is {offsets_of(live)}")
        if durable(replayed) != durable(live):
            raise Violation(Invariant.JOURNAL_REPLAY, f"replayed {durable(replayed)}, but is {durable(live)}")


def durable(machine: GroupsMachine) -> dict[str, Any]:
    """What of the groups is in the journal."""
    found: dict[str, Any] = {}
    for group_id, group in machine.groups.items():
        if isinstance(group, ConsumerGroup):
            found[group_id] = group
        elif isinstance(group, ClassicGroup):
            found[group_id] = group.record() if group.state in (State.STABLE, State.EMPTY) else None
    return found

"""OffsetCommit as consumers usually send it, straight from the frame to the coordinator.

Whatever is not usual is left to `levada.api.offset_commits`, and so is whatever would be refused: the machine has
changed nothing then, and decides once more on the same request in its general shape.
"""

from typing import Any

from levada.api.offset_commits import known_topic
from levada.api.registry import takes_frames
from levada.broker.broker import Broker
from levada.broker.waiting import Answer
from levada.core.groups import GroupsMachine
from levada.core.machines import Outcome, Ticket
from levada.core.offsets import CommitRequest
from levada.errors import KafkaError
from levada.net.listener import Connection
from levada.wire import offset_commit
from levada.wire.journal import OffsetValue
from levada.wire.offset_commit import Head, Partition


@takes_frames("offset_commit", versions=offset_commit.VERSIONS)
def usual_commit(
    broker: Broker,
    connection: Connection,
    view: memoryview,
    position: int,
    stop: int,
    version: int,
    correlation_id: int,
) -> bool:
    """Commit offsets of one topic; False if this is another kind of commit."""
    usual = offset_commit.read(view, position, stop, version)
    if usual is None:
        return False
    head, partitions = usual
    topic, count, _ = known_topic(broker.image, head.topic, head.topic_id)
    for partition in partitions:
        if not 0 <= partition[0] < count:
            return False
    commit = UsualCommit(connection, correlation_id, version, topic, head, partitions)
    try:
        broker.groups.shard(head.group_id).ask(commit.decide, commit)
    except KafkaError:
        return False
    connection.reply(commit)
    return True


class UsualCommit(Answer):
    """A commit in its connection's outbox, until the coordinator's journal has it."""

    __slots__ = ("_correlation_id", "_head", "_partitions", "_topic", "_version")

    def __init__(
        self,
        client: Connection,
        correlation_id: int,
        version: int,
        topic: str,
        head: Head,
        partitions: list[Partition],
    ) -> None:
        self._client, self._reply = client, None  # as `Answer` does, without the time of a call
        self._correlation_id = correlation_id
        self._version = version
        self._topic = topic
        self._head = head
        self._partitions = partitions

    def decide(self, machine: GroupsMachine, now_ms: int, ticket: Ticket) -> Outcome:
        """What the coordinator is asked."""
        topic = self._topic
        group_id, generation, member_id, instance_id, _, _, _ = self._head
        offsets = []
        for index, offset, leader_epoch, _, _ in self._partitions:
            offsets.append(((topic, index), OffsetValue(offset, leader_epoch, "", now_ms)))
        no_producer = no_epoch = -1
        request = CommitRequest(
            group_id, member_id, instance_id, generation, offsets, no_producer, no_epoch, self._version
        )
        return machine.commit(request, now_ms, ticket)

    def give(self, result: Any) -> None:
        """The codes of the partitions, or the error of all."""
        partitions = self._partitions
        codes = [result.code] * len(partitions) if isinstance(result, KafkaError) else result
        super().give(offset_commit.write_answer(self._correlation_id, self._head, partitions, codes))

"""OffsetCommit as consumers usually send it, straight from the frame to the coordinator.

Whatever is not usual is left to `levada.api.offset_commits`, and so is whatever would be refused: the machine has
changed nothing then, and decides once more on the same request in its general shape.
"""

from typing import Any

from levada.api.fast.request import FastPathRequest
from levada.api.offset_commits import known_topic
from levada.api.registry import FastPath, fast_path
from levada.broker.broker import Broker
from levada.core.groups.machine import GroupsMachine
from levada.core.groups.offsets import CommitRequest
from levada.core.machine import Outcome, ResponseHandle
from levada.errors import KafkaError
from levada.net.connection import Connection
from levada.wire.fast import offset_commit
from levada.wire.fast.offset_commit import Head, Partition
from levada.wire.internal.group_records import OffsetCommitValue


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
    return UsualCommit(connection, correlation_id, version, topic, head, partitions).submit(broker)


@fast_path("offset_commit", versions=offset_commit.VERSIONS)
def commit_fast_path() -> FastPath:
    """Offsets of one topic."""
    return usual_commit


class UsualCommit(FastPathRequest):
    """Offsets of one topic, by a member or by a client that only keeps them here."""

    __slots__ = ("_partitions", "_topic")

    def __init__(
        self,
        connection: Connection,
        correlation_id: int,
        version: int,
        topic: str,
        head: Head,
        partitions: list[Partition],
    ) -> None:
        super().__init__(connection, correlation_id, version, head, head.generation)
        self._topic = topic
        self._partitions = partitions

    def decide(self, machine: GroupsMachine, now_ms: int, handle: ResponseHandle) -> Outcome:
        topic = self._topic
        group_id, generation, member_id, instance_id, _, _, _ = self.request
        offsets = []
        for index, offset, leader_epoch, _, _ in self._partitions:
            offsets.append(((topic, index), OffsetCommitValue(offset, leader_epoch, "", now_ms)))
        no_producer = no_epoch = -1
        request = CommitRequest(
            group_id, member_id, instance_id, generation, offsets, no_producer, no_epoch, self._version
        )
        return machine.commit(request, now_ms, handle)

    def complete(self, result: Any) -> None:
        """Send at the flush, with all commits of this loop iteration: one by one, the next would come one by one."""
        self.result = result
        self.connection.wake()

    def encode(self, result: Any) -> bytes:
        """The codes of the partitions, or the error of all."""
        partitions = self._partitions
        codes = [result.code] * len(partitions) if isinstance(result, KafkaError) else result
        return offset_commit.write_answer(self._correlation_id, self.request, partitions, codes)

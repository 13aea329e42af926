"""The fast path of OffsetCommit: offsets of one topic without metadata, from the frame to the coordinator.

Other commits are left to `levada.api.coordinator.offset_commits`, and so are those that the coordinator rejects: it has
changed nothing then, and decides again on the decoded request.
"""

from typing import Any

from levada.api.coordinator.offset_commits import known_topic
from levada.api.fast.request import FastPathRequest
from levada.api.registry import FastPath, fast_path
from levada.broker.broker import Broker
from levada.core.groups.machine import GroupsMachine
from levada.core.groups.offsets import CommitRequest
from levada.core.machine import Outcome, ResponseHandle
from levada.errors import KafkaError
from levada.net.connection import Connection
from levada.wire.fast import offset_commit
from levada.wire.fast.offset_commit import CommitPrefix, Partition
from levada.wire.internal.group_records import OffsetCommitValue
from levada.wire.schema import messages

OFFSET_COMMIT = messages.api_key("offset_commit")


@fast_path("offset_commit", offset_commit.VERSIONS)
def offset_commit_fast_path() -> FastPath:
    """Takes commits of offsets of one existing topic."""
    cache = offset_commit.commit_cache()

    def commit(
        broker: Broker,
        connection: Connection,
        view: memoryview,
        position: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        decoded = offset_commit.read(cache, view, position, stop, version)
        if decoded is None:
            return False
        prefix, partitions = decoded
        topic, count, _ = known_topic(broker.image, prefix.topic, prefix.topic_id)
        for partition in partitions:
            if not 0 <= partition[0] < count:
                return False
        return FastCommit(connection, correlation_id, version, topic, prefix, partitions).submit(broker)

    return commit


class FastCommit(FastPathRequest):
    """An OffsetCommit of offsets of one topic, by a member or by a client that is not one."""

    __slots__ = ("_partitions", "_topic")
    api_key = OFFSET_COMMIT

    def __init__(
        self,
        connection: Connection,
        correlation_id: int,
        version: int,
        topic: str,
        prefix: CommitPrefix,
        partitions: list[Partition],
    ) -> None:
        super().__init__(None, connection, correlation_id, version, prefix, prefix.generation)
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

    def _wait(self) -> None:
        """The flush of this loop iteration commits its records, as a rule: it stays counted."""
        self._began = self._metrics.flush_queue.began

    def complete(self, result: Any) -> None:
        """Send at the flush, with all commits of this loop iteration: so clients send the next ones together too."""
        if self._began and self._began is not self._metrics.flush_queue.began:
            self._metrics.late(OFFSET_COMMIT, self._began)
        self.result = result
        self.connection.wake()

    def encode(self, result: Any) -> bytes:
        partitions = self._partitions
        codes = [result.code] * len(partitions) if isinstance(result, KafkaError) else result
        for code in filter(None, codes):
            self._metrics.error(OFFSET_COMMIT, code)
        return offset_commit.write_response(self._correlation_id, self.request, partitions, codes)

"""Finds the partitions that this broker leads, as Produce and Fetch name them."""

from collections.abc import Callable
from uuid import UUID

from levada.broker.partition.partition import Partition
from levada.errors import ErrorCode, KafkaError
from levada.wire.fast.produce import TOPIC_IDS_FROM


class PartitionRoutes:
    """The open partitions by the topic's name and, for newer versions, by its id."""

    __slots__ = ("_by_id", "_by_name", "_not_served")

    def __init__(self, not_served: Callable[[str, int], KafkaError]) -> None:
        self._not_served = not_served  # the error of a partition that exists but is not open here
        self._by_name: dict[bytes, tuple[str, list[Partition | None]]] = {}
        self._by_id: dict[bytes, tuple[str, list[Partition | None]]] = {}

    def find(self, topic: bytes, index: int, version: int) -> Partition:
        """The open partition; raises KafkaError."""
        found = (self._by_id if version >= TOPIC_IDS_FROM else self._by_name).get(topic)
        if found is not None:
            name, partitions = found
            if 0 <= index < len(partitions):
                partition = partitions[index]
                if partition is not None:
                    return partition
                raise self._not_served(name, index)
        elif version >= TOPIC_IDS_FROM:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic or partition")

    def set(self, topic: str, topic_id: UUID, partitions: list[Partition | None]) -> None:
        """Replace the partitions of a topic; None stands for one that is not open here."""
        self._by_name[topic.encode()] = self._by_id[topic_id.bytes] = (topic, partitions)

    def serve(self, partition: Partition) -> None:
        """Add a partition that is open now to its topic."""
        self._by_id[partition.topic_id.bytes][1][partition.index] = partition

    def remove(self, topic: str, topic_id: UUID) -> None:
        self._by_name.pop(topic.encode(), None)
        self._by_id.pop(topic_id.bytes, None)

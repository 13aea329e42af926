"""A topic in the cluster image, assembled from its records: one for the topic, one for each partition.

A topic exists while its record does and all its partition records belong to it. Partition records without such a topic
are detached: a topic that is being created in several commits, or the remains of a deleted one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from levada.model import NO_LEADER

UNASSIGNED: Final = UUID(int=0)  # Kafka's directory id of a replica whose log has not been created
NO_BROKER_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """The replicas of a partition. Each new leader increments `leader_epoch`, each change `partition_epoch`.

    A broker leads while it is `leader` and its own broker epoch is `leader_broker_epoch`: a broker that restarted has a
    newer one, and waits for the controller to elect it again.
    """

    replicas: tuple[int, ...]  # the preferred leader first; during a reassignment the removed ones last
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    # The id of the log dir of each replica (KIP-858); empty in records of versions that did not assign any.
    directories: tuple[UUID, ...] = ()
    isr_epochs: tuple[int, ...] = ()  # the broker epoch in which each member of the ISR joined it (KIP-903)
    adding_replicas: tuple[int, ...] = ()  # of a reassignment in progress; part of `replicas`
    removing_replicas: tuple[int, ...] = ()

    def directory_of(self, broker: int) -> UUID | None:
        """Return the log dir that holds the replica of a broker; None if an older version did not record it."""
        return self.directories[self.replicas.index(broker)] if self.directories else None

    def isr_epoch(self, broker: int) -> int:
        """Return the broker epoch in which a broker joined the ISR; NO_BROKER_EPOCH if it is not a member."""
        if broker not in self.isr or not self.isr_epochs:
            return NO_BROKER_EPOCH
        return self.isr_epochs[self.isr.index(broker)]

    @property
    def leader_broker_epoch(self) -> int:
        """The broker epoch in which the leader was elected; NO_BROKER_EPOCH without a leader."""
        return self.isr_epoch(self.leader)

    @property
    def is_reassigning(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding_replicas or self.removing_replicas)


class Creation(NamedTuple):
    """Partitions that a broker is creating in several commits; it is abandoned when that broker epoch has ended."""

    partitions: int  # how many the topic will have
    broker: int
    broker_epoch: int


class TopicRecord(NamedTuple):
    """What the record of a topic contains. A topic with no partitions does not exist yet."""

    id: UUID
    partitions: int
    creation: Creation | None = None


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic. Its id is never reused, its name can be."""

    name: str
    id: UUID
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str] = field(default_factory=dict)  # only its overrides
    creation: Creation | None = None  # of more partitions

    @property
    def record(self) -> TopicRecord:
        """The record of the topic itself."""
        return TopicRecord(self.id, len(self.partitions), self.creation)


PartitionRecords: TypeAlias = Mapping[int, tuple[UUID, PartitionImage]]  # with topic ids, by partition


class DetachedRecords(NamedTuple):
    """Records of a topic name that are not part of a topic that exists."""

    record: TopicRecord | None  # of the topic that is being created
    partitions: PartitionRecords


NO_RECORDS: Final = DetachedRecords(None, {})


class TopicAssembly:
    """The records of one topic name while they change.

    Changes of partitions that exist replace items of a list: the cost of one does not depend on the number of
    partitions. All others assemble the topic anew.
    """

    __slots__ = ("_name", "_partitions", "_record", "_records", "_topic")

    def __init__(self, name: str, topic: TopicImage | None, detached: DetachedRecords = NO_RECORDS) -> None:
        self._name = name
        self._topic = topic
        self._record = detached.record if topic is None else topic.record
        self._partitions = None if topic is None else list(topic.partitions)  # None: `_records` has them all
        self._records = dict(detached.partitions)

    def set_record(self, record: TopicRecord | None) -> None:
        """Apply a change of the topic's record; None deletes it."""
        self._take_apart()
        self._record = record

    def set_partition(self, index: int, topic_id: UUID, partition: PartitionImage) -> None:
        """Apply a change of a partition record."""
        existing = self._partitions
        if existing is not None and self._record is not None and self._record.id == topic_id and index < len(existing):
            existing[index] = partition
        else:
            self._take_apart()
            self._records[index] = topic_id, partition

    def remove_partition(self, index: int) -> None:
        """Apply the deletion of a partition record."""
        self._take_apart()
        self._records.pop(index, None)

    def _take_apart(self) -> None:
        if self._partitions is not None:
            assert self._record is not None
            topic_id = self._record.id
            self._records |= {index: (topic_id, partition) for index, partition in enumerate(self._partitions)}
            self._partitions = None

    def assembled(self, configs: Mapping[str, str]) -> tuple[TopicImage | None, DetachedRecords]:
        """Return the topic, if it exists, and the detached records of its name."""
        record = self._record
        if self._partitions is None and record is not None and record.partitions > 0:
            attached = [self._records.get(index) for index in range(record.partitions)]
            if all(found is not None and found[0] == record.id for found in attached):
                self._partitions = [found[1] for found in attached if found is not None]
                self._records = {index: one for index, one in self._records.items() if index >= record.partitions}
        if self._partitions is None or record is None:
            return None, DetachedRecords(record, self._records)
        topic = self._topic
        if topic is None or topic.record != record:
            topic = TopicImage(self._name, record.id, tuple(self._partitions), configs, record.creation)
        else:
            topic = replace(topic, partitions=tuple(self._partitions), configs=configs)
        return topic, DetachedRecords(None, self._records)

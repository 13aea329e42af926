"""The controller's duties: the changes that nobody requests, decided from the image alone.

`duties` is level-triggered: it compares the image with what it should be, and depends on no event. When its changes are
applied it has none left. The broker with the lease `/controller` calls it after every change of the image. It:

- elects leaders when brokers stop, return or restart, and shrinks ISRs with them;
- moves leaders away from brokers in controlled shutdown or draining;
- completes reassignments, and begins those that drain a broker or balance replicas;
- gives leaders back to preferred replicas;
- removes records of deleted topics and abandoned creations.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from levada.core.cluster.changes import (
    BrokerUnchanged,
    Change,
    Check,
    ControllerUnchanged,
    PartitionChanged,
    PartitionRemoved,
    TopicUnchanged,
)
from levada.core.cluster.election import BrokerStates, elect, elect_preferred
from levada.core.cluster.image import ClusterImage
from levada.core.cluster.placement import takes_replicas
from levada.core.cluster.reassignment import begun, completed, target_of
from levada.core.cluster.rebalance import rebalance
from levada.core.cluster.topic_image import DetachedRecords, PartitionImage, TopicImage
from levada.core.cluster.topic_names import is_internal
from levada.core.cluster.topics import abandoned
from levada.model import TopicPartition

UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
NOTHING_EXAMINED: Final = ClusterImage()


@dataclass(frozen=True, slots=True)
class DutySettings:
    """The settings of the duties."""

    unclean_leader_election: bool = False  # of topics without their own
    leader_imbalance_percentage: int = 10  # of a broker's preferred leaders, from which they are given back
    auto_rebalance: bool = False  # whether replicas are balanced over brokers
    reassignments_max: int = 20  # partitions in reassignments that duties have begun, at the same time


class _Partition(NamedTuple):
    """A partition, as it is."""

    topic: TopicImage
    number: int

    @property
    def state(self) -> PartitionImage:
        return self.topic.partitions[self.number]

    def changed(self, state: PartitionImage) -> Change:
        return PartitionChanged(self.topic.name, self.topic.id, self.number, state)


def duties(
    image: ClusterImage,
    settings: DutySettings,
    examined: ClusterImage = NOTHING_EXAMINED,
    *,
    balance_leaders: bool = False,
) -> list[Change]:
    """Return the changes of the duties, the most urgent first; any number of them may be committed at once.

    `examined` is an image without any: what has not changed since is not examined. `balance_leaders` is for calls at
    the interval of leader.imbalance.check.interval.seconds.
    """
    states = BrokerStates.of(image)
    urgent: list[Change] = []
    others: list[Change] = []
    for partition in _unsettled(image, examined, states):
        state, unclean = partition.state, _unclean(partition.topic, settings)
        wanted = completed(elect(state, states, unclean=unclean), states)
        if wanted is not state:
            is_urgent = wanted.leader_epoch != state.leader_epoch
            (urgent if is_urgent else others).append(partition.changed(wanted))
    changes = urgent + others
    changes += [change for name, records in image.detached.items() for change in _cleanup(image, name, records)]
    if not changes:
        changes += _moves(image, settings, states)
    if not changes and balance_leaders:
        changes += _preferred_leaders(image, settings, states)
    return changes


def checks(image: ClusterImage) -> list[Check]:
    """Return what every commit of duties checks: this is still the controller, and no broker has restarted."""
    return [ControllerUnchanged(), *map(BrokerUnchanged, sorted(image.registered))]


def _unclean(topic: TopicImage, settings: DutySettings) -> bool:
    own = topic.configs.get(UNCLEAN_ELECTION)
    return settings.unclean_leader_election if own is None else own.strip().lower() == "true"


def _unsettled(image: ClusterImage, examined: ClusterImage, states: BrokerStates) -> Iterator[_Partition]:
    """The partitions that may need a change, those of internal topics first."""
    same_brokers = image.registered == examined.registered and image.leases == examined.leases
    same_brokers = same_brokers and image.broker_configs is examined.broker_configs
    topics = sorted(image.topics.values(), key=lambda topic: not is_internal(topic.name))
    for topic in topics:
        former = examined.topics.get(topic.name)
        if same_brokers and former is topic:
            continue
        same_topic = same_brokers and former is not None and former.configs == topic.configs
        known: Sequence[PartitionImage] = former.partitions if former is not None and same_topic else ()
        for index, state in enumerate(topic.partitions):
            if index < len(known) and known[index] is state:
                continue
            if state.is_reassigning or not states.is_settled(state):
                yield _Partition(topic, index)


def _cleanup(image: ClusterImage, name: str, records: DetachedRecords) -> Iterable[Change]:
    """Remove an abandoned creation; then what belongs to no topic."""
    topic = image.topics.get(name)
    record = records.record if topic is None else topic.record
    expected = 0
    if record is not None:
        creation = record.creation
        if creation is not None and image.leases.get(creation.broker) != creation.broker_epoch:
            return abandoned(image, name)
        expected = max(record.partitions, creation.partitions if creation else 0)
    topic_id = record.id if record is not None else None
    removed = [
        PartitionRemoved(name, index)
        for index, (owner, _) in records.partitions.items()
        if owner != topic_id or index >= expected
    ]
    return [TopicUnchanged(name), *removed] if removed else []


def _moves(image: ClusterImage, settings: DutySettings, states: BrokerStates) -> list[Change]:
    """Begin reassignments that drain brokers or balance replicas, as many as may be in progress at once."""
    leaving = {broker for broker in image.registered if image.is_draining(broker)}
    if not leaving and not settings.auto_rebalance:
        return []
    partitions = {
        TopicPartition(topic.name, index): state
        for topic in image.topics.values()
        for index, state in enumerate(topic.partitions)
    }
    idle = {name: state for name, state in partitions.items() if not state.is_reassigning}
    moves = settings.reassignments_max - (len(partitions) - len(idle))
    if moves <= 0:
        return []
    targets = {name: target_of(state) for name, state in partitions.items()}
    racks = {broker.id: broker.rack for broker in takes_replicas(image).values()}
    plan = rebalance(targets, racks, leaving, moves_max=moves, evacuate_only=not settings.auto_rebalance)
    return [
        PartitionChanged(name.topic, image.topics[name.topic].id, name.partition, begun(idle[name], target, states))
        for name, target in plan.items()
        if name in idle
    ]


def _preferred_leaders(image: ClusterImage, settings: DutySettings, states: BrokerStates) -> list[Change]:
    """Elect the preferred replicas of brokers that lead too few of the partitions that prefer them."""
    preferred, elsewhere = Counter[int](), Counter[int]()
    candidates: list[tuple[int, _Partition]] = []
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            broker = state.replicas[0]
            preferred[broker] += 1
            if state.leader != broker:
                elsewhere[broker] += 1
                candidates.append((broker, _Partition(topic, index)))
    changes: list[Change] = []
    for broker, partition in candidates:
        if elsewhere[broker] * 100 > preferred[broker] * settings.leader_imbalance_percentage:
            elected = None if partition.state.is_reassigning else elect_preferred(partition.state, states)
            if elected is not None:
                changes.append(partition.changed(elected))
    return changes

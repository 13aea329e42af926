"""Places the replicas of new partitions on brokers, by the rules of Kafka.

Leaders go round robin over the brokers that take replicas, so that none leads more than one partition above another.
The brokers are arranged so that neighbours are in different racks. The followers of a partition are the next brokers,
at a distance that grows with every round, so that the partitions of a lost broker are led by many others. No rack has
a second replica of a partition while another rack has none. Brokers without a rack are in one rack, as in Kafka.

Brokers that are fenced, draining or in controlled shutdown take replicas only where the others are too few; none of
them becomes a leader.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Final, TypeAlias
from uuid import UUID

from levada.core.cluster.changes import BrokerImage
from levada.core.cluster.image import ClusterImage
from levada.errors import ErrorCode, KafkaError

# Kafka's limit of partitions that one request creates.
PARTITIONS_PER_REQUEST_MAX: Final = 10_000

# The replicas of each new partition, the preferred leader first.
Assignments: TypeAlias = Sequence[Sequence[int]]


def place(image: ClusterImage, topic_id: UUID, first: int, count: int, factor: int) -> Assignments:
    """Return the replicas of `count` partitions, of which `first` is the first; raise Kafka's errors."""
    _check_sizes(count, factor)
    takers, others = takes_replicas(image), image.registered
    if factor > len(others):
        raise _not_placed(
            factor,
            f"The target replication factor of {factor} cannot be reached because only {len(others)} broker(s) are "
            "registered.",
        )
    if not takers:
        raise _not_placed(factor, "All brokers are currently fenced, draining or in controlled shutdown.")
    arranged = _arranged({broker.id: broker.rack for broker in takers.values()})
    spare = sorted(others.keys() - takers.keys())
    racks = {broker.id: broker.rack for broker in others.values()}
    start = topic_id.int
    assignments = []
    for index in range(first, first + count):
        replicas = _replicas(arranged, racks, start + index, start + index // len(arranged), factor)
        missing = factor - len(replicas)
        assignments.append(replicas + [spare[(start + index + step) % len(spare)] for step in range(missing)])
    return assignments


def takes_replicas(image: ClusterImage) -> dict[int, BrokerImage]:
    """Return the brokers on which new replicas are placed."""
    return {
        broker.id: broker
        for broker in image.brokers.values()
        if not broker.shutting_down and not image.is_draining(broker.id)
    }


def check_assignments(image: ClusterImage, assignments: Assignments, replication_factor: int) -> None:
    """Check that all partitions of a manual assignment have as many replicas, each once and on a known broker."""
    for index, replicas in enumerate(assignments):
        check_replicas(image, replicas)
        if len(replicas) != replication_factor:
            why = f"includes a partition with {len(replicas)} replica(s), others have {replication_factor}"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {why}.")
        if not in_sync_when_created(image, replicas):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
                "controlled shutdown.",
            )


def check_replicas(image: ClusterImage, replicas: Sequence[int]) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless each replica of a manual assignment is on a broker of its own."""
    if not replicas:
        why = "includes an empty replica list"
    elif len(set(replicas)) < len(replicas):
        why = f"includes the broker {max(replicas, key=list(replicas).count)} more than once"
    else:
        unknown = [broker for broker in replicas if broker not in image.registered]
        if not unknown:
            return
        why = f"includes broker {unknown[0]}, but no such broker is registered"
    raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {why}.")


def in_sync_when_created(image: ClusterImage, replicas: Sequence[int]) -> list[int]:
    """Return the replicas of a new partition that are in its ISR: those whose brokers are alive."""
    alive = image.brokers
    return [replica for replica in replicas if replica in alive and not alive[replica].shutting_down]


def _check_sizes(count: int, factor: int) -> None:
    if factor < 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count < 1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    if count > PARTITIONS_PER_REQUEST_MAX:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _not_placed(factor: int, why: str) -> KafkaError:
    detail = f"Unable to replicate the partition {factor} time(s): {why}"
    return KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, detail)


def _arranged(racks: Mapping[int, str | None]) -> list[int]:
    """Brokers in an order in which racks alternate as long as they can."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker] or "", []).append(broker)
    columns = zip_longest(*[by_rack[rack] for rack in sorted(by_rack)])
    return [broker for column in columns for broker in column if broker is not None]


def _replicas(
    arranged: Sequence[int], racks: Mapping[int, str | None], leader: int, shift: int, factor: int
) -> list[int]:
    """The leader at its position, and the followers after it; fewer than `factor` if there are not as many brokers."""
    count = len(arranged)
    leader %= count
    replicas = [arranged[leader]]
    used = Counter([racks[arranged[leader]]])
    for limit in range(1, count + 1):  # replicas of one rack
        for step in range(count - 1):
            if len(replicas) == factor:
                return replicas
            broker = arranged[(leader + 1 + (shift + step) % (count - 1)) % count]
            if broker not in replicas and used[racks[broker]] < limit:
                replicas.append(broker)
                used[racks[broker]] += 1
    return replicas

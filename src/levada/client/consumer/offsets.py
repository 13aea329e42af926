"""Offsets that a group keeps at its coordinator: how they are committed and asked for, by members and operators."""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from levada.client.coordinator import Coordinator
from levada.client.data import ProducerIdentity
from levada.client.errors import raise_for_code
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.txn_offset_commit.v5 as txn_offset_commit

    import levada.wire.schema.shapes.offset_commit as offset_commit
    import levada.wire.schema.shapes.offset_fetch as offset_fetch

TopicIds = Mapping[str, UUID | None]


class CommittedOffset(NamedTuple):
    """Where a group goes on in a partition."""

    offset: int
    leader_epoch: int
    metadata: str


class Committer(NamedTuple):
    """Who commits: a member in its epoch, or somebody while the group has no members."""

    group: str
    member_id: str = ""
    epoch: int = -1
    instance_id: str | None = None


async def commit(
    coordinator: Coordinator, committer: Committer, offsets: Mapping[TopicPartition, int], ids: TopicIds
) -> None:
    """Keep these offsets; the error of the first partition that has one is raised."""
    partition = offset_commit.request.OffsetCommitRequestPartition
    request = offset_commit.OffsetCommitRequest(
        group_id=committer.group,
        generation_id_or_member_epoch=committer.epoch,
        member_id=committer.member_id,
        group_instance_id=committer.instance_id,
        topics=tuple(
            offset_commit.OffsetCommitRequestTopic(
                name=topic,
                topic_id=ids[topic],
                partitions=_partitions(partition, places, offsets),
            )
            for topic, places in _by_topic(offsets)
        ),
    )
    await coordinator.request(
        "offset_commit", request, lambda response: _check(committer.group, response, len(offsets))
    )


def _partitions(
    shape: Callable[..., Any], places: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int]
) -> tuple[Any, ...]:
    return tuple(
        shape(partition_index=place.partition, committed_offset=offsets[place], committed_metadata="")
        for place in places
    )


async def commit_in_transaction(
    coordinator: Coordinator,
    committer: Committer,
    writer: ProducerIdentity,
    offsets: Mapping[TopicPartition, int],
) -> None:
    """Keep these offsets once the transaction is committed; its coordinator learns of it from the group's."""
    shape = txn_offset_commit.request
    request = shape.TxnOffsetCommitRequest(
        transactional_id=writer.transactional_id,
        group_id=committer.group,
        producer_id=writer.producer_id,
        producer_epoch=writer.producer_epoch,
        generation_id=committer.epoch,
        member_id=committer.member_id,
        group_instance_id=committer.instance_id,
        topics=tuple(
            shape.TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=_partitions(shape.TxnOffsetCommitRequestPartition, places, offsets),
            )
            for topic, places in _by_topic(offsets)
        ),
    )
    await coordinator.request(
        "txn_offset_commit", request, lambda response: _check(committer.group, response, len(offsets))
    )


async def committed(
    coordinator: Coordinator,
    group: str,
    partitions: Iterable[TopicPartition] | None,
    ids: TopicIds,
    *,
    stable: bool = True,
) -> dict[TopicPartition, CommittedOffset]:
    """What a group has committed in these partitions, or in all; those without an offset are left out.

    With `stable`, an open transaction that commits some of them is waited for. `ids` are those of all topics that
    may be in the answer.
    """
    topics = None
    if partitions is not None:
        topics = tuple(
            offset_fetch.OffsetFetchRequestTopics(
                name=topic,
                topic_id=ids[topic],
                partition_indexes=tuple(place.partition for place in places),
            )
            for topic, places in _by_topic(partitions)
        )
    request = offset_fetch.OffsetFetchRequest(
        groups=(offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=topics),), require_stable=stable
    )

    def check_fetched(response: Any) -> None:
        (found,) = response.groups
        raise_for_code(found.error_code, f"offsets of {group}")
        _check(group, found, 0 if topics is None else sum(len(topic.partition_indexes) for topic in topics))

    response = await coordinator.request("offset_fetch", request, check_fetched)
    names = {topic_id: name for name, topic_id in ids.items()}
    return {
        TopicPartition(
            topic.name or names.get(topic.topic_id, str(topic.topic_id)), part.partition_index
        ): CommittedOffset(part.committed_offset, part.committed_leader_epoch, part.metadata or "")
        for topic in response.groups[0].topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, Iterable[TopicPartition]]]:
    return groupby(sorted(partitions), key=attrgetter("topic"))


def _check(group: str, answer: Any, asked: int) -> None:
    """The first error of a partition; it is one if nothing is said of some."""
    answered = 0
    for topic in answer.topics:
        for part in topic.partitions:
            answered += 1
            if part.error_code != ErrorCode.NONE:
                place = f"{getattr(topic, 'name', '') or topic.topic_id}-{part.partition_index}"
                raise_for_code(part.error_code, f"offset of group {group} in {place}")
    if answered < asked:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the answer leaves out offsets of group {group}")

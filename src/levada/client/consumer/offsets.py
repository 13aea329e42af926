"""Committed offsets of groups: OffsetCommit, TxnOffsetCommit and OffsetFetch to the coordinator."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from levada.client.coordinator import Coordinator
from levada.client.data import ProducerIdentity, by_topic
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
    """A group's committed offset in a partition."""

    offset: int
    leader_epoch: int
    metadata: str


class Committer(NamedTuple):
    """The member that commits, in its epoch; the defaults are for a group without members."""

    group: str
    member_id: str = ""
    epoch: int = -1
    instance_id: str | None = None


async def commit(
    coordinator: Coordinator, committer: Committer, offsets: Mapping[TopicPartition, int], ids: TopicIds
) -> None:
    """OffsetCommit; raises the first error of a partition."""
    shape = offset_commit.request.OffsetCommitRequestPartition
    request = offset_commit.OffsetCommitRequest(
        group_id=committer.group,
        generation_id_or_member_epoch=committer.epoch,
        member_id=committer.member_id,
        group_instance_id=committer.instance_id,
        topics=tuple(
            offset_commit.OffsetCommitRequestTopic(
                name=topic,
                topic_id=ids[topic],
                partitions=_partitions(shape, partitions, offsets),
            )
            for topic, partitions in by_topic(offsets)
        ),
    )
    await coordinator.request(
        "offset_commit", request, lambda response: _check(committer.group, response, len(offsets))
    )


def _partitions(
    shape: Callable[..., Any], partitions: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int]
) -> tuple[Any, ...]:
    return tuple(
        shape(partition_index=partition.partition, committed_offset=offsets[partition], committed_metadata="")
        for partition in partitions
    )


async def commit_in_transaction(
    coordinator: Coordinator,
    committer: Committer,
    producer: ProducerIdentity,
    offsets: Mapping[TopicPartition, int],
) -> None:
    """TxnOffsetCommit: the offsets are committed with the transaction."""
    shape = txn_offset_commit.request
    request = shape.TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=committer.group,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        generation_id=committer.epoch,
        member_id=committer.member_id,
        group_instance_id=committer.instance_id,
        topics=tuple(
            shape.TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=_partitions(shape.TxnOffsetCommitRequestPartition, partitions, offsets),
            )
            for topic, partitions in by_topic(offsets)
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
    """OffsetFetch of these partitions, or of all; those without a committed offset are left out.

    With `stable`, it waits for open transactions that commit some of the offsets. `ids` has the ids of all topics that
    may be in the response.
    """
    topics = None
    if partitions is not None:
        topics = tuple(
            offset_fetch.OffsetFetchRequestTopics(
                name=topic,
                topic_id=ids[topic],
                partition_indexes=tuple(partition.partition for partition in partitions),
            )
            for topic, partitions in by_topic(partitions)
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


def _check(group: str, response: Any, requested: int) -> None:
    """Raise the first error of a partition, or one if the response lacks partitions."""
    count = 0
    for topic in response.topics:
        for part in topic.partitions:
            count += 1
            if part.error_code != ErrorCode.NONE:
                name = f"{getattr(topic, 'name', '') or topic.topic_id}-{part.partition_index}"
                raise_for_code(part.error_code, f"offset of group {group} in {name}")
    if count < requested:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the response lacks offsets of group {group}")

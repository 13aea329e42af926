"""The admin client for groups: list, describe, offsets, lag, delete. Requests go to the group's coordinator."""

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from levada.client.consumer.offsets import CommittedOffset, Committer, commit, committed
from levada.client.coordinator import Coordinator, KeyType
from levada.client.data import EARLIEST, LATEST, timestamp_of
from levada.client.errors import raise_for_code
from levada.client.retry import COORDINATOR_RETRIABLE, RetryPolicy, retry
from levada.clock import SystemClock
from levada.core.groups.classic.subscription import read_assignment
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.consumer_group_describe.v1 as consumer_group_describe
    import kio.schema.delete_groups.v2 as delete_groups
    import kio.schema.describe_groups.v6 as describe_groups
    import kio.schema.list_groups.v5 as list_groups

if TYPE_CHECKING:
    from levada.client.client import Client

FIRST_RECORD_BYTES = 65_536
FIRST_RECORDS_TIMEOUT_MS = 3_000  # to read the first unread record of all partitions

ResetTarget = Literal["earliest", "latest"] | int | datetime


class GroupListing(NamedTuple):
    """A group in a list."""

    group: str
    state: str
    kind: str  # classic or consumer
    protocol_type: str


class GroupMember(NamedTuple):
    """A member and its assignment; None where the coordinator cannot decode it."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...] | None


class GroupDescription(NamedTuple):
    """A group and its members."""

    group: str
    state: str
    kind: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: tuple[GroupMember, ...]


class PartitionLag(NamedTuple):
    """The lag of a group in a partition; `lag_s` is the age of its first unread record."""

    partition: TopicPartition
    committed: int | None
    end: int
    lag: int | None
    lag_s: float | None
    metadata: str
    member: str | None


class OffsetReset(NamedTuple):
    """A planned offset reset; `wanted` is None if no record is as late as the requested timestamp."""

    partition: TopicPartition
    committed: int | None
    wanted: int | None
    target: int
    end: int


class GroupAdmin:
    """Administrative requests for groups."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def list_groups(self) -> list[GroupListing]:
        """The groups of all coordinators, by name."""
        found: dict[str, GroupListing] = {}
        policy = RetryPolicy(COORDINATOR_RETRIABLE, self._client.request_timeout_ms)
        for node in (await self._client.metadata(())).brokers:
            response = await retry(self._client, partial(self._list_at, node), policy)
            for group in response.groups:
                kind = group.group_type or "classic"
                listing = GroupListing(group.group_id, group.group_state, kind, group.protocol_type)
                found[group.group_id] = listing
        return [found[name] for name in sorted(found)]

    async def _list_at(self, node: int) -> Any:
        request = list_groups.request.ListGroupsRequest()
        response = await self._client.request("list_groups", request, node=node)
        raise_for_code(response.error_code, "groups")
        return response

    def _coordinator(self, group: str) -> Coordinator:
        return Coordinator(self._client, KeyType.GROUP, group, timeout_ms=self._client.request_timeout_ms)

    async def describe(self, group: str) -> GroupDescription:
        """A group of the classic or the consumer protocol; GROUP_ID_NOT_FOUND if there is none."""
        coordinator = self._coordinator(group)
        request = describe_groups.request.DescribeGroupsRequest(groups=(group,), include_authorized_operations=False)

        def check_classic(response: Any) -> None:
            if _is_classic(response):
                raise_for_code(response.groups[0].error_code, f"group {group}")

        response = await coordinator.request("describe_groups", request, check_classic)
        if not _is_classic(response):
            return await self._describe_consumer(group, coordinator)
        (found,) = response.groups
        members = tuple(_classic_member(member) for member in found.members)
        node = await coordinator.node()
        return GroupDescription(
            group, found.group_state, "classic", found.protocol_type, found.protocol_data, node, members
        )

    async def _describe_consumer(self, group: str, coordinator: Coordinator) -> GroupDescription:
        request = consumer_group_describe.request.ConsumerGroupDescribeRequest(
            group_ids=(group,), include_authorized_operations=False
        )
        try:
            response = await coordinator.request(
                "consumer_group_describe",
                request,
                lambda response: raise_for_code(response.groups[0].error_code, f"group {group}"),
            )
        except KafkaError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group}") from None
            raise
        (found,) = response.groups
        members = tuple(_member(member) for member in found.members)
        node = await coordinator.node()
        return GroupDescription(group, found.group_state, "consumer", "consumer", found.assignor_name, node, members)

    async def offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """All committed offsets of a group; pending offsets of open transactions are not waited for."""
        topics = (await self._client.metadata()).topics
        ids = {name: topic.topic_id for name, topic in topics.items()}
        return await committed(self._coordinator(group), group, None, ids, stable=False)

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group that has no members."""
        topics = (await self._client.metadata({partition.topic for partition in offsets})).topics
        ids = {name: topic.topic_id for name, topic in topics.items()}
        await commit(self._coordinator(group), Committer(group), offsets, ids)

    async def delete(self, group: str) -> None:
        """Delete a group without members, and its offsets."""
        await self._coordinator(group).request(
            "delete_groups",
            delete_groups.request.DeleteGroupsRequest(groups_names=(group,)),
            lambda response: raise_for_code(response.results[0].error_code, f"group {group}"),
        )


def _is_classic(response: Any) -> bool:
    """Whether DescribeGroups knows the group: it describes those of the classic protocol only."""
    (found,) = response.groups
    return bool(found.group_state != "Dead" and found.error_code != ErrorCode.GROUP_ID_NOT_FOUND)


def _member(member: Any) -> GroupMember:
    partitions = [
        TopicPartition(topic.topic_name, index)
        for topic in member.assignment.topic_partitions
        for index in topic.partitions
    ]
    return GroupMember(member.member_id, member.instance_id, member.client_id, member.client_host, tuple(partitions))


def _classic_member(member: Any) -> GroupMember:
    found = read_assignment(bytes(member.member_assignment))
    partitions = None
    if found is not None:
        partitions = tuple(
            sorted(TopicPartition(topic, index) for topic, some in found.partitions.items() for index in some)
        )
    return GroupMember(member.member_id, member.group_instance_id, member.client_id, member.client_host, partitions)


async def group_lag(client: "Client", group: GroupDescription) -> list[PartitionLag]:
    """The lag in each partition of the topics that the group has committed or that its members read, by name."""
    offsets = await GroupAdmin(client).offsets(group.group)
    owners = {partition: member.member_id for member in group.members for partition in member.partitions or ()}
    known = await _partitions_of(client, {partition.topic for partition in offsets.keys() | owners.keys()})
    ends = await _offsets_at(client, known, LATEST)
    starts = await _offsets_at(client, known, EARLIEST)
    behind: dict[TopicPartition, int] = {}
    for partition in known:
        committed = offsets.get(partition)
        if committed is not None and max(committed.offset, starts[partition]) < ends[partition]:
            behind[partition] = max(committed.offset, starts[partition])
    ages = await _ages(client, behind)
    return [_lag(partition, offsets.get(partition), ends[partition], ages, owners) for partition in known]


def _lag(
    partition: TopicPartition,
    committed: CommittedOffset | None,
    end: int,
    ages: Mapping[TopicPartition, float],
    owners: Mapping[TopicPartition, str],
) -> PartitionLag:
    owner = owners.get(partition)
    if committed is None or committed.offset < 0:
        return PartitionLag(partition, None, end, None, None, "", owner)
    lag = max(0, end - committed.offset)
    seconds = ages.get(partition) if lag else 0.0
    return PartitionLag(partition, committed.offset, end, lag, seconds, committed.metadata, owner)


async def _partitions_of(client: "Client", names: Collection[str]) -> list[TopicPartition]:
    """The partitions of those topics that exist."""
    topics = (await client.metadata()).topics
    return [
        TopicPartition(name, part.partition)
        for name in sorted(names)
        if name in topics
        for part in topics[name].partitions
    ]


async def _offsets_at(
    client: "Client", partitions: Collection[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    found = await client.list_offsets(dict.fromkeys(partitions, timestamp)) if partitions else {}
    return {partition: response.offset for partition, response in found.items()}


async def _ages(client: "Client", starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
    """The age in seconds of the first record from each offset on, where it can be read before the timeout."""
    ages: dict[TopicPartition, float] = {}
    if not starts:
        return ages
    consumer = client.consumer(assign=starts, start=starts, reset="earliest", fetch_bytes=FIRST_RECORD_BYTES)
    loop, clock = asyncio.get_running_loop(), SystemClock()
    deadline = loop.time() + FIRST_RECORDS_TIMEOUT_MS / 1000
    async with consumer:
        while len(ages) < len(starts) and (left := deadline - loop.time()) > 0:
            for record in await consumer.poll(int(left * 1000) + 1):
                partition = TopicPartition(record.topic, record.partition)
                if partition not in ages:
                    ages[partition] = max(0.0, (clock.now_ms() - record.timestamp) / 1000)
    return ages


async def plan_reset(
    client: "Client",
    group: str,
    partitions: Collection[TopicPartition],
    target: ResetTarget,
    *,
    shift: bool = False,
) -> list[OffsetReset]:
    """Plan an offset reset: to the earliest or latest offset, an offset, a timestamp, or a shift by `target` records.

    A target outside the log becomes the nearest offset in it.
    """
    committed = await GroupAdmin(client).offsets(group)
    starts = await _offsets_at(client, partitions, EARLIEST)
    ends = await _offsets_at(client, partitions, LATEST)
    wanted: Mapping[TopicPartition, int]
    if isinstance(target, datetime):
        wanted = await _offsets_at(client, partitions, timestamp_of(target))
    elif isinstance(target, int) and shift:
        wanted = {
            partition: target + (committed[partition].offset if partition in committed else starts[partition])
            for partition in partitions
        }
    elif isinstance(target, int):
        wanted = dict.fromkeys(partitions, target)
    else:
        wanted = starts if target == "earliest" else ends
    resets = []
    for partition in sorted(partitions):
        start, end = starts[partition], ends[partition]
        found = None if isinstance(target, datetime) and wanted[partition] < 0 else wanted[partition]
        nearest = end if found is None else min(max(found, start), end)
        current = committed[partition].offset if partition in committed else None
        resets.append(OffsetReset(partition, current, found, nearest, end))
    return resets

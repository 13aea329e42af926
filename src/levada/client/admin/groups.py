"""Groups from an operator's side: list, describe, offsets, delete. Each call asks the group's coordinator (R34)."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
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
FIRST_RECORDS_MS = 3_000  # for the oldest unread record of every partition; later ones are left untold

ResetTarget = Literal["earliest", "latest"] | int | datetime


class GroupListing(NamedTuple):
    """A group in a list."""

    group: str
    state: str
    kind: str  # classic or consumer
    protocol_type: str


class GroupMember(NamedTuple):
    """A member, and the partitions it has; None where only the members can tell."""

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
    """A group in a partition; `lag_s` is how long ago the oldest unread message was written."""

    partition: TopicPartition
    committed: int | None
    end: int
    lag: int | None
    lag_s: float | None
    metadata: str
    member: str | None


class OffsetReset(NamedTuple):
    """What a reset would change; `wanted` is None if nothing was written since the time that was asked for."""

    partition: TopicPartition
    committed: int | None
    wanted: int | None
    target: int
    end: int


class GroupAdmin:
    """Calls on groups over a client."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def known(self) -> list[GroupListing]:
        """Every group of every broker, by name."""
        found: dict[str, GroupListing] = {}
        policy = RetryPolicy(COORDINATOR_RETRIABLE, self._client.request_timeout_ms)
        for node in (await self._client.metadata(())).brokers:
            response = await retry(self._client, partial(self._known_to, node), policy)
            for group in response.groups:
                kind = group.group_type or "classic"
                listing = GroupListing(group.group_id, group.group_state, kind, group.protocol_type)
                found[group.group_id] = listing
        return [found[name] for name in sorted(found)]

    async def _known_to(self, node: int) -> Any:
        request = list_groups.request.ListGroupsRequest()
        response = await self._client.request("list_groups", request, node=node)
        raise_for_code(response.error_code, "groups")
        return response

    def _coordinator(self, group: str) -> Coordinator:
        return Coordinator(self._client, KeyType.GROUP, group, timeout_ms=self._client.request_timeout_ms)

    async def describe(self, group: str) -> GroupDescription:
        """A group of either protocol; GROUP_ID_NOT_FOUND if there is none."""
        coordinator = self._coordinator(group)
        request = describe_groups.request.DescribeGroupsRequest(
            groups=(group,), include_authorized_operations=False
        )

        def check_classic(answer: Any) -> None:
            if _is_classic(answer):
                raise_for_code(answer.groups[0].error_code, f"group {group}")

        response = await coordinator.request("describe_groups", request, check_classic)
        if not _is_classic(response):
            return await self._describe_newer(group, coordinator)
        (found,) = response.groups
        members = tuple(_classic_member(member) for member in found.members)
        node = await coordinator.node()
        return GroupDescription(
            group, found.group_state, "classic", found.protocol_type, found.protocol_data, node, members
        )

    async def _describe_newer(self, group: str, coordinator: Coordinator) -> GroupDescription:
        request = consumer_group_describe.request.ConsumerGroupDescribeRequest(
            group_ids=(group,), include_authorized_operations=False
        )
        try:
            response = await coordinator.request(
                "consumer_group_describe",
                request,
                lambda answer: raise_for_code(answer.groups[0].error_code, f"group {group}"),
            )
        except KafkaError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group}") from None
            raise
        (found,) = response.groups
        members = tuple(_member(member) for member in found.members)
        node = await coordinator.node()
        return GroupDescription(
            group, found.group_state, "consumer", "consumer", found.assignor_name, node, members
        )

    async def offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Every offset that a group has committed, also where a transaction may be about to commit another."""
        topics = (await self._client.metadata()).topics
        ids = {name: topic.topic_id for name, topic in topics.items()}
        return await committed(self._coordinator(group), group, None, ids, stable=False)

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set offsets of a group that has no members."""
        topics = (await self._client.metadata({partition.topic for partition in offsets})).topics
        ids = {name: topic.topic_id for name, topic in topics.items()}
        await commit(self._coordinator(group), Committer(group), offsets, ids)

    async def delete(self, group: str) -> None:
        """Remove a group without members, with its offsets."""
        await self._coordinator(group).request(
            "delete_groups",
            delete_groups.request.DeleteGroupsRequest(groups_names=(group,)),
            lambda answer: raise_for_code(answer.results[0].error_code, f"group {group}"),
        )


def _is_classic(answer: Any) -> bool:
    """Whether a group is known to DescribeGroups, which tells of those of the classic protocol alone."""
    (found,) = answer.groups
    return bool(found.group_state != "Dead" and found.error_code != ErrorCode.GROUP_ID_NOT_FOUND)


def _member(member: Any) -> GroupMember:
    partitions = [
        TopicPartition(topic.topic_name, index)
        for topic in member.assignment.topic_partitions
        for index in topic.partitions
    ]
    return GroupMember(
        member.member_id, member.instance_id, member.client_id, member.client_host, tuple(partitions)
    )


def _classic_member(member: Any) -> GroupMember:
    found = read_assignment(bytes(member.member_assignment))
    partitions = None
    if found is not None:
        places = [TopicPartition(topic, index) for topic, some in found.partitions.items() for index in some]
        partitions = tuple(sorted(places))
    return GroupMember(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, partitions
    )


async def group_lag(client: "Client", group: GroupDescription) -> list[PartitionLag]:
    """Every partition that a group has committed or is assigned, by name."""
    offsets = await GroupAdmin(client).offsets(group.group)
    owners = {place: member.member_id for member in group.members for place in member.partitions or ()}
    places = sorted(offsets.keys() | owners.keys())
    known = await _existing(client, places)
    ends = await _offsets_at(client, known, LATEST)
    starts = await _offsets_at(client, known, EARLIEST)
    behind: dict[TopicPartition, int] = {}
    for place in known:
        committed = offsets.get(place)
        if committed is not None and max(committed.offset, starts[place]) < ends[place]:
            behind[place] = max(committed.offset, starts[place])
    ages = await _ages(client, behind)
    return [_lag(place, offsets.get(place), ends[place], ages, owners) for place in known]


def _lag(
    place: TopicPartition,
    committed: CommittedOffset | None,
    end: int,
    ages: Mapping[TopicPartition, float],
    owners: Mapping[TopicPartition, str],
) -> PartitionLag:
    owner = owners.get(place)
    if committed is None or committed.offset < 0:
        return PartitionLag(place, None, end, None, None, "", owner)
    lag = max(0, end - committed.offset)
    seconds = ages.get(place) if lag else 0.0
    return PartitionLag(place, committed.offset, end, lag, seconds, committed.metadata, owner)


async def _existing(client: "Client", places: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Those partitions whose topic is still there."""
    topics = (await client.metadata()).topics
    return [
        place
        for place in places
        if place.topic in topics and place.partition < len(topics[place.topic].partitions)
    ]


async def _offsets_at(
    client: "Client", places: Collection[TopicPartition], moment: int
) -> dict[TopicPartition, int]:
    found = await client.list_offsets(dict.fromkeys(places, moment)) if places else {}
    return {place: answer.offset for place, answer in found.items()}


async def _ages(client: "Client", starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
    """How many seconds ago the first record from each offset on was written, where that can be read in time."""
    ages: dict[TopicPartition, float] = {}
    if not starts:
        return ages
    consumer = client.consumer(assign=starts, start=starts, reset="earliest", fetch_bytes=FIRST_RECORD_BYTES)
    loop, clock = asyncio.get_running_loop(), SystemClock()
    deadline = loop.time() + FIRST_RECORDS_MS / 1000
    async with consumer:
        while len(ages) < len(starts) and (left := deadline - loop.time()) > 0:
            for record in await consumer.poll(int(left * 1000) + 1):
                place = TopicPartition(record.topic, record.partition)
                if place not in ages:
                    ages[place] = max(0.0, (clock.now_ms() - record.timestamp) / 1000)
    return ages


async def plan_reset(
    client: "Client",
    group: str,
    places: Collection[TopicPartition],
    target: ResetTarget,
    *,
    shift: bool = False,
) -> list[OffsetReset]:
    """Where each partition would go on: at an end, an offset, a time, or so many messages further or back.

    A target outside of a log becomes its nearest end.
    """
    committed = await GroupAdmin(client).offsets(group)
    starts = await _offsets_at(client, places, EARLIEST)
    ends = await _offsets_at(client, places, LATEST)
    wanted: Mapping[TopicPartition, int]
    if isinstance(target, datetime):
        wanted = await _offsets_at(client, places, timestamp_of(target))
    elif isinstance(target, int) and shift:
        wanted = {
            place: target + (committed[place].offset if place in committed else starts[place])
            for place in places
        }
    elif isinstance(target, int):
        wanted = dict.fromkeys(places, target)
    else:
        wanted = starts if target == "earliest" else ends
    moves = []
    for place in sorted(places):
        start, end = starts[place], ends[place]
        found = None if isinstance(target, datetime) and wanted[place] < 0 else wanted[place]
        nearest = end if found is None else min(max(found, start), end)
        current = committed[place].offset if place in committed else None
        moves.append(OffsetReset(place, current, found, nearest, end))
    return moves

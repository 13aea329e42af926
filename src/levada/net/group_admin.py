"""Groups from an operator's side: list, describe, offsets, delete. Each call asks the group's coordinator (R26)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from levada.core.consumer_protocol import assigned_partitions
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.net.bootstrap import error_code
from levada.wire.lazy import kio_modules

with kio_modules():
    import kio.schema.consumer_group_describe.v1 as consumer_group_describe
    import kio.schema.delete_groups.v2 as delete_groups
    import kio.schema.describe_groups.v6 as describe_groups
    import kio.schema.find_coordinator.v6 as find_coordinator
    import kio.schema.list_groups.v5 as list_groups

    import levada.wire.shapes.offset_commit as offset_commit
    import levada.wire.shapes.offset_fetch as offset_fetch

if TYPE_CHECKING:
    from levada.net.client import Client

T = TypeVar("T")

GROUP_KEYS = 0
# The coordinator is being made, moves, or reads its journal: ask again.
NOT_YET = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)


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


class CommittedOffset(NamedTuple):
    """Where a group goes on in a partition."""

    offset: int
    leader_epoch: int
    metadata: str


class GroupAdmin:
    """Calls on groups over a client."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def known(self) -> list[GroupListing]:
        """Every group of every broker, by name."""
        brokers = (await self._client.metadata(())).brokers
        found: dict[str, GroupListing] = {}
        for node in brokers:
            for group in await self._patiently(partial(self._known_to, node)):
                found[group.group] = group
        return [found[name] for name in sorted(found)]

    async def _known_to(self, node: int) -> list[GroupListing]:
        request = list_groups.request.ListGroupsRequest()
        response = await self._client.request("list_groups", request, node=node)
        _check(response.error_code, "groups")
        return [
            GroupListing(
                group.group_id, group.group_state, group.group_type or "classic", group.protocol_type
            )
            for group in response.groups
        ]

    async def coordinator(self, group: str) -> int:
        """The broker that coordinates a group."""
        request = find_coordinator.request.FindCoordinatorRequest(
            key_type=GROUP_KEYS, coordinator_keys=(group,)
        )

        async def ask() -> int:
            response = await self._client.request("find_coordinator", request)
            (found,) = response.coordinators
            _check(found.error_code, found.error_message or f"coordinator of {group}")
            return int(found.node_id)

        return await self._patiently(ask)

    async def describe(self, group: str) -> GroupDescription:
        """A group of either protocol; GROUP_ID_NOT_FOUND if there is none."""

        async def ask() -> GroupDescription:
            node = await self.coordinator(group)
            request = describe_groups.request.DescribeGroupsRequest(
                groups=(group,), include_authorized_operations=False
            )
            (found,) = (await self._client.request("describe_groups", request, node=node)).groups
            if found.group_state == "Dead" or found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                return await self._describe_newer(group, node)
            _check(found.error_code, f"group {group}")
            members = tuple(_classic_member(member) for member in found.members)
            return GroupDescription(
                group, found.group_state, "classic", found.protocol_type, found.protocol_data, node, members
            )

        return await self._patiently(ask)

    async def _describe_newer(self, group: str, node: int) -> GroupDescription:
        request = consumer_group_describe.request.ConsumerGroupDescribeRequest(
            group_ids=(group,), include_authorized_operations=False
        )
        try:
            response = await self._client.request("consumer_group_describe", request, node=node)
        except KafkaError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group}") from None
            raise
        (found,) = response.groups
        _check(found.error_code, f"group {group}")
        members = tuple(
            GroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                tuple(
                    TopicPartition(topic.topic_name, index)
                    for topic in member.assignment.topic_partitions
                    for index in topic.partitions
                ),
            )
            for member in found.members
        )
        return GroupDescription(
            group, found.group_state, "consumer", "consumer", found.assignor_name, node, members
        )

    async def offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Every offset that a group has committed."""

        async def ask() -> dict[TopicPartition, CommittedOffset]:
            request = offset_fetch.OffsetFetchRequest(
                groups=(offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=None),)
            )
            response = await self._client.request("offset_fetch", request, node=await self.coordinator(group))
            (found,) = response.groups
            _check(found.error_code, f"offsets of {group}")
            names = await self._topic_names() if any(not topic.name for topic in found.topics) else {}
            offsets = {}
            for topic in found.topics:
                name = topic.name or names.get(topic.topic_id, str(topic.topic_id))
                for part in topic.partitions:
                    _check(part.error_code, f"offset of {group} in {name}-{part.partition_index}")
                    offsets[TopicPartition(name, part.partition_index)] = CommittedOffset(
                        part.committed_offset, part.committed_leader_epoch, part.metadata or ""
                    )
            return offsets

        return await self._patiently(ask)

    async def _topic_names(self) -> dict[Any, str]:
        """The newest versions speak of topics by id."""
        return {topic.topic_id: name for name, topic in (await self._client.metadata()).topics.items()}

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set offsets of a group that has no members."""
        topics = (await self._client.metadata({partition.topic for partition in offsets})).topics
        request = offset_commit.request
        by_topic: dict[str, list[Any]] = {}
        for (topic, index), offset in offsets.items():
            by_topic.setdefault(topic, []).append(
                request.OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=""
                )
            )
        whole = offset_commit.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=tuple(
                offset_commit.OffsetCommitRequestTopic(
                    name=topic, topic_id=topics[topic].topic_id, partitions=tuple(partitions)
                )
                for topic, partitions in by_topic.items()
            ),
        )

        async def ask() -> None:
            node = await self.coordinator(group)
            response = await self._client.request("offset_commit", whole, node=node)
            for topic in response.topics:
                for part in topic.partitions:
                    _check(part.error_code, f"offset of {group} in {topic.name}-{part.partition_index}")

        await self._patiently(ask)

    async def delete(self, group: str) -> None:
        """Remove a group without members, with its offsets."""

        async def ask() -> None:
            request = delete_groups.request.DeleteGroupsRequest(groups_names=(group,))
            response = await self._client.request(
                "delete_groups", request, node=await self.coordinator(group)
            )
            (found,) = response.results
            _check(found.error_code, f"group {group}")

        await self._patiently(ask)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask again while the coordinator is on its way, until the request timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._client.request_timeout_ms / 1000
        while True:
            try:
                return await ask()
            except KafkaError as error:
                if error.code not in NOT_YET or loop.time() > deadline:
                    raise
            await asyncio.sleep(self._client.retry_backoff_s)


def _classic_member(member: Any) -> GroupMember:
    found = assigned_partitions(bytes(member.member_assignment))
    return GroupMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        None if found is None else tuple(_partitions(found.items())),
    )


def _partitions(topics: Iterable[tuple[str, tuple[int, ...]]]) -> Iterable[TopicPartition]:
    return (TopicPartition(topic, index) for topic, indexes in topics for index in indexes)


def _check(code: int, what: str) -> None:
    found = error_code(int(code))
    if found:
        raise KafkaError(found, what)

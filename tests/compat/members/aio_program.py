"""Members of aiokafka, each on a loop of its own thread."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiokafka
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.structs import OffsetAndMetadata
from tests.compat.members.serving import Assignment, serve

BOOTSTRAP = sys.argv[1]
T = TypeVar("T")


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self._assignment.taken([one.partition for one in revoked])

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._assignment.assigned([one.partition for one in assigned], anew=True)


class Aiokafka:
    def __init__(self, call: dict[str, Any], assignment: Assignment) -> None:
        self._loop = asyncio.new_event_loop()
        self._topic = call["topic"]
        self._consumer = self._run(self._start(call, assignment))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    async def _start(self, call: dict[str, Any], assignment: Assignment) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=BOOTSTRAP,
            group_id=call["group"],
            group_instance_id=call.get("instance_id"),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=call["session_timeout_ms"],
            heartbeat_interval_ms=200,
            rebalance_timeout_ms=10_000,
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        consumer.subscribe([self._topic], listener=Listener(assignment))
        await consumer.start()
        return consumer

    def poll(self) -> list[tuple[int, int]]:
        batches = self._run(self._consumer.getmany(timeout_ms=50))
        return [(record.partition, record.offset) for records in batches.values() for record in records]

    def commit(self, positions: dict[int, int], metadata: str) -> None:
        places = {
            TopicPartition(self._topic, partition): OffsetAndMetadata(offset, metadata)
            for partition, offset in positions.items()
        }
        self._run(self._consumer.commit(places))

    def close(self) -> None:
        self._run(self._consumer.stop())


async def _admin(work: Any) -> Any:
    admin = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    await admin.start()
    try:
        return await work(admin)
    finally:
        await admin.close()


def list_groups(call: dict[str, Any]) -> Any:
    return {name: "" for name, _ in asyncio.run(_admin(lambda admin: admin.list_consumer_groups()))}


def describe_group(call: dict[str, Any]) -> Any:
    (reply,) = asyncio.run(_admin(lambda admin: admin.describe_consumer_groups([call["group"]])))
    _error, _group, state, _type, _protocol, members, *_ = reply.groups[0]
    from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment

    found = []
    for member in members:
        assignment = ConsumerProtocolMemberAssignment.decode(member[-1])
        found.append(sorted(partition for _, parts in assignment.assignment for partition in parts))
    return {"state": state, "members": sorted(found)}


def committed(call: dict[str, Any]) -> Any:
    found = asyncio.run(_admin(lambda admin: admin.list_consumer_group_offsets(call["group"])))
    return {str(place.partition): [one.offset, one.metadata] for place, one in found.items()}


serve(
    aiokafka.__version__,
    Aiokafka,
    {"list_groups": list_groups, "describe_group": describe_group, "committed": committed},
    lambda error: type(error).__name__,
)

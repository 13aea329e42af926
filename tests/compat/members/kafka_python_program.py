"""Members of kafka-python."""

import sys
from typing import Any

import kafka
from kafka import (
    ConsumerRebalanceListener,
    KafkaAdminClient,
    KafkaConsumer,
    OffsetAndMetadata,
    TopicPartition,
)
from kafka.admin import MemberToRemove
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaConnectionError
from tests.compat.members.serving import Assignment, serve

BOOTSTRAP = sys.argv[1]
ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}
admin = KafkaAdminClient(bootstrap_servers=BOOTSTRAP)


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, assignment: Assignment, *, eager: bool) -> None:
        self._assignment = assignment
        self._eager = eager

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._assignment.taken([one.partition for one in revoked])

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._assignment.assigned([one.partition for one in assigned], anew=self._eager)


class KafkaPython:
    def __init__(self, call: dict[str, Any], assignment: Assignment) -> None:
        self._topic = call["topic"]
        self._consumer = KafkaConsumer(
            bootstrap_servers=BOOTSTRAP,
            group_id=call["group"],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=call["session_timeout_ms"],
            heartbeat_interval_ms=200,
            max_poll_interval_ms=10_000,
            group_instance_id=call.get("instance_id"),
            partition_assignment_strategy=[ASSIGNORS[call["assignor"]]],
        )
        listener = Listener(assignment, eager=call["assignor"] == "range")
        self._consumer.subscribe([self._topic], listener=listener)

    def poll(self) -> list[tuple[int, int]]:
        # 3.0.12 loses its assignment when a poll ends while the group is joined: give it time.
        try:
            batches = self._consumer.poll(timeout_ms=2_000)
        except KafkaConnectionError:  # raised while the broker is down; it polls on
            return []
        return [(record.partition, record.offset) for records in batches.values() for record in records]

    def commit(self, positions: dict[int, int], metadata: str) -> None:
        self._consumer.commit(
            {
                TopicPartition(self._topic, partition): OffsetAndMetadata(offset, metadata, -1)
                for partition, offset in positions.items()
            }
        )

    def close(self) -> None:
        self._consumer.close(autocommit=False)


def list_groups(call: dict[str, Any]) -> Any:
    return {one["group_id"]: one["group_state"] for one in admin.list_groups()}


def describe_group(call: dict[str, Any]) -> Any:
    found = admin.describe_groups([call["group"]])[call["group"]]
    members = [
        sorted(
            partition
            for topic in member["member_assignment"]["assigned_partitions"]
            for partition in topic["partitions"]
        )
        for member in found["members"]
    ]
    return {"state": found["group_state"], "members": sorted(members)}


def committed(call: dict[str, Any]) -> Any:
    found = admin.list_group_offsets(call["group"])[call["group"]]
    return {str(place.partition): [one.offset, one.metadata] for place, one in found.items()}


def set_offsets(call: dict[str, Any]) -> Any:
    offsets = {
        TopicPartition(call["topic"], int(partition)): OffsetAndMetadata(offset, "", -1)
        for partition, offset in call["offsets"].items()
    }
    for code in admin.alter_group_offsets(call["group"], offsets).values():
        if code not in (0, "OK", None) and getattr(code, "errno", 0) != 0:
            raise code if isinstance(code, Exception) else RuntimeError(code)


def delete_group(call: dict[str, Any]) -> Any:
    result = admin.delete_groups([call["group"]])[call["group"]]
    if result != "OK":
        raise RuntimeError(str(result))


def delete_offsets(call: dict[str, Any]) -> Any:
    place = TopicPartition(call["topic"], call["partition"])
    _check(admin.delete_group_offsets(call["group"], [place])[place])


def remove_member(call: dict[str, Any]) -> Any:
    gone = MemberToRemove(group_instance_id=call["instance_id"])
    (result,) = admin.remove_group_members(call["group"], [gone]).values()
    _check(result)


def _check(error: type[Exception]) -> None:
    if getattr(error, "errno", 0) != 0:
        raise error


def error_name(error: Exception) -> str:
    text = repr(error)
    for name in ("NON_EMPTY_GROUP", "GROUP_ID_NOT_FOUND", "UNKNOWN_MEMBER_ID", "GROUP_SUBSCRIBED_TO_TOPIC"):
        if name in text or name.replace("_", "").lower() in text.lower():
            return name
    return type(error).__name__


serve(
    kafka.__version__,
    KafkaPython,
    {
        "list_groups": list_groups,
        "describe_group": describe_group,
        "committed": committed,
        "set_offsets": set_offsets,
        "delete_group": delete_group,
        "delete_offsets": delete_offsets,
        "remove_member": remove_member,
    },
    error_name,
)

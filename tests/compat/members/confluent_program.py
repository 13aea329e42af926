"""Members of confluent-kafka."""

import sys
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.compat.members.serving import Assignment, serve

from levada.errors import ErrorCode

BOOTSTRAP = sys.argv[1]
admin = AdminClient({"bootstrap.servers": BOOTSTRAP})


class Confluent:
    def __init__(self, call: dict[str, Any], assignment: Assignment) -> None:
        settings = {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": call["group"],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 2_000,
        }
        if call.get("protocol", "classic") == "consumer":
            settings["group.protocol"] = "consumer"
            if call.get("remote_assignor"):
                settings["group.remote.assignor"] = call["remote_assignor"]
        else:
            settings["partition.assignment.strategy"] = call["assignor"]
            settings["session.timeout.ms"] = call["session_timeout_ms"]
            settings["heartbeat.interval.ms"] = 200
        if call.get("instance_id"):
            settings["group.instance.id"] = call["instance_id"]
        self._topic = call["topic"]
        self._consumer = Consumer(settings)
        cooperative = call["assignor"] == "cooperative-sticky" or call.get("protocol") == "consumer"

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            assignment.assigned([one.partition for one in partitions], anew=not cooperative)

        def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            assignment.taken([one.partition for one in partitions])

        subscribed = [call.get("pattern") or self._topic]  # librdkafka takes what begins with ^ for a pattern
        self._consumer.subscribe(subscribed, on_assign=assigned, on_revoke=revoked, on_lost=revoked)

    def poll(self) -> list[tuple[int, int]]:
        messages = self._consumer.consume(100, 0.05)
        return [(message.partition() or 0, message.offset() or 0) for message in messages if message.error() is None]

    def commit(self, positions: dict[int, int], metadata: str) -> None:
        places = [
            TopicPartition(self._topic, partition, offset, metadata=metadata) for partition, offset in positions.items()
        ]
        self._consumer.commit(offsets=places, asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


def _group(group: str, places: list[TopicPartition] | None = None) -> ConsumerGroupTopicPartitions:
    return ConsumerGroupTopicPartitions(group, places)


def list_groups(call: dict[str, Any]) -> Any:
    found = admin.list_consumer_groups().result()
    return {one.group_id: one.state.name.title().replace("_", "") for one in found.valid}


def describe_group(call: dict[str, Any]) -> Any:
    (future,) = admin.describe_consumer_groups([call["group"]]).values()
    found = future.result()
    members = [sorted(place.partition for place in member.assignment.topic_partitions) for member in found.members]
    return {"state": found.state.name.title().replace("_", ""), "members": sorted(members)}


def committed(call: dict[str, Any]) -> Any:
    (future,) = admin.list_consumer_group_offsets([_group(call["group"])]).values()
    return {str(one.partition): [one.offset, one.metadata or ""] for one in future.result().topic_partitions}


def set_offsets(call: dict[str, Any]) -> Any:
    places = [TopicPartition(call["topic"], int(p), offset) for p, offset in call["offsets"].items()]
    (future,) = admin.alter_consumer_group_offsets([_group(call["group"], places)]).values()
    for one in future.result().topic_partitions:
        if one.error is not None:
            raise KafkaException(one.error)


def delete_group(call: dict[str, Any]) -> Any:
    (future,) = admin.delete_consumer_groups([call["group"]]).values()
    future.result()


def error_name(error: Exception) -> str:
    cause = error.args[0] if isinstance(error, KafkaException) else None
    code = cause.code() if cause is not None else None
    return ErrorCode(code).name if code is not None and code >= 0 else type(error).__name__


serve(
    confluent_kafka.libversion()[0],
    Confluent,
    {
        "list_groups": list_groups,
        "describe_group": describe_group,
        "committed": committed,
        "set_offsets": set_offsets,
        "delete_group": delete_group,
    },
    error_name,
)

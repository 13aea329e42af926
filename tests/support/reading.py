"""Reads all records of a topic by assign, from the start to the end."""

import time
from collections import defaultdict
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.support.history import Operation, Partition, Poll, Positioned, Seen
from tests.support.waiting import until

TIMEOUT_S = 60.0
LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class Stored(NamedTuple):
    """A record as a consumer got it."""

    offset: int
    key: str
    value: str


def read_committed(bootstrap: str, topic: str) -> dict[Partition, list[Stored]]:
    """The records of each partition in the order in which a read_committed consumer got them."""
    return read(bootstrap, topic, "read_committed")


def wait_until_ended(bootstrap: str, topic: str) -> None:
    """Until no transaction is open in the topic: then all that will ever be seen of it can be seen."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    parts = [TopicPartition(topic, index) for index in admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions]

    def ends(isolation: IsolationLevel) -> list[int]:
        asked = admin.list_offsets(dict.fromkeys(parts, LATEST), isolation_level=isolation)
        return [asked[part].result(TIMEOUT_S).offset for part in parts]

    until(
        lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED),
        f"a transaction stays open in {topic}",
    )


def read(bootstrap: str, topic: str, isolation: str) -> dict[Partition, list[Stored]]:
    """The records of each partition as a consumer of this isolation level gets them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-by-assign",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "log.connection.close": False,
        }
    )
    described = consumer.list_topics(topic, TIMEOUT_S).topics[topic]
    unread = set(described.partitions)
    found: dict[Partition, list[Stored]] = defaultdict(list)
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in sorted(unread)])
    deadline = time.monotonic() + TIMEOUT_S
    while unread:
        assert time.monotonic() < deadline, f"no end of {topic} {unread} came: is a transaction open for ever?"
        for message in consumer.consume(1000, 0.2):
            error, index = message.error(), message.partition()
            assert index is not None
            if error is None:
                found[topic, index].append(Stored(message.offset() or 0, text(message.key()), text(message.value())))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unread.discard(index)
    consumer.close()
    return found


def seen(message: Message) -> Seen:
    """A message in the words of histories."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None and offset is not None
    return Seen((message.topic() or "", partition), offset, text(message.value()))


def as_history(found: dict[Partition, list[Stored]]) -> list[Operation | Positioned]:
    """The same as events of a reader that started at offset 0, after everything else."""
    tick = time.monotonic_ns()
    events: list[Operation | Positioned] = []
    for partition, stored in found.items():
        records = [Seen(partition, record.offset, record.value) for record in stored]
        reader = f"last reader of {partition[0]}-{partition[1]}"
        events.append(Positioned(reader, assigned=True, offsets={partition: 0}))
        events.append(Operation(reader, (Poll(tuple(records), tick),)))
    return events


def text(content: bytes | str | None) -> str:
    return content.decode() if isinstance(content, bytes) else content or ""

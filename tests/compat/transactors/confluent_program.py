"""Transactional producers of confluent-kafka."""

import sys
import time
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from tests.compat.transactors.base import LAST
from tests.compat.transactors.serving import serve

from levada.errors import ErrorCode

BOOTSTRAP = sys.argv[1]
WAIT_S = 20
producers: dict[str, Producer] = {}
living: list[Consumer] = []
members: dict[str, Any] = {}  # by group: who commits its offsets


def init(call: dict[str, Any]) -> None:
    producer = Producer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "transactional.id": call["transactional_id"],
            "transaction.timeout.ms": call["timeout_ms"],
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producers[call["producer"]] = producer
    producer.init_transactions(WAIT_S)


def send(call: dict[str, Any]) -> None:
    producer, failures = producers[call["producer"]], []

    def delivered(error: Any, _: Message) -> None:
        if error is not None:
            failures.append(error)

    for value in call["values"]:
        producer.produce(call["topic"], value, partition=call["partition"], on_delivery=delivered)
    assert producer.flush(WAIT_S) == 0
    if failures:
        raise KafkaException(failures[0])


def consumer_of(group: str) -> Consumer:
    return Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": group, "log_level": 0})


def join(call: dict[str, Any]) -> None:
    consumer = consumer_of(call["group"])
    consumer.subscribe([call["topic"]])
    deadline = time.monotonic() + WAIT_S
    while not consumer.assignment():
        assert time.monotonic() < deadline, "no assignment"
        consumer.poll(0.1)
    living.append(consumer)
    members[call["group"]] = consumer.consumer_group_metadata()


def offsets(call: dict[str, Any]) -> None:
    group = call["group"]
    if group not in members:
        members[group] = consumer_of(group).consumer_group_metadata()
    place = TopicPartition(call["topic"], 0, call["offset"])
    producers[call["producer"]].send_offsets_to_transaction([place], members[group], WAIT_S)


def end(call: dict[str, Any]) -> None:
    producer = producers[call["producer"]]
    (producer.commit_transaction if call["commit"] else producer.abort_transaction)(WAIT_S)


def read(call: dict[str, Any]) -> list[list[str]]:
    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if call["committed"] else "read_uncommitted",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(call["topic"], number, 0) for number in range(call["partitions"])])
    found: list[list[str]] = [[] for _ in range(call["partitions"])]
    while not all(values and values[-1] == LAST for values in found):
        message = consumer.poll(WAIT_S)
        if message is None:
            raise TimeoutError(f"only {found} came")
        if message.error():
            raise KafkaException(message.error())
        found[message.partition() or 0].append((message.value() or b"").decode())
    consumer.close()
    return found


def error_name(error: Exception) -> str:
    if isinstance(error, KafkaException):
        cause = error.args[0]
        return ErrorCode(cause.code()).name if cause.code() >= 0 else str(cause.name())
    return type(error).__name__


serve(
    {
        "version": lambda _: confluent_kafka.libversion()[0],
        "init": init,
        "begin": lambda call: producers[call["producer"]].begin_transaction(),
        "send": send,
        "join": join,
        "offsets": offsets,
        "end": end,
        "read": read,
    },
    error_name,
)

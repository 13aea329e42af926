"""Transactional producers of kafka-python."""

import sys
from typing import Any

import kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata
from tests.compat.transactors.base import LAST
from tests.compat.transactors.serving import serve

BOOTSTRAP = sys.argv[1]
WAIT_S = 20
producers: dict[str, KafkaProducer] = {}


def init(call: dict[str, Any]) -> None:
    producer = KafkaProducer(
        bootstrap_servers=BOOTSTRAP,
        transactional_id=call["transactional_id"],
        transaction_timeout_ms=call["timeout_ms"],
    )
    producers[call["producer"]] = producer
    producer.init_transactions()


def send(call: dict[str, Any]) -> None:
    producer = producers[call["producer"]]
    sent = [
        producer.send(call["topic"], value.encode(), partition=call["partition"]) for value in call["values"]
    ]
    for one in sent:
        one.get(timeout=WAIT_S)


def offsets(call: dict[str, Any]) -> None:
    place = {TopicPartition(call["topic"], 0): OffsetAndMetadata(call["offset"], "", -1)}
    producers[call["producer"]].send_offsets_to_transaction(place, call["group"])


def end(call: dict[str, Any]) -> None:
    producer = producers[call["producer"]]
    (producer.commit_transaction if call["commit"] else producer.abort_transaction)()


def read(call: dict[str, Any]) -> list[list[str]]:
    consumer = KafkaConsumer(
        bootstrap_servers=BOOTSTRAP,
        enable_auto_commit=False,
        consumer_timeout_ms=WAIT_S * 1000,
        isolation_level="read_committed" if call["committed"] else "read_uncommitted",
    )
    places = [TopicPartition(call["topic"], number) for number in range(call["partitions"])]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    found: list[list[str]] = [[] for _ in places]
    for record in consumer:
        found[record.partition].append(record.value.decode())
        if all(values and values[-1] == LAST for values in found):
            break
    consumer.close()
    return found


def error_name(error: Exception) -> str:
    return type(error).__name__ if isinstance(error, KafkaError) else repr(error)


serve(
    {
        "version": lambda _: str(kafka.__version__),
        "init": init,
        "begin": lambda call: producers[call["producer"]].begin_transaction(),
        "send": send,
        "offsets": offsets,
        "end": end,
        "read": read,
    },
    error_name,
)

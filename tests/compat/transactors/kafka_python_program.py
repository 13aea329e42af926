"""Transactional producers of kafka-python."""

import sys
import time
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import AbortTransactionSpec
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata
from tests.compat.transactors.base import LAST
from tests.compat.transactors.serving import serve

BOOTSTRAP = sys.argv[1]
WAIT_S = 20
producers: dict[str, KafkaProducer] = {}
living: list[KafkaConsumer] = []
members: dict[str, Any] = {}  # by group: who commits its offsets


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
    sent = [producer.send(call["topic"], value.encode(), partition=call["partition"]) for value in call["values"]]
    for one in sent:
        one.get(timeout=WAIT_S)


def join(call: dict[str, Any]) -> None:
    consumer = KafkaConsumer(call["topic"], bootstrap_servers=BOOTSTRAP, group_id=call["group"])
    living.append(consumer)
    deadline = time.monotonic() + WAIT_S
    while not consumer.assignment():
        assert time.monotonic() < deadline, "no assignment"
        consumer.poll(timeout_ms=2_000)
    members[call["group"]] = consumer.group_metadata()


def offsets(call: dict[str, Any]) -> None:
    place = {TopicPartition(call["topic"], 0): OffsetAndMetadata(call["offset"], "", -1)}
    producers[call["producer"]].send_offsets_to_transaction(place, members.get(call["group"], call["group"]))


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


def admin() -> KafkaAdminClient:
    return KafkaAdminClient(bootstrap_servers=BOOTSTRAP)


def list_transactions(call: dict[str, Any]) -> Any:
    found = admin().list_transactions()
    return {one.transactional_id: str(one.state.value) for listed in found.values() for one in listed}


def describe_transaction(call: dict[str, Any]) -> Any:
    found = admin().describe_transactions([call["transactional_id"]])[call["transactional_id"]]
    places = sorted(f"{place.topic}-{place.partition}" for place in found.topic_partitions)
    return {"state": found.state.value, "partitions": places}


def abort_in(call: dict[str, Any]) -> None:
    place = TopicPartition(call["topic"], 0)
    for one in admin().describe_producers([place])[place].active_producers:
        if one.current_transaction_start_offset >= 0:
            admin().abort_transaction(AbortTransactionSpec(place, one.producer_id, one.producer_epoch))


def error_name(error: Exception) -> str:
    return type(error).__name__ if isinstance(error, KafkaError) else repr(error)


serve(
    {
        "version": lambda _: str(kafka.__version__),
        "init": init,
        "begin": lambda call: producers[call["producer"]].begin_transaction(),
        "send": send,
        "join": join,
        "offsets": offsets,
        "list_transactions": list_transactions,
        "describe_transaction": describe_transaction,
        "abort_in": abort_in,
        "end": end,
        "read": read,
    },
    error_name,
)

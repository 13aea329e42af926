"""Transactional producers of aiokafka."""

import asyncio
import sys
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from tests.compat.transactors.base import LAST
from tests.compat.transactors.serving import serve

BOOTSTRAP = sys.argv[1]
WAIT_S = 20
loop = asyncio.new_event_loop()
producers: dict[str, AIOKafkaProducer] = {}


async def init(call: dict[str, Any]) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=BOOTSTRAP,
        transactional_id=call["transactional_id"],
        transaction_timeout_ms=call["timeout_ms"],
    )
    producers[call["producer"]] = producer
    await producer.start()


async def send(call: dict[str, Any]) -> None:
    producer = producers[call["producer"]]
    sent = [await producer.send(call["topic"], value.encode(), partition=call["partition"]) for value in call["values"]]
    await asyncio.wait_for(asyncio.gather(*sent), WAIT_S)


async def offsets(call: dict[str, Any]) -> None:
    place = {TopicPartition(call["topic"], 0): call["offset"]}
    await producers[call["producer"]].send_offsets_to_transaction(place, call["group"])


async def end(call: dict[str, Any]) -> None:
    producer = producers[call["producer"]]
    await (producer.commit_transaction() if call["commit"] else producer.abort_transaction())


async def read(call: dict[str, Any]) -> list[list[str]]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=BOOTSTRAP,
        enable_auto_commit=False,
        isolation_level="read_committed" if call["committed"] else "read_uncommitted",
    )
    await consumer.start()
    places = [TopicPartition(call["topic"], number) for number in range(call["partitions"])]
    consumer.assign(places)
    await consumer.seek_to_beginning(*places)
    found: list[list[str]] = [[] for _ in places]
    while not all(values and values[-1] == LAST for values in found):
        record = await asyncio.wait_for(consumer.getone(), WAIT_S)
        found[record.partition].append(record.value.decode())
    await consumer.stop()
    return found


async def begin(call: dict[str, Any]) -> None:
    await producers[call["producer"]].begin_transaction()


def run(operation: Any) -> Any:
    return lambda call: loop.run_until_complete(operation(call))


operations = {"init": init, "begin": begin, "send": send, "offsets": offsets, "end": end, "read": read}
serve(
    {"version": lambda _: str(aiokafka.__version__)} | {name: run(operation) for name, operation in operations.items()},
    lambda error: type(error).__name__,
)

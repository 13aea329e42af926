"""The kinds of load that rows are made of: each function here gives a function that puts that load on a broker.

Every round gets topics of its own and bounded bytes, so that the pages of earlier rounds are free again; loads that
append more than a little touch as much memory beforehand (see `machine`).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

from bench import machine
from bench.brokers import Broker
from bench.generator import clients, groups, latency, load, transactions, wire
from bench.generator import consumer_starts as starts
from bench.generator.channels import Load
from bench.generator.clients import ClientLoad
from bench.generator.consumer_starts import StartLoad
from bench.generator.groups import GroupLoad
from bench.generator.latency import Latency
from bench.generator.outcome import Outcome
from bench.generator.transactions import TransactionLoad

KIB, MIB = 1 << 10, 1 << 20
PARTITIONS = 8
ROUND_BYTES = 512 * MIB  # appended in a round of a load with batches
STORED_BYTES = 256 * MIB  # in the topic that readers read
STORED_RECORDS, STORED_VALUE_BYTES = 15, KIB  # a batch of it
LOAD_SECONDS = 3.0
LIMIT_SECONDS = 60.0  # for loads that end by their volume
COORDINATOR_SECONDS = 2.0  # of loads on coordinators

LoadOnBroker = Callable[[Broker], Outcome]
_numbers = count(1)


@contextmanager
def own_topic(broker: Broker, partitions: int) -> Iterator[str]:
    """A topic for one round."""
    with wire.temporary_topic(broker.port, f"round-{next(_numbers)}", partitions) as name:
        yield name


def one_message(
    connections: int, *, idempotent: bool = False, depth: int = 0, seconds: float = LOAD_SECONDS
) -> LoadOnBroker:
    """Produce requests of one message of 100 bytes."""
    partitions = min(connections, PARTITIONS)
    shape = Load(partitions=partitions, producers=connections, idempotent=idempotent, depth=depth, seconds=seconds)
    return _raw(shape)


def batches(
    connections: int, value_bytes: int, batch_bytes: int, *, tailers: int = 0, round_bytes: int = ROUND_BYTES
) -> LoadOnBroker:
    """Produce requests of one batch: as many messages as fit into that size, at least one."""
    records = max(1, (batch_bytes - wire.BATCH_HEADER_BYTES) // (value_bytes + 8))
    shape = Load(
        partitions=min(connections, PARTITIONS),
        producers=connections,
        tailers=tailers,
        records=records,
        value_bytes=value_bytes,
        requests_max=round_bytes // len(wire.batch(records, value_bytes)) // connections,
        seconds=LIMIT_SECONDS,
    )
    return _raw(shape, round_bytes)


def fetch(
    connections: int,
    fetch_bytes: int,
    *,
    seeking: bool = False,
    stored_bytes: int = STORED_BYTES,
    seconds: float = LOAD_SECONDS,
) -> LoadOnBroker:
    """Reads of a topic that the first round fills and all rounds share: sequential, or each from a random offset."""
    batch_bytes = len(wire.batch(STORED_RECORDS, STORED_VALUE_BYTES))
    stored = stored_bytes // PARTITIONS // batch_bytes
    shape = Load(
        topic="stored",
        partitions=PARTITIONS,
        records=STORED_RECORDS,
        value_bytes=STORED_VALUE_BYTES,
        stored_batches=stored,
        fetch_bytes=fetch_bytes,
    )

    def run(broker: Broker) -> Outcome:
        on_broker = replace(shape, port=broker.port, pid=broker.pid)
        if not wire.topic_exists(broker.port, shape.topic):
            wire.create_topic(broker.port, shape.topic, PARTITIONS)
            load.run(replace(on_broker, producers=PARTITIONS, requests_max=stored, seconds=LIMIT_SECONDS))
        on_broker = replace(on_broker, seconds=seconds)
        return load.run(replace(on_broker, seekers=connections) if seeking else replace(on_broker, readers=connections))

    return run


def librdkafka(action: str, value_bytes: int) -> LoadOnBroker:
    """Through confluent-kafka. A consume first produces what it reads, outside of what is measured."""
    messages = min(1_000_000, ROUND_BYTES // value_bytes) // clients.CHUNK * clients.CHUNK
    shape = ClientLoad(action="produce", messages=messages, value_bytes=value_bytes, partitions=4)

    def run(broker: Broker) -> Outcome:
        machine.warm_memory(messages * value_bytes // MIB)
        with own_topic(broker, shape.partitions) as topic:
            on_broker = replace(shape, port=broker.port, topic=topic, pid=broker.pid)
            produced = clients.run(on_broker)
            return produced if action == "produce" else clients.run(replace(on_broker, action=action))

    return run


def producer_performance(value_bytes: int) -> LoadOnBroker:
    """Kafka's own tool."""
    messages = min(2_000_000, ROUND_BYTES // value_bytes)

    def run(broker: Broker) -> Outcome:
        machine.warm_memory(messages * value_bytes // MIB)
        with own_topic(broker, 4) as topic:
            return clients.producer_performance(
                ClientLoad(broker.port, topic, broker.pid, messages=messages, value_bytes=value_bytes)
            )

    return run


def java_end_to_end(broker: Broker) -> Outcome:
    """Kafka's own tool: one message at a time."""
    with own_topic(broker, 1) as topic:
        wanted = ClientLoad(broker.port, topic, broker.pid, messages=5_000, value_bytes=100)
        return clients.end_to_end_latency(wanted)


def end_to_end(messages: int = 8_000, *, bytes_per_second_beside: float = 0.0) -> LoadOnBroker:
    """Latency at 1,000 messages a second; the load beside it starts before the first and outlives the last."""
    shape = Latency(messages=messages)
    beside = Load(
        partitions=4,
        producers=4,
        records=STORED_RECORDS,
        value_bytes=STORED_VALUE_BYTES,
        bytes_per_second=bytes_per_second_beside,
        seconds=(shape.warm_up + shape.messages) / shape.rate + 2,
    )

    def alone(broker: Broker) -> Outcome:
        with own_topic(broker, 1) as topic:
            return latency.run(replace(shape, port=broker.port, topic=topic, pid=broker.pid))

    def both(broker: Broker) -> Outcome:
        with ThreadPoolExecutor(1) as other:
            running = other.submit(_raw(beside), broker)
            outcome = alone(broker)
            running.result()
            return outcome

    return both if bytes_per_second_beside else alone


def commits(
    connections: int,
    *,
    depth: int = 1,
    partitions: int = 1,
    rate: float = 0.0,
    seconds: float = COORDINATOR_SECONDS,
) -> LoadOnBroker:
    """OffsetCommit by members, each alone in its group."""
    shape = GroupLoad(
        action="commit",
        connections=connections,
        depth=depth,
        partitions=partitions,
        rate=rate,
        seconds=seconds,
    )
    return _grouped(shape)


def rebalances(members: int, times: int = 10) -> LoadOnBroker:
    """One member of a group leaves and comes back, over and over."""
    return _grouped(GroupLoad(action="rebalance", connections=members, times=times))


def consumer_starts(client: str, times: int) -> LoadOnBroker:
    """Consumers subscribe, each alone in its group, and wait for their first record."""

    def run(broker: Broker) -> Outcome:
        with own_topic(broker, 1) as topic:
            wire.produce_one(broker.port, topic)
            return starts.run(StartLoad(broker.port, topic, broker.pid, client, times))

    return run


def transactional(
    size: int, *, producers: int = PARTITIONS, version: int = 2, seconds: float = COORDINATOR_SECONDS
) -> LoadOnBroker:
    """Transactions of so many records, each producer with a partition of its own."""
    shape = TransactionLoad(size=size, producers=producers, partitions=producers, version=version, seconds=seconds)

    def run(broker: Broker) -> Outcome:
        with own_topic(broker, shape.partitions) as topic:
            return transactions.run(replace(shape, port=broker.port, pid=broker.pid, topic=topic, name=topic))

    return run


def _grouped(shape: GroupLoad) -> LoadOnBroker:
    def run(broker: Broker) -> Outcome:
        with own_topic(broker, shape.partitions) as topic:
            return groups.run(replace(shape, port=broker.port, pid=broker.pid, topic=topic, group=topic))

    return run


def _raw(shape: Load, round_bytes: int = 0) -> LoadOnBroker:
    def run(broker: Broker) -> Outcome:
        if round_bytes:
            machine.warm_memory(round_bytes // MIB)
        with own_topic(broker, shape.partitions) as topic:
            return load.run(replace(shape, port=broker.port, topic=topic, pid=broker.pid))

    return run

"""Many transactional producers at once."""

from collections import Counter
from collections.abc import Callable, Sequence

from bench.brokers import Broker
from bench.generator import coordinator_requests as coordination
from bench.generator import dialogue, wire
from bench.generator.transactions import TransactionLoad, Transactor, transactions
from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.load.conftest import SECONDS
from tests.load.figures import Report

TOPIC, PARTITIONS = "load", 10
PRODUCERS, RATE, SIZE = 50, 1_000, 3
ABORT_EVERY = 10


def committed_records(broker: Broker) -> Counter[int]:
    """How often each transaction's number is seen by readers of committed records, and -1 for its other records."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    seen: Counter[int] = Counter()
    plain, ended = wire.record_value(100), 0
    while ended < PARTITIONS:
        for message in consumer.consume(10_000, 10):
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended += 1
                continue
            value = message.value()
            assert isinstance(value, bytes)
            seen[-1 if value == plain else int(wire.I64.unpack_from(value)[0])] += 1
    consumer.close()
    return seen


def check(seen: Counter[int], transactors: Sequence[Transactor]) -> None:
    committed = [number for transactor in transactors for number in transactor.committed]
    assert seen.pop(-1) == len(committed) * (SIZE - 1)
    assert seen == Counter(committed), "records of aborted transactions are seen, or of committed ones missing"


def test_50_producers_make_1000_transactions_a_second(broker: Broker, report: Callable[[str], Report]) -> None:
    """Every committed transaction is seen whole and once, of the aborted ones nothing."""
    wire.create_topic(broker.port, TOPIC, PARTITIONS)
    coordination.await_coordinator(broker.port, "load", coordination.TRANSACTION)
    load = TransactionLoad(
        port=broker.port,
        topic=TOPIC,
        pid=broker.pid,
        name="load",
        producers=PRODUCERS,
        partitions=PARTITIONS,
        size=SIZE,
        seconds=SECONDS,
        rate=RATE,
        abort_every=ABORT_EVERY,
    )
    outcome, transactors = dialogue.run(transactions(load))
    check(committed_records(broker), transactors)
    results = report(f"{PRODUCERS} producers, {RATE:,} transactions a second for {SECONDS:.0f} s")
    results.add("rate", outcome.requests / outcome.seconds, "/s", -0.98 * RATE)
    results.add_outcome(outcome)
    results.add_memory(broker)

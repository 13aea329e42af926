"""A broker killed under open transactions: each is committed or aborted as a whole, once and in order."""

import signal
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from tests.compat.own_broker import own_broker
from tests.support.broker import BrokerProcess

pytestmark = own_broker

TOPIC = "ledger"
PARTITIONS = 3
WRITERS = 3
KILLS = 6
WAIT_S = 60


class Writer(threading.Thread):
    """Numbers its transactions; each writes its number into every partition, twice, with a flush in between."""

    def __init__(self, address: str, number: int) -> None:
        super().__init__(name=f"writer-{number}")
        self._random = Random(number)
        self._address = address
        self._number = number
        self.outcomes: dict[int, bool | None] = {}  # by transaction: committed, aborted, or nobody knows
        self.stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._live()
        except BaseException as error:
            self.error = error

    def _live(self) -> None:
        """One producer, until it is broken for good."""
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "transactional.id": self.name,
                "transaction.timeout.ms": 30_000,
                "linger.ms": 0,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )
        _until_done(partial(producer.init_transactions, WAIT_S))
        while not self.stopping.is_set():
            transaction = len(self.outcomes)
            self.outcomes[transaction] = None
            try:
                producer.begin_transaction()
                self._write(producer, transaction)
                commit = self._random.random() < 0.7
                _until_done(partial(producer.commit_transaction if commit else producer.abort_transaction, WAIT_S))
                self.outcomes[transaction] = commit
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if not cause.txn_requires_abort():
                    return  # the next one fences this one
                _until_done(partial(producer.abort_transaction, WAIT_S))
                self.outcomes[transaction] = False

    def _write(self, producer: Producer, transaction: int) -> None:
        for _ in range(2):
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, f"{self._number} {transaction}", partition=partition)
            if self._random.random() < 0.5:
                producer.flush(WAIT_S)


def _until_done(action: Callable[[], object]) -> None:
    while True:
        try:
            action()
        except KafkaException as error:
            if error.args[0].retriable():
                continue
            raise
        return


def read_committed(address: str) -> list[list[tuple[int, int]]]:
    """(writer, transaction) of each record, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "auditor",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    found: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(WAIT_S)
        assert message is not None
        partition = message.partition()
        assert partition is not None
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(partition)
            continue
        writer, _, transaction = (message.value() or b"").decode().partition(" ")
        found[partition].append((int(writer), int(transaction)))
    consumer.close()
    return found


@pytest.mark.parametrize("fsync", [False, True], ids=["page cache", "fsync"])
def test_transactions_are_whole_after_any_kill(tmp_path: Path, fsync: bool) -> None:
    chance = Random(7)
    settings: dict[str, object] = {"num.partitions": PARTITIONS, "log.segment.bytes": 60_000}
    settings |= {"levada.acks.wait.for.fsync": "true"} if fsync else {}
    server = BrokerProcess(tmp_path, settings)
    server.start()
    writers = [Writer(server.bootstrap, number) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    done = threading.Event()
    for _ in range(KILLS):
        done.wait(chance.uniform(0.8, 2.5))  # how long a life is, no more
        server.stop(signal.SIGKILL)
        server.start()
    for writer in writers:
        writer.stopping.set()
    for writer in writers:
        writer.join(WAIT_S)
        assert not writer.is_alive() and writer.error is None, writer.error
    for number in range(WRITERS):  # whatever a writer left open is aborted by the next of its id
        last = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": f"writer-{number}"})
        last.init_transactions(WAIT_S)
    check(writers, read_committed(server.bootstrap))
    assert server.stop(signal.SIGTERM) == 0
    assert b"Traceback" not in server.log.read_bytes()


def check(writers: list[Writer], found: list[list[tuple[int, int]]]) -> None:
    committed = 0
    for number, writer in enumerate(writers):
        seen = [[transaction for one, transaction in values if one == number] for values in found]
        for values in seen:
            assert values == sorted(values), "out of order"
        times = [Counter(values) for values in seen]
        for transaction, outcome in writer.outcomes.items():
            counts = {there[transaction] for there in times}
            assert len(counts) == 1, f"transaction {transaction} of {number} is torn: {counts}"
            assert counts <= {0, 2}, f"transaction {transaction} of {number}: {counts}"
            if outcome is not None:
                assert counts == ({2} if outcome else {0}), f"{transaction} of {number} should be {outcome}"
            committed += outcome is True
    assert committed > KILLS, "hardly anything was tried"

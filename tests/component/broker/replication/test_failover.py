"""Three broker processes on one metadata file: whatever is killed, every acknowledged record is there once."""

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.broker import BrokerProcess
from tests.support.election import elect, partition_state
from tests.support.waiting import until

pytestmark = pytest.mark.slow

IDS = (1, 2, 3)


class Processes:
    """Brokers 1 to 3."""

    def __init__(self, folder: Path) -> None:
        self.metadata = folder / "metadata.db"
        self.brokers = {
            node_id: BrokerProcess(self._folder(folder, node_id), self._settings(node_id)) for node_id in IDS
        }

    def _folder(self, folder: Path, node_id: int) -> Path:
        (own := folder / str(node_id)).mkdir()
        return own

    def _settings(self, node_id: int) -> dict[str, object]:
        return {
            "node.id": node_id,
            "levada.metadata.file": self.metadata,
            "replica.lag.time.max.ms": 2_000,
            "min.insync.replicas": 2,
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def kill(self, node_id: int) -> None:
        self.brokers[node_id].stop(signal.SIGKILL)

    def isr(self, topic: str) -> set[int]:
        """As clients see it."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return set(admin.list_topics(topic, 10).topics[topic].partitions[0].isrs)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path)
    with ExitStack() as stack:
        for broker in found.brokers.values():
            stack.enter_context(broker)
        yield found


class Load(threading.Thread):
    """An idempotent producer with acks=all that remembers what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "topic.metadata.refresh.interval.ms": 500,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._stopping = threading.Event()
        self.acknowledged: list[int] = []
        self.failures: list[str] = []

    def run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            try:
                self._producer.produce(self._topic, str(number).encode(), on_delivery=self._delivered)
                number += 1
            except BufferError:
                pass
            self._producer.poll(0.0005)
        assert not self._producer.flush(120)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append(int(message.value() or b""))
        else:
            self.failures.append(error.str())

    def stop(self) -> None:
        self._stopping.set()
        self.join(180)
        assert not self.is_alive() and not self.failures, self.failures[:3]

    def wait_for(self, more: int) -> None:
        target = len(self.acknowledged) + more
        until(lambda: len(self.acknowledged) >= target, "nothing is acknowledged")


def read_all(bootstrap: str, topic: str) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None, "no end"
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return found
                raise KafkaException(error)
            found.append(int(message.value() or b""))
    finally:
        consumer.close()


def create(processes: Processes, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": processes.brokers[1].bootstrap})
    until(lambda: len(admin.list_topics(timeout=10).brokers) == 3, "no cluster")
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[[1, 2, 3]])])[topic].result()


def test_no_acknowledged_record_is_lost_when_leaders_are_killed(processes: Processes) -> None:
    create(processes, "orders")
    load = Load(processes.bootstrap, "orders")
    load.start()
    load.wait_for(1_000)
    for killed, successor in ((1, 2), (2, 3), (3, 1)):
        processes.kill(killed)
        isr = partition_state(processes.metadata, "orders").isr
        elect(processes.metadata, "orders", successor, tuple(one for one in isr if one != killed))
        load.wait_for(1_000)
        processes.brokers[killed].start()
        until(lambda: processes.isr("orders") == {1, 2, 3}, "the ISR is not whole again")
    load.stop()
    found = read_all(processes.bootstrap, "orders")
    assert [value for value, count in Counter(found).items() if count > 1] == []
    assert set(load.acknowledged) <= set(found)
    assert found == sorted(found)

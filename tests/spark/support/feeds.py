"""Clients other than Spark that write to and change the topics of a connector."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from levada.testing import EmbeddedBroker

TIMEOUT_S = 60  # for anything that a query does; passing it is a failure, not a slow machine


class Feeds:
    """Producers and operators of one broker."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def produce(self, topic: str, values: Iterable[object], partition: int = 0, **more: Any) -> None:
        """Write with another client; all are there when this returns."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for value in values:
            producer.produce(topic, str(value).encode(), partition=partition, **more)
        assert producer.flush(TIMEOUT_S) == 0

    @contextmanager
    def transaction(self, topic: str, values: Iterable[object], *, commit: bool) -> Iterator[None]:
        """Open with its records written for the length of the block, and ended after it."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "transactional.id": f"to-{topic}"})
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, str(value).encode(), partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        yield
        producer.commit_transaction() if commit else producer.abort_transaction()

    def transact(self, topic: str, values: Iterable[object], *, commit: bool) -> None:
        with self.transaction(topic, values, commit=commit):
            pass

    def values(self, topic: str) -> list[str]:
        """What is in a topic, in no order."""
        return sorted((record.value or b"").decode() for record in self.broker.records(topic))

    def grow(self, topic: str, partitions: int) -> None:
        self._done(self._admin.create_partitions([NewPartitions(topic, partitions)]))

    def create(self, topic: str, partitions: int = 1) -> None:
        """A topic by its name; it ends with the test if `broker.topic()` has made it before."""
        self._done(self._admin.create_topics([NewTopic(topic, partitions)]))

    def delete(self, topic: str) -> None:
        self._done(self._admin.delete_topics([topic]))

    def delete_records(self, topic: str, before: int) -> None:
        """As retention would: the log starts at this offset now."""
        self._done(self._admin.delete_records([TopicPartition(topic, 0, before)]))

    @staticmethod
    def _done(answers: dict[Any, Future[Any]]) -> None:
        for answer in answers.values():
            answer.result(TIMEOUT_S)


def texts(numbers: Iterable[int]) -> list[str]:
    """As `Feeds.values` shows them."""
    return sorted(map(str, numbers))

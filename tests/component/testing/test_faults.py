"""Injected faults as stock clients meet them, for the APIs that every client uses."""

import contextlib
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.support.client import NoLog
from tests.support.raw import Connection, batch, produce
from tests.support.waiting import until

from levada.errors import ErrorCode
from levada.testing import EmbeddedBroker

TIMEOUT_S = 30.0


@pytest.fixture
def topic(levada: EmbeddedBroker) -> str:
    """A topic with three records."""
    name = levada.topic()
    producer = Producer({"bootstrap.servers": levada.bootstrap})
    for value in ("a", "b", "c"):
        producer.produce(name, value)
    assert producer.flush(TIMEOUT_S) == 0
    return name


@pytest.fixture
def consumer(levada: EmbeddedBroker, topic: str) -> Iterator[Consumer]:
    settings = {
        "bootstrap.servers": levada.bootstrap,
        "group.id": "unused",
        "enable.auto.commit": False,
        "reconnect.backoff.max.ms": 100,
        "fetch.error.backoff.ms": 50,
    }
    one = Consumer(settings, logger=NoLog())
    yield one
    one.close()


def read(consumer: Consumer, topic: str, count: int) -> list[bytes | None]:
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages: list[Message] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(messages) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            messages.append(message)
    return [message.value() for message in messages]


# Fetch.


@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "KAFKA_STORAGE_ERROR", "CORRUPT_MESSAGE"])
def test_a_consumer_goes_on_after_a_failed_fetch(
    levada: EmbeddedBroker, topic: str, consumer: Consumer, error: str
) -> None:
    levada.fail_next("fetch", error)
    assert read(consumer, topic, 3) == [b"a", b"b", b"c"]
    assert not levada.faults


def test_a_consumer_goes_on_after_a_dropped_fetch(levada: EmbeddedBroker, topic: str, consumer: Consumer) -> None:
    levada.drop("fetch", times=2)
    assert read(consumer, topic, 3) == [b"a", b"b", b"c"]
    assert not levada.faults


def test_a_delayed_fetch_comes_late(levada: EmbeddedBroker, topic: str, consumer: Consumer) -> None:
    levada.delay("fetch", 0.3)
    began = time.monotonic()
    assert read(consumer, topic, 3) == [b"a", b"b", b"c"]
    assert time.monotonic() - began >= 0.3
    assert not levada.faults


# Metadata.


@pytest.fixture
def admin(levada: EmbeddedBroker, topic: str) -> AdminClient:
    """A client that is connected: what it asks from now on is what the test makes it ask."""
    one = AdminClient({"bootstrap.servers": levada.bootstrap}, logger=NoLog())
    assert one.list_topics(topic, timeout=TIMEOUT_S).topics[topic].error is None
    return one


def test_metadata_may_be_refused(levada: EmbeddedBroker, topic: str, admin: AdminClient) -> None:
    levada.fail_next("metadata", "TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(KafkaException) as caught:
        admin.list_topics(topic, timeout=TIMEOUT_S)
    assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].error is None


def test_dropped_metadata_can_be_asked_for_again(levada: EmbeddedBroker, topic: str, admin: AdminClient) -> None:
    levada.drop("metadata")
    with contextlib.suppress(KafkaException):  # librdkafka asks again by itself, or says that it was cut off
        admin.list_topics(topic, timeout=TIMEOUT_S)
    assert not levada.faults
    assert admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].error is None


def test_delayed_metadata_times_out(levada: EmbeddedBroker, topic: str, admin: AdminClient) -> None:
    levada.delay("metadata", TIMEOUT_S)
    with pytest.raises(KafkaException) as caught:
        admin.list_topics(topic, timeout=0.3)
    assert caught.value.args[0].code() in {KafkaError._TRANSPORT, KafkaError._TIMED_OUT}


# Produce.


def test_a_delayed_produce_is_stored_late_and_once(levada: EmbeddedBroker, topic: str) -> None:
    levada.delay("produce", 0.2)
    producer = Producer({"bootstrap.servers": levada.bootstrap, "enable.idempotence": True})
    began = time.monotonic()
    for value in ("d", "e"):
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0
    assert time.monotonic() - began >= 0.2
    assert [record.value for record in levada.records(topic)] == [b"a", b"b", b"c", b"d", b"e"]


def test_requests_behind_a_delayed_one_wait_for_it(levada: EmbeddedBroker, topic: str) -> None:
    """Answers keep their order: what was pipelined behind is neither answered nor begun before."""
    levada.delay("produce", 0.2)
    with Connection(levada.bootstrap) as one:
        place = {"index": 0, "records": batch(b"delayed")}
        fields = {"acks": -1, "timeout": 1000, "topic_data": [{"name": topic, "partition_data": [place]}]}
        one.send("produce", 9, fields)
        asked = one.send("metadata", 12, {"topics": []})
        assert [one.receive()[0] for _ in range(2)] == [asked - 1, asked]


def test_an_error_for_who_expects_no_answer_ends_the_connection(levada: EmbeddedBroker, topic: str) -> None:
    levada.fail_next("produce", ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with Connection(levada.bootstrap) as one:
        place = {"index": 0, "records": batch(b"unasked")}
        fields = {"acks": 0, "timeout": 1000, "topic_data": [{"name": topic, "partition_data": [place]}]}
        one.send("produce", 9, fields)
        with pytest.raises(ConnectionResetError):
            one.receive_frame()
    assert len(levada.records(topic)) == 3


def test_others_are_not_touched(levada: EmbeddedBroker, topic: str) -> None:
    """A fault of one request leaves the same API on another connection alone once it has been met."""
    levada.delay("produce", TIMEOUT_S)
    with Connection(levada.bootstrap) as delayed, Connection(levada.bootstrap) as other:
        place = {"index": 0, "records": batch(b"slow")}
        delayed.send(
            "produce", 9, {"acks": -1, "timeout": 1000, "topic_data": [{"name": topic, "partition_data": [place]}]}
        )
        until(lambda: not levada.faults)
        assert produce(other, topic, batch(b"quick")).error_code == 0
    assert [record.value for record in levada.records(topic)][3:] == [b"quick"]


def test_a_malformed_request_that_was_delayed_ends_its_connection(levada: EmbeddedBroker) -> None:
    levada.delay("produce", 0.05)
    with Connection(levada.bootstrap) as one:
        one.send_frame(b"\0\0\0\x09\0\0\0\x01\0\x02me" + b"\0" + b"\xff" * 20)
        with pytest.raises(ConnectionResetError):
            one.receive_frame()

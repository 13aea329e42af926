"""Deleting internal topics, as Kafka allows: groups and transactions start over."""

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from tests.badinput.broker import HEALTHY, Broker
from tests.badinput.golden import TOPIC
from tests.support.raw import Connection

WAIT_S = 30.0


def delete(broker: Broker, topic: str) -> None:
    with Connection(broker.bootstrap) as one:
        (deleted,) = one.call("delete_topics", 5, {"topic_names": [topic], "timeout": 10_000}).responses
        assert deleted.error_code == 0


def test_groups_begin_anew(tmp_path: Path) -> None:
    """A consumer that is at work joins again by itself, and reads from where its own reset policy says."""
    with Broker(tmp_path) as broker:
        broker.prepare()
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
             "enable.auto.commit": False, "heartbeat.interval.ms": 200, "session.timeout.ms": 6_000}
        )  # fmt: skip
        consumer.subscribe([HEALTHY])
        first = consumer.poll(WAIT_S)
        assert first is not None and first.offset() == 0
        consumer.commit(asynchronous=False)
        delete(broker, "__consumer_offsets")
        while (again := consumer.poll(WAIT_S)) is not None and again.offset() != 0:
            pass
        assert again is not None, "the group is new, and so is its place"
        (place,) = consumer.commit(asynchronous=False)
        assert place.error is None and place.offset == 1
        consumer.close()
        broker.check_health()


def test_transactions_begin_anew(tmp_path: Path) -> None:
    """What was open has no owner: the producer gets an error, its id is free, and an operator ends what hangs."""
    with Broker(tmp_path) as broker:
        broker.prepare()
        settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "t", "log_level": 0}
        orphan = Producer(settings)
        orphan.init_transactions(WAIT_S)
        orphan.begin_transaction()
        orphan.produce(TOPIC, b"never read")
        orphan.flush(WAIT_S)
        delete(broker, "__transaction_state")
        with pytest.raises(KafkaException, match="PRODUCER_ID_MAPPING"):
            orphan.commit_transaction(WAIT_S)
        follower = Producer(settings)
        follower.init_transactions(WAIT_S)
        follower.begin_transaction()
        follower.produce(TOPIC, b"read")
        follower.commit_transaction(WAIT_S)
        levada = [sys.executable, "-m", "levada", "txn", "abort", "--hanging", "--topic", TOPIC, "--yes"]
        subprocess.run([*levada, "--bootstrap", broker.bootstrap], check=True, timeout=WAIT_S)
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "r", "auto.offset.reset": "earliest"})
        reader.subscribe([TOPIC])
        message = reader.poll(WAIT_S)
        assert message is not None and message.value() == b"read"
        reader.close()
        broker.check_health()

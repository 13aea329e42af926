"""`levada.testing` in a pytest run of its own, with stock clients."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

import levada.testing
from levada.broker.faults import Fault, Faults
from levada.errors import ErrorCode
from levada.testing import EmbeddedBroker

pytestmark = pytest.mark.slow


def produce(bootstrap: str, topic: str, *values: str, **settings: object) -> list[KafkaError | None]:
    """Send values with librdkafka; what it was told about each."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    return errors


def test_records_come_back_as_objects(levada: EmbeddedBroker) -> None:
    topic = levada.topic(partitions=2)
    producer = Producer({"bootstrap.servers": levada.bootstrap})
    producer.produce(topic, b"tea", key=b"k", partition=1, headers={"h": b"1"}, timestamp=1_700_000_000_000)
    producer.produce(topic, None, key=b"gone", partition=0, timestamp=1_700_000_000_001)
    producer.flush(30)
    assert levada.records(topic) == [
        (topic, 0, 0, 1_700_000_000_001, b"gone", None, ()),
        (topic, 1, 0, 1_700_000_000_000, b"k", b"tea", (("h", b"1"),)),
    ]


def test_every_topic_is_a_new_one(levada: EmbeddedBroker) -> None:
    names = [levada.topic() for _ in range(3)]
    assert len(set(names)) == 3
    assert [levada.records(name) for name in names] == [[], [], []]


def test_a_test_may_delete_its_topic_itself(levada: EmbeddedBroker) -> None:
    """The fixture does not stumble over it when the test is over."""
    topic = levada.topic()
    admin = AdminClient({"bootstrap.servers": levada.bootstrap})
    admin.delete_topics([topic])[topic].result(30)


def test_a_topic_takes_configs_by_kafkas_names(levada: EmbeddedBroker) -> None:
    topic = levada.topic(max_message_bytes=100)
    (error,) = produce(levada.bootstrap, topic, "x" * 200)
    assert error and error.code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_the_next_request_fails_and_the_one_after_does_not(levada: EmbeddedBroker) -> None:
    topic = levada.topic()
    levada.fail_next("produce", "TOPIC_AUTHORIZATION_FAILED")
    (error,) = produce(levada.bootstrap, topic, "one")
    assert error and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert produce(levada.bootstrap, topic, "two") == [None]
    assert [record.value for record in levada.records(topic)] == [b"two"]


def test_a_retriable_error_is_retried_by_the_client(levada: EmbeddedBroker) -> None:
    topic = levada.topic()
    levada.fail_next("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2)
    assert produce(levada.bootstrap, topic, "one") == [None]
    assert [record.value for record in levada.records(topic)] == [b"one"]
    assert not levada.faults


def test_a_dropped_connection_loses_nothing(levada: EmbeddedBroker) -> None:
    topic = levada.topic()
    levada.drop("produce")
    settings = {"enable.idempotence": True}
    assert produce(levada.bootstrap, topic, "one", "two", **settings) == [None, None]
    assert [record.value for record in levada.records(topic)] == [b"one", b"two"]
    assert not levada.faults


def test_a_delayed_request_times_out_in_the_client(levada: EmbeddedBroker) -> None:
    topic = levada.topic()
    levada.delay("produce", 30)
    settings = {"message.timeout.ms": 1000, "socket.timeout.ms": 500, "retries": 0}
    (error,) = produce(levada.bootstrap, topic, "one", **settings)
    assert error and error.code() in {KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT}


def test_an_unknown_api_is_named(levada: EmbeddedBroker) -> None:
    with pytest.raises(ValueError, match="did you mean produce"):
        levada.fail_next("produse", ErrorCode.CORRUPT_MESSAGE)


def test_faults_are_used_up_in_order() -> None:
    faults = Faults()
    assert not faults
    faults.add(0, Fault(drop=True))
    faults.add(0, Fault(delay_s=1.0), times=2)
    faults.add(1, Fault(error=ErrorCode.CORRUPT_MESSAGE))
    assert [faults.decide(0) for _ in range(4)] == [
        Fault(drop=True),
        Fault(delay_s=1.0),
        Fault(delay_s=1.0),
        None,
    ]
    assert faults and faults.decide(2) is None
    faults.clear()
    assert not faults and faults.decide(1) is None


def test_a_fault_happens_at_least_once() -> None:
    with pytest.raises(ValueError, match="not 0 times"):
        Faults().add(0, Fault(drop=True), times=0)


def test_brokers_are_apart_and_leave_nothing() -> None:
    before = set(threading.enumerate())
    with levada.testing.broker() as one, levada.testing.broker(num_partitions=3) as other:
        assert one.bootstrap != other.bootstrap
        topic = one.topic()
        assert produce(one.bootstrap, topic, "x") == [None]
        with pytest.raises(ValueError, match="no such topic"):
            other.records(topic)
        host, _, port = one.bootstrap.partition(":")
    assert not set(threading.enumerate()) - before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_a_misspelt_error_is_reported() -> None:
    with (
        levada.testing.broker() as broker,
        pytest.raises(ValueError, match="did you mean NOT_LEADER_OR_FOLLOWER"),
    ):
        broker.fail_next("produce", "NOT_LEADER_FOLLOWER")


def test_a_misspelt_setting_is_a_warning() -> None:
    with (
        pytest.warns(UserWarning, match=r"did you mean num\.partitions"),
        levada.testing.broker(num_partitons=3),
    ):
        pass


def test_a_wrong_setting_is_reported_by_start() -> None:
    with pytest.raises(Exception, match=r"num\.partitions"), levada.testing.broker(num_partitions="many"):
        pass


def run_pytest(folder: Path, *options: str, **environment: str) -> str:
    """The output of a run that must pass, in a project of a user."""
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *options]
    result = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


USERS_TESTS = """
import pytest
from confluent_kafka import Producer

@pytest.fixture(scope="session")
def levada_settings():
    return {"num.partitions": "2"}

@pytest.fixture(scope="module")
def shared(levada_broker):
    levada_broker.topic("shared")
    levada_broker.produce("shared", "tea")
    return "shared"

@pytest.mark.parametrize("number", range(8))
def test_orders(levada, shared, number):
    levada.topic("orders")
    producer = Producer({"bootstrap.servers": levada.bootstrap})
    producer.produce("orders", str(number))
    producer.produce("auto-created", str(number))
    producer.flush(10)
    for topic in ("orders", "auto-created"):
        assert [record.value for record in levada.records(topic)] == [str(number).encode()]
    assert [record.value for record in levada.records(shared)] == [b"tea"]
    levada.fail_next("fetch", "CORRUPT_MESSAGE")

def test_that_needs_no_broker():
    pass
"""


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_the_fixture_in_a_users_project(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_orders.py").write_text(USERS_TESTS)
    assert "9 passed" in run_pytest(tmp_path, "-n", workers)


ASYNC_TESTS = """
import asyncio
import pytest
import levada as package

async def send(bootstrap):
    async with package.Client(bootstrap) as client, client.producer() as producer:
        await producer.send_and_wait("orders", b"tea")

async def check(levada):
    levada.topic("orders")
    levada.produce("orders", "coffee")
    sending = asyncio.create_task(send(levada.bootstrap))
    records = await asyncio.to_thread(levada.wait_for, "orders", 2)
    await sending
    assert [record.value for record in records] == [b"coffee", b"tea"]

@pytest.mark.anyio
async def test_with_anyio(levada):
    await check(levada)

@pytest.fixture
def anyio_backend():
    return "asyncio"

def test_without_a_plugin(levada):
    asyncio.run(check(levada))
"""


def test_the_fixture_in_async_tests(tmp_path: Path) -> None:
    (tmp_path / "test_async.py").write_text(ASYNC_TESTS)
    assert "2 passed" in run_pytest(tmp_path)


def test_pytest_loads_nothing_of_the_broker_until_it_is_asked(tmp_path: Path) -> None:
    (tmp_path / "test_light.py").write_text(
        "import sys\ndef test_light():\n    assert not {'levada.server', 'uvloop', 'kio'} & set(sys.modules)\n"
    )
    run_pytest(tmp_path)


REWRITTEN = """
import sys
from _pytest.assertion.rewrite import AssertionRewritingHook

def test_of_this_project(levada):
    loaders = {name: module.__loader__ for name, module in sys.modules.items() if name.partition(".")[0] == "levada"}
    rewritten = {name for name, loader in loaders.items() if isinstance(loader, AssertionRewritingHook)}
    assert rewritten == {"levada", "levada.testing", "levada.testing.plugin"}, rewritten
    assert isinstance(__loader__, AssertionRewritingHook)
    assert len(loaders) > 100
"""


def test_pytest_does_not_compile_the_broker_again(tmp_path: Path) -> None:
    """It rewrites the asserts of packages with a plugin; of ours only in what it imports up to the plugin."""
    (tmp_path / "test_rewritten.py").write_text(REWRITTEN)
    run_pytest(tmp_path, PYTHONDONTWRITEBYTECODE="1")

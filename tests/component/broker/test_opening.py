"""Opening, creating and deleting logs: off the loop, in slices, and never an empty log in place of a missing one."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.broker import BrokerProcess, BrokerThread, crash_image
from tests.support.faulty_disk import FaultyDisk
from tests.support.raw import Connection, batch, fetch, produce, wait_until_served
from tests.support.shell import Shell
from tests.support.waiting import until

from levada.broker.log_dirs import LogDirs
from levada.broker.log_files.opening import LogToOpen
from levada.broker.reconciler import PARTITIONS_PER_ITERATION, Reconciler
from levada.cli.main import run
from levada.clock import SystemClock
from levada.config.broker import BrokerConfig
from levada.core.cluster.controller import CreateTopic, DeleteTopic
from levada.errors import ErrorCode, KafkaError
from levada.metadata.sqlite import SqliteStore
from levada.metadata.store import CompareAndSet
from levada.model import TopicPartition
from levada.server import Server
from levada.storage.checkpoints import decode_offsets, encode_offsets
from levada.storage.disk import OsDisk

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
METADATA = "levada-metadata.db"
REMAINING_LOGS = "kafka_log_logmanager_remaininglogstorecover"


class GatedDisk(OsDisk):
    """Calls on paths that contain `held` wait until the gate is open; calls are noted with their threads."""

    __slots__ = ("calls", "gate", "held", "waiting")

    def __init__(self, held: str = "") -> None:
        super().__init__()
        self.held = held
        self.gate = threading.Event()
        self.waiting = threading.Event()  # a call has come to the gate
        self.calls: list[tuple[str, str, int]] = []

    def note(self, operation: str, path: str) -> None:
        self.calls.append((operation, path, threading.get_ident()))
        if self.held and self.held in path:
            self.waiting.set()
            self.gate.wait()

    def mkdir(self, path: str) -> None:
        self.note("mkdir", path)
        super().mkdir(path)

    def open(self, path: str, create: bool = False) -> int:
        self.note("open", path)
        return super().open(path, create)

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]  # of paths only
        self.note("rename", source)
        os.replace(source, target)

    def fsync_dir(self, path: str) -> None:
        self.note("fsync_dir", path)
        super().fsync_dir(path)


class ServingBroker(BrokerThread):
    """A broker that is started when it serves, as `levada start`: its logs may not be open yet."""

    def _new_server(self, config: BrokerConfig) -> Server:
        class ServingServer(Server):
            async def opened(self) -> None:
                pass

        return ServingServer(config, self.faults, disk=self._disk)


def error_of(one: Connection, topic: str, index: int = 0) -> int:
    """The error of a Produce."""
    place = {"name": topic, "partition_data": [{"index": index, "records": batch(b"x")}]}
    response = one.call("produce", 12, {"acks": -1, "timeout": 10_000, "topic_data": [place]})
    return int(response.responses[0].partition_responses[0].error_code)


def create(one: Connection, topic: str, partitions: int = 1, **configs: str) -> Any:
    settings = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
    topics = [{"name": topic, "num_partitions": partitions, "replication_factor": 1, "configs": settings}]
    return one.call("create_topics", 7, {"topics": topics, "timeout": 30_000}).topics[0]


def submit(broker: BrokerThread, command: CreateTopic | DeleteTopic) -> "asyncio.Future[Any]":
    """Begin a command; the future is done when the broker has applied it."""
    loop = broker.call(asyncio.get_running_loop)
    return asyncio.run_coroutine_threadsafe(broker.broker.controller.submit(command), loop)  # type: ignore[return-value]


# Creating and deleting.


def test_a_large_topic_is_created_and_deleted_a_few_partitions_at_a_time(tmp_path: Path) -> None:
    disk, per_iteration, iteration = GatedDisk(), Counter[int](), 0

    def count() -> None:
        nonlocal iteration
        iteration += 1
        asyncio.get_running_loop().call_soon(count)

    with BrokerThread(tmp_path, disk=disk) as broker, broker.connect() as one:
        loop_thread = broker.call(threading.get_ident)
        broker.call(count)
        broker.broker.partition_listeners.append(lambda _: per_iteration.update([iteration]))
        disk.calls.clear()
        assert create(one, "large", 1_000).error_code == 0
        assert {error_of(one, "large", index) for index in (0, 500, 999)} == {0}
        broker.delete("large")
        until(lambda: not list(tmp_path.glob("large-*")))
    assert sum(per_iteration.values()) == 1_000
    assert max(per_iteration.values()) <= PARTITIONS_PER_ITERATION
    slow = {"mkdir", "rename", "fsync_dir"}
    on_loop = [call for call in disk.calls if call[2] == loop_thread and call[0] in slow and "/large-" in call[1]]
    assert on_loop == []


def test_a_small_topic_does_not_wait_for_a_large_one(tmp_path: Path) -> None:
    disk = GatedDisk("/large-7")
    with BrokerThread(tmp_path, disk=disk) as broker, broker.connect() as one:
        large = submit(broker, CreateTopic("large", uuid4(), 40))
        disk.waiting.wait()
        assert create(one, "small").error_code == 0
        assert error_of(one, "small") == 0
        assert error_of(one, "large") == ErrorCode.NOT_LEADER_OR_FOLLOWER
        disk.gate.set()
        large.result()
        assert error_of(one, "large", 39) == 0


def test_a_topic_is_created_again_while_it_is_being_deleted(tmp_path: Path) -> None:
    disk = GatedDisk()
    with BrokerThread(tmp_path / "data", disk=disk) as broker, broker.connect() as one:
        assert create(one, "orders").error_code == 0
        assert error_of(one, "orders") == error_of(one, "orders") == 0
        disk.held = "/orders-0"
        deleted = submit(broker, DeleteTopic("orders"))
        disk.waiting.wait()
        one.send(
            "create_topics",
            7,
            {"topics": [{"name": "orders", "num_partitions": 1, "replication_factor": 1}], "timeout": 30_000},
        )
        until(lambda: "orders" in broker.broker.image.topics)
        disk.gate.set()
        assert one.receive()[1].topics[0].error_code == 0
        deleted.result()
        assert produce(one, "orders", batch(b"new")).base_offset == 0
        image = crash_image(tmp_path / "data", tmp_path / "image")
    with BrokerThread(image) as broker, broker.connect() as one:
        assert fetch(one, "orders", 0).high_watermark == 1


def test_a_broker_that_is_killed_while_it_creates_a_topic_goes_on(tmp_path: Path) -> None:
    disk = GatedDisk("/orders-7")
    with BrokerThread(tmp_path / "data", disk=disk) as broker:
        submit(broker, CreateTopic("orders", uuid4(), 10))
        disk.waiting.wait()
        image = crash_image(tmp_path / "data", tmp_path / "image")
        disk.gate.set()
    with BrokerThread(image) as broker, broker.connect() as one:
        assert {error_of(one, "orders", index) for index in range(10)} == {0}


def test_a_broker_stops_while_it_creates_a_topic(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = GatedDisk("/orders-7")
    with BrokerThread(tmp_path, disk=disk) as broker, broker.connect() as one:
        assert create(one, "others").error_code == error_of(one, "others") == 0
        submit(broker, CreateTopic("orders", uuid4(), 100))
        disk.waiting.wait()
        stopping = threading.Thread(
            target=broker._started.result()[0].call_soon_threadsafe, args=[broker._stopping.set]
        )
        stopping.start()
        disk.gate.set()
    assert [record.message for record in caplog.records] == []
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert {error_of(one, "orders", index) for index in range(100)} == {0}
        assert fetch(one, "others", 0).high_watermark == 1


def test_a_stop_fsyncs_no_logs_that_were_not_written(tmp_path: Path) -> None:
    disk = GatedDisk()
    with BrokerThread(tmp_path, disk=disk) as broker, broker.connect() as one:
        assert create(one, "orders", 50).error_code == error_of(one, "orders", 7) == 0
        disk.calls.clear()
    assert {path for operation, path, _ in disk.calls if operation == "fsync_dir" and "orders" in path} == {
        str(tmp_path / "orders-7")
    }


# The start.


def test_a_broker_serves_before_all_its_logs_are_open(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        for topic in ("fast", "slow"):
            assert create(one, topic).error_code == error_of(one, topic) == 0
        broker.wait(broker.broker.groups.create_topic())
    disk = GatedDisk("/slow-0/0")
    with ServingBroker(tmp_path, disk=disk) as broker, broker.connect() as one:
        disk.waiting.wait()
        until(lambda: error_of(one, "fast") == 0)
        assert error_of(one, "slow") == fetch(one, "slow", 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        topics = [{"name": "slow", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        listed = one.call("list_offsets", 7, {"replica_id": -1, "topics": topics}).topics[0].partitions[0]
        assert listed.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert leader(one, "slow") == (ErrorCode.LEADER_NOT_AVAILABLE, -1, ())
        disk.gate.set()
        until(lambda: error_of(one, "slow") == 0)
        assert leader(one, "slow") == (0, broker.broker.node_id, ())
        assert fetch(one, "slow", 0).high_watermark == 2


@pytest.fixture
def recovering(tmp_path: Path) -> Iterator[tuple[ServingBroker, GatedDisk]]:
    """A broker whose only recovery thread is held at a log, with the logs of `queued` behind it."""
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        for topic in ("held", "queued"):
            assert create(one, topic).error_code == error_of(one, topic) == 0
    disk = GatedDisk("/held-0/0")
    with ServingBroker(tmp_path, disk=disk, num_recovery_threads_per_data_dir=1) as started:
        disk.waiting.wait()
        try:
            yield started, disk
        finally:
            disk.gate.set()


def alter(one: Connection, topic: str, name: str, value: str) -> int:
    changes = [{"name": name, "config_operation": 0, "value": value}]
    resources = [{"resource_type": 2, "resource_name": topic, "configs": changes}]
    return int(one.call("incremental_alter_configs", 1, {"resources": resources}).responses[0].error_code)


def delete(topic: str) -> tuple[str, int, dict[str, Any]]:
    return "delete_topics", 5, {"topic_names": [topic], "timeout": 30_000}


@pytest.mark.parametrize("topic", ["held", "queued"])
def test_a_topic_is_altered_while_its_log_is_recovered(recovering: tuple[ServingBroker, GatedDisk], topic: str) -> None:
    broker, disk = recovering
    with broker.connect() as one:
        assert alter(one, topic, "max.message.bytes", "10") == 0
        disk.gate.set()
        until(lambda: error_of(one, topic) == ErrorCode.MESSAGE_TOO_LARGE)
        assert fetch(one, topic, 0).high_watermark == 1


def test_a_cleaner_checkpoint_keeps_the_entry_of_a_log_that_is_opened_meanwhile(tmp_path: Path) -> None:
    """Without it the gaps of a log that was compacted would be damage."""
    with BrokerThread(tmp_path) as broker:
        broker.create("held")
    held, checkpoint = TopicPartition("held", 0), tmp_path / "cleaner-offset-checkpoint"
    checkpoint.write_bytes(encode_offsets({held: 0}))
    disk, writing = GatedDisk("/held-0/0"), threading.Event()
    with ServingBroker(tmp_path, disk=disk) as broker:
        disk.waiting.wait()
        log_dirs = broker.broker.log_dirs
        log_dirs._files_thread.submit(writing.wait)
        loop = broker.call(asyncio.get_running_loop)
        written = asyncio.run_coroutine_threadsafe(log_dirs.write_cleaner_offsets(log_dirs._dirs[0], {}), loop)
        broker.wait(asyncio.sleep(0))
        disk.gate.set()
        until(lambda: held in broker.broker.partitions)
        writing.set()
        written.result()
        assert decode_offsets(checkpoint.read_bytes()) == {held: 0}


@pytest.mark.parametrize("topic", ["held", "queued"])
def test_partitions_are_added_while_a_log_of_their_topic_is_recovered(
    recovering: tuple[ServingBroker, GatedDisk], topic: str
) -> None:
    broker, disk = recovering
    with broker.connect() as one:
        more = {"topics": [{"name": topic, "count": 3, "assignments": None}], "timeout": 30_000}
        assert one.call("create_partitions", 2, more).results[0].error_code == 0
        assert error_of(one, topic, 1) == error_of(one, topic, 2) == 0
        assert error_of(one, topic) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        disk.gate.set()
        until(lambda: error_of(one, topic) == 0)
        assert fetch(one, topic, 0).high_watermark == 2


def test_a_topic_is_deleted_and_created_again_before_its_log_is_recovered(
    recovering: tuple[ServingBroker, GatedDisk], tmp_path: Path
) -> None:
    broker, disk = recovering
    with broker.connect() as one:
        assert one.call(*delete("queued")).responses[0].error_code == 0
        assert not (tmp_path / "queued-0").exists()
        assert create(one, "queued").error_code == 0
        assert produce(one, "queued", batch(b"new")).base_offset == 0
        disk.gate.set()
        until(lambda: error_of(one, "held") == 0)
        broker.wait(broker.broker.opened())
        assert fetch(one, "queued", 0).high_watermark == 1


def test_a_deletion_waits_for_the_log_that_a_thread_is_recovering(
    recovering: tuple[ServingBroker, GatedDisk], tmp_path: Path
) -> None:
    """The thread must not work in the directory of another topic of the same name."""
    broker, disk = recovering
    with broker.connect() as one, broker.connect() as two:
        one.send(*delete("held"))
        until(lambda: "held" not in broker.broker.image.topics)
        topics = [{"name": "held", "num_partitions": 1, "replication_factor": 1}]
        two.send("create_topics", 7, {"topics": topics, "timeout": 30_000})
        until(lambda: "held" in broker.broker.image.topics)
        assert (tmp_path / "held-0").exists()
        disk.gate.set()
        assert one.receive()[1].responses[0].error_code == 0
        assert two.receive()[1].topics[0].error_code == 0
        assert produce(one, "held", batch(b"new")).base_offset == 0
        until(lambda: error_of(one, "queued") == 0)
        assert fetch(one, "queued", 0).high_watermark == 2


def test_a_stop_does_not_wait_for_a_recovery(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reads = threading.Event()

    class WithoutHoles(OsDisk):
        def next_data(self, fd: int, position: int) -> int:
            reads.set()
            return position

    with BrokerThread(tmp_path / "data") as broker, broker.connect() as one:
        assert create(one, "slow").error_code == error_of(one, "slow") == 0
        image = crash_image(tmp_path / "data", tmp_path / "image")
    segment = image / "slow-0" / "00000000000000000000.log"
    os.truncate(segment, 1 << 41)  # sparse
    for _ in range(2):
        reads.clear()
        with ServingBroker(image, disk=WithoutHoles()):
            reads.wait()
        assert json.loads((image / ".kafka_cleanshutdown").read_bytes())["unclean"] == ["slow-0"]
        assert segment.stat().st_size == 1 << 41
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    with BrokerThread(image) as broker, broker.connect() as one:
        assert fetch(one, "slow", 0).high_watermark == 1


def leader(one: Connection, topic: str) -> tuple[int, int, tuple[int, ...]]:
    """The error, the leader and the offline replicas of a topic's first partition."""
    part = one.call("metadata", 12, {"topics": [{"name": topic, "topic_id": None}]}).topics[0].partitions[0]
    return int(part.error_code), part.leader_id, part.offline_replicas


def test_a_coordinator_loads_when_its_log_is_open(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, offsets_topic_num_partitions=1) as broker:
        broker.wait(broker.broker.groups.create_topic())
    disk = GatedDisk("/__consumer_offsets-0/0")
    with ServingBroker(tmp_path, disk=disk) as broker, broker.connect() as one:
        disk.waiting.wait()
        group = {"group_id": "g", "topics": None}

        def error() -> int:
            return int(one.call("offset_fetch", 7, group).error_code)

        assert error() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert one.call("list_groups", 4, {}).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        disk.gate.set()
        until(lambda: error() == 0)


def health(broker: BrokerThread) -> tuple[int, dict[str, Any]]:
    with urllib.request.urlopen(f"http://{broker.server.metrics_address}/healthz", timeout=20) as answer:
        return answer.status, json.load(answer)


def gauge(broker: BrokerThread, name: str) -> dict[str, float]:
    """The values of a metric by log dir."""
    with urllib.request.urlopen(f"http://{broker.server.metrics_address}/metrics", timeout=20) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    (found,) = [one for one in families if one.name == name]
    return {sample.labels["dir"]: sample.value for sample in found.samples}


@pytest.mark.parametrize("damaged", [False, True])
def test_a_broker_reports_the_logs_that_are_not_open_yet(tmp_path: Path, damaged: bool) -> None:
    """`degraded` comes before `recovering`; a log that is being created is not one to recover."""
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert create(one, "slow", 3).error_code == create(one, "hurt").error_code == 0
        if not damaged:
            broker.delete("hurt")
    if damaged:
        shutil.rmtree(tmp_path / "hurt-0")
    disk = GatedDisk("/slow-0/0")
    with (
        ServingBroker(
            tmp_path, disk=disk, num_recovery_threads_per_data_dir=1, levada_metrics_listener="127.0.0.1:0"
        ) as broker,
        broker.connect() as one,
    ):
        disk.waiting.wait()
        try:
            assert create(one, "new").error_code == 0
            status, found = health(broker)
            assert (status, found["status"]) == (200, "degraded" if damaged else "recovering")
            assert found["remaining_logs_to_recover"] == 3
            assert gauge(broker, REMAINING_LOGS) == {str(tmp_path): 3}
            problems = json.loads(Shell(broker.bootstrap)("cluster", "health", "-o", "json").out)["problems"]
            recovering = [("recovering partition", f"slow-{index}") for index in range(3)]
            assert [(one["problem"], one["where"]) for one in problems] == [
                *[("offline partition", "hurt-0")] * damaged,
                *recovering,
            ]
        finally:
            disk.gate.set()
        broker.wait(broker.broker.opened())
        status, found = health(broker)
        assert (status, found["status"]) == (200, "degraded" if damaged else "ok")
        assert found["remaining_logs_to_recover"] == 0
        assert gauge(broker, REMAINING_LOGS) == {str(tmp_path): 0}


def test_a_log_that_is_created_is_none_to_recover(tmp_path: Path) -> None:
    disk = GatedDisk("/orders-7")
    with BrokerThread(tmp_path, disk=disk, levada_metrics_listener="127.0.0.1:0") as broker:
        submit(broker, CreateTopic("orders", uuid4(), 10))
        disk.waiting.wait()
        try:
            assert health(broker)[1]["status"] == "ok"
            assert gauge(broker, REMAINING_LOGS) == {str(tmp_path): 0}
        finally:
            disk.gate.set()


CHECKPOINTS = ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint"]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_damaged_checkpoint_is_reported_until_the_next_start(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert create(one, "orders").error_code == error_of(one, "orders") == 0
    path = tmp_path / name
    path.write_bytes(path.read_bytes() + b"orders 0 9999\n")
    assert run(["log", "check", str(tmp_path)]) == 1
    assert f"-: {path}: its CRC differs" in capsys.readouterr().out
    with BrokerThread(tmp_path, levada_metrics_listener="127.0.0.1:0") as broker, broker.connect() as one:
        status, found = health(broker)
        assert (status, found["status"]) == (200, "degraded")
        assert found["damaged_checkpoints"] == [str(path)] and found["offline_partitions"] == []
        assert gauge(broker, "levada_log_dir_damaged_checkpoints") == {str(tmp_path): 1}
        assert error_of(one, "orders") == 0
    with BrokerThread(tmp_path, levada_metrics_listener="127.0.0.1:0") as broker:
        assert health(broker)[1]["status"] == "ok" and health(broker)[1]["damaged_checkpoints"] == []
        assert gauge(broker, "levada_log_dir_damaged_checkpoints") == {str(tmp_path): 0}


def with_confluent(bootstrap: str) -> None:
    from confluent_kafka import Producer

    errors: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("slow", b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert errors == [None]


def with_kafka_python(bootstrap: str) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap)
    producer.send("slow", b"x").get(60)
    producer.close()


def with_aiokafka(bootstrap: str) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            await producer.send_and_wait("slow", b"x")

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of kafka-python
@pytest.mark.parametrize("client", [with_confluent, with_kafka_python, with_aiokafka])
def test_stock_clients_wait_until_a_log_is_open(tmp_path: Path, client: Callable[[str], None]) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert create(one, "slow").error_code == 0
    disk = GatedDisk("/slow-0/0")
    with ServingBroker(tmp_path, disk=disk) as broker, broker.connect() as one:
        disk.waiting.wait()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                client(broker.bootstrap)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        metadata = broker.broker.request_metrics.times[3]
        until(lambda: sum(metadata.buckets) >= 2 or not thread.is_alive())
        disk.gate.set()
        thread.join()
        assert failed == []
        assert fetch(one, "slow", 0).high_watermark == 1


# The log dir of a partition.


def assigned(broker: BrokerThread, topic: str, index: int = 0) -> object:
    return broker.broker.image.topics[topic].partitions[index].directories


def directory_id(broker: BrokerThread, topic: str) -> object:
    log_dirs = broker.broker.log_dirs
    return (log_dirs.log_dir_of(broker.partition(topic)).directory_id,)


def test_the_metadata_knows_the_log_dir_of_a_partition(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "a", tmp_path / "b") as broker, broker.connect() as one:
        for topic in ("one", "two"):
            assert create(one, topic).error_code == 0
            assert assigned(broker, topic) == directory_id(broker, topic)
        assert assigned(broker, "one") != assigned(broker, "two")


@pytest.mark.parametrize("gone", ["orders-0", "__consumer_offsets-0"])
def test_a_folder_that_is_gone_after_a_kill_is_missed(tmp_path: Path, gone: str) -> None:
    """An empty log in its place would hide the loss, and give its offsets out again."""
    with BrokerProcess(tmp_path, {"offsets.topic.num.partitions": 1}) as server:
        with server.connect() as one:
            assert create(one, "orders").error_code == create(one, "others").error_code == 0
            assert error_of(one, "orders") == 0
            one.call("find_coordinator", 4, {"key_type": 0, "coordinator_keys": ["g"]})
        server.stop(signal.SIGKILL)
        (server.data / gone).rename(tmp_path / gone)
        for _ in range(2):
            server.start()
            with server.connect() as one:
                until(lambda: error_of(one, "others") == 0)
                if gone == "orders-0":
                    assert error_of(one, "orders") == STORAGE_ERROR
                else:
                    commit = {"group_id": "g", "topics": None}
                    assert one.call("offset_fetch", 7, commit).error_code == ErrorCode.NOT_COORDINATOR
            assert not (server.data / gone).exists()
            server.stop(signal.SIGKILL)
        assert f"{server.data / gone} is missing" in server.log.read_text()
        (tmp_path / gone).rename(server.data / gone)
        server.start()
        with server.connect() as one:
            until(lambda: error_of(one, "orders") == 0)
            assert fetch(one, "orders", 0).high_watermark == 2


def test_a_folder_that_was_moved_to_another_log_dir_is_accepted(tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    with BrokerThread(*folders) as broker, broker.connect() as one:
        assert create(one, "orders").error_code == error_of(one, "orders") == 0
        former = broker.log_dir("orders")
    (other,) = set(folders) - {former}
    (former / "orders-0").rename(other / "orders-0")
    for _ in range(2):
        with BrokerThread(*folders) as broker, broker.connect() as one:
            assert broker.log_dir("orders") == other
            assert fetch(one, "orders", 0).high_watermark == 1
            assert assigned(broker, "orders") == directory_id(broker, "orders")


def test_the_partitions_of_a_removed_log_dir_are_offline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    with BrokerThread(*folders) as broker, broker.connect() as one:
        for topic in ("one", "two"):
            assert create(one, topic).error_code == error_of(one, topic) == 0
        (lost,) = (topic for topic in ("one", "two") if broker.log_dir(topic) == folders[1])
    with BrokerThread(folders[0]) as broker, broker.connect() as one:
        assert error_of(one, lost) == STORAGE_ERROR
        assert leader(one, lost) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, (broker.broker.node_id,))
        assert not (folders[0] / f"{lost}-0").exists()
    assert "is offline or not in log.dirs" in "".join(str(vars(record)) for record in caplog.records)
    with BrokerThread(*folders) as broker, broker.connect() as one:
        assert fetch(one, lost, 0).high_watermark == 1


def without_directories(data: Path) -> None:
    """Metadata as an older version wrote it."""
    with sqlite3.connect(data / METADATA) as database:
        rows = database.execute("SELECT key, value FROM rows WHERE key LIKE '/topics/%'").fetchall()
        for key, value in rows:
            text = bytes(value).decode()
            kept = "".join(
                part.partition("]")[2] if number else part for number, part in enumerate(text.split(',"directories":['))
            )
            database.execute("UPDATE rows SET value = ? WHERE key = ?", (kept.encode(), key))
        database.execute("DELETE FROM changes")
        database.execute("ALTER TABLE rows DROP COLUMN crc")
        database.execute("PRAGMA user_version = 1")
    database.close()


def test_data_of_an_older_version_is_assigned_at_its_first_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerThread(data) as broker, broker.connect() as one:
        for topic in ("orders", "gone"):
            assert create(one, topic).error_code == error_of(one, topic) == 0
    without_directories(data)
    shutil.rmtree(data / "gone-0")  # the checkpoints know it
    with BrokerThread(data) as broker, broker.connect() as one:
        assert assigned(broker, "orders") == directory_id(broker, "orders")
        assert fetch(one, "orders", 0).high_watermark == 1
        assert error_of(one, "gone") == STORAGE_ERROR
    shutil.rmtree(data / "orders-0")
    with BrokerThread(data) as broker, broker.connect() as one:
        assert error_of(one, "orders") == error_of(one, "gone") == STORAGE_ERROR


# What is offline.


def test_an_odd_file_takes_only_its_partition_offline(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        for topic in ("odd", "good"):
            assert create(one, topic).error_code == error_of(one, topic) == 0
    segment = tmp_path / "odd-0" / "00000000000000000000.log"
    segment.unlink()
    segment.symlink_to(segment)
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert error_of(one, "odd") == STORAGE_ERROR
        assert error_of(one, "good") == 0
        assert broker.broker.log_dirs.offline == []
        assert broker.broker.log_dirs.offline_partitions() == {("odd", 0)}


@pytest.mark.parametrize(
    "name",
    [
        *("orders-0/leader-epoch-checkpoint", "orders-0/partition.metadata", "orders-0/*.index"),
        *("orders-0/*.timeindex", "orders-0/*.snapshot", "recovery-point-offset-checkpoint"),
        *("log-start-offset-checkpoint", ".boot-id", ".kafka_cleanshutdown"),
    ],
)
def test_a_file_that_can_be_rebuilt_may_have_any_size(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert create(one, "orders").error_code == error_of(one, "orders") == 0
    (path,) = tmp_path.glob(name)
    os.truncate(path, 1 << 41)  # sparse
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert fetch(one, "orders", 0).high_watermark == 1
        assert error_of(one, "orders") == 0
    assert not [record for record in caplog.records if record.exc_info]


def test_one_open_partition_is_taken_offline(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        for topic in ("hurt", "good"):
            assert create(one, topic).error_code == error_of(one, topic) == 0
        hurt = broker.partition("hurt")
        broker.call(lambda: broker.broker.log_dirs.fail_partition(hurt, "a batch is corrupt"))
        assert error_of(one, "hurt") == fetch(one, "hurt", 0).error_code == STORAGE_ERROR
        assert leader(one, "hurt") == (ErrorCode.LEADER_NOT_AVAILABLE, -1, (broker.broker.node_id,))
        assert error_of(one, "good") == 0
        assert broker.broker.log_dirs.offline_partitions() == {("hurt", 0)}


def test_a_topic_is_not_created_while_all_log_dirs_are_offline(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with BrokerThread(tmp_path, disk=disk) as broker, broker.connect() as one:
        assert create(one, "orders").error_code == 0
        disk.fail("pwritev", tmp_path / "orders-0")
        assert error_of(one, "orders") == STORAGE_ERROR
        assert create(one, "others").error_code == STORAGE_ERROR
        more = {"topics": [{"name": "orders", "count": 2, "assignments": None}], "timeout": 1_000}
        assert one.call("create_partitions", 2, more).results[0].error_code == STORAGE_ERROR
        assert set(broker.broker.image.topics) == {"orders"}


def test_a_log_dir_that_fails_when_a_topic_is_created_leaves_it_to_another(tmp_path: Path) -> None:
    disk = FaultyDisk()
    first, second = tmp_path / "a", tmp_path / "b"
    with BrokerThread(first, second, disk=disk) as broker, broker.connect() as one:
        disk.fail("mkdir", second / "orders")
        assert create(one, "orders", 4).error_code == 0
        assert {broker.log_dir("orders", index) for index in range(4)} == {first}
        assert {error_of(one, "orders", index) for index in range(4)} == {0}
        disk.fail("mkdir", first / "others")
        assert create(one, "others").error_code == STORAGE_ERROR


def topic_config(one: Connection, topic: str) -> dict[str, str]:
    resources = [{"resource_type": 2, "resource_name": topic, "configuration_keys": None}]
    (result,) = one.call("describe_configs", 4, {"resources": resources}).results
    return {config.name: config.value for config in result.configs}


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_an_internal_topic_that_a_client_creates_is_compacted(
    broker: BrokerThread, wire: Connection, topic: str
) -> None:
    refused = create(wire, topic, cleanup_policy="delete")
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert create(wire, topic).error_code == 0
    found = topic_config(wire, topic)
    expected = broker.broker.internal_configs(topic)
    assert expected["cleanup.policy"] == "compact" and expected.items() <= found.items()
    change = [{"name": "cleanup.policy", "config_operation": 0, "value": "delete"}]
    resources = [{"resource_type": 2, "resource_name": topic, "configs": change}]
    (altered,) = wire.call("incremental_alter_configs", 1, {"resources": resources}).responses
    assert altered.error_code == ErrorCode.INVALID_CONFIG
    assert broker.partition(topic).log.config.cleanup_policy == ("compact",)
    broker.delete(topic)


def test_a_deleted_topic_that_was_damaged_does_not_return_with_its_name(tmp_path: Path) -> None:
    """Its directory is set aside, and a new topic of the name begins at offset 0."""
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert create(one, "orders").error_code == error_of(one, "orders") == 0
    segment = tmp_path / "orders-0" / "00000000000000000000.log"
    content = segment.read_bytes()
    segment.rename(tmp_path / "away")
    segment.symlink_to(segment)
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert error_of(one, "orders") == STORAGE_ERROR
        broker.delete("orders")
        assert create(one, "orders").error_code == 0
        assert produce(one, "orders", batch(b"new")).base_offset == 0
        assert broker.broker.log_dirs.offline_partitions() == set()
        (stray,) = tmp_path.glob("orders-0.*-stray")
        assert (tmp_path / "away").read_bytes() == content and (stray / segment.name).is_symlink()


def test_the_log_tells_of_a_recovery(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with BrokerThread(tmp_path / "data") as broker, broker.connect() as one:
        assert create(one, "orders", 3).error_code == 0
        image = crash_image(tmp_path / "data", tmp_path / "image")
    with caplog.at_level("INFO"), BrokerThread(image):
        texts = [(record.message, vars(record)) for record in caplog.records]
    assert [message for message, _ in texts][:2] == ["unclean shutdown detected, recovering logs", "logs are open"]


def test_a_topic_whose_directory_is_gone_can_be_deleted(tmp_path: Path) -> None:
    """What was removed from a running broker concerns its partition, not the log dir."""
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        for topic in ("orders", "others"):
            assert create(one, topic).error_code == error_of(one, topic) == 0
        shutil.rmtree(tmp_path / "orders-0")
        deleted = one.call("delete_topics", 5, {"topic_names": ["orders"], "timeout": 30_000})
        assert deleted.responses[0].error_code == error_of(one, "others") == 0
        assert broker.broker.log_dirs.offline == []


def test_a_stray_directory_that_cannot_be_renamed_delays_no_log(tmp_path: Path) -> None:
    class Refusing(OsDisk):
        def rename(self, source: str, target: str) -> None:  # type: ignore[override]  # of paths only
            if "stray" in target:
                raise OSError(16, "Device or resource busy", source)
            os.replace(source, target)

    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert create(one, "orders").error_code == error_of(one, "orders") == 0
    shutil.copytree(tmp_path / "orders-0", tmp_path / "unknown-0")
    with BrokerThread(tmp_path, disk=Refusing()) as broker, broker.connect() as one:
        assert error_of(one, "orders") == 0


def test_a_topic_created_while_logs_are_located_makes_no_other_stray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories are stray that no topic of the first round has; later rounds do not know."""
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert create(one, "orders").error_code == 0
        assert produce(one, "orders", batch(b"x")).error_code == 0
    locate = Reconciler._locate

    async def interrupted(self: Reconciler, name: str, requests: list[LogToOpen]) -> None:
        if name == "orders":
            self.topics_changed(["others"])
            await asyncio.sleep(0.1)  # the other round runs meanwhile
        await locate(self, name, requests)

    monkeypatch.setattr(Reconciler, "_locate", interrupted)
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        wait_until_served(one, "orders")
        assert fetch(one, "orders", 0).high_watermark == 1
    assert not list(tmp_path.glob("*-stray"))


def test_a_topic_with_the_name_of_a_stray_is_created_after_it_was_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the thread that renames strays would rename the new directory."""
    with BrokerThread(tmp_path / "data") as broker, broker.connect() as one:
        assert create(one, "orders").error_code == 0
        assert produce(one, "orders", batch(b"old")).error_code == 0
        crash_image(tmp_path / "data" / "orders-0", tmp_path / "orders-0")
        broker.delete("orders")
        until(lambda: not list((tmp_path / "data").glob("orders-0*")), "the files are not deleted")
    shutil.move(tmp_path / "orders-0", tmp_path / "data")
    gate, mark_strays = threading.Event(), LogDirs.mark_strays

    def held(self: LogDirs) -> None:
        gate.wait(30)
        mark_strays(self)

    monkeypatch.setattr(LogDirs, "mark_strays", held)
    with BrokerThread(tmp_path / "data") as broker, broker.connect() as one:
        topics = [{"name": "orders", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}]
        sent = one.send("create_topics", 5, {"topics": topics, "timeout": 30_000})
        until(lambda: "orders" in broker.broker.image.topics)
        broker.wait(asyncio.sleep(0.3))  # enough to create it, if nothing held that back
        assert ("orders", 0) not in broker.broker.partitions
        gate.set()
        assert dict([one.receive()])[sent].topics[0].error_code == 0
        assert produce(one, "orders", batch(b"new")).error_code == 0
    with BrokerThread(tmp_path / "data") as broker, broker.connect() as one:
        wait_until_served(one, "orders")
        assert fetch(one, "orders", 0).high_watermark == 1
    assert len(list((tmp_path / "data").glob("orders-0.*-stray"))) == 1


@pytest.mark.parametrize("content", [None, b"", b"levada.format=1\n", b"\xff\x00\xff" * 100], ids=str)
def test_a_log_dir_without_identity_is_offline(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    with BrokerThread(*folders) as broker, broker.connect() as one:
        for topic in ("one", "two"):
            assert create(one, topic).error_code == error_of(one, topic) == 0
        owners = {broker.log_dir(topic): topic for topic in ("one", "two")}
    meta = folders[1] / "meta.properties"
    stored = meta.read_bytes()
    meta.unlink()
    if content is not None:
        meta.write_bytes(content + (b"node.id=1\n" if b"levada" in content else b""))
    with BrokerThread(*folders) as broker, broker.connect() as one:
        assert broker.broker.log_dirs.offline == [str(folders[1])]
        assert error_of(one, owners[folders[0]]) == 0
        assert error_of(one, owners[folders[1]]) == STORAGE_ERROR
        assert create(one, "new").error_code == error_of(one, "new") == 0
    assert str(folders[1]) in "".join(str(vars(record)) for record in caplog.records)
    meta.write_bytes(stored)
    with BrokerThread(*folders) as broker, broker.connect() as one:
        assert error_of(one, owners[folders[1]]) == 0


# Invalid metadata.


def set_record(data: Path, key: str, **fields: object) -> None:
    """Change a record of the metadata of a stopped broker; it is valid for the store."""
    store = SqliteStore(str(data / METADATA), SystemClock())

    async def work() -> None:
        snapshot = await store.open(lambda _: None)
        (found,) = [record for record in snapshot.records if record.key == key]
        value = json.dumps(json.loads(found.value or b"{}") | fields).encode()
        await store.commit([CompareAndSet(key, value, found.version)])
        await store.close()

    asyncio.run(work())


@pytest.mark.parametrize(("name", "value"), [("cleanup.policy", "bogus"), ("segment.bytes", "abc"), ("wat", "1")])
def test_an_invalid_setting_of_a_topic_takes_its_partitions_offline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    """Their data stays in its place, all others are served, and the topic can be altered and deleted."""
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        for topic in ("hurt", "whole"):
            assert create(one, topic).error_code == error_of(one, topic) == 0
    set_record(tmp_path, "/topics/hurt", configs={name: value})
    assert run(["log", "check", str(tmp_path)]) == 1
    assert f"{tmp_path / METADATA}: topic 'hurt' has an invalid setting" in capsys.readouterr().out
    with BrokerThread(tmp_path, levada_metrics_listener="127.0.0.1:0") as broker, broker.connect() as one:
        assert (error_of(one, "hurt"), error_of(one, "whole")) == (STORAGE_ERROR, 0)
        ((partition, (_, detail, _)),) = broker.broker.log_dirs.offline_logs.items()
        assert partition == ("hurt", 0) and "'hurt'" in detail and name in detail
        assert health(broker)[1]["status"] == "degraded"
        if name == "wat":
            assert one.call(*delete("hurt")).responses[0].error_code == 0
        else:
            changes = [{"name": name, "config_operation": 1, "value": None}]
            resources = [{"resource_type": 2, "resource_name": "hurt", "configs": changes}]
            assert one.call("incremental_alter_configs", 1, {"resources": resources}).responses[0].error_code == 0
    assert run(["log", "check", str(tmp_path)]) == 0
    with BrokerThread(tmp_path) as broker, broker.connect() as one:
        assert (name == "wat") or fetch(one, "hurt", 0).high_watermark == 1
        assert fetch(one, "whole", 0).high_watermark == 2


def test_an_invalid_setting_of_the_broker_in_the_metadata_is_named(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker:
        assert run(["config", "set", "broker", "1", "log.retention.ms=5000", "-b", broker.bootstrap]) == 0
    set_record(tmp_path, "/configs/brokers/1", **{"log.retention.ms": "long"})
    with pytest.raises(KafkaError, match=rf"{METADATA} has an invalid broker setting.*log\.retention\.ms"):
        BrokerThread(tmp_path).start()

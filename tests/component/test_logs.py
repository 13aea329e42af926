"""Logs: one line an event, with its fields, as text or as JSON, on stderr of the broker."""

import json
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from tests.support.broker import BrokerProcess
from tests.support.raw import Connection

# A broker process whose program warns, and in which a thread fails, once it has started.
WITH_WARNINGS = """
import sys, threading, warnings
from levada import server
from levada.cli.main import main

def fail():
    raise ValueError("planted exception")

def log_start(one, log_start=server._log_start):
    log_start(one)
    warnings.warn("planted warning")
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()

server._log_start = log_start
sys.argv[0] = "levada"
main()
"""


def lines_of(server: BrokerProcess) -> list[dict[str, Any]]:
    """The log of a broker with levada.log.format=json; a line that is not JSON fails the test."""
    return [json.loads(line) for line in server.log.read_text().splitlines()]


def test_changes_of_topics_and_configs_are_logged_with_who_asked(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"levada.log.format": "json"}) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap, "client.id": "the-admin"})
        topic = NewTopic("orders", 1, 1, config={"retention.ms": "5000"})
        admin.create_topics([topic])["orders"].result(20)
        admin.create_partitions([NewPartitions("orders", 3)])["orders"].result(20)
        for operation in (AlterConfigOpType.SET, AlterConfigOpType.DELETE):
            entry = ConfigEntry("retention.ms", "7000", incremental_operation=operation)
            resource = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result(20)
        admin.delete_topics(["orders"])["orders"].result(20)
        with Connection(server.bootstrap) as wire:  # creates the topic, since it names it
            wire.call("metadata", 12, {"topics": [{"name": "by-itself"}], "allow_auto_topic_creation": True})
            change = {"name": "num.io.threads", "config_operation": 0, "value": "16"}
            broker = {"resource_type": 4, "resource_name": "1", "configs": [change]}
            wire.call("incremental_alter_configs", 1, {"resources": [broker]})
    lines = lines_of(server)
    found = [line for line in lines if line["event"].startswith("topic ") and line["topic"] == "orders"]
    for line in found:
        assert line["client_id"] == "the-admin" and line["address"].startswith("127.0.0.1:")
        assert line["principal"] == "User:ANONYMOUS"
    kept = ("event", "partitions", "former_partitions", "set", "reset")
    assert [{name: line[name] for name in kept if name in line} for line in found] == [
        {"event": "topic created", "partitions": 1, "set": "retention.ms=5000"},
        {"event": "topic altered", "partitions": 3, "former_partitions": 1},
        {"event": "topic altered", "set": "retention.ms=7000"},
        {"event": "topic altered", "reset": "retention.ms"},
        {"event": "topic deleted", "partitions": 3},
    ]
    assert [line["event"] for line in lines if line.get("topic") == "by-itself"] == ["topic created"]
    assert [line["set"] for line in lines if line["event"] == "broker configs altered"] == ["num.io.threads=16"]
    (unused,) = [line for line in lines if line["event"] == "broker setting is stored without effect"]
    assert (unused["level"], unused["setting"]) == ("warning", "num.io.threads")


def test_deletions_are_logged_with_who_asked(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"levada.log.format": "json"}) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap, "client.id": "the-admin"})
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(20)
        producer = Producer({"bootstrap.servers": server.bootstrap})
        producer.produce("orders", b"value", partition=0)
        producer.flush()
        committer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "g"})
        committer.commit(offsets=[TopicPartition("orders", index, 0) for index in range(2)], asynchronous=False)
        committer.close()
        ends = [TopicPartition("orders", index, -1) for index in range(2)]
        for result in admin.delete_records(ends).values():
            result.result(20)
        with Connection(server.bootstrap) as wire:
            topics = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
            assert wire.call("offset_delete", 0, {"group_id": "g", "topics": topics}).error_code == 0
        for result in admin.delete_consumer_groups(["g"]).values():
            result.result(20)
    found = [line for line in lines_of(server) if line["event"].endswith("deleted")]
    kept = ("event", "topic", "group", "partitions")
    assert [{name: line[name] for name in kept if name in line} for line in found] == [
        {"event": "records deleted", "topic": "orders", "partitions": 2},
        {"event": "group offsets deleted", "group": "g", "partitions": 1},
        {"event": "group deleted", "group": "g"},
    ]
    assert [line["client_id"] == "the-admin" for line in found] == [True, False, True]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_rebalances_are_logged_and_heartbeats_are_not(tmp_path: Path, protocol: str) -> None:
    with BrokerProcess(tmp_path, {"levada.log.format": "json"}) as server:
        common = {"bootstrap.servers": server.bootstrap, "group.id": "g", "group.protocol": protocol}
        producer = Producer({"bootstrap.servers": server.bootstrap})
        producer.produce("t", b"value")
        producer.flush()
        member = Consumer({**common, "client.id": "the-member", "auto.offset.reset": "earliest"})
        member.subscribe(["t"])
        record = None
        while record is None or record.error():
            record = member.poll(0.05)
        member.commit(asynchronous=False)
        member.close()
    lines = lines_of(server)
    first, *_ = rebalances = [line for line in lines if line["event"] == "group rebalanced"]
    assert (first["group"], first["protocol"], first["members"]) == ("g", protocol, 1)
    assert first["client_id"] == "the-member" and "127.0.0.1" in first["address"]
    number = "generation" if protocol == "classic" else "group_epoch"
    assert [line[number] for line in rebalances] == sorted({line[number] for line in rebalances})
    assert {line["event"] for line in lines} == {
        *("broker started", "topic created", "group rebalanced", "broker stopping", "broker stopped"),
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_start_and_stop_are_logged(tmp_path: Path, form: str) -> None:
    with BrokerProcess(tmp_path, {"levada.log.format": form}) as server:
        pass
    started, stopping, stopped = server.log.read_text().splitlines()
    assert "broker started" in started and server.bootstrap in started
    assert "broker stopping" in stopping and "SIGTERM" in stopping
    assert "broker stopped" in stopped


def test_with_json_every_line_on_both_streams_is_json(tmp_path: Path) -> None:
    """The banner, warnings about settings, Python's warnings, uncaught exceptions, reasons not to start."""
    properties = tmp_path / "server.properties"
    data = tmp_path / "data"
    properties.write_text(f"levada.log.format=json\nnum.io.threads=8\nlog.dirs={data}\nlevada.metrics.listener=\n")
    where = ("--listener", "PLAINTEXT://127.0.0.1:0", "--set", "levada.metrics.listener=127.0.0.1:0")
    process = subprocess.Popen(
        [sys.executable, "-c", WITH_WARNINGS, "start", str(properties), *where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    printed = process.stdout.readline()
    refused = subprocess.run(
        [sys.executable, "-m", "levada", "start", str(properties), *where], capture_output=True, text=True, timeout=60
    )
    process.terminate()
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    ready = json.loads(printed)
    assert ready["event"] == "ready" and ready["connect"].startswith("bootstrap.servers=127.0.0.1:")
    assert ready["metrics"].startswith("http://127.0.0.1:")
    assert [json.loads(line)["event"] for line in rest.splitlines()] == ["stopping"]
    events = [json.loads(line) for line in errors.splitlines()]
    assert any(line["event"].startswith("num.io.threads has no effect") for line in events)
    assert any("planted warning" in line["event"] for line in events)
    assert any("planted exception" in line.get("trace", "") for line in events)
    assert refused.returncode == 1 and refused.stdout == ""
    *_, why = [json.loads(line) for line in refused.stderr.splitlines()]
    assert why["event"] == "broker cannot start" and "in use by another broker" in why["why"]
    for arguments in (["--set", "num.partitions=many", "--set", "levada.log.format=json"],):
        wrong = subprocess.run(
            [sys.executable, "-m", "levada", "start", *arguments], capture_output=True, text=True, timeout=60
        )
        assert wrong.returncode == 2
        assert "num.partitions" in json.loads(wrong.stderr)["why"]


def test_a_broker_logs_json_on_stderr_and_talks_on_stdout(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"levada.log.format": "json"}) as server:
        host, _, port = server.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), 20) as one:
            one.sendall(struct.pack(">i", -1))
            assert one.recv(1) == b""
        server.stop(signal.SIGKILL)
        server.start()
        with Connection(server.bootstrap) as wire:
            assert wire.call("metadata", 12, {"topics": []}).brokers
    lines = lines_of(server)
    (closed,) = [line for line in lines if line["event"] == "connection closed"]
    assert "socket.request.max.bytes" in closed["reason"] and closed["peer"].startswith("127.0.0.1:")


def test_libraries_that_the_start_does_not_load() -> None:
    """structlog and rich took a third of it; RE2 is loaded with the first pattern."""
    code = "import sys, levada.server; print({'structlog', 'rich', 'prometheus_client', 're2'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"

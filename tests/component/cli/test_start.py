"""`levada start`: settings from files, variables and flags; signals."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.support.raw import Connection, batch, produce

from levada.errors import ErrorCode
from levada.testing import EmbeddedBroker

BATCH_S = 60


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[tuple["subprocess.Popen[str]", str, list[str]]]:
    """A broker in a process: the process, where to connect, and what it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "levada", "start", "--set", "levada.metrics.listener=", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    printed: list[str] = []
    try:
        for line in process.stdout:
            printed.append(line)
            if found := re.search(r"bootstrap\.servers=(\S+)", line):
                yield process, found[1], printed
                break
        else:
            pytest.fail(f"it did not start: {process.stderr.read()}")
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=BATCH_S)


def levada(bootstrap: str, *arguments: str) -> str:
    process = subprocess.run(
        [sys.executable, "-m", "levada", *arguments, "-b", bootstrap],
        capture_output=True,
        text=True,
        timeout=BATCH_S,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_it_says_where_to_connect_and_stops_cleanly(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with started("--data", str(data), "--port", "0") as (process, bootstrap, printed):
        assert str(data) in "".join(printed)
        levada(bootstrap, "topic", "create", "orders", "-p", "2")
        process.send_signal(signal.SIGTERM)
        assert process.wait(BATCH_S) == 0
    with started("--data", str(data), "--port", "0") as (process, bootstrap, _):
        assert levada(bootstrap, "topic", "list", "-q") == "orders\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(BATCH_S) == 0


def test_flags_win_over_variables_over_files(tmp_path: Path) -> None:
    """Settings have Kafka's names wherever they come from."""
    properties = tmp_path / "server.properties"
    properties.write_text(
        f"log.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:0\n"
        "num.partitions=2\nlog.retention.hours=1\nmessage.max.bytes=1000\nnum.io.threads=8\n"
    )
    arguments = (str(properties), "--set", "message.max.bytes=3000")
    with started(*arguments, KAFKA_NUM_PARTITIONS="3", KAFKA_MESSAGE_MAX_BYTES="2000") as (
        process,
        bootstrap,
        _,
    ):
        shown = levada(bootstrap, "config", "describe", "broker", "1", "num.partitions", "message.max.bytes")
        assert [line.split()[1] for line in shown.splitlines()[1:]] == ["3000", "3"]
        process.terminate()
        _, errors = process.communicate(timeout=BATCH_S)
        assert "warning num.io.threads has no effect" in errors


def test_it_prints_addresses_that_a_client_accepts(tmp_path: Path) -> None:
    """The advertised ones: a listener may be bound to every interface."""
    advertised = ("--set", "advertised.listeners=PLAINTEXT://localhost:0")
    with started("--data", str(tmp_path), "--port", "0", *advertised) as (_, bootstrap, _):
        assert re.fullmatch(r"localhost:\d+", bootstrap)
        assert levada(bootstrap, "topic", "list", "-q") == ""


def test_a_port_replaces_the_advertised_addresses_of_a_file(tmp_path: Path) -> None:
    """Otherwise clients would be sent to another broker."""
    properties = tmp_path / "server.properties"
    properties.write_text("listeners=PLAINTEXT://localhost:9092\nadvertised.listeners=PLAINTEXT://localhost:9092\n")
    with started(str(properties), "--data", str(tmp_path / "data"), "--port", "0") as (_, bootstrap, _):
        assert bootstrap.startswith("127.0.0.1:") and not bootstrap.endswith(":9092")
        assert levada(bootstrap, "topic", "list", "-q") == ""


def test_settings_that_one_broker_cannot_satisfy_are_named(tmp_path: Path) -> None:
    """Each warning names the error that clients get, and the remedy."""
    settings = ("default.replication.factor", "offsets.topic.replication.factor", "min.insync.replicas",
                "transaction.state.log.replication.factor")  # fmt: skip
    properties = tmp_path / "server.properties"
    properties.write_text("".join(f"{name}=2\n" for name in settings))
    arguments = (str(properties), "--data", str(tmp_path / "data"), "--port", "0")
    with started(*arguments) as (process, bootstrap, _):
        with Connection(bootstrap) as wire:
            codes = {
                "default.replication.factor": wire.call(
                    "create_topics", 7, {"topics": [{"name": "a", "num_partitions": 1, "replication_factor": -1}]}
                ).topics[0].error_code,
                "offsets.topic.replication.factor": find_coordinator(wire, 0),
                "transaction.state.log.replication.factor": find_coordinator(wire, 1),
            }  # fmt: skip
            wire.call("create_topics", 7, {"topics": [{"name": "b", "num_partitions": 1, "replication_factor": 1}]})
            codes["min.insync.replicas"] = produce(wire, "b", batch(b"value")).error_code
        process.terminate()
        _, errors = process.communicate(timeout=BATCH_S)
    for name in settings:
        (warning,) = [line for line in errors.splitlines() if f" {name}=2 " in line]
        assert f"({ErrorCode(codes[name]).name})" in warning and warning.endswith(f"; set {name}=1")


def test_a_min_isr_of_transactions_that_has_no_effect_is_named(tmp_path: Path) -> None:
    arguments = ("--data", str(tmp_path), "--port", "0", "--set", "transaction.state.log.min.isr=2")
    with started(*arguments) as (process, bootstrap, _):
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "acks": "all"})
        producer.init_transactions(BATCH_S)
        producer.begin_transaction()
        producer.produce("orders", b"value")
        producer.commit_transaction(BATCH_S)
        process.terminate()
        _, errors = process.communicate(timeout=BATCH_S)
    (warning,) = [line for line in errors.splitlines() if "transaction.state.log.min.isr=2" in line]
    assert warning.endswith("has no effect: there is one broker, and transactions work with its replica alone")


def find_coordinator(wire: Connection, key_type: int) -> ErrorCode:
    (found,) = wire.call("find_coordinator", 6, {"key_type": key_type, "coordinator_keys": ["k"]}).coordinators
    return ErrorCode(found.error_code)


@pytest.mark.parametrize(
    ("text", "variables", "expected"),
    [
        (None, {}, "0"),
        (None, {"KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "500"}, "500"),
        ("", {}, "3000"),
        ("group.initial.rebalance.delay.ms=100", {}, "100"),
    ],
)
def test_the_first_consumer_waits_only_for_a_broker_with_a_properties_file(
    text: str | None, variables: dict[str, str], expected: str, tmp_path: Path
) -> None:
    arguments = ["--data", str(tmp_path / "data"), "--port", "0"]
    if text is not None:
        properties = tmp_path / "server.properties"
        properties.write_text(text)
        arguments.append(str(properties))
    with started(*arguments, **variables) as (_, bootstrap, _):
        shown = levada(bootstrap, "config", "describe", "broker", "1", "group.initial.rebalance.delay.ms")
    assert shown.splitlines()[1].split()[1] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "nonsense"], "is not key=value"),
        (["--set", "num.partitions=many"], "num.partitions"),
        (["--set", "levada.metrics.listner=x"], "levada.metrics.listener"),
        (["--port", "70000"], "70000"),
        (["--port", "1", "--listener", "PLAINTEXT://127.0.0.1:1"], "exclude each other"),
        (["no-such-file.properties"], "no-such-file.properties"),
    ],
)
def test_what_cannot_be_started(arguments: list[str], message: str, tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "levada", "start", "--data", str(tmp_path), *arguments],
        capture_output=True,
        text=True,
        timeout=BATCH_S,
    )
    assert process.returncode == 2
    assert message in process.stderr
    assert "Traceback" not in process.stderr


def test_a_refused_setting_names_the_line_or_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# retention\nlog.retention.ms=1000\nlog.retention.ms : soon\n")
    command = [sys.executable, "-m", "levada", "start", str(file)]
    by_file = subprocess.run(command, capture_output=True, text=True, timeout=BATCH_S)
    assert (by_file.returncode, by_file.stderr.splitlines()[1]) == (2, f"  set in {file}, line 3")
    variables = os.environ | {"KAFKA_LOG_RETENTION_MS": "later"}
    by_variable = subprocess.run(command, capture_output=True, text=True, timeout=BATCH_S, env=variables)
    assert by_variable.stderr.splitlines()[1] == "  set by the variable KAFKA_LOG_RETENTION_MS"


def test_all_problems_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        "listeners=SASL_SSL://127.0.0.1:9093,PLAINTEXT://:9092\nnum.partitions=many\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "levada", "start", str(file)], capture_output=True, text=True, timeout=BATCH_S
    )
    message, *problems = ended.stderr.splitlines()
    assert (ended.returncode, message) == (2, "error: 4 problems in the settings")
    found = [(line.split(":")[0].strip(), line.rpartition("line ")[2]) for line in problems]
    assert found == [
        ("authorizer.class.name", "1)"),
        ("num.partitions", "3)"),
        ("listeners", "2)"),
        ("listeners", "2)"),
    ]
    assert "only PLAINTEXT is available" in problems[2] and "--port 9092" in problems[3]


def test_listeners_of_a_flag_replace_the_advertised_addresses_of_a_file(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("advertised.listeners=PLAINTEXT://localhost:9092\n")
    listeners = ("--set", "listeners=PLAINTEXT://127.0.0.1:0")
    with started(str(properties), "--data", str(tmp_path / "data"), *listeners) as (_, bootstrap, _):
        assert bootstrap.startswith("127.0.0.1:") and not bootstrap.endswith(":9092")


def test_a_file_in_latin_1(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_bytes("# für alle\nlisteners=PLAINTEXT://127.0.0.1:0\n".encode("latin-1"))
    with started(str(properties), "--data", str(tmp_path / "data")) as (process, bootstrap, _):
        assert levada(bootstrap, "topic", "list", "-q") == ""
        process.terminate()


def test_a_port_that_is_taken(levada_broker: EmbeddedBroker, tmp_path: Path) -> None:
    port = levada_broker.bootstrap.rpartition(":")[2]
    process = subprocess.run(
        [sys.executable, "-m", "levada", "start", "--data", str(tmp_path), "--port", port],
        capture_output=True,
        text=True,
        timeout=BATCH_S,
    )
    assert process.returncode == 1
    what, hint = process.stderr.splitlines()
    assert what == f"error: cannot start: cannot listen on 127.0.0.1:{port}: Address already in use"
    assert hint == "  try: another --port; 0 is any free port"


def test_metrics_that_have_another_port_say_so(tmp_path: Path) -> None:
    """Another process has the usual port."""
    with ExitStack() as held:
        with suppress(OSError):
            held.enter_context(socket.create_server(("127.0.0.1", 9404)))
        process = held.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "levada", "start", "--data", str(tmp_path), "--port", "0"],
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert process.stdout is not None
        printed = next(line for line in process.stdout if "/metrics" in line)
        process.terminate()
    assert re.fullmatch(r"  metrics   http://127\.0\.0\.1:\d+/metrics \(9404 is in use\)\n", printed)
    assert ":9404" not in printed

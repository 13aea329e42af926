"""/metrics and /healthz: Kafka's names, values that follow the traffic, and slow clients."""

import contextlib
import os
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families
from tests.support.broker import BrokerThread
from tests.support.raw import batch, fetch, produce
from tests.support.waiting import until

from levada.broker import metrics

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "metrics.md"
HEAD = (
    "What a broker tells at `/metrics` (`levada.metrics.listener`), written by",
    "`tests/component/broker/test_metrics.py`. Names with `kafka_` are those of Kafka's JMX exporter.",
    "Counters begin at 0 when the broker starts.",
)

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


pytestmark = pytest.mark.broker(levada_metrics_listener="127.0.0.1:0")


def page(broker: BrokerThread, path: str) -> tuple[int, str, str]:
    """Status, content type and text."""
    try:
        with urllib.request.urlopen(f"http://{broker.server.metrics_address}{path}", timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def values(broker: BrokerThread) -> Values:
    """All samples, as Prometheus reads them."""
    status, content_type, text = page(broker, "/metrics")
    assert (status, content_type.partition(";")[0]) == (200, "text/plain")
    found: Values = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.type in ("counter", "gauge"), family
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def test_values_follow_the_traffic(broker: BrokerThread) -> None:
    broker.create("orders", partitions=2)
    data = batch(b"x" * 100, b"y" * 100)
    topic, partition = (("topic", "orders"),), (("partition", "0"), ("topic", "orders"))
    expected = {
        ("kafka_server_brokertopicmetrics_messagesin_total", topic): 6,
        ("kafka_server_brokertopicmetrics_bytesin_total", topic): 3 * len(data),
        ("kafka_server_brokertopicmetrics_bytesout_total", topic): 2 * len(data),
        ("kafka_log_log_size", partition): 3 * len(data),
        ("kafka_log_log_logendoffset", partition): 6,
        ("kafka_network_requestmetrics_requests_total", (("request", "Produce"),)): 3,
        ("kafka_network_requestmetrics_requests_total", (("request", "Fetch"),)): 2,
        ("kafka_server_socketservermetrics_connection_creation_total", (("listener", "PLAINTEXT"),)): 1,
    }
    before = values(broker)
    with broker.connect() as one:
        for _ in range(3):
            assert produce(one, "orders", data).error_code == 0
        for offset in (2, 4):
            assert len(fetch(one, "orders", offset, max_bytes=1).records) == len(data)
        after = values(broker)
        connected = ("kafka_server_socketservermetrics_connection_count", (("listener", "PLAINTEXT"),))
        assert after[connected] == 1
    assert {key: after[key] - before.get(key, 0) for key in expected} == expected


def test_what_dashboards_ask_for_is_there(broker: BrokerThread) -> None:
    broker.create("dashboards", partitions=3)
    found = values(broker)
    partitions = found["kafka_server_replicamanager_partitioncount", ()]
    assert partitions >= 3
    assert found["kafka_server_replicamanager_leadercount", ()] == partitions
    assert found["kafka_controller_kafkacontroller_globalpartitioncount", ()] == partitions
    assert found["kafka_controller_kafkacontroller_activecontrollercount", ()] == 1
    assert found["kafka_log_logmanager_offlinelogdirectorycount", ()] == 0
    assert found["kafka_server_replicamanager_underreplicatedpartitions", ()] == 0
    assert found["kafka_log_log_logstartoffset", (("partition", "2"), ("topic", "dashboards"))] == 0
    assert found["process_cpu_seconds_total", ()] > 0
    assert found["process_max_fds", ()] > 0
    if Path("/proc/self/stat").exists():
        assert found["process_resident_memory_bytes", ()] > 10 << 20
        assert 3 < found["process_open_fds", ()] < found["process_max_fds", ()]
        assert 0 < time.time() - found["process_start_time_seconds", ()] < 24 * 3600


@pytest.mark.slow
def test_groups_and_transactions_are_counted(broker: BrokerThread) -> None:
    """A member of each protocol, a simple commit; transactions that end, and one that nobody ends."""
    broker.create("counted")
    bootstrap = {"bootstrap.servers": broker.bootstrap}
    before = values(broker)
    members = [
        Consumer({**bootstrap, "group.id": f"counted-{protocol}", "group.protocol": protocol})
        for protocol in ("classic", "consumer")
    ]
    for member in members:
        member.subscribe(["counted"])
        while not member.assignment():
            member.poll(0.05)
    members[0].commit(offsets=[TopicPartition("counted", 0, 0)], asynchronous=False)
    for commit in (True, False):
        transact(bootstrap, f"counted-{commit}", commit)
    late = transact(bootstrap, "counted-late", None)
    expected = {
        ("kafka_server_group_coordinator_metrics_group_count", "classic", "Stable"): 1,
        ("kafka_server_group_coordinator_metrics_group_count", "consumer", "Stable"): 1,
        ("levada_group_members", "classic"): 1,
        ("levada_group_members", "consumer"): 1,
        ("kafka_coordinator_group_groupmetadatamanager_numoffsets",): 1,
        ("kafka_server_group_coordinator_metrics_offset_commit_total",): 1,
        ("levada_transactions", "CompleteCommit"): 1,
        ("levada_transactions", "CompleteAbort"): 2,
        ("levada_transactions_ended_total", "committed"): 1,
        ("levada_transactions_ended_total", "aborted"): 2,
        ("levada_transactions_timed_out_total",): 1,
    }
    rebalances = "kafka_server_group_coordinator_metrics_rebalance_total"

    def risen() -> dict[tuple[str, ...], float]:
        found = values(broker)
        return {
            (name, *(value for _, value in labels)): count - before.get((name, labels), 0)
            for (name, labels), count in found.items()
        }

    until(lambda: expected.items() <= risen().items(), lambda: expected.items() - risen().items())
    assert risen()[rebalances, "classic"] >= 1 and risen()[rebalances, "consumer"] >= 1
    for member in members:
        member.close()
    until(lambda: risen()["levada_group_members", "classic"] == 0, risen)
    assert late is not None


def transact(bootstrap: dict[str, str], name: str, commit: bool | None) -> Producer:
    """A transaction, left open with None."""
    timeout_ms = 1_000 if commit is None else 60_000
    producer = Producer({**bootstrap, "transactional.id": name, "transaction.timeout.ms": timeout_ms})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("counted", b"value")
    producer.flush()
    if commit is not None:
        producer.commit_transaction() if commit else producer.abort_transaction()
    return producer


def test_the_reference_names_every_metric(broker: BrokerThread) -> None:
    """UPDATE_REFERENCE=1 writes it anew."""
    broker.create("reference")
    Producer({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10)  # requests are counted by API
    text = page(broker, "/metrics")[2]
    lines = ["# Metrics", "", *HEAD, "", "| metric | kind | labels | |", "|---|---|---|---|"]
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = sorted({label for sample in family.samples for label in sample.labels})
        lines.append(f"| `{name}` | {family.type} | {', '.join(labels)} | {family.documentation} |")
    expected = "".join(f"{line}\n" for line in lines)
    if os.environ.get("UPDATE_REFERENCE"):
        REFERENCE.write_text(expected)
    assert REFERENCE.read_text() == expected, "run UPDATE_REFERENCE=1 pytest tests/component/broker/test_metrics.py"


def test_a_deleted_topic_has_no_metrics(broker: BrokerThread) -> None:
    broker.create("short-lived")
    assert any(("topic", "short-lived") in labels for _, labels in values(broker))
    broker.delete("short-lived")
    assert not any(("topic", "short-lived") in labels for _, labels in values(broker))


def test_health(broker: BrokerThread) -> None:
    status, content_type, text = page(broker, "/healthz")
    assert (status, content_type, text) == (
        200,
        "application/json",
        '{"status": "ok", "offline_log_dirs": []}',
    )
    assert page(broker, "/healthz?verbose")[0] == 200


def test_other_pages_are_not_found(broker: BrokerThread) -> None:
    status, _, text = page(broker, "/")
    assert status == 404 and "/metrics" in text


@pytest.mark.parametrize("request_", [b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01" * 50 + b"\r\n\r\n", b"x" * 100_000])
def test_what_is_not_http_is_hung_up_on(broker: BrokerThread, request_: bytes) -> None:
    host, _, port = str(broker.server.metrics_address).rpartition(":")
    with socket.create_connection((host, int(port)), 20) as one:
        try:
            one.sendall(request_)
            one.shutdown(socket.SHUT_WR)
            while one.recv(65536):
                pass
        except ConnectionError:
            pass
    assert page(broker, "/healthz")[0] == 200


def test_a_client_that_says_nothing_is_hung_up_on(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "TIMEOUT_S", 0.05)
    host, _, port = str(broker.server.metrics_address).rpartition(":")
    with (
        socket.create_connection((host, int(port)), 20) as one,
        contextlib.suppress(ConnectionError),  # it may have been hung up on before it began
    ):
        one.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert one.recv(100) == b""


def test_without_an_address_there_is_no_page(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as one:
        assert one.server.metrics_address is None


def test_a_port_that_was_asked_for_must_be_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(OSError, match=r"(?i)in use"),
            BrokerThread(tmp_path, levada_metrics_listener=address),
        ):
            pass

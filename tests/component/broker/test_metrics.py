"""/metrics and /healthz: Kafka's names, values that follow the traffic, and slow clients."""

import contextlib
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families
from tests.support.broker import BrokerProcess, BrokerThread, free_port
from tests.support.raw import Connection, batch, fetch, produce
from tests.support.waiting import until

from levada.broker.metrics import collector
from levada.broker.metrics import server as metrics_server
from levada.errors import ErrorCode

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
        assert family.documentation and family.type in ("counter", "gauge", "histogram"), family
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


def test_requests_are_timed_by_api(broker: BrokerThread) -> None:
    """Those that are answered at once, and those that wait: for records, for the metadata store."""
    broker.create("timed")
    times = "kafka_network_requestmetrics_totaltimems"
    before = values(broker)
    with broker.connect() as one:
        assert produce(one, "timed", batch(b"value")).error_code == 0
        end = {"topic": "timed", "partitions": [{"partition": 0, "fetch_offset": 1, "partition_max_bytes": 100}]}
        one.call("fetch", 12, {"max_wait": 150, "min_bytes": 1, "max_bytes": 100, "topics": [end]})
        topic = {"name": "timed-2", "num_partitions": 1, "replication_factor": 1}
        assert one.call("create_topics", 7, {"topics": [topic]}).topics[0].error_code == 0
    after = values(broker)

    def rise(suffix: str, request: str, **labels: str) -> float:
        key = times + suffix, tuple(sorted({"request": request, **labels}.items()))
        return after.get(key, 0) - before.get(key, 0)

    assert [rise("_count", name) for name in ("Produce", "Fetch", "CreateTopics")] == [1, 1, 1]
    assert [rise("_bucket", name, le="+Inf") for name in ("Produce", "Fetch", "CreateTopics")] == [1, 1, 1]
    assert rise("_bucket", "Fetch", le="100") == 0 and rise("_sum", "Fetch") > 100
    assert rise("_sum", "Produce") > 0 and rise("_sum", "CreateTopics") > 0
    assert 0 <= after["kafka_network_socketserver_networkprocessoravgidlepercent", ()] <= 1


def test_errors_are_counted_by_api_and_code(broker: BrokerThread) -> None:
    """On fast paths, on the general path, and of single items of a request."""
    broker.create("errors")
    before = values(broker)
    with broker.connect() as one:
        produce(one, "missing", batch(b"value"))
        fetch(one, "errors", 99)
        wait_for_coordinator(one, "g")
        member = {"group_id": "g", "member_id": "m", "generation_id": 1}
        until(lambda: one.call("heartbeat", 4, member).error_code == ErrorCode.UNKNOWN_MEMBER_ID)
        topic = {"num_partitions": 1, "replication_factor": 1}
        names = ("errors", "new-1", "errors-2")
        one.call("create_topics", 7, {"topics": [{"name": name, **topic} for name in names]})
    after = values(broker)
    for request, error in (
        ("Produce", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("Fetch", "OFFSET_OUT_OF_RANGE"),
        ("Heartbeat", "UNKNOWN_MEMBER_ID"),
        ("CreateTopics", "TOPIC_ALREADY_EXISTS"),
    ):
        key = "kafka_network_requestmetrics_errors_total", (("error", error), ("request", request))
        assert after[key] - before.get(key, 0) == 1, (request, error)


def test_totals_of_all_topics_never_decrease(broker: BrokerThread) -> None:
    names = [f"kafka_server_brokertopicmetrics_{name}_total" for name in collector.TRAFFIC]
    broker.create("counted-then-deleted")
    before = values(broker)
    with broker.connect() as one:
        assert produce(one, "counted-then-deleted", batch(b"value", b"value")).error_code == 0
        assert fetch(one, "counted-then-deleted", 0).records
    with_topic = values(broker)
    broker.delete("counted-then-deleted")
    without = values(broker)
    assert with_topic[names[0], ()] == before[names[0], ()] + 2
    assert all(with_topic[name, ()] > before[name, ()] for name in names)
    assert [without[name, ()] for name in names] == [with_topic[name, ()] for name in names]


def test_lags_and_internal_topics_are_optional(tmp_path: Path) -> None:
    """At most so many series; a group id may hold any character."""
    group = 'odd "group"\n\\'
    with BrokerThread(
        tmp_path,
        levada_metrics_listener="127.0.0.1:0",
        levada_metrics_internal_topics=False,
        levada_metrics_consumer_lag_series_max=1,
    ) as broker:
        broker.create("lagging", partitions=2)
        with broker.connect() as one:
            assert produce(one, "lagging", batch(b"value", b"value", b"value")).error_code == 0
            commit(one, group, "lagging", 1, 0)
        found = values(broker)
    lags = {labels: value for (name, labels), value in found.items() if name == "kafka_consumergroup_lag"}
    assert lags == {(("group", group), ("partition", "0"), ("topic", "lagging")): 2}
    assert found["levada_consumergroup_lag_omitted", ()] == 1
    assert not any(dict(labels).get("topic", "").startswith("__") for _, labels in found)


def commit(one: Connection, group: str, topic: str, *offsets: int) -> None:
    """Commit an offset of each partition."""
    wait_for_coordinator(one, group)
    partitions = [{"partition_index": index, "committed_offset": offset} for index, offset in enumerate(offsets)]
    request = {"group_id": group, "generation_id_or_member_epoch": -1}

    def is_committed() -> bool:  # once the coordinator is loaded
        topics = [{"name": topic, "partitions": partitions}]
        (answer,) = one.call("offset_commit", 8, {**request, "topics": topics}).topics
        return not any(item.error_code for item in answer.partitions)

    until(is_committed)


def wait_for_coordinator(one: Connection, group: str) -> None:
    def error() -> int:
        (found,) = one.call("find_coordinator", 6, {"key_type": 0, "coordinator_keys": [group]}).coordinators
        return int(found.error_code)

    until(lambda: error() == 0)


def test_the_idle_ratio_is_that_of_the_last_minute() -> None:
    now, busy = 0.0, 0.0
    ratio = collector.IdleRatio(lambda: now, lambda: busy)
    assert ratio.value() == 1
    now, busy = 10.0, 5.0
    assert ratio.value() == 0.5
    for second in range(11, 200):
        now = float(second)
        ratio.value()
    assert ratio.value() == 1
    now, busy = 210.0, 1_000.0
    assert ratio.value() == 0


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
    """A member of each protocol, a simple commit; transactions that end, and one that stays open."""
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


def test_the_reference_names_every_metric(tmp_path: Path) -> None:
    """UPDATE_REFERENCE=1 writes it anew."""
    with BrokerThread(
        tmp_path, levada_metrics_listener="127.0.0.1:0", levada_metrics_consumer_lag_series_max=10
    ) as broker:
        broker.create("reference")
        with broker.connect() as one:
            commit(one, "g", "reference", 0)
            assert produce(one, "missing", batch(b"value")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
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
    assert (status, content_type) == (200, "application/json")
    assert text == (
        '{"status": "ok", "offline_log_dirs": [], "offline_partitions_count": 0, "offline_partitions": [], '
        '"damaged_checkpoints": [], "remaining_logs_to_recover": 0}'
    )
    assert page(broker, "/healthz?verbose")[0] == 200


def test_a_stop_with_requests_under_way_leaves_no_traceback(tmp_path: Path) -> None:
    """One client has sent half a request, others wait for their metrics."""
    with BrokerProcess(tmp_path, {"levada.metrics.listener": (listener := f"127.0.0.1:{free_port()}")}) as server:
        host, _, port = listener.rpartition(":")
        with contextlib.ExitStack() as clients:
            for request in (b"GET /metr", *[b"GET /metrics HTTP/1.1\r\n\r\n"] * 20):
                one = clients.enter_context(socket.create_connection((host, int(port)), 20))
                one.sendall(request)
            assert server.stop(signal.SIGTERM) == 0
        assert "Traceback" not in server.log.read_text()
        server.start()


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
    monkeypatch.setattr(metrics_server, "TIMEOUT_S", 0.05)
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

"""`levada cluster health` and `log-dirs`."""

import errno
import socket
import subprocess
from pathlib import Path

from tests.support.broker import BrokerThread
from tests.support.faulty_disk import FaultyDisk
from tests.support.shell import TIMEOUT_S, Shell


def test_a_healthy_cluster(shell: Shell) -> None:
    shell("topic", "create", "orders")
    healthy = shell("cluster", "health")
    assert (healthy.code, healthy.out) == (0, "healthy: 1 broker, nothing offline\n")
    assert shell("cluster", "health", "-o", "json").json() == {"healthy": True, "brokers": 1, "problems": []}
    assert shell("cluster", "health", "-o", "jsonl").lines() == []


def test_offline_log_dirs_and_partitions_are_unhealthy(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with BrokerThread(tmp_path / "a", tmp_path / "b", disk=disk) as broker:
        shell = Shell(broker.bootstrap)
        shell("topic", "create", "orders", "-p", "2")
        (bad,) = (index for index in range(2) if broker.log_dir("orders", index) == tmp_path / "b")
        assert shell("produce", "orders", "-p", str(1 - bad), stdin=b"a\n").code == 0
        disk.fail("pwritev", tmp_path / "b", errno.EIO)
        assert shell("produce", "orders", "-p", str(bad), "--timeout", "1", stdin=b"a\n").code != 0

        sick = shell("cluster", "health")
        assert sick.code == 1
        assert [line.split("   ")[0].strip() for line in sick.out.splitlines()] == [
            "PROBLEM",
            "offline partition",
            "offline log dir",
        ]
        assert f"orders-{bad}" in sick.out and str(tmp_path / "b") in sick.out
        assert '"healthy": false' in shell("cluster", "health", "-o", "json").out

        good, offline = sorted(shell("cluster", "log-dirs", "-o", "json").json(), key=lambda one: one["log_dir"])
        assert (good["offline"], offline["offline"], offline["topics"]) == (False, True, [])
        size = broker.partition("orders", 1 - bad).log.size_bytes
        assert good["topics"] == [{"topic": "orders", "partitions": 1, "bytes": size}]
        shown = shell("cluster", "log-dirs").out
        assert f"{tmp_path / 'b'}   broker 1   offline\n" in shown
        assert f"{tmp_path / 'a'}   broker 1   {size} B, " in shown


def test_a_broker_that_does_not_respond_is_unhealthy(shell: Shell, broker: BrokerThread) -> None:
    broker.delay("describe_log_dirs", 30)
    sick = shell("cluster", "health", "--timeout", "0.5")
    assert sick.code == 1
    assert "broker does not respond" in sick.out


def test_health_waits_for_a_broker_that_starts(tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # refuses connections, and nobody else takes the port
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        shell = Shell(address)
        assert shell("cluster", "health", "--wait", "0.5").code == 3
        waiting = shell.start("cluster", "health", "--wait", "60", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with BrokerThread(tmp_path, listeners=f"PLAINTEXT://{address}"):
        out, err = waiting.communicate(timeout=TIMEOUT_S)
    assert (waiting.returncode, out, err) == (0, b"healthy: 1 broker, nothing offline\n", b"")

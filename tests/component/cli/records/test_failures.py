"""`levada consume` with partitions that cannot be read: it prints the others and fails at its end."""

import errno
import subprocess
from pathlib import Path

from tests.support.broker import BrokerThread
from tests.support.faulty_disk import FaultyDisk
from tests.support.shell import TIMEOUT_S, Shell


def three_partitions(shell: Shell) -> None:
    shell("topic", "create", "orders", "-p", "3")
    for index in range(3):
        shell("produce", "orders", "-p", str(index), stdin=b"%d\n" % index)


def corrupt(broker: BrokerThread, topic: str, index: int) -> None:
    """Change the last byte of a log, which is in a record."""
    (file,) = (broker.log_dir(topic, index) / f"{topic}-{index}").glob("*.log")
    with file.open("r+b") as log:
        log.seek(-1, 2)
        last = log.read(1)
        log.seek(-1, 2)
        log.write(bytes([last[0] ^ 1]))


def test_a_corrupt_partition_does_not_hide_the_others(shell: Shell, broker: BrokerThread) -> None:
    three_partitions(shell)
    corrupt(broker, "orders", 1)
    partly = shell("consume", "orders", "-e")
    message, hint = partly.err.splitlines()
    assert (partly.code, sorted(partly.out.split())) == (1, ["0", "2"])
    assert message == (
        "error: 1 of 3 partitions could not be read to the end: orders-1: orders-1: the batch at offset 0 "
        "has a wrong CRC (CORRUPT_MESSAGE)"
    )
    assert "levada log check" in hint and "scrub" in hint
    alone = shell("consume", "orders", "-p", "1", "-e")
    assert alone.err.splitlines()[0] == ("error: orders-1: the batch at offset 0 has a wrong CRC (CORRUPT_MESSAGE)")
    assert shell("consume", "orders", "-p", "0", "-p", "2", "-e").code == 0
    member = shell("consume", "--group", "billing", "orders", "-e")
    assert member.code == 1 and "levada log check" in member.err
    assert shell("group", "delete", "--yes", "billing").code == 0


def test_without_an_end_a_notice_names_the_partition_at_once(shell: Shell, broker: BrokerThread) -> None:
    three_partitions(shell)
    corrupt(broker, "orders", 1)
    process = shell.start("consume", "orders", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stderr.readline().startswith(b"orders-1 is left out: orders-1: the batch at offset 0")
    assert sorted(process.stdout.readline() for _ in range(2)) == [b"0\n", b"2\n"]
    process.terminate()
    process.communicate(timeout=TIMEOUT_S)


def test_an_offline_partition_does_not_hide_the_others(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with BrokerThread(tmp_path / "a", tmp_path / "b", disk=disk) as broker:
        shell = Shell(broker.bootstrap)
        shell("topic", "create", "orders", "-p", "2")
        (bad,) = (index for index in range(2) if broker.log_dir("orders", index) == tmp_path / "b")
        assert shell("produce", "orders", "-p", str(1 - bad), stdin=b"a\n").code == 0
        disk.fail("pwritev", tmp_path / "b", errno.EIO)
        assert shell("produce", "orders", "-p", str(bad), "--timeout", "1", stdin=b"a\n").code != 0

        partly = shell("consume", "orders", "-e")
        assert (partly.code, partly.out) == (1, "a\n")
        assert f"1 of 2 partitions could not be read to the end: orders-{bad}" in partly.err
        assert "LEADER_NOT_AVAILABLE" in partly.err and "levada cluster health" in partly.err
        alone = shell("consume", "orders", "-p", str(bad), "-e")
        assert (alone.code, alone.out) == (1, "")
        assert alone.err.startswith(f"error: orders-{bad} has no leader (LEADER_NOT_AVAILABLE)")

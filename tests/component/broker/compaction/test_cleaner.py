"""The broker's cleaner processes: what they clean, and how they start, end and fail."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import raw
from tests.support.broker import BrokerThread
from tests.support.logs import records_of
from tests.support.waiting import until

from levada.broker.compaction import cleaner as cleaning
from levada.broker.compaction.process import MODULE
from levada.clock import SystemClock
from levada.storage.checkpoints import decode_offsets
from levada.storage.compaction.plan import cleaning_job
from levada.storage.compaction.process import OrphanError, Throttler

TIMEOUT_S = 30.0


def test_a_cleaner_without_its_broker_ends() -> None:
    pace = Throttler(1e300, SystemClock(), time.sleep, 0)
    with pytest.raises(OrphanError):
        pace(1 << 20)


def children_of(pid: int) -> Iterator[int]:
    """The cleaner processes of a broker."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (entry / "stat").read_text(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == pid and MODULE.encode() in command:
            yield int(entry.name)


def is_running(pid: int) -> bool:
    """Whether a process has not ended; the first process of a container may leave it as a zombie, without a command."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, signal\n"
        "from levada.broker.compaction.process import CleanerProcess\n"
        "async def main():\n"
        "    process = CleanerProcess()\n"
        "    await process._start()\n"
        "    print(process.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    until(lambda: not is_running(child))


def fill(broker: BrokerThread, topic: str, count: int, keys: int = 5) -> None:
    with broker.connect() as wire:
        for number in range(count):
            data = raw.batch(b"%d" % number, keys=[b"%d" % (number % keys)])
            assert raw.produce(wire, topic, data).error_code == 0


def values(broker: BrokerThread, topic: str) -> dict[bytes | None, bytes | None]:
    log = broker.partition(topic).log
    return {record.key: record.value for record in broker.call(lambda: records_of(log))}


COMPACT: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_bytes": 600,
    "min_cleanable_dirty_ratio": 0.01,
}


def test_a_broker_compacts_its_topics(tmp_path: Path) -> None:
    """Through a process of its own, which is there only when it is needed and ends with the broker."""
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20) as broker:
        broker.create("deleted", segment_bytes=600)
        fill(broker, "deleted", 30)
        assert list(children_of(os.getpid())) == []
        broker.create("compacted", **COMPACT)
        fill(broker, "compacted", 60)
        checkpoint = tmp_path / "cleaner-offset-checkpoint"
        until(lambda: broker.partition("compacted").log.size_bytes < 1_500)
        until(checkpoint.exists)
        assert values(broker, "compacted") == {b"%d" % key: b"%d" % (55 + key) for key in range(5)}
        assert len(list(children_of(os.getpid()))) == 1
        figures = broker.broker.cleaner_metrics
        assert figures.cleanings >= 1 and figures.bytes_read > figures.bytes_written > 0
        assert broker.partition("deleted").log.size_bytes > 2_000
    assert list(children_of(os.getpid())) == []
    assert list(decode_offsets(checkpoint.read_bytes())) == [("compacted", 0)]
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20) as broker:
        assert values(broker, "compacted") == {b"%d" % key: b"%d" % (55 + key) for key in range(5)}
        assert broker.partition("compacted").high_watermark == 60


def test_several_processes_clean_a_log_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the memory and the rate that compaction may take."""
    limits: set[tuple[int, float]] = set()

    def noted(*arguments: Any, **options: Any) -> Any:
        limits.add((options["map_bytes"], options["io_bytes_per_second"]))
        return cleaning_job(*arguments, **options)

    monkeypatch.setattr(cleaning, "cleaning_job", noted)
    allowed: dict[str, Any] = {
        "log_cleaner_dedupe_buffer_size": 4 << 20,
        "log_cleaner_io_max_bytes_per_second": 1e9,
    }
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20, log_cleaner_threads=2, **allowed) as broker:
        topics = [f"compacted-{number}" for number in range(4)]
        for topic in topics:
            broker.create(topic, **COMPACT)
            fill(broker, topic, 60)
        for topic in topics:
            until(lambda topic=topic: broker.partition(topic).log.size_bytes < 1_500)  # type: ignore[misc]
            assert values(broker, topic) == {b"%d" % key: b"%d" % (55 + key) for key in range(5)}
        until(lambda: len(decode_offsets((tmp_path / "cleaner-offset-checkpoint").read_bytes())) == 4)
        assert limits == {(2 << 20, 0.5e9)}
    assert list(children_of(os.getpid())) == []


def test_a_killed_cleaner_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20, log_cleaner_io_max_bytes_per_second=20_000) as broker:
        broker.create("compacted", **COMPACT)
        fill(broker, "compacted", 40)
        until(lambda: bool(list(children_of(os.getpid()))))
        for pid in children_of(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        fill(broker, "compacted", 40)
        until(lambda: broker.partition("compacted").log.size_bytes < 2_000)
        assert set(values(broker, "compacted")) == {b"%d" % key for key in range(5)}
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_broken_log_is_left_alone_and_the_others_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20) as broker:
        broker.create("broken", **COMPACT | {"min_cleanable_dirty_ratio": 1})
        fill(broker, "broken", 30)
        path = Path(broker.partition("broken").log.segments[0].path)
        data = bytearray(path.read_bytes())
        data[80] ^= 1
        path.write_bytes(data)
        broker.create("sound", **COMPACT)
        partition = broker.partition("broken")
        config = partition.log.config
        broker.call(lambda: partition.configure(type(config).build(broker.broker.config.topic_defaults, {
            "cleanup.policy": "compact", "segment.bytes": "600", "min.cleanable.dirty.ratio": "0.01",
        })))  # fmt: skip
        until(lambda: "log cannot be compacted, it is corrupt" in caplog.text)
        fill(broker, "sound", 60)
        until(lambda: broker.partition("sound").log.size_bytes < 1_500)
        assert not partition.offline and path.read_bytes() == data
    assert str(path) in caplog.text or path.name in "".join(str(vars(record)) for record in caplog.records)


def test_a_topic_deleted_while_it_is_cleaned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20, log_cleaner_io_max_bytes_per_second=3_000) as broker:
        broker.create("doomed", **COMPACT)
        fill(broker, "doomed", 40)
        until(lambda: bool(list((tmp_path / "doomed-0").glob("*.cleaned"))))
        broker.delete("doomed")
        broker.create("doomed", **COMPACT)
        fill(broker, "doomed", 3)
        until(lambda: "log cleaning abandoned" in caplog.text or "could not be compacted" in caplog.text)
        assert values(broker, "doomed") == {b"0": b"0", b"1": b"1", b"2": b"2"}
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_retention_of_segments_that_are_being_cleaned_gives_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20, log_cleaner_io_max_bytes_per_second=3_000) as broker:
        broker.create("both", **COMPACT | {"cleanup_policy": "compact,delete"})
        fill(broker, "both", 40)
        until(lambda: bool(list((tmp_path / "both-0").glob("*.cleaned"))))
        partition, later_ms = broker.partition("both"), 10**15
        broker.call(lambda: broker.broker.log_dirs.apply_retention(partition, later_ms))
        until(lambda: "log cleaning abandoned" in caplog.text)
        assert broker.broker.cleaner_metrics.uncleanable == 0
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_an_old_active_segment_is_closed_for_max_compaction_lag(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20) as broker:
        broker.create("slow", cleanup_policy="compact", max_compaction_lag_ms=300)
        fill(broker, "slow", 20)
        until(lambda: broker.partition("slow").log.size_bytes < 800)
        assert len(values(broker, "slow")) == 5


def test_a_cleaner_that_is_off_does_nothing(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=10, log_cleaner_enable="false") as broker:
        broker.create("compacted", **COMPACT)
        fill(broker, "compacted", 60)
        size = broker.partition("compacted").log.size_bytes
        fill(broker, "compacted", 60)
        assert broker.partition("compacted").log.size_bytes > size
        assert list(children_of(os.getpid())) == []


def test_an_idle_process_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "PROCESS_IDLE_S_MAX", 0.1)
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20) as broker:
        broker.create("compacted", **COMPACT)
        fill(broker, "compacted", 60)
        until(lambda: broker.partition("compacted").log.size_bytes < 1_500)
        until(lambda: not list(children_of(os.getpid())))

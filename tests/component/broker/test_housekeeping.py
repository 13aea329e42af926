"""Periodic work of a broker on real logs: retention, checkpoints, fsync, expiry of producers."""

import logging
import time
from pathlib import Path

import pytest
from tests.support.broker import BrokerThread, crash_image
from tests.support.faulty_disk import FaultyDisk
from tests.support.raw import batch, fetch, produce
from tests.support.waiting import until

from levada.broker import housekeeping
from levada.broker.housekeeping import Housekeeping
from levada.storage.log.log import Log

TIMEOUT_S = 20.0


def fill(broker: BrokerThread, topic: str, count: int = 10, timestamp: int = 1_700_000_000_000) -> None:
    with broker.connect() as one:
        for number in range(count):
            result = produce(one, topic, batch(b"%d" % number * 400, timestamp=timestamp + number))
            assert result.error_code == 0


def test_old_segments_are_given_up(tmp_path: Path) -> None:
    """By time, with the files, and consumers get the new start of the log."""
    with BrokerThread(tmp_path, log_retention_check_interval_ms=20) as broker:
        broker.create("old", segment_bytes=1000, retention_ms=1000)
        broker.create("kept", segment_bytes=1000, retention_ms=-1)
        fill(broker, "old")
        fill(broker, "kept")
        until(lambda: broker.partition("old").log_start_offset == 10)
        until(lambda: len(list((tmp_path / "old-0").glob("*.log"))) == 1)
        with broker.connect() as one:
            part = fetch(one, "old", 10)
            assert (part.error_code, part.log_start_offset, part.high_watermark) == (0, 10, 10)
        assert broker.partition("kept").log_start_offset == 0


def test_a_large_log_is_cut_to_its_size(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, log_retention_check_interval_ms=20) as broker:
        broker.create("large", segment_bytes=1000, retention_bytes=2000, retention_ms=-1)
        fill(broker, "large", 20)
        until(lambda: broker.partition("large").log.size_bytes < 4000)
        assert 0 < broker.partition("large").log_start_offset < 20


def test_one_that_fails_does_not_keep_the_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = Log.apply_retention

    def planted(self: Log, *arguments: int) -> int:
        if "bad-0" in self.directory:
            raise RuntimeError("planted")
        return original(self, *arguments)

    monkeypatch.setattr(Log, "apply_retention", planted)
    with caplog.at_level(logging.ERROR), BrokerThread(tmp_path, log_retention_check_interval_ms=20) as broker:
        for name in ("a", "bad", "c"):
            broker.create(name, segment_bytes=1000, retention_ms=1000)
            fill(broker, name)
        until(lambda: all(broker.partition(name).log_start_offset == 10 for name in ("a", "c")))
    fields = {getattr(record, "fields", {}).get("partition") for record in caplog.records}
    assert fields == {"bad-0"}


def test_recovery_begins_at_the_checkpoint(tmp_path: Path) -> None:
    """What was synced is not read again after a crash."""
    disk = FaultyDisk()
    with BrokerThread(tmp_path / "data", disk=disk, log_flush_offset_checkpoint_interval_ms=20) as broker:
        broker.create("orders", segment_bytes=1000, flush_messages=1)
        fill(broker, "orders")
        checkpoint = tmp_path / "data" / "recovery-point-offset-checkpoint"
        until(lambda: checkpoint.exists() and "orders 0 10" in checkpoint.read_text())
        image = crash_image(tmp_path / "data", tmp_path / "image")
    with BrokerThread(image) as broker:
        assert broker.partition("orders").log.recovery_point == 10
        assert broker.partition("orders").high_watermark == 10


def test_a_full_segment_is_synced_without_being_asked(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with BrokerThread(tmp_path, disk=disk) as broker:
        broker.create("orders", segment_bytes=1000)
        fill(broker, "orders", 5)
        until(lambda: broker.call(lambda: broker.partition("orders").log.recovery_point) >= 4)


def test_data_is_synced_after_flush_ms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "FLUSH_CHECK_S", 0.01)
    disk = FaultyDisk()
    with BrokerThread(tmp_path, disk=disk) as broker:
        broker.create("orders", flush_ms=30)
        fill(broker, "orders", 1)
        until(lambda: broker.call(lambda: broker.partition("orders").log.recovery_point) == 1)
        assert len(disk.fsyncs) in (1, 2)  # a second one was asked for where the first took long


def test_silent_producers_are_forgotten(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, producer_id_expiration_ms=60_000) as broker, broker.connect() as one:
        broker.create("orders")
        now = int(time.time() * 1000)
        for producer_id, timestamp in ((1, now - 120_000), (2, now)):
            data = batch(b"x", producer=(producer_id, 0, 0), timestamp=timestamp)
            assert produce(one, "orders", data).error_code == 0
        assert len(broker.partition("orders").producers) == 2
        broker.wait(Housekeeping(broker.broker).expire_producers())
        assert len(broker.partition("orders").producers) == 1

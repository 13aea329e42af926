"""The scrub finds corrupt batches in closed segments and takes only their partition offline."""

import logging
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker import BrokerThread
from tests.support.logs import QuickDisk, append, open_log
from tests.support.raw import batch, fetch, produce

from levada.broker.scrub import Scrub
from levada.errors import ErrorCode
from levada.storage.log.scrub import scrub_segment
from levada.storage.log.segment import CorruptBatchError


def fill(broker: BrokerThread, *topics: str) -> None:
    with broker.connect() as one:
        for topic in topics:
            broker.create(topic)
            for number in range(20):
                assert produce(one, topic, batch(b"%d" % number)).error_code == 0


def scrub_all(broker: BrokerThread, scrub: Scrub) -> int:
    """Check all that is due; the number of segments."""

    async def work() -> int:
        due = await scrub.due()
        with ThreadPoolExecutor(1) as thread:
            for closed in due:
                await scrub.check(closed, thread)
        return len(due)

    return broker.wait(work())


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    with path.open("r+b") as file:
        file.write(content)


def test_a_corrupt_batch_takes_its_partition_offline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {"log_segment_bytes": 500, "levada_scrub_bytes_per_second": 1 << 40}
    with BrokerThread(tmp_path, levada_metrics_listener="127.0.0.1:0", **settings) as broker:
        fill(broker, "hurt", "whole")
        scrub = broker.call(lambda: Scrub(broker.broker))
        closed = scrub_all(broker, scrub)
        assert closed == sum(len(broker.partition(topic).log.segments) for topic in ("hurt", "whole")) > 6
        assert scrub_all(broker, scrub) == 0  # not due again
        second = broker.partition("hurt").log.segments[1]
        flip(Path(second.path), 70)
        with caplog.at_level(logging.ERROR):
            scrub_all(broker, broker.call(lambda: Scrub(broker.broker)))
        found, offline = caplog.records
        assert (found.message, offline.message) == ("corrupt batch found", "partition is offline")
        fields = getattr(found, "fields", {})
        assert fields.get("file") == second.path and fields.get("offset") == second.base_offset
        with broker.connect() as one:
            assert fetch(one, "hurt", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert produce(one, "hurt", batch(b"no")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert produce(one, "whole", batch(b"yes")).error_code == 0
        with urllib.request.urlopen(f"http://{broker.server.metrics_address}/metrics") as answer:
            assert b"levada_log_scrub_corrupt_segments_total 1" in answer.read()
    with BrokerThread(tmp_path, **settings) as broker, broker.connect() as one:
        assert fetch(one, "whole", 20).high_watermark == 21


def test_a_segment_that_is_gone_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with BrokerThread(tmp_path, log_segment_bytes=500, levada_scrub_bytes_per_second=1 << 40) as broker:
        fill(broker, "orders")
        scrub = broker.call(lambda: Scrub(broker.broker))
        due = broker.wait(scrub.due())
        broker.delete("orders")
        with ThreadPoolExecutor(1) as thread, caplog.at_level(logging.WARNING):
            for closed in due:
                broker.wait(scrub.check(closed, thread))
        assert not caplog.records


def test_a_rate_of_zero_disables_the_scrub(tmp_path: Path) -> None:
    for rate, tasks in ((0, 0), (1_000, 1)):
        with BrokerThread(tmp_path / str(rate), levada_scrub_bytes_per_second=rate) as broker:
            names = [task.get_name() for task in broker.broker.tasks._running]
            assert names.count("scrub") == tasks


class ColdDisk(QuickDisk):
    """A disk of which nothing, or everything, is in the page cache."""

    def __init__(self, cold: bool) -> None:
        super().__init__()
        self.cold = cold
        self.dropped: list[tuple[int, int]] = []

    def pread_cached(self, fd: int, count: int, position: int, /) -> bytes:
        if self.cold:
            raise BlockingIOError
        return self.pread(fd, count, position)

    def drop_cached(self, fd: int, count: int, position: int, /) -> None:
        if count:
            self.dropped.append((count, position))


def test_the_page_cache_stays_as_it_was(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for _ in range(3):
        append(log, value=b"x" * 1_000_000)
    log.roll(0)
    segment = log.segments[0]
    for disk in (ColdDisk(cold=False), ColdDisk(cold=True)):
        reads: list[int] = []
        scrub_segment(disk, segment.path, 0, segment.size, 3, reads.append, contiguous=True)
        assert sum(reads) >= segment.size
        assert len(disk.dropped) == (len(reads) if disk.cold else 0)
    with pytest.raises(CorruptBatchError, match="it ends at offset 3, but the next starts at 4"):
        scrub_segment(QuickDisk(), segment.path, 0, segment.size, 4, reads.append, contiguous=True)


def test_a_start_begins_with_other_segments(tmp_path: Path) -> None:
    """Checks are not remembered, so that an order of the start would never reach the last ones."""
    with BrokerThread(tmp_path, log_segment_bytes=100, levada_scrub_bytes_per_second=1 << 40) as broker:
        fill(broker, *[f"topic-{number}" for number in range(10)])
        orders = []
        for _ in range(2):
            due = broker.wait(broker.call(lambda: Scrub(broker.broker)).due())
            orders.append([published.segment.path for published in due])
    assert sorted(orders[0]) == sorted(orders[1]) and len(orders[0]) > 100
    assert orders[0] != orders[1]

"""Group commit: concurrent waiters share an fsync, and are acknowledged after it."""

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.broker import BrokerThread
from tests.support.faulty_disk import FaultyDisk
from tests.support.raw import batch, fetch, produce

from levada.broker.fsync import GroupCommit
from levada.broker.partition.partition import Partition
from levada.errors import ErrorCode

TIMEOUT_S = 20.0


class Synced:
    """A partition whose flush waits for the test, or fails."""

    def __init__(self, error: OSError | None = None) -> None:
        self.gate = threading.Event()
        self.started = threading.Event()
        self.error = error
        self.flushes = 0
        self.synced_times = 0
        self.offline = False
        self.log = self

    def flush(self) -> None:
        self.flushes += 1
        self.started.set()
        assert self.gate.wait(TIMEOUT_S)
        if self.error:
            raise self.error

    def synced(self) -> None:
        self.synced_times += 1


def as_partition(one: Synced) -> Partition:
    return cast(Partition, one)


async def until(condition: Any) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.001)


def test_requests_during_an_fsync_share_the_next() -> None:
    one = Synced()

    async def main() -> None:
        commit = GroupCommit("data", lambda *_: None)
        commit.request(as_partition(one))
        await until(one.started.is_set)
        for _ in range(100):
            commit.request(as_partition(one))
        assert (one.flushes, one.synced_times) == (1, 0)
        one.gate.set()
        await until(lambda: one.synced_times == 2)
        commit.close()

    asyncio.run(main())
    assert one.flushes == 2


def test_one_that_fails_does_not_hold_up_the_others() -> None:
    error = OSError(5, "Input/output error")
    first, bad, good = Synced(), Synced(error), Synced()
    failures: list[tuple[object, OSError]] = []

    async def main() -> None:
        commit = GroupCommit("data", lambda partition, why: failures.append((partition, why)))
        commit.request(as_partition(first))
        await until(first.started.is_set)
        for one in (bad, good):
            commit.request(as_partition(one))
        for one in (first, bad, good):
            one.gate.set()
        await until(lambda: good.synced_times == 1 and failures)
        commit.close()

    asyncio.run(main())
    assert failures == [(bad, error)]
    assert (first.synced_times, bad.synced_times, bad.flushes) == (1, 0, 1)


def test_what_went_offline_meanwhile_is_not_reported() -> None:
    one = Synced()

    async def main() -> None:
        commit = GroupCommit("data", lambda *_: None)
        commit.request(as_partition(one))
        await until(one.started.is_set)
        one.offline = True
        one.gate.set()
        commit.close()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert one.synced_times == 0


def test_a_close_waits_for_what_is_running_and_begins_nothing() -> None:
    one = Synced()

    async def main() -> None:
        commit = GroupCommit("data", lambda *_: None)
        commit.request(as_partition(one))
        await until(one.started.is_set)
        commit.request(as_partition(one))
        threading.Timer(0.05, one.gate.set).start()
        commit.close()
        assert one.gate.is_set()
        await until(lambda: one.synced_times == 1)

    asyncio.run(main())
    assert one.flushes == 1


# Over the wire.


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


def high_watermark(broker: BrokerThread, topic: str) -> int:
    with broker.connect() as other:
        part = fetch(other, topic, 0)
        assert part.error_code == 0 and (part.high_watermark > 0) == bool(part.records)
        return int(part.high_watermark)


@pytest.mark.parametrize("acks", [1, -1])
def test_neither_acknowledged_nor_visible_before_the_fsync(tmp_path: Path, disk: FaultyDisk, acks: int) -> None:
    with BrokerThread(tmp_path, disk=disk) as broker:
        broker.create("orders", levada_acks_wait_for_fsync="true")
        with broker.connect() as one:
            assert produce(one, "orders", batch(b"first"), acks=acks).error_code == 0
            disk.gate.clear()
            before = len(disk.fsyncs)
            places = [{"name": "orders", "partition_data": [{"index": 0, "records": batch(b"second")}]}]
            one.send("produce", 9, {"acks": acks, "timeout": 30_000, "topic_data": places})
            assert disk.waiting.acquire(timeout=TIMEOUT_S)
            one.socket.settimeout(0.05)
            with pytest.raises(TimeoutError):
                one.socket.recv(1)
            one.socket.settimeout(TIMEOUT_S)
            assert high_watermark(broker, "orders") == 1
            disk.gate.set()
            _, response = one.receive()
            result = response.responses[0].partition_responses[0]
            assert (result.error_code, result.base_offset) == (0, 1)
            assert len(disk.fsyncs) > before
            assert high_watermark(broker, "orders") == 2


def test_many_producers_share_an_fsync(tmp_path: Path, disk: FaultyDisk) -> None:
    with BrokerThread(tmp_path, disk=disk) as broker:
        broker.create("orders", levada_acks_wait_for_fsync="true")
        disk.gate.clear()
        with broker.connect() as one:
            places = [{"name": "orders", "partition_data": [{"index": 0, "records": batch(b"x")}]}]
            for _ in range(200):
                one.send("produce", 9, {"acks": -1, "timeout": 30_000, "topic_data": places})
            assert disk.waiting.acquire(timeout=TIMEOUT_S)
            disk.gate.set()
            offsets = [one.receive()[1].responses[0].partition_responses[0].base_offset for _ in range(200)]
        assert offsets == list(range(200))
        assert len(disk.fsyncs) < 50


def test_a_producer_that_waited_too_long_is_reported(tmp_path: Path, disk: FaultyDisk) -> None:
    with BrokerThread(tmp_path, disk=disk) as broker:
        broker.create("orders", levada_acks_wait_for_fsync="true")
        disk.gate.clear()
        with broker.connect() as one:
            places = [{"name": "orders", "partition_data": [{"index": 0, "records": batch(b"x")}]}]
            response = one.call("produce", 9, {"acks": -1, "timeout": 50, "topic_data": places})
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
            disk.gate.set()
        with broker.connect() as other:
            assert produce(other, "orders", batch(b"y")).base_offset == 1


def test_a_topic_that_does_not_ask_for_it_does_not_wait(tmp_path: Path, disk: FaultyDisk) -> None:
    with BrokerThread(tmp_path, disk=disk) as broker:
        broker.create("orders")
        disk.gate.clear()
        with broker.connect() as one:
            assert produce(one, "orders", batch(b"x")).error_code == 0
        assert disk.fsyncs == []
        disk.gate.set()


def test_the_stop_of_a_broker_syncs_everything(tmp_path: Path, disk: FaultyDisk) -> None:
    with BrokerThread(tmp_path, disk=disk) as broker:
        broker.create("orders", partitions=3)
        with broker.connect() as one:
            assert produce(one, "orders", batch(b"x")).error_code == 0
    assert any("orders-0" in path for path in disk.fsyncs)

"""The SQLite store: sessions of processes, files of other formats, clear errors, the controller on it."""

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.stores import SESSION_TIMEOUT_S, StoreProcess, subscribers

from levada.broker.controller import Controller, new_topic_id
from levada.core.cluster.controller import PRODUCER_ID_BLOCK, AllocateProducerIds, CreateTopic, DeleteTopic
from levada.core.cluster.image import BrokerImage, ClusterImage
from levada.errors import ErrorCode, KafkaError
from levada.metadata import database
from levada.metadata.sqlite import SqliteStore
from levada.metadata.store import (
    ABSENT,
    CompareAndSet,
    LeaseLostError,
    MetadataUpdate,
    StoreError,
)


class ManualClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


def on_a_loop(test: Callable[[Path], Awaitable[None]]) -> Callable[[Path], None]:
    """A test that is a coroutine."""

    def run(tmp_path: Path) -> None:
        asyncio.run(_awaited(test(tmp_path)))

    run.__doc__ = test.__doc__
    return run


async def _awaited(test: Awaitable[None]) -> None:
    await test


@on_a_loop
async def test_a_store_that_is_far_behind_reads_everything_again(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    async with subscribers(f"sqlite:{path}", 2) as [slow, fast]:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("INSERT INTO changes VALUES (?, '/gone', NULL)", (database.CHANGES_KEPT * 2,))
        await fast.set("/a", b"1")
        await slow.until(lambda: "/a" in slow.records)
        assert slow.snapshots > 1 and slow.records == fast.records


@on_a_loop
async def test_a_paused_holder_loses_its_lease_after_the_session_timeout(tmp_path: Path) -> None:
    place, paused_clock, clock = f"sqlite:{tmp_path}/m.db", ManualClock(), ManualClock()
    async with subscribers(place, clock=paused_clock) as [paused], subscribers(place, clock=clock) as [other]:
        lease = await paused.acquire("/controller")
        clock.seconds += SESSION_TIMEOUT_S - 1
        assert await other.acquire("/controller") is None
        clock.seconds += 2
        taken = await other.acquire("/controller")
        assert lease is not None and taken is not None and taken.epoch > lease.epoch
        with pytest.raises(LeaseLostError):
            await paused.store.commit([CompareAndSet("/a", b"late", ABSENT)], lease)
        await other.store.commit([CompareAndSet("/a", b"mine", ABSENT)], taken)
        paused_clock.seconds = clock.seconds
        await paused.until(lambda: paused.lost == ["/controller"])


@on_a_loop
async def test_a_process_that_was_paused_alone_loses_its_lease_too(tmp_path: Path) -> None:
    """Nobody has noticed, but somebody could have: it does not act on the lease, and acquires it again."""
    clock = ManualClock()
    async with subscribers(f"sqlite:{tmp_path}/m.db", clock=clock, session_timeout_s=1) as [one]:
        lease = await one.acquire("/controller")
        clock.seconds += 1
        await one.until(lambda: one.lost == ["/controller"] and "/controller" not in one.values)
        again = await one.acquire("/controller")
        assert lease is not None and again is not None and again.epoch > lease.epoch


@on_a_loop
async def test_heartbeats_do_not_write_to_the_database(tmp_path: Path) -> None:
    """They would wake all other processes, wait for their transactions, and cost an fsync."""
    place = f"sqlite:{tmp_path}/m.db"
    async with subscribers(place, session_timeout_s=0.5) as [one]:
        assert await one.acquire("/ids/1") is not None
        with closing(sqlite3.connect(tmp_path / "m.db", isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")  # which no other process can write through
            (file,) = (tmp_path / "m.db.sessions").iterdir()
            seen = set[bytes]()
            while len(seen) < 10:  # longer than the session timeout
                seen.add(file.read_bytes())
                await asyncio.sleep(0.01)
        assert not one.lost
        await one.set("/a", b"1")


@on_a_loop
async def test_a_session_whose_file_is_removed_ends(tmp_path: Path) -> None:
    place = f"sqlite:{tmp_path}/m.db"
    async with subscribers(place, 2) as [one, other]:
        assert await one.acquire("/ids/1") is not None
        (file,) = (tmp_path / "m.db.sessions").iterdir()
        file.unlink()
        await one.until(lambda: one.lost == ["/ids/1"] and "/ids/1" not in one.values)
        assert await other.acquire("/ids/1") is not None


@on_a_loop
async def test_processes_create_one_file_at_once(tmp_path: Path) -> None:
    place = f"sqlite:{tmp_path}/m.db"
    processes = [StoreProcess(place, SESSION_TIMEOUT_S) for _ in range(3)]
    async with AsyncExitStack() as stack:
        for process in processes:
            await stack.enter_async_context(process)
        leases = await asyncio.gather(*[process.run("acquire", "/controller", "x") for process in processes])
        assert sum(lease is not None for lease in leases) == 1


@on_a_loop
async def test_a_file_of_format_1_is_converted(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE rows (key TEXT PRIMARY KEY, value BLOB, version INTEGER) WITHOUT ROWID")
        connection.execute("CREATE TABLE changes (revision INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, value BLOB)")
        connection.execute("CREATE TABLE leases (name TEXT PRIMARY KEY, epoch INTEGER, heartbeat REAL) WITHOUT ROWID")
        connection.execute("INSERT INTO changes VALUES (7, '/a', X'31')")
        connection.execute("INSERT INTO rows VALUES ('/a', X'31', 7)")
        connection.execute("INSERT INTO leases VALUES ('/brokers/1', 3, 5.0)")
        connection.execute("PRAGMA user_version = 1")
    (tmp_path / "m.db.brokers-1.lock").touch()
    async with subscribers(f"sqlite:{path}") as [one]:
        assert one.records == {"/a": (b"1", 7)}
        assert await one.acquire("/brokers/1") is not None
        await one.set("/a", b"2")
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.parametrize(
    "content", [b"this is no database, whatever else it is" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.db"
    path.write_bytes(content)

    async def run() -> None:
        store = SqliteStore(str(path), ManualClock())
        with pytest.raises(StoreError, match=str(path)):
            await store.open(lambda news: None)
        await store.close()

    asyncio.run(run())


@on_a_loop
async def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {database.FORMAT_VERSION + 1}")
    store = SqliteStore(str(path), ManualClock())
    with pytest.raises(StoreError, match="format 3"):
        await store.open(lambda news: None)
    await store.close()


@on_a_loop
async def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = SqliteStore(str(tmp_path / "file" / "m.db"), ManualClock())
    with pytest.raises(StoreError, match=os.sep + "file"):
        await store.open(lambda news: None)
    await store.close()


async def applied_at_once(topics: Iterable[str]) -> None:
    """No logs are opened here."""


async def started(
    path: Path, images: list[ClusterImage], node_id: int = 1, cluster_id: str | None = None
) -> Controller:
    controller = Controller(SqliteStore(str(path), ManualClock()), images.append, applied_at_once)
    await controller.start(BrokerImage(node_id, ()), cluster_id)
    return controller


@on_a_loop
async def test_a_command_is_followed_before_it_is_answered(tmp_path: Path) -> None:
    images: list[ClusterImage] = []
    controller = await started(tmp_path / "m.db", images)
    image = await controller.submit(CreateTopic("a", new_topic_id()))
    assert images[-1].topics == image.topics and "a" in image.topics
    with pytest.raises(KafkaError) as caught:
        await controller.submit(CreateTopic("a", new_topic_id()))
    assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    await controller.stop()


@on_a_loop
async def test_a_decision_on_an_older_image_is_made_again(tmp_path: Path) -> None:
    """Two brokers must not allocate the same producer ids, though a thread decides while the image changes."""
    arrived, path = asyncio.Event(), str(tmp_path / "m.db")

    def notice(image: ClusterImage) -> None:
        if image.next_producer_id:
            arrived.set()

    one = Controller(SqliteStore(path, ManualClock()), notice, applied_at_once)
    await one.start(BrokerImage(1, ()))
    two = await started(tmp_path / "m.db", [], 2)
    in_thread, waiting = asyncio.to_thread, [two]

    async def overtaken(function: Callable[..., Any], *arguments: Any) -> Any:
        decided = await in_thread(function, *arguments)
        if waiting:
            await waiting.pop().submit(AllocateProducerIds())
            await asyncio.wait_for(arrived.wait(), 60)
        return decided

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "to_thread", overtaken)
        image = await one.submit(AllocateProducerIds())
    assert image.next_producer_id == 2 * PRODUCER_ID_BLOCK
    await one.stop()
    await two.stop()


@on_a_loop
async def test_many_commands_fail_alone_and_may_be_tried_without_effect(tmp_path: Path) -> None:
    images: list[ClusterImage] = []
    controller = await started(tmp_path / "m.db", images)
    commands = [CreateTopic(name, new_topic_id()) for name in ("a", "b/c", "a", "d")]
    seen = len(images)
    decision = await controller.submit_all(commands, validate_only=True)
    assert len(images) == seen and list(decision.image.topics) == ["a", "d"]
    decision = await controller.submit_all(commands)
    assert [error and error.code for error in decision.errors] == [
        None,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        None,
    ]
    assert len(images) == seen + 1 and list(controller.image.topics) == ["a", "d"]
    await controller.stop()


@on_a_loop
async def test_a_restart_finds_the_same_cluster_and_a_new_epoch_of_the_broker(tmp_path: Path) -> None:
    images: list[ClusterImage] = []
    controller = await started(tmp_path / "m.db", images)
    before = await controller.submit(CreateTopic("a", new_topic_id(), 3, configs={"segment.ms": "5"}))
    await controller.stop()
    again = await started(tmp_path / "m.db", images, cluster_id=before.cluster_id)
    assert (again.image.cluster_id, again.image.topics) == (before.cluster_id, before.topics)
    assert again.image.brokers[1].epoch > before.brokers[1].epoch
    await again.stop()


@on_a_loop
async def test_a_second_broker_with_the_same_id_is_refused(tmp_path: Path) -> None:
    controller = await started(tmp_path / "m.db", [])
    second = Controller(SqliteStore(str(tmp_path / "m.db"), ManualClock()), lambda image: None, applied_at_once)
    with pytest.raises(KafkaError, match=r"node\.id 1") as caught:
        await second.start(BrokerImage(1, ()))
    assert caught.value.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    await second.stop()
    await controller.stop()


@pytest.mark.parametrize(("file", "words"), [("m.db", "belongs to cluster"), ("new.db", "metadata is missing")])
def test_metadata_that_is_not_of_the_log_dirs_is_refused(tmp_path: Path, file: str, words: str) -> None:
    """An image that does not know the topics of the log dirs must never be followed: their logs would be removed."""

    async def run() -> None:
        controller = await started(tmp_path / "m.db", [])
        await controller.stop()
        images: list[ClusterImage] = []
        other = Controller(SqliteStore(str(tmp_path / file), ManualClock()), images.append, applied_at_once)
        with pytest.raises(KafkaError, match=words) as caught:
            await other.start(BrokerImage(1, ()), "another-cluster")
        assert caught.value.code == ErrorCode.INCONSISTENT_CLUSTER_ID and images == []
        await other.stop()

    asyncio.run(run())


@on_a_loop
async def test_two_processes_share_producer_ids_without_giving_one_twice(tmp_path: Path) -> None:
    """An id belongs to one producer, whichever broker gave it."""
    brokers = [await started(tmp_path / "m.db", [], node_id) for node_id in (1, 2)]
    ends: list[int] = []

    async def allocate(controller: Controller) -> None:
        for _ in range(10):
            image = await controller.submit(AllocateProducerIds())
            ends.append(image.next_producer_id)

    await asyncio.gather(*map(allocate, brokers))
    assert sorted(ends) == [1_000 * number for number in range(1, 21)]
    for controller in brokers:
        await controller.stop()


@on_a_loop
async def test_a_topic_made_elsewhere_arrives_here(tmp_path: Path) -> None:
    arrived = asyncio.Event()
    one = await started(tmp_path / "m.db", [], 1)
    two = Controller(
        SqliteStore(str(tmp_path / "m.db"), ManualClock()),
        lambda image: arrived.set() if "a" in image.topics else arrived.clear(),
        applied_at_once,
    )
    await two.start(BrokerImage(2, ()))
    await one.submit(CreateTopic("a", new_topic_id()))
    await asyncio.wait_for(arrived.wait(), 20)
    await two.submit(DeleteTopic("a"))
    assert not arrived.is_set()
    await one.stop()
    await two.stop()


def test_a_corrupt_file_is_named(tmp_path: Path) -> None:
    """Records of it would otherwise be read as far as they go."""
    path = tmp_path / "metadata.db"

    async def write() -> None:
        store = SqliteStore(str(path), ManualClock())
        await store.open(lambda update: None)
        await store.commit([CompareAndSet(f"/topics/{number}", b"x" * 300, ABSENT) for number in range(50)])
        await store.close()

    async def read() -> MetadataUpdate:
        store = SqliteStore(str(path), ManualClock())
        try:
            return await store.open(lambda update: None)
        finally:
            await store.close()

    asyncio.run(write())
    content = path.read_bytes()
    page = content.index(b"/topics/") // 4096 * 4096
    path.write_bytes(content[: page + 8] + bytes(200) + content[page + 208 :])
    with pytest.raises(StoreError, match=rf"{path}.*(corrupt|malformed)"):
        asyncio.run(read())

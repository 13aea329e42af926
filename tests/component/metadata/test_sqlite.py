"""The SQLite store: atomic and ordered writes of several processes, clear errors."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.broker.controller import Controller, new_topic_id
from levada.core.cluster.controller import PRODUCER_ID_BLOCK, AllocateProducerIds, CreateTopic, DeleteTopic
from levada.core.cluster.image import BrokerImage, ClusterImage
from levada.errors import ErrorCode, KafkaError
from levada.metadata import leases, sqlite
from levada.metadata.sqlite import SqliteStore
from levada.metadata.store import (
    ABSENT,
    CompareAndSet,
    ConflictError,
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


class Subscriber:
    """A store and the records of its change stream."""

    def __init__(self, path: Path, clock: ManualClock | None = None) -> None:
        self.store = SqliteStore(str(path), clock or ManualClock())
        self.records: dict[str, tuple[bytes, int]] = {}
        self.revisions: list[int] = []
        self.snapshots = 0
        self.changed = asyncio.Event()

    async def open(self) -> "Subscriber":
        self.on_change(await self.store.open(self.on_change))
        return self

    def on_change(self, update: MetadataUpdate) -> None:
        if update.snapshot:
            self.records.clear()
            self.snapshots += 1
        for key, value, version in update.records:
            if value is None:
                self.records.pop(key, None)
            else:
                self.records[key] = value, version
        self.revisions.append(update.revision)
        self.changed.set()

    def write(self, key: str, value: bytes | None) -> CompareAndSet:
        return CompareAndSet(key, value, self.records.get(key, (b"", ABSENT))[1])

    def counted_to_twenty(self) -> bool:
        return self.records["/count"][0] == b"20"

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 20)


def on_a_loop(test: Callable[[Path], Awaitable[None]]) -> Callable[[Path], None]:
    """A test that is a coroutine."""

    def run(tmp_path: Path) -> None:
        asyncio.run(_awaited(test(tmp_path)))

    run.__doc__ = test.__doc__
    return run


async def _awaited(test: Awaitable[None]) -> None:
    await test


@on_a_loop
async def test_writes_are_there_at_once_and_after_a_restart(tmp_path: Path) -> None:
    first = await Subscriber(tmp_path / "m.db").open()
    revision = await first.store.commit([first.write("/a", b"1"), first.write("/b", b"2")])
    assert {key: value for key, (value, _) in first.records.items()} == {"/a": b"1", "/b": b"2"}
    await first.store.commit([first.write("/a", None)])
    await first.store.close()
    second = await Subscriber(tmp_path / "m.db").open()
    assert {key: value for key, (value, _) in second.records.items()} == {"/b": b"2"}
    assert second.revisions[0] > revision
    await second.store.close()
    await second.store.close()


@on_a_loop
async def test_a_commit_with_one_stale_version_changes_nothing(tmp_path: Path) -> None:
    store = await Subscriber(tmp_path / "m.db").open()
    await store.store.commit([store.write("/a", b"1")])
    before = dict(store.records)
    for writes in (
        [CompareAndSet("/b", b"x", ABSENT), CompareAndSet("/a", b"x", ABSENT)],
        [CompareAndSet("/b", b"x", ABSENT), CompareAndSet("/a", b"x", 99)],
        [CompareAndSet("/b", b"x", 5)],
        [CompareAndSet("/b", None, 5)],
    ):
        with pytest.raises(ConflictError):
            await store.store.commit(writes)
    assert store.records == before
    await store.store.close()


@on_a_loop
async def test_two_stores_see_one_order_of_changes(tmp_path: Path) -> None:
    """Both write to the same row and try again after a conflict: no write is lost, and both end with the same rows."""
    path = tmp_path / "m.db"
    stores = [await Subscriber(path).open(), await Subscriber(path).open()]

    async def count_up(subscriber: Subscriber) -> None:
        for _ in range(10):
            while True:
                value = int(subscriber.records.get("/count", (b"0", 0))[0]) + 1
                try:
                    await subscriber.store.commit([subscriber.write("/count", b"%d" % value)])
                    break
                except ConflictError:
                    continue

    await asyncio.gather(*map(count_up, stores))
    for subscriber in stores:
        await subscriber.until(subscriber.counted_to_twenty)
        assert subscriber.revisions == sorted(subscriber.revisions)
    assert stores[0].records == stores[1].records
    for subscriber in stores:
        await subscriber.store.close()


@on_a_loop
async def test_who_is_far_behind_reads_everything_again(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    slow, fast = await Subscriber(path).open(), await Subscriber(path).open()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO changes VALUES (?, '/gone', NULL)", (sqlite.CHANGES_KEPT * 2,))
    await fast.store.commit([CompareAndSet("/a", b"1", ABSENT)])
    await slow.until(lambda: "/a" in slow.records)
    assert slow.snapshots > 1 and slow.records == fast.records
    await slow.store.close()
    await fast.store.close()


operations = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.none() | st.binary(max_size=3)),
        max_size=3,
        unique_by=lambda x: x[0],
    ),
    max_size=5,
)


@settings(deadline=None, max_examples=25)
@given(operations)
def test_the_store_is_a_table(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[tuple[str, bytes | None]]]
) -> None:
    async def run() -> None:
        path = tmp_path_factory.mktemp("store") / "m.db"
        subscriber = await Subscriber(path).open()
        model: dict[str, bytes] = {}
        for commit in commits:
            await subscriber.store.commit([subscriber.write(key, value) for key, value in commit])
            for key, value in commit:
                model.pop(key, None)
                if value is not None:
                    model[key] = value
            assert {key: value for key, (value, _) in subscriber.records.items()} == model
        await subscriber.store.close()
        again = await Subscriber(path).open()
        assert again.records == subscriber.records
        await again.store.close()

    asyncio.run(run())


@on_a_loop
async def test_a_lease_has_one_holder_until_it_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    one, two = await Subscriber(path).open(), await Subscriber(path).open()
    lease = await one.store.acquire("/brokers/1", pytest.fail)
    assert lease is not None and lease.epoch == 1
    assert await two.store.acquire("/brokers/1", pytest.fail) is None
    assert await two.store.acquire("/brokers/2", pytest.fail) is not None
    await one.store.release(lease)
    later = await two.store.acquire("/brokers/1", pytest.fail)
    assert later is not None and later.epoch == 2
    with pytest.raises(LeaseLostError):
        await one.store.commit([CompareAndSet("/a", b"1", ABSENT)], lease)
    await two.store.commit([CompareAndSet("/a", b"1", ABSENT)], later)
    await one.store.close()
    await two.store.close()
    three = await Subscriber(path).open()
    assert await three.store.acquire("/brokers/1", pytest.fail) is not None
    await three.store.close()


@on_a_loop
async def test_a_holder_that_sleeps_loses_its_lease_and_learns_of_it(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    sleeper_clock, clock = ManualClock(), ManualClock()
    sleeper, other = await Subscriber(path, sleeper_clock).open(), await Subscriber(path, clock).open()
    lost = asyncio.Event()
    lease = await sleeper.store.acquire("/controller", lost.set)
    clock.seconds += leases.STALE_S - 1
    assert await other.store.acquire("/controller", pytest.fail) is None
    clock.seconds += 2
    taken = await other.store.acquire("/controller", pytest.fail)
    assert lease is not None and taken is not None and taken.epoch > lease.epoch
    with pytest.raises(LeaseLostError):
        await sleeper.store.commit([CompareAndSet("/a", b"late", ABSENT)], lease)
    await other.store.commit([CompareAndSet("/a", b"mine", ABSENT)], taken)
    sleeper_clock.seconds = clock.seconds
    await asyncio.wait_for(lost.wait(), 20)
    await sleeper.store.close()
    await other.store.close()


HOLDER = textwrap.dedent("""
    import asyncio, sys
    from levada.clock import SystemClock
    from levada.metadata.sqlite import SqliteStore
    from levada.metadata.store import CompareAndSet

    async def main():
        store = SqliteStore(sys.argv[1], SystemClock())
        await store.open(lambda news: None)
        assert await store.acquire("/brokers/1", lambda: None)
        for number in range(1, 1_000_000):
            await store.commit([CompareAndSet(f"/{number}/a", b"x", 0), CompareAndSet(f"/{number}/b", b"x", 0)])
            print(number, flush=True)

    asyncio.run(main())
""")


@on_a_loop
async def test_a_killed_process_loses_no_commit_and_keeps_no_lease(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    printed = [int(line) for line in process.stdout.read().split()]
    process.stdout.close()
    process.wait()
    subscriber = await Subscriber(path).open()
    kept = set(subscriber.records)
    assert all(f"/{number}/a" in kept for number in range(1, (printed or [20])[-1] + 1))
    assert {key[:-1] for key in kept if key.endswith("a")} == {key[:-1] for key in kept if key.endswith("b")}
    assert await subscriber.store.acquire("/brokers/1", pytest.fail) is not None
    await subscriber.store.close()


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
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA user_version = {sqlite.FORMAT_VERSION + 1}")
    store = SqliteStore(str(path), ManualClock())
    with pytest.raises(StoreError, match=f"format {sqlite.FORMAT_VERSION + 1}"):
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


# Damage that SQLite does not notice.


async def stored(path: Path) -> None:
    one = await Subscriber(path).open()
    for key in ("/topics/a", "/topics/b"):
        await one.store.commit([CompareAndSet(key, b'{"name":"' + key[-1:].encode() + b'"}', ABSENT)])
    await one.store.close()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE rows SET value = CAST(replace(value, 'b', 'c') AS BLOB) WHERE key = '/topics/b'", "its CRC differs"),
        ("UPDATE rows SET value = '{}' WHERE key = '/topics/b'", "its value is not a blob"),
        ("UPDATE rows SET key = '/topics/c' WHERE key = '/topics/b'", "its last change|its CRC differs"),
        ("DELETE FROM rows WHERE key = '/topics/b'", "its last change"),
        ("INSERT INTO changes (key, value) VALUES ('/topics/b', NULL)", "its last change"),
    ],
)
def test_a_damaged_record_is_refused_by_name(tmp_path: Path, statement: str, problem: str) -> None:
    path = tmp_path / "m.db"
    asyncio.run(stored(path))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)

    async def run() -> None:
        store = SqliteStore(str(path), ManualClock())
        with pytest.raises(StoreError, match=f"{path} is corrupt.*record /topics/[bc]: .*({problem})"):
            await store.open(lambda news: None)
        await store.close()

    asyncio.run(run())


def test_a_check_of_a_stopped_broker_refuses_a_damaged_record(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    asyncio.run(stored(path))
    assert [record.key for record in sqlite.read_closed_store(str(path))] == ["/topics/a", "/topics/b"]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE rows SET value = '{}' WHERE key = '/topics/b'")
    with pytest.raises(StoreError, match="record /topics/b"):
        sqlite.read_closed_store(str(path))


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DROP TABLE changes", "no such table: changes"),
        (f"UPDATE sqlite_sequence SET seq = {(1 << 63) - 1}", f"changes has number {(1 << 63) - 1}"),
        (f"UPDATE leases SET epoch = {(1 << 63) - 1}", f"lease /brokers/1 has number {(1 << 63) - 1}"),
    ],
)
def test_what_the_start_refuses_is_found_by_a_check(tmp_path: Path, statement: str, problem: str) -> None:
    path = tmp_path / "m.db"

    async def run() -> None:
        one = await Subscriber(path).open()
        await one.store.commit([CompareAndSet("/topics/a", b"{}", ABSENT)])
        assert await one.store.acquire("/brokers/1", lambda: None)
        await one.store.close()
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(statement)
        store = SqliteStore(str(path), ManualClock())
        with pytest.raises(StoreError, match=f"{path}.*{problem}"):
            await store.open(lambda news: None)
        await store.close()

    asyncio.run(run())
    with pytest.raises(StoreError, match=f"{path}.*{problem}"):
        sqlite.read_closed_store(str(path))


def test_records_of_a_former_version_get_their_crcs(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    asyncio.run(stored(path))
    with closing(sqlite3.connect(path)) as database, database:
        crcs = database.execute("SELECT key, crc FROM rows").fetchall()
        database.execute("ALTER TABLE rows DROP COLUMN crc")
        database.execute("PRAGMA user_version = 1")
    assert len(sqlite.read_closed_store(str(path))) == len(crcs)

    async def run() -> None:
        one = await Subscriber(path).open()
        assert one.records["/topics/a"][0] == b'{"name":"a"}'
        await one.store.close()

    asyncio.run(run())
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT key, crc FROM rows").fetchall() == crcs

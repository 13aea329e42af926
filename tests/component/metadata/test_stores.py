"""What every metadata store must do, on SQLite and on ZooKeeper."""

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.stores import TIMEOUT_S, StoreProcess, Subscriber, on_a_loop, open_place, subscribers, writes
from tests.support.zookeeper import ZooKeeperServer

from levada.metadata import database
from levada.metadata.store import (
    ABSENT,
    CheckVersion,
    CompareAndSet,
    ConflictError,
    LeaseLostError,
    StoreError,
    Write,
    commit_bytes,
)

SESSION_TIMEOUT_S = 1.0  # of sessions that end in a test


# Records.


@on_a_loop
async def test_a_commit_is_published_before_it_returns_and_survives_a_restart(place: str) -> None:
    async with subscribers(place) as [one]:
        revision = await one.store.commit(writes(one, {"/a": b"1", "/b/c": b"2"}))
        assert one.values == {"/a": b"1", "/b/c": b"2"}
        assert await one.set("/a", None) > revision
        assert one.values == {"/b/c": b"2"} and one.revisions == sorted(one.revisions)
    async with subscribers(place) as [again]:
        assert again.values == {"/b/c": b"2"} and again.revisions[0] > revision


@on_a_loop
async def test_one_stale_version_of_a_commit_prevents_all_its_writes(place: str) -> None:
    async with subscribers(place) as [one]:
        await one.set("/a", b"1")
        version = one.version("/a")
        await one.set("/a", b"2")
        before = dict(one.records)
        for stale in (
            CompareAndSet("/a", b"x", ABSENT),
            CompareAndSet("/a", b"x", version),
            CompareAndSet("/a", None, version),
            CompareAndSet("/c", b"x", version),
            CompareAndSet("/c", None, version),
            CheckVersion("/a", version),
            CheckVersion("/a", ABSENT),
            CheckVersion("/c", version),
        ):
            for order in ([CompareAndSet("/b", b"x", ABSENT), stale], [stale, CompareAndSet("/b", b"x", ABSENT)]):
                with pytest.raises(ConflictError):
                    await one.store.commit(order)
        assert one.records == before
        assert await one.store.commit([]) >= max(version for _, version in before.values())


@on_a_loop
async def test_a_check_writes_nothing_and_passes_while_its_version_holds(place: str) -> None:
    async with subscribers(place, 2) as [one, two]:
        await one.store.commit(writes(one, {"/a": b"1", "/d/e": b"2"}))
        await two.until(lambda: two.records == one.records)
        before = dict(one.records)
        checks = [one.check("/a"), one.check("/d/e"), one.check("/d"), one.check("/x"), one.check("/y/z")]
        await one.store.commit(checks)
        assert one.records == before
        await one.store.commit([*checks, CompareAndSet("/y/b", b"3", ABSENT)])
        assert one.records.keys() == {"/a", "/d/e", "/y/b"}
        await two.set("/a", b"2")
        with pytest.raises(ConflictError):
            await one.store.commit([*checks, CompareAndSet("/y/c", b"4", ABSENT)])
        assert one.records.keys() == {"/a", "/d/e", "/y/b"} and one.values["/a"] == b"2"


@on_a_loop
async def test_a_record_that_was_created_again_does_not_have_a_former_version(place: str) -> None:
    """Both have been written as often as the other, and have the same content."""
    async with subscribers(place, 2) as [one, two]:
        stale = []
        for key in ("/a", "/b/c", "/b/c/d"):
            await one.set(key, b"1")
            await one.set(key, b"2")
            stale.append(one.check(key))
        await two.until(lambda: two.records == one.records)
        await two.store.commit(writes(two, dict.fromkeys(two.records)))
        for check in stale:
            await two.set(check.key, b"1")
            await two.set(check.key, b"2")
        for key, version in stale:
            for write in (
                CheckVersion(key, version),
                CompareAndSet(key, b"3", version),
                CompareAndSet(key, None, version),
            ):
                with pytest.raises(ConflictError):
                    await one.store.commit([write])
        assert set(one.values.values()) == {b"2"}


@on_a_loop
async def test_records_above_and_below_each_other_are_independent(place: str) -> None:
    keys = ["/t", "/t/a", "/t/a/p/0/state", "/t/a/p/1/state"]
    async with subscribers(place, 2) as [one, two]:
        for order in (keys, keys[::-1], keys[1:] + keys[:1]):
            for key in order:
                await one.set(key, b"x")
            assert one.records.keys() == set(keys)
            for count, key in enumerate(order, 1):
                await one.set(key, None)
                assert one.records.keys() == set(order[count:])
        await one.store.commit(writes(one, dict.fromkeys(keys, b"x")))
        await one.store.commit(writes(one, {**dict.fromkeys(keys), "/t/a/p/2/state": b"y"}))
        assert one.values == {"/t/a/p/2/state": b"y"}
        await two.until(lambda: two.records == one.records)


def test_no_commit_has_an_empty_value_or_is_too_large(place: str) -> None:
    async def commit(write: CompareAndSet) -> None:
        async with subscribers(place) as [one]:
            await one.store.commit([write])

    with pytest.raises(ValueError, match="empty"):
        asyncio.run(commit(CompareAndSet("/a", b"", ABSENT)))
    with pytest.raises(StoreError, match="larger"):
        asyncio.run(commit(CompareAndSet("/a", bytes(open_place(place).commit_bytes_max), ABSENT)))


@on_a_loop
async def test_thousands_of_records_in_commits_of_the_largest_size(place: str) -> None:
    count = 4_000
    async with subscribers(place, 2) as [one, two]:
        commit: list[CompareAndSet] = []
        for number in range(count):
            write = CompareAndSet(f"/brokers/topics/many/partitions/{number}/state", b"%256d" % number, ABSENT)
            if commit_bytes([*commit, write]) > min(one.store.commit_bytes_max, 1 << 20):
                await one.store.commit(commit)
                commit = []
            commit.append(write)
        await one.store.commit(commit)
        await two.until(lambda: len(two.records) == count)
        assert two.records == one.records
        async with subscribers(place) as [late]:
            assert late.records == one.records
        some = sorted(one.records)[:1_000]
        await two.store.commit(writes(two, dict.fromkeys(some)))
        await one.until(lambda: len(one.records) == count - len(some))
        assert two.records == one.records


# The change stream.


@on_a_loop
async def test_all_stores_receive_the_same_order_of_whole_commits(place: str) -> None:
    """Three count the same record up, two records a commit: no write is lost, none is seen without the other."""
    async with subscribers(place, 3) as all_of_them:
        torn: list[object] = []

        def compare(one: Subscriber) -> None:
            if one.values.get("/left/count") != one.values.get("/right/count"):
                torn.append(one.values)

        async def count_up(one: Subscriber) -> None:
            one.on_update = lambda: compare(one)
            for _ in range(8):
                while True:
                    value = b"%d" % (int(one.values.get("/left/count", b"0")) + 1)
                    try:
                        await one.store.commit(writes(one, {"/left/count": value, "/right/count": value}))
                        break
                    except ConflictError:
                        continue

        await asyncio.gather(*map(count_up, all_of_them))
        for one in all_of_them:
            await one.until(lambda one=one: one.values["/left/count"] == b"24")  # type: ignore[misc]
            assert one.revisions == sorted(one.revisions) and one.records == all_of_them[0].records
        assert not torn


@on_a_loop
async def test_no_commit_is_seen_without_those_before_it(place: str) -> None:
    """A chain: each commit writes a record of its own, the next number."""
    length = 60
    async with subscribers(place, 2) as [one, two]:
        gaps: list[object] = []

        def check() -> None:
            if two.values.keys() != {f"/chain/{number}" for number in range(len(two.values))}:
                gaps.append(sorted(two.values))

        two.on_update = check
        for number in range(length):
            await one.set(f"/chain/{number}", b"x")
        await two.until(lambda: len(two.values) == length)
        assert not gaps


Commit = tuple[int, bool, dict[str, bytes | None], set[str]]  # the store, whether it waits first, writes, checks
keys = st.sampled_from(["/a", "/a/b", "/a/b/c/d", "/a/b/c/e", "/x/y/z/0/state", "/x/y/z/1/state"])
commits = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.booleans(),
        st.dictionaries(keys, st.none() | st.binary(min_size=1, max_size=3), max_size=4),
        st.sets(keys, max_size=2),
    ),
    max_size=8,
)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commits)
def test_stores_agree_with_a_table(place: str, commits: list[Commit]) -> None:
    """Two stores, one of them often behind: a commit succeeds if it has the newest versions of what it names."""

    async def run() -> None:
        async with subscribers(place + uuid4().hex, 2) as both:
            newest: dict[str, tuple[bytes, int]] = {}
            for number, waits, values, checked in commits:
                one, expected = both[number], dict(newest)
                if waits:
                    await one.until(lambda one=one, expected=expected: one.records == expected)  # type: ignore[misc]
                commit: list[Write] = [*writes(one, values), *map(one.check, checked - values.keys())]
                may_pass = all(write.version == expected.get(write.key, (b"", ABSENT))[1] for write in commit)
                model = {key: value for key, (value, _) in expected.items()} | values
                try:
                    await one.store.commit(commit)
                except ConflictError:
                    assert not may_pass and any(write.version != one.version(write.key) for write in commit)
                else:
                    assert may_pass and one.values == {key: value for key, value in model.items() if value is not None}
                    newest = dict(one.records)
            for one in both:
                await one.until(lambda one=one: one.records == newest)  # type: ignore[misc]

    asyncio.run(run())


# An unreachable store.


@asynccontextmanager
async def _unreachable(place: str, server: Callable[[], ZooKeeperServer]) -> AsyncIterator[None]:
    """Another process holds the lock of the file; the server answers nothing."""
    kind, _, path = place.partition(":")
    if kind == "sqlite":
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
    else:
        server().pause()
        try:
            yield
        finally:
            server().resume()


def test_an_unreachable_store_fails_in_time_and_goes_on_later(
    place: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.2)

    async def test() -> None:
        async with subscribers(place, 2, session_timeout_s=SESSION_TIMEOUT_S) as [one, two]:
            await one.set("/a", b"1")
            await two.until(lambda: two.records == one.records)
            async with _unreachable(place, lambda: request.getfixturevalue("server")):
                with pytest.raises(StoreError):
                    await one.set("/a", b"2")
                with pytest.raises(StoreError):
                    await one.acquire("/controller")
                assert one.values == two.values == {"/a": b"1"}
            async with asyncio.timeout(TIMEOUT_S):
                while one.values["/a"] != b"3":
                    with suppress(StoreError, ConflictError):
                        await one.set("/a", b"3")
            await two.until(lambda: two.values.get("/a") == b"3")
            await one.until(lambda: "/controller" not in one.values)  # nobody holds it
            while await two.acquire("/controller") is None:
                await two.until(lambda: "/controller" not in two.values)

    asyncio.run(test())


# Leases.


@on_a_loop
async def test_a_lease_has_one_holder_and_a_record_until_it_is_released(place: str) -> None:
    async with subscribers(place, 2) as [one, two]:
        lease = await one.acquire("/ids/1", b"one")
        assert lease is not None and one.values == {"/ids/1": b"one"}
        assert await two.acquire("/ids/1") is None and await one.acquire("/ids/1") is None
        await two.until(lambda: two.records == one.records)
        assert await two.acquire("/ids/2") is not None
        await one.store.release(lease)
        assert "/ids/1" not in one.values
        await one.store.release(lease)
        await two.until(lambda: "/ids/1" not in two.values)
        later = await two.acquire("/ids/1", b"two")
        assert later is not None and later.epoch > lease.epoch
        await one.store.release(lease)  # which is another one's now
        await one.until(lambda: one.values.get("/ids/1") == b"two")
        assert not one.lost and not two.lost


@on_a_loop
async def test_only_the_holder_of_a_lease_commits_under_it(place: str) -> None:
    async with subscribers(place, 2) as [one, two]:
        former = await one.acquire("/controller")
        assert former is not None
        await one.store.commit([one.write("/a", b"1")], former)
        await one.store.release(former)
        with pytest.raises(LeaseLostError):
            await one.store.commit([one.write("/a", b"2")], former)
        again = await one.acquire("/controller")
        assert again is not None and again.epoch > former.epoch
        with pytest.raises(LeaseLostError):
            await one.store.commit([one.write("/a", b"2")], former)
        await two.until(lambda: two.records == one.records)
        with pytest.raises(LeaseLostError):
            await two.store.commit([two.write("/a", b"2")], again)
        stale = one.write("/a", b"4")
        await one.store.commit([one.write("/a", b"3")], again)
        with pytest.raises(ConflictError):
            await one.store.commit([stale], again)
        assert one.values["/a"] == b"3"


@on_a_loop
async def test_a_lease_is_no_record_of_a_commit(place: str) -> None:
    async with subscribers(place) as [one]:
        await one.acquire("/controller")
        for write in (one.write("/controller", b"x"), one.write("/controller", None), one.check("/controller")):
            with pytest.raises(ValueError, match="is a lease"):
                await one.store.commit([write])


@on_a_loop
async def test_leases_end_with_the_store(place: str) -> None:
    async with subscribers(place) as [watcher]:
        async with subscribers(place) as [one]:
            leases = [await one.acquire("/ids/1"), await one.acquire("/controller")]
            await watcher.until(lambda: len(watcher.values) == 2)
        await watcher.until(lambda: not watcher.values)
        assert not one.lost
        for lease in leases:
            assert lease is not None
            later = await watcher.acquire(lease.name)
            assert later is not None and later.epoch > lease.epoch


@on_a_loop
async def test_leases_end_with_a_killed_process_which_loses_no_commit(place: str) -> None:
    async with subscribers(place) as [watcher], StoreProcess(place, SESSION_TIMEOUT_S) as process:
        assert await process.run("acquire", "/ids/1", "x")
        last = await process.run("write_pairs", "/pairs")
        for _ in range(20):
            last = await process.result()
        await watcher.until(lambda: "/ids/1" in watcher.values)
        await process.kill()
        await watcher.until(lambda: "/ids/1" not in watcher.values)
        assert {f"/pairs/{number}/a" for number in range(last + 1)} <= watcher.values.keys()
        assert {key[:-1] for key in watcher.values if key.endswith("a")} == {
            key[:-1] for key in watcher.values if key.endswith("b")
        }
        assert await watcher.acquire("/ids/1") is not None


@on_a_loop
async def test_a_paused_process_loses_its_leases_and_finds_out(place: str) -> None:
    """Its former lease is another one's when it goes on; then it is no one's; it can have it again."""
    async with subscribers(place) as [watcher], StoreProcess(place, SESSION_TIMEOUT_S) as process:
        former = await process.run("acquire", "/controller", "former")
        await watcher.until(lambda: "/controller" in watcher.values)
        process.send_signal(signal.SIGSTOP)
        await watcher.until(lambda: "/controller" not in watcher.values)
        later = await watcher.acquire("/controller", b"later")
        assert later is not None and later.epoch > former[1]
        process.send_signal(signal.SIGCONT)
        assert await process.run("commit", "/a", "zombie", ABSENT, former) == "LeaseLostError"
        assert await process.run("lost", "/controller")
        await watcher.store.release(later)
        assert await process.run("commit", "/a", "zombie", ABSENT, former) == "LeaseLostError"
        again = await process.run("acquire", "/controller", "again")
        assert again[1] > later.epoch
        assert await process.run("commit", "/a", "alive", ABSENT, again)
        await watcher.until(lambda: watcher.values == {"/controller": b"again", "/a": b"alive"})

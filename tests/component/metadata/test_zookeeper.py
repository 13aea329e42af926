"""The ZooKeeper store: lost connections, sessions that end, an ensemble, what a server already contains."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
from kazoo.client import KazooClient
from tests.support.broker import free_port
from tests.support.proxy import Proxy
from tests.support.stores import Subscriber, subscribers, writes
from tests.support.zookeeper import ZooKeeperServer, ensemble, zookeeper

from levada.clock import SystemClock
from levada.metadata.store import ABSENT, CompareAndSet, LeaseLostError, StoreError
from levada.metadata.zookeeper import ZooKeeperSettings, ZooKeeperStore

SESSION_TIMEOUT_S = 2.0  # long enough for a busy machine, short enough to pass in a test


class _Behind(NamedTuple):
    """A store behind a proxy, and another one that is not."""

    proxy: Proxy
    one: Subscriber
    other: Subscriber


@asynccontextmanager
async def _behind_a_proxy(server: ZooKeeperServer, timeout_s: float = SESSION_TIMEOUT_S) -> AsyncIterator[_Behind]:
    root = uuid4().hex
    async with Proxy(server.port) as proxy:
        through = subscribers(f"zookeeper:127.0.0.1:{proxy.port}/{root}", session_timeout_s=timeout_s)
        async with through as [one], subscribers(f"zookeeper:{server.connect}/{root}") as [other]:
            yield _Behind(proxy, one, other)


def _settings(server: ZooKeeperServer, root: str, **changes: object) -> ZooKeeperSettings:
    found = ZooKeeperSettings(server.connect, root, SESSION_TIMEOUT_S, SESSION_TIMEOUT_S)
    return found._replace(**changes)  # type: ignore[arg-type]


def test_nothing_is_missed_over_lost_connections(server: ZooKeeperServer) -> None:
    """The session and its lease go on; what others write meanwhile arrives, whatever they deleted too."""

    async def test() -> None:
        async with _behind_a_proxy(server) as (proxy, one, other):
            lease = await one.acquire("/ids/1")
            for number in range(5):
                await other.store.commit(writes(other, {f"/a/{number}": b"x", "/b": b"%d" % number, "/c": b"x"}))
                await one.until(lambda number=number: one.values.get("/b") == b"%d" % number)  # type: ignore[misc]
                proxy.cut()
                await other.store.commit(writes(other, {f"/a/{number}": None, "/c": None, f"/d/{number}": b"x"}))
                proxy.heal()
                await one.until(lambda: one.records == other.records)
            assert one.snapshots == 1 and one.revisions == sorted(one.revisions)
            assert lease is not None and not one.lost
            await one.store.commit([one.write("/e", b"x")], lease)

    asyncio.run(test())


def test_a_store_without_a_connection_loses_its_leases_before_others_can_have_them(server: ZooKeeperServer) -> None:
    async def test() -> None:
        async with _behind_a_proxy(server) as (proxy, one, other):
            lease = await one.acquire("/controller", b"one")
            await other.until(lambda: "/controller" in other.values)
            proxy.cut()
            await one.until(lambda: one.lost == ["/controller"])
            assert "/controller" in other.values
            assert one.values["/controller"] == b"one"  # it is still readable
            assert lease is not None
            with pytest.raises(StoreError, match="ZooKeeper at"):
                await one.store.commit([one.write("/a", b"zombie")], lease)
            await other.until(lambda: "/controller" not in other.values)
            later = await other.acquire("/controller", b"other")
            assert later is not None and later.epoch > lease.epoch
            proxy.heal()
            await one.until(lambda: one.records == other.records)
            with pytest.raises(LeaseLostError):
                await one.store.commit([one.write("/a", b"zombie")], lease)
            await other.store.release(later)
            await one.until(lambda: "/controller" not in one.values)
            again = await one.acquire("/controller", b"again")
            assert again is not None and again.epoch > later.epoch
            await one.store.commit([one.write("/a", b"alive")], again)
            assert one.lost == ["/controller"]

    asyncio.run(test())


def test_a_lease_that_was_given_up_is_deleted_if_the_session_goes_on(server: ZooKeeperServer) -> None:
    """Only answers are lost for a session timeout: ZooKeeper does not notice."""

    async def test() -> None:
        async with _behind_a_proxy(server) as (proxy, one, other):
            await one.acquire("/controller")
            proxy.drops_responses = True
            await one.until(lambda: one.lost == ["/controller"])
            proxy.heal()
            await other.until(lambda: "/controller" not in other.values)
            assert await other.acquire("/controller") is not None

    asyncio.run(test())


def test_an_acquisition_whose_answer_is_lost_leaves_no_lease(server: ZooKeeperServer) -> None:
    async def test() -> None:
        async with _behind_a_proxy(server) as (proxy, one, other):
            proxy.drops_responses = True
            with pytest.raises(StoreError, match="ZooKeeper at"):
                await one.acquire("/controller")
            proxy.heal()
            await other.until(lambda: "/controller" not in other.values)
            while (lease := await other.acquire("/controller")) is None:
                await other.until(lambda: "/controller" not in other.values)
            proxy.drops_responses = True
            with pytest.raises(StoreError):
                await one.acquire("/ids/1")
            proxy.heal()
            await other.store.release(lease)
            await one.until(lambda: one.values == {})
            assert await one.acquire("/ids/1") is not None

    asyncio.run(test())


def test_a_commit_is_applied_once_though_its_connection_is_lost(server: ZooKeeperServer) -> None:
    async def test() -> None:
        async with _behind_a_proxy(server) as (proxy, one, other):
            for number, lost in enumerate(("drops_requests", "drops_responses")):
                setattr(proxy, lost, True)
                sent = proxy.requests
                commit = asyncio.create_task(one.set(f"/{number}", b"x"))
                while proxy.requests == sent:
                    await asyncio.sleep(0.01)
                if lost == "drops_responses":
                    await other.until(lambda number=number: f"/{number}" in other.values)  # type: ignore[misc]
                    proxy.heal()
                    with pytest.raises(StoreError, match="lost during a commit"):
                        await commit
                else:
                    proxy.heal()
                    await commit
                assert one.values[f"/{number}"] == b"x"
            assert one.records == other.records

    asyncio.run(test())


def test_a_server_is_killed_and_started_again(tmp_path: Path) -> None:
    """Commits wait or fail, those that have returned are there, sessions and leases go on."""

    async def test(server: ZooKeeperServer) -> None:
        place = f"zookeeper:{server.connect}/levada"
        async with subscribers(place, 2, session_timeout_s=30) as [one, two]:
            lease = await one.acquire("/ids/1")
            for number in range(2):
                await one.set("/a", b"%d" % number)
                await asyncio.to_thread(server.kill)
                commit = asyncio.create_task(two.store.commit([CompareAndSet(f"/b/{number}", b"x", ABSENT)]))
                await asyncio.to_thread(server.start)
                await commit
                await one.until(lambda: one.records == two.records)
            assert one.values.keys() == {"/ids/1", "/a", "/b/0", "/b/1"} and one.values["/a"] == b"1"
            assert lease is not None and not one.lost
            await one.store.commit([one.write("/a", None)], lease)

    with zookeeper(tmp_path) as server:
        asyncio.run(test(server))


def test_metadata_that_has_disappeared_is_not_taken_for_deleted(tmp_path: Path) -> None:
    """A broker would delete the logs of all topics."""

    async def test() -> None:
        port = free_port()
        with zookeeper(tmp_path / "first", port) as server:
            async with subscribers(f"zookeeper:{server.connect}/levada", session_timeout_s=SESSION_TIMEOUT_S) as [one]:
                await one.set("/topics/a", b"x")
                server.kill()
                with zookeeper(tmp_path / "second", port):
                    await asyncio.to_thread(_write_transactions, server.connect, 100)
                    await _until_it_has_disappeared(one)
                    async with subscribers(f"zookeeper:{server.connect}/levada"):  # of another cluster
                        await _until_it_has_disappeared(one)
                assert one.values == {"/topics/a": b"x"}

    asyncio.run(test())


async def _until_it_has_disappeared(one: Subscriber) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await one.set("/topics/b", b"x")
            except StoreError as error:
                if "no longer in ZooKeeper" in str(error):
                    return
            else:
                raise AssertionError(one.values)


def _write_transactions(connect: str, count: int) -> None:
    """A server with fewer transactions than a client has seen refuses the client."""
    client = KazooClient(connect)
    client.start()
    for _ in range(count):
        client.set("/", b"")
    client.stop()
    client.close()


def test_an_ensemble_loses_its_leader_and_its_majority(tmp_path: Path) -> None:
    async def test(servers: list[ZooKeeperServer]) -> None:
        hosts = ",".join(server.connect for server in servers)
        async with subscribers(f"zookeeper:{hosts}/levada", 3, session_timeout_s=30) as [one, two, three]:
            lease = await one.acquire("/ids/1")
            leader = next(server for server in servers if server.mode() == "leader")
            leader.kill()
            for number in range(10):
                await _set(two, "/count", b"%d" % number)
            await one.until(lambda: one.values.get("/count") == b"9")
            assert lease is not None and not one.lost
            await one.store.commit([one.write("/a", b"1")], lease)
            next(server for server in servers if server.process is not None).kill()
            waiting = asyncio.create_task(_set(three, "/b", b"1"))  # for a majority
            await asyncio.to_thread(leader.start)
            await waiting
            for store in (one, two):
                await store.until(lambda store=store: store.records == three.records)  # type: ignore[misc]
            assert not one.lost

    with ensemble(tmp_path) as servers:
        asyncio.run(test(servers))


async def _set(one: Subscriber, key: str, value: bytes) -> None:
    """Write a record; a server that was killed may have applied it without an answer."""
    with suppress(StoreError):
        await one.set(key, value)
    await one.until(lambda: one.values.get(key) == value)


def test_an_unreachable_server_is_named_in_time() -> None:
    async def test() -> None:
        settings = ZooKeeperSettings(f"127.0.0.1:{free_port()}", "", 10, 0.5)
        store = ZooKeeperStore(settings, SystemClock())
        with pytest.raises(StoreError, match=rf"ZooKeeper at {settings.hosts} cannot be reached within 0\.5 s"):
            await store.open(lambda update: None)
        await store.close()

    asyncio.run(test())


def test_a_path_with_other_content_is_refused(server: ZooKeeperServer) -> None:
    client = KazooClient(server.connect)
    client.start()
    try:
        client.create("/kafka/brokers/ids", makepath=True)
        client.create("/future/levada/store", b'{"format":9}', makepath=True)
        for root, words in (("/kafka", "not Levada's: brokers"), ("", "choose another path"), ("/future", "format")):
            store = ZooKeeperStore(_settings(server, root), SystemClock())
            with pytest.raises(StoreError, match=words):
                asyncio.run(_open(store))
    finally:
        client.stop()
        client.close()


async def _open(store: ZooKeeperStore) -> None:
    try:
        await store.open(lambda update: None)
    finally:
        await store.close()


def test_only_the_user_of_the_credentials_may_write(server: ZooKeeperServer) -> None:
    root = f"/{uuid4().hex}"

    async def test() -> None:
        settings = _settings(server, root, credentials="levada:secret", set_acl=True)
        owner, stranger = (
            Subscriber(ZooKeeperStore(settings._replace(credentials=credentials), SystemClock()))
            for credentials in ("levada:secret", "levada:guess")
        )
        try:
            await owner.open()
            assert await owner.acquire("/ids/1") is not None
            await owner.set("/topics/a", b"1")
            await stranger.open()
            assert stranger.records == owner.records
            for write in (
                stranger.write("/topics/a", b"2"),
                stranger.write("/topics/a", None),
                stranger.write("/b", b"1"),
            ):
                with pytest.raises(StoreError, match=r"denies .*levada\.zookeeper\.credentials"):
                    await stranger.store.commit([write])
            with pytest.raises(StoreError, match="denies"):
                await stranger.acquire("/controller")
            await owner.set("/topics/a", b"3")
        finally:
            await owner.store.close()
            await stranger.store.close()

    asyncio.run(test())


def test_an_operator_ends_a_lease_by_deleting_its_node(server: ZooKeeperServer) -> None:
    """As one deletes Kafka's /controller to move it."""
    root = uuid4().hex

    async def test() -> None:
        async with subscribers(f"zookeeper:{server.connect}/{root}") as [one]:
            lease = await one.acquire("/controller")
            client = KazooClient(server.connect)
            await asyncio.to_thread(client.start)
            await asyncio.to_thread(client.delete, f"/{root}/controller")
            await asyncio.to_thread(client.stop)
            client.close()
            await one.until(lambda: one.lost == ["/controller"])
            assert lease is not None
            with pytest.raises(LeaseLostError):
                await one.store.commit([one.write("/a", b"1")], lease)
            assert await one.acquire("/controller") is not None

    asyncio.run(test())

"""A broker whose metadata is in ZooKeeper: restarts, kills, pauses, a second one of its id, a server that restarts."""

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from kazoo.client import KazooClient
from tests.support.broker import BrokerProcess, BrokerThread
from tests.support.downloads import Unavailable, must_be_had
from tests.support.waiting import until
from tests.support.zookeeper import ZooKeeperServer, zookeeper

from levada import Client
from levada.errors import KafkaError
from levada.metadata.session_file import SessionFile

T = TypeVar("T")
SESSION_TIMEOUT_MS = 2_000


def _settings(
    server: ZooKeeperServer, root: str | None = None, session_timeout_ms: int = SESSION_TIMEOUT_MS
) -> dict[str, Any]:
    return {
        "zookeeper.connect": f"{server.connect}/{root or uuid4().hex}",
        "zookeeper.session.timeout.ms": session_timeout_ms,
    }


def _with_client(broker: BrokerProcess, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with Client(broker.bootstrap) as client:
            return await work(client)

    return asyncio.run(run())


async def _create_and_alter(client: Client, name: str) -> None:
    await client.admin.create_topic(name, partitions=3, configs={"retention.ms": "5000"})
    await client.admin.alter_configs("topic", name, {"segment.ms": "7000"})
    async with client.producer() as producer:
        await producer.send(name, b"a record", partition=1)


async def _describe(client: Client) -> dict[str, tuple[int, dict[str, str | None]]]:
    """Partitions and overrides of all topics."""
    found = {}
    for name, topic in (await client.metadata()).topics.items():
        configs = await client.admin.describe_configs("topic", name)
        found[name] = len(topic.partitions), {each.name: each.value for each in configs if each.source == "topic"}
    return found


DESCRIBED = 3, {"retention.ms": "5000", "segment.ms": "7000"}


def test_topics_and_configs_survive_restarts_and_kills(tmp_path: Path, server: ZooKeeperServer) -> None:
    """A killed broker starts again at once, though its session has not timed out."""
    settings = _settings(server, session_timeout_ms=60_000)
    broker = BrokerProcess(tmp_path, settings)
    broker.start()
    try:
        names = ["a"]
        _with_client(broker, lambda client: _create_and_alter(client, "a"))
        for how, name in ((signal.SIGTERM, "b"), (signal.SIGKILL, "c"), (signal.SIGKILL, "d")):
            broker.stop(how)
            broker.start()
            assert _with_client(broker, _describe) == dict.fromkeys(names, DESCRIBED)
            _with_client(broker, lambda client, name=name: _create_and_alter(client, name))  # type: ignore[misc]
            names.append(name)
        _with_client(broker, lambda client: client.admin.delete_topic("a"))
        assert _with_client(broker, _describe) == dict.fromkeys(names[1:], DESCRIBED)
    finally:
        assert broker.stop(signal.SIGTERM) == 0
    assert "Traceback" not in broker.log.read_text()
    assert not (broker.data / "levada-metadata.db").exists()
    assert not (broker.data / "zookeeper-session.json").exists()


def test_a_second_broker_with_the_same_id_does_not_start(tmp_path: Path, server: ZooKeeperServer) -> None:
    settings = {name.replace(".", "_"): value for name, value in _settings(server).items()}
    with BrokerThread(tmp_path / "one", **settings):
        second = BrokerThread(tmp_path / "two", **settings)
        with pytest.raises(KafkaError, match=r"another broker with node\.id 1 is running"):
            second.start()


def test_a_broker_goes_on_while_its_server_is_away_and_after_its_session_has_ended(tmp_path: Path) -> None:
    """What was read is served meanwhile; afterwards the broker registers again, in a new epoch."""
    try:
        with zookeeper(tmp_path / "zookeeper") as server:
            broker = BrokerProcess(tmp_path, _settings(server, "levada"))
            broker.start()
            try:
                _lose_and_renew_the_session(broker, server)
            finally:
                assert broker.stop(signal.SIGTERM) == 0
            assert "Traceback" not in broker.log.read_text()
    except Unavailable as error:
        must_be_had("ZooKeeper", error)


def _lose_and_renew_the_session(broker: BrokerProcess, server: ZooKeeperServer) -> None:
    _with_client(broker, lambda client: _create_and_alter(client, "a"))
    server.kill()
    until(lambda: "session of the metadata store lost" in broker.log.read_text())
    assert _with_client(broker, _describe) == {"a": DESCRIBED}
    server.start()
    until(lambda: "broker registered again" in broker.log.read_text())
    _with_client(broker, lambda client: _create_and_alter(client, "b"))
    os.kill(broker.pid, signal.SIGSTOP)
    client = KazooClient(server.connect)
    client.start()
    until(lambda: client.exists("/levada/brokers/ids/1") is None)
    client.stop()
    client.close()
    os.kill(broker.pid, signal.SIGCONT)
    until(lambda: broker.log.read_text().count("broker registered again") == 2)
    _with_client(broker, lambda client: _create_and_alter(client, "c"))
    assert _with_client(broker, _describe) == dict.fromkeys("abc", DESCRIBED)


def test_only_the_next_process_in_the_same_directory_may_end_a_session(tmp_path: Path) -> None:
    """A copy of the directory may be that of a broker that is running."""
    original, copied = tmp_path / "original", tmp_path / "copied"
    original.mkdir()
    SessionFile(str(original / "session.json")).write(0x1234, b"secret")
    assert SessionFile(str(original / "session.json")).read() == (0x1234, b"secret")
    assert (original / "session.json").stat().st_mode & 0o077 == 0
    shutil.copytree(original, copied)
    assert SessionFile(str(copied / "session.json")).read() is None
    (original / "session.json").write_text("{")
    assert SessionFile(str(original / "session.json")).read() is None

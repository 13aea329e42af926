"""A broker on a thread of the test process, on directories and a disk of the test's choice."""

import asyncio
import shutil
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from tests.support.raw import Connection

from levada.broker.broker import Broker
from levada.broker.faults import Faults
from levada.broker.partition.partition import Partition
from levada.config.broker import BrokerConfig
from levada.core.cluster.controller import CreateTopic, DeleteTopic
from levada.loop import new_event_loop
from levada.server import Server
from levada.storage.disk import Disk

T = TypeVar("T")
PATIENCE_S = 30.0


class Running:
    """A broker that has been started."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self._loop = loop

    @property
    def broker(self) -> Broker:
        return self.server.broker

    @property
    def bootstrap(self) -> str:
        endpoint = self.server.endpoints[0]
        return f"{endpoint.host}:{endpoint.port}"

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the broker's loop."""

        async def on_loop() -> T:
            return function()

        return self.wait(on_loop())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def create(self, topic: str, partitions: int = 1, **configs: object) -> None:
        texts = {name.replace("_", "."): str(value) for name, value in configs.items()}
        command = CreateTopic(topic, uuid4(), partitions, configs=texts)
        self.wait(self.broker.controller.submit(command))

    def delete(self, topic: str) -> None:
        self.wait(self.broker.controller.submit(DeleteTopic(topic)))

    def connect(self) -> Connection:
        return Connection(self.bootstrap)

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.broker.partitions[topic, index]

    def home(self, topic: str, index: int = 0) -> Path:
        """The data directory of a partition."""
        return Path(self.broker.log_dirs.home(self.partition(topic, index)).path)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    *folders: Path, disk: Disk | None = None, faults: Faults | None = None, **settings: object
) -> Iterator[Running]:
    """Start a broker on these data directories, and stop it as SIGTERM would."""
    properties = {
        "log.dirs": ",".join(map(str, folders)),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "levada.metrics.listener": "",
    } | {name.replace("_", "."): str(value) for name, value in settings.items()}
    config, _ = BrokerConfig.load(properties)
    started: Future[Running] = Future()
    stopping = asyncio.Event()

    async def serve() -> None:
        server = Server(config, faults, disk=disk)
        try:
            await server.start()
        except BaseException as error:  # it is raised again in the test
            started.set_exception(error)
            return
        started.set_result(Running(server, asyncio.get_running_loop()))
        await stopping.wait()
        await server.stop()

    def run() -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name="broker")
    thread.start()
    try:
        one = started.result(PATIENCE_S)
        yield one
        one._loop.call_soon_threadsafe(stopping.set)
    finally:
        if started.exception() is None and not stopping.is_set():
            started.result()._loop.call_soon_threadsafe(stopping.set)
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the broker did not stop"


def crash_image(source: Path, target: Path) -> Path:
    """What another process would find if this one were killed now: the page cache survives it."""
    # A checkpoint on its way to its name is gone before it can be copied; a crash would leave it behind as litter.
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.tmp"))
    return target

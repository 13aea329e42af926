"""The launcher of brokers for all tests: on a thread of the test process, or as the process that `levada start` runs.

`BROKER_SETTINGS=levada.fast.paths=false` in the environment, or several settings with commas between them, changes
every broker that tests launch.
"""

import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import uuid4

from tests.support.raw import Connection
from tests.support.waiting import until

from levada.broker.broker import Broker
from levada.broker.partition.partition import Partition
from levada.config.broker import BrokerConfig
from levada.core.cluster.controller import CreateTopic, DeleteTopic
from levada.server import Server
from levada.storage.disk import Disk
from levada.testing.embedded import EmbeddedBroker, settings_by_kafkas_names

T = TypeVar("T")
TIMEOUT_S = 30.0
READY_S = 120.0  # a machine may have much else to do
_ADDRESS = re.compile(rb'bootstrap\.servers=([^\s"]+)[\s"]')
_PROCESS_SETTINGS = {
    "levada.metrics.listener": "",
    "log.retention.check.interval.ms": "86400000",  # records of tests have any timestamps: none expires
}


def settings_of_run() -> dict[str, str]:
    """Settings that the environment gives to every broker of this run."""
    pairs = (pair.partition("=") for pair in os.environ.get("BROKER_SETTINGS", "").split(",") if pair)
    return {name: value for name, _, value in pairs}


class BrokerThread(EmbeddedBroker):
    """A broker on a thread of the test process, on log dirs and a disk of the test's choice."""

    def __init__(self, *log_dirs: Path, disk: Disk | None = None, **settings: object) -> None:
        super().__init__(settings_of_run() | settings_by_kafkas_names(settings))
        self._chosen_dirs = ",".join(map(str, log_dirs))
        self._disk = disk

    def stop(self) -> None:
        super().stop()
        assert not self._thread.is_alive(), "the broker did not stop"

    def _log_dirs(self) -> AbstractContextManager[str]:
        return nullcontext(self._chosen_dirs) if self._chosen_dirs else super()._log_dirs()

    def _new_server(self, config: BrokerConfig) -> Server:
        return Server(config, self.faults, disk=self._disk)

    @property
    def server(self) -> Server:
        return self._server

    @property
    def broker(self) -> Broker:
        return self._server.broker

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the broker's loop."""
        return self._call(function)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._wait(work)

    def create(self, topic: str, partitions: int = 1, **configs: object) -> None:
        command = CreateTopic(topic, uuid4(), partitions, configs=settings_by_kafkas_names(configs))
        self.wait(self.broker.controller.submit(command))

    def delete(self, topic: str) -> None:
        self.wait(self.broker.controller.submit(DeleteTopic(topic)))

    def connect(self) -> Connection:
        return Connection(self.bootstrap)

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.broker.partitions[topic, index]

    def log_dir(self, topic: str, index: int = 0) -> Path:
        """The log dir of a partition."""
        return Path(self.broker.log_dirs.log_dir_of(self.partition(topic, index)).path)


class BrokerProcess:
    """A broker as a user starts it, on a free port that it keeps over restarts."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        *,
        limit: Callable[[], None] | None = None,  # called in the process before it becomes a broker
        ready_s: float = READY_S,
    ) -> None:
        self._settings = _PROCESS_SETTINGS | settings_of_run() | dict(settings or {})
        self._limit = limit
        self._ready_s = ready_s
        self.data = folder / "data"
        self.log = folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap = "127.0.0.1:0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        code = self.stop(signal.SIGTERM)
        assert code == 0, f"the broker ended with {code}: {self.log_tail()}"

    def start(self) -> None:
        """Start and wait until the broker prints its address and its logs are open or offline."""
        port = self.bootstrap.rpartition(":")[2]
        command = [sys.executable, "-m", "levada", "start", "--data", str(self.data), "--port", port]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, preexec_fn=self._limit)
        self.bootstrap = self._printed_address(self._process)
        with self.connect() as one:
            until(lambda: not _is_opening(one), "logs are not open", self._ready_s)

    def stop(self, how: signal.Signals) -> int:
        """End the process; its exit code."""
        assert self._process
        self._process.send_signal(how)
        self._process.wait(timeout=self._ready_s)
        self.close_stdout()
        return self._process.returncode

    def close_stdout(self) -> None:
        """Read no more of what the broker prints."""
        assert self._process and self._process.stdout
        self._process.stdout.close()

    def connect(self) -> Connection:
        return Connection(self.bootstrap)

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self) -> str:
        return self.log.read_bytes()[-4000:].decode(errors="replace")

    def _printed_address(self, process: "subprocess.Popen[bytes]") -> str:
        assert process.stdout
        printed = b""
        deadline = time.monotonic() + self._ready_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not (found := _ADDRESS.search(printed)):
                piece = b""
                if selector.select(max(deadline - time.monotonic(), 0)):
                    piece = os.read(process.stdout.fileno(), 65536)
                if not piece:
                    process.kill()
                    process.communicate()
                    raise AssertionError(f"no broker: {printed!r} {self.log_tail()}")
                printed += piece
        return found[1].decode()


def _is_opening(one: Connection) -> bool:
    """Whether a partition has no leader because its log is being opened; one that is offline has none either."""
    topics = one.call("metadata", 12, {"topics": None}).topics
    return any(part.error_code and not part.offline_replicas for topic in topics for part in topic.partitions)


def free_port() -> int:
    """A port that no process listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def crash_image(source: Path, target: Path) -> Path:
    """What another process would find if this one were killed now: the page cache survives it."""
    # A checkpoint on its way to its name is gone before it can be copied; a crash would leave it behind as litter.
    try:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.tmp"))
    except shutil.Error as error:
        # Files of a deleted partition may go while they are copied.
        if any(Path(name).exists() for name, *_ in error.args[0]):
            raise
    return target

"""The two brokers under test, each a process of its own on the same disk, started and stopped the same way.

Apache Kafka comes from Maven Central into a cache outside the tree and runs as its own start script runs it:
one KRaft node, 1 GiB of heap, G1. Everything else of both brokers stays at its defaults, except that a new group
does not wait three seconds for more members, and that Kafka removes the files of a deleted topic after a second
instead of a minute, so that rounds leave no pages behind, and keeps the session of a stopped broker.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.downloads import executable
from tests.support.kafka_jars import kafka_jars

from bench.generator import wire

KAFKA_JVM = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
START_TIMEOUT_S = 60.0
# kio loads hypothesis where it finds it. A user's installation has none, a developer's has: look like the user's.
WITHOUT_TEST_PACKAGES = "import sys; sys.modules['hypothesis'] = None; sys.argv[0] = 'levada'; "
PROGRAM = WITHOUT_TEST_PACKAGES + "from levada.cli.main import main; main()"
IMPORTS = WITHOUT_TEST_PACKAGES + "import levada.cli.main, levada.server"
SOURCE = Path(__file__).resolve().parent.parent / "src"


def free_port() -> int:
    """A loopback port that is free."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def java() -> str:
    """JDK 25 when the machine has one, otherwise whatever `java` is on the path."""
    for home in sorted(Path("/usr/lib/jvm").glob("*25*")):
        if (home / "bin/java").is_file():
            return str(home / "bin/java")
    return executable("java")


def java_command(main: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
    """A command that runs one of Kafka's main classes."""
    return [java(), *options, "-cp", f"{kafka_jars()}/*", main, *arguments]


class Broker(ABC):
    """A broker process with a data directory that is removed in the end."""

    name: str

    def __init__(self, root: Path) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-{self.name}-", dir=root))
        self.port = free_port()
        self.log_path = self.directory / "broker.out"
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def available(cls, root: Path) -> "Broker":
        """One of this kind; `Unavailable` says why there can be none."""
        return cls(root)

    @abstractmethod
    def command(self) -> list[str]: ...

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    @abstractmethod
    def prepare(self) -> None:
        """Do what is done once before the first start and does not count as starting."""

    @abstractmethod
    def topic_list_command(self) -> list[str]:
        """The command that lists the topics of this broker."""

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> float:
        """Seconds from starting the process to its first answer."""
        started = time.perf_counter()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                cwd=self.directory,
            )
        while not wire.is_serving(self.port):
            if self._process.poll() is not None or time.perf_counter() - started > START_TIMEOUT_S:
                raise wire.BrokerError(f"{self.name} did not start:\n{self.log_tail()}")
            time.sleep(0.005)
        return time.perf_counter() - started

    def pause(self) -> None:
        """Stand still, with all that is in memory, until `resume`."""
        assert self._process is not None, "the broker is not running"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None, "the broker is not running"
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End the process without a shutdown: the next start recovers its logs."""
        assert self._process is not None, "the broker is not running"
        self._process.kill()
        self._process.wait()
        self._process = None

    def log_tail(self) -> str:
        """The end of the broker's output, for the report of a failed load."""
        return self.log_path.read_text(errors="replace")[-1_500:]

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


class Levada(Broker):
    """This tree's broker, run by this Python."""

    name = "levada"
    source = SOURCE
    initial_rebalance_delay_ms = 0

    def prepare(self) -> None:
        """Have its bytecode compiled, as an installation by pip does; its data directory needs no formatting."""
        subprocess.run([sys.executable, "-c", IMPORTS], check=True, env=self.environment())

    def command(self) -> list[str]:
        where = ("--data", str(self.directory / "data"), "--port", str(self.port))
        return [sys.executable, "-c", PROGRAM, "start", *where]

    def topic_list_command(self) -> list[str]:
        return [sys.executable, "-c", PROGRAM, "topic", "list", "-b", self.bootstrap]

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(self.source), os.environ.get("PYTHONPATH", ""))))
        # An own metrics port, so that it can run beside another broker.
        settings = {
            "LEVADA_METRICS_LISTENER": f"127.0.0.1:{free_port()}",
            "GROUP_INITIAL_REBALANCE_DELAY_MS": str(self.initial_rebalance_delay_ms),
        }
        inherited = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {
            **inherited,
            "PYTHONPATH": path,
            "PYTHONPYCACHEPREFIX": str(self.directory.parent / "bytecode"),
            **{f"KAFKA_{name}": text for name, text in settings.items()},
        }


class Kafka(Broker):
    """Apache Kafka as one KRaft node."""

    name = "kafka"

    @classmethod
    def available(cls, root: Path) -> "Broker":
        java()
        kafka_jars()
        return cls(root)

    def prepare(self) -> None:
        controller = free_port()
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.segment.delete.delay.ms": "1000",
            # It is stopped while the other is measured; its controller is not to take it for dead when it goes on.
            "broker.session.timeout.ms": "3600000",
        }
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        format_data = ("format", "-t", "bGV2YWRhLWJlbmNoLTAwMQ", "-c", str(self._settings))
        subprocess.run(
            java_command("kafka.tools.StorageTool", *format_data),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def command(self) -> list[str]:
        return java_command("kafka.Kafka", str(self._settings), options=KAFKA_JVM)

    def topic_list_command(self) -> list[str]:
        return java_command("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.bootstrap, "--list")

    @property
    def _settings(self) -> Path:
        return self.directory / "server.properties"


@contextmanager
def alone(brokers: Sequence[Broker], broker: Broker) -> Iterator[None]:
    """Stops the other brokers: an idle JVM would show in the p99 of the measured one."""
    others = [other for other in brokers if other is not broker]
    try:
        for other in others:
            other.pause()
        yield
    finally:
        for other in others:
            other.resume()

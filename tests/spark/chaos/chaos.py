"""Kills driver, workers, executors and broker of a pipeline, at each step or at random.

What happens is drawn from a seed. Orders for a step are met where the pipeline comes to it (`steps`,
`chaos_lake_steps`); the rest is killed from here, at a moment that nothing is waited for.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.spark.chaos.program import SECONDS_APART, SOURCE
from tests.spark.chaos.steps import HERE, met_by, order
from tests.support.broker import BrokerProcess

ROOT = Path(__file__).parents[3]
PARTITIONS = 3
KEYS = 50
HOUR = 3600 // SECONDS_APART  # messages
TIMEOUT_S = 900.0  # a driver starts in seconds, but not where everything else runs too
LOOK_S = 0.05


class Kill(NamedTuple):
    """Whom, and at which step; at a random moment without one."""

    victim: str  # driver, worker, executor, broker
    step: str = ""

    def __str__(self) -> str:
        return f"{self.victim} killed {f'at step {self.step!r}' if self.step else 'at random'}"


def at_each_step(steps: Sequence[str], *victims: str) -> list[Kill]:
    """Driver and broker at every step, or the process itself that comes to it."""
    return [Kill(victim, step) for victim in victims for step in steps]


def at_random(seed: int, count: int, *victims: str) -> list[Kill]:
    """Kills at random moments."""
    chance = random.Random(seed)
    return [Kill(chance.choice(victims)) for _ in range(count)]


class Output(Protocol):
    """Where a pipeline writes to, and what must be there."""

    @property
    def options(self) -> dict[str, str]:
        """Of the program."""
        ...

    @property
    def topics(self) -> list[NewTopic]:
        """To be made before it starts, besides the one that it reads."""
        ...

    def count(self) -> int:
        """How many messages have arrived."""
        ...

    def look(self, *, still: bool) -> None:
        """Somebody was killed and is not back yet: what must hold even now; `still` if no process writes."""
        ...

    def check(self, pipeline: "Chaos") -> str:
        """All is there, once and in order; what it was, for people."""
        ...


class Life:
    """The program, from start to kill."""

    def __init__(self, folder: Path, options: dict[str, str]) -> None:
        self._folder = folder
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._command = [sys.executable, "-m", "tests.spark.chaos.program", "--folder", str(folder), *words]
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: list[int] = []  # of all lives: workers outlive a driver, by a little

    def start(self) -> None:
        (self._folder / "pids").unlink(missing_ok=True)
        with (self._folder / "program.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)
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

    def __init__(self, folder: Path, server: BrokerProcess, output: Output, seed: int, *, master: str) -> None:
        self._folder = folder
        self._server = server
        self._output = output
        self._random = random.Random(seed)
        self._orders = folder / "orders"
        self._orders.mkdir()
        self._life = Life(folder, {"bootstrap": server.bootstrap, "master": master, **output.options})
        self.fed = 0
        self.done: Counter[str] = Counter()

    def begin(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._server.bootstrap})
        topics = [NewTopic(SOURCE, PARTITIONS), *self._output.topics]
        for future in admin.create_topics(topics).values():
            future.result(30)
        self._life.start()
        self.feed(2 * HOUR)

    def feed(self, count: int, *, revive: bool = True) -> None:
        """Numbered messages, so many more."""
        settings = {"bootstrap.servers": self._server.bootstrap, "enable.idempotence": True, "log_level": 0}
        producer = Producer(settings)
        for number in range(self.fed, self.fed + count):
            producer.produce(SOURCE, str(number), key=str(number % KEYS), partition=number % KEYS % PARTITIONS)
        self.wait(lambda: producer.flush(LOOK_S) == 0, "a feed", revive=revive)
        self.fed += count

    def kill(self, kill: Kill) -> None:
        """Have somebody killed in a batch that is under way."""
        self.wait(lambda: bool(self._life.pids), "a driver")
        if kill.step:
            pids = {"driver": self._life.pids, "broker": [self._server.pid], "worker": [HERE]}[kill.victim]
            also = [HERE] if kill.victim == "driver" and self._random.random() < 0.5 else []
            order(self._orders, kill.step, pids + also)
            self.feed(HOUR)
            self.wait(lambda: met_by(self._orders, kill.step) is not None, str(kill))
            pids = [pid or met_by(self._orders, kill.step) or 0 for pid in pids]
        else:
            self.wait(lambda: self._output.count() >= self.fed, "a pipeline that works")
            self.feed(HOUR)
            time.sleep(self._random.uniform(0, 2))  # the moment is the point
            self.wait(lambda: bool(self._found(kill.victim)), str(kill))
            pids = self._found(kill.victim)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.wait(lambda: not any(map(_is_running, pids)), f"the end: {kill}", revive=False)
        self._output.look(still=kill.victim == "driver")
        self._revive()
        self.done[str(kill)] += 1

    def _found(self, victim: str) -> list[int]:
        """The processes to kill; none while there are none."""
        if victim == "broker":
            return [self._server.pid]
        if victim == "driver":
            return self._life.pids
        found = self._life.others("pyspark.daemon" if victim == "worker" else "CoarseGrainedExecutorBackend")
        return [self._random.choice(found)] if found else []

    def wait(self, what: Callable[[], bool], what_for: str, *, revive: bool = True) -> None:
        """Until something holds; dead processes are started again meanwhile."""
        deadline = time.monotonic() + TIMEOUT_S
        while not what():
            assert time.monotonic() < deadline, f"not in time: {what_for}; {self._last_words()}"
            if revive:
                self._revive()
            time.sleep(LOOK_S)

    def _revive(self) -> None:
        if not _is_running(self._server.pid):
            self._server.stop(signal.SIGKILL)
            self._server.start()
        if not self._life.alive:
            self._life.start()

    def kill_all(self, kills: Sequence[Kill]) -> None:
        """One after the other; `pytest -s` tells of each."""
        for kill in kills:
            print(kill, flush=True)
            self.kill(kill)

    def check(self, name: str) -> None:
        """Everything is where it should be, once; `pytest -s` tells what was done."""
        what_for = self._output.check(self)
        print(f"\n{name}: {what_for}; {sum(self.done.values())} kills; 0 lost, 0 doubled")
        for kind, times in sorted(self.done.items()):
            print(f"  {times} x {kind}")

    def finish(self) -> None:
        """Wait until all that was fed has arrived, and end the program."""
        self.wait(lambda: self._output.count() >= self.fed, "all messages")
        self.end()

    def _last_words(self) -> str:
        return (self._folder / "program.log").read_bytes()[-3000:].decode(errors="replace")

    def end(self) -> None:
        self._life.end()


@contextmanager
def chaos(
    folder: Path, seed: int, output: Callable[[BrokerProcess, Path], Output], *, master: str = "local[2,4]"
) -> Iterator[Chaos]:
    """A pipeline for the length of a block."""
    with BrokerProcess(folder, {"transaction.state.log.num.partitions": "4"}) as server:
        own = Chaos(folder, server, output(server, folder), seed, master=master)
        try:
            own.begin()
            yield own
        finally:
            own.end()


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

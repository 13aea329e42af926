"""Programs that are killed and started again, and their histories: librdkafka's and Kafka's own copiers."""

import json
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.history import Operation, Outcome, Poll, Positioned, Seen, Send
from tests.support.kafka_jars import java

SOURCE, TARGET, GROUP = "messages", "copies", "copiers"
TRANSACTION_TIMEOUT_MS = 8_000
HERE = Path(__file__).parent


class Mortal(ABC):
    """A program that is killed and started again; its output of each life is kept."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.name = name
        self.lives = 0
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """How to start the next life."""

    @property
    def _output(self) -> Path:
        return self._folder / f"{self.name}.{self.lives}.jsonl"

    def start(self) -> None:
        self.lives += 1
        with self._output.open("ab") as output, (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdout=output, stderr=log)

    def kill(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def pause(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    @property
    def alive(self) -> bool:
        return self.code is None

    @property
    def code(self) -> int | None:
        """How this life ended."""
        assert self._process
        return self._process.poll()


class Copier(Mortal):
    """One copier over all its lives."""

    def __init__(self, folder: Path, name: str, bootstrap: str, size: int) -> None:
        super().__init__(folder, name)
        self._bootstrap = bootstrap
        self._size = size
        self._place = 0  # of the output of this life, read so far

    @abstractmethod
    def _is_transaction(self, line: str) -> bool:
        """Whether a line of output tells that a transaction came to its end."""

    def start(self) -> None:
        self._place = 0
        super().start()

    def transactions(self) -> int:
        """How many have come to their end since the last look, in this life."""
        with self._output.open() as output:
            output.seek(self._place)
            text = output.read()
        whole = text[: text.rfind("\n") + 1]
        self._place += len(whole.encode())
        return sum(map(self._is_transaction, whole.splitlines()))


class ConfluentCopier(Copier):
    """`copier.py`, with librdkafka below it; its journal tells all it did."""

    def __init__(self, folder: Path, name: str, bootstrap: str, size: int, **more: object) -> None:
        super().__init__(folder, name, bootstrap, size)
        self._more = more

    def _command(self) -> list[str]:
        named = {
            "bootstrap": self._bootstrap,
            "source": SOURCE,
            "target": TARGET,
            "group": GROUP,
            "transactional_id": self.name,
            "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
            "size": self._size,
            "seed": self.lives,
            "journal": self._output,
        } | self._more
        options = [word for name, value in named.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        return [sys.executable, str(HERE / "copier.py"), *options]

    def has_reached(self, step: str) -> bool:
        """In this life."""
        return f'"what": "{step}"' in self._output.read_text()

    def _is_transaction(self, line: str) -> bool:
        return '"what": "done"' in line

    def history(self) -> Iterator[Operation | Positioned]:
        """What this copier did in all its lives; each is a process of its own."""
        for life in range(1, self.lives + 1):
            yield from _operations(f"{self.name}.{life}", self._folder / f"{self.name}.{life}.jsonl")


def _operations(process: str, journal: Path) -> Iterator[Operation | Positioned]:
    """A transaction that was begun and not ended is aborted by the broker; one that was ended may be anything."""
    begun: dict[str, Any] | None = None
    ended: dict[str, Any] | None = None
    for line in journal.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # killed while it wrote
        entry = json.loads(line)
        if entry["what"] == "positioned":
            yield Positioned(process)
        elif entry["what"] == "begin":
            begun, ended = entry, None
        elif entry["what"] == "end":
            ended = entry
        elif entry["what"] == "done":
            assert begun is not None
            sends = [Send((TARGET, index), value, offset) for index, value, offset in entry["sent"]]
            yield _transaction(process, begun, ended, sends, Outcome(entry["outcome"]))
            begun = None
    if begun is not None:
        sends = [Send((TARGET, index), value) for index, _, value in begun["records"]]
        outcome = Outcome.FAILED if ended is None else Outcome.UNKNOWN
        yield _transaction(process, begun, ended, sends, outcome)


def _transaction(
    process: str, begun: dict[str, Any], ended: dict[str, Any] | None, sends: list[Send], outcome: Outcome
) -> Operation:
    records = tuple(Seen((SOURCE, index), offset, value) for index, offset, value in begun["records"])
    poll = Poll(records, begun["tick"])
    tick = 0 if ended is None else ended["tick"]
    return Operation(process, (poll, *sends), outcome, transactional=True, end_asked_tick=tick)


class JavaCopier(Copier):
    """Kafka's TransactionalMessageCopier, for one partition or as a member of a group; it aborts a third by chance.

    It ends by itself at the end of its input as of its start.
    """

    def __init__(self, folder: Path, name: str, bootstrap: str, size: int, partition: int, group_mode: bool) -> None:
        super().__init__(folder, name, bootstrap, size)
        self._partition = partition
        self._group_mode = group_mode

    def _command(self) -> list[str]:
        named = {
            "broker-list": self._bootstrap,
            "input-topic": SOURCE,
            "input-partition": self._partition,
            "output-topic": TARGET,
            "consumer-group": GROUP,
            "transactional-id": self.name,
            "transaction-size": self._size,
            "transaction-timeout": TRANSACTION_TIMEOUT_MS,
        }
        options = [word for name, value in named.items() for word in (f"--{name}", str(value))]
        flags = [
            "--enable-random-aborts",
            *(["--group-mode", "--use-group-metadata"] if self._group_mode else []),
        ]
        return [*java("org.apache.kafka.tools.TransactionalMessageCopier", memory_mb=128), *options, *flags]

    def start(self) -> None:
        self._copied = 0
        super().start()

    def _is_transaction(self, line: str) -> bool:
        """It tells at each turn how many messages it has copied in this life."""
        before, self._copied = self._copied, json.loads(line)["totalProcessed"]
        return self._copied > before


class JavaProducer:
    """Kafka's VerifiableProducer, told to retry and so idempotent: it sends numbers and tells where each went."""

    def __init__(self, folder: Path, bootstrap: str, count: int) -> None:
        self._output = folder / "producer.jsonl"
        config = folder / "producer.properties"
        config.write_text("retries=2147483647\nenable.idempotence=true\n")
        options = ["--topic", SOURCE, "--max-messages", str(count), "--bootstrap-server", bootstrap]
        options += ["--repeating-keys", "100", "--command-config", str(config)]
        command = java("org.apache.kafka.tools.VerifiableProducer", memory_mb=128)
        with self._output.open("wb") as output, (folder / "producer.log").open("wb") as log:
            self._process = subprocess.Popen([*command, *options], stdout=output, stderr=log)

    def sent(self) -> int:
        """How many messages it told of so far."""
        return self._output.read_bytes().count(b"producer_send_")

    def wait(self, seconds: float) -> None:
        try:
            assert self._process.wait(seconds) == 0
        finally:
            self._process.kill()
            self._process.wait()

    def history(self) -> Iterator[Operation]:
        for line in self._output.read_text().splitlines():
            entry = json.loads(line)
            if entry["name"] == "producer_send_success":
                place = (entry["topic"], entry["partition"])
                yield Operation("producer", (Send(place, entry["value"], entry["offset"]),))
            elif entry["name"] == "producer_send_error":
                raise AssertionError(line)

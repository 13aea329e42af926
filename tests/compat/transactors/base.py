"""Transactional producers of each client: their operations, and the programs that run them.

Each client is a program that reads operations and writes results as lines of JSON (see `drivers.program`). A program
holds any number of producers, by name.
"""

import signal
import sys
from pathlib import Path
from typing import ClassVar

from tests.compat.drivers.program import Kafkajs, Program
from tests.support.downloads import executable, locked, run
from tests.support.kafka_jars import client_jar, java

HERE = Path(__file__).parent
LAST = "the last one"  # readers read up to this value in each partition
TIMEOUT_MS = 60_000


class Transactors(Program):
    """A program with transactional producers.

    `lacks` says what the client itself does not have: offsets that carry the `member` who commits them (KIP-447),
    `admin` calls on transactions (KIP-664).
    """

    lacks: ClassVar[frozenset[str]] = frozenset()

    def init(self, producer: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        """Make a producer; the one before with its id is fenced."""
        self._call("init", producer=producer, transactional_id=transactional_id, timeout_ms=timeout_ms)

    def begin(self, producer: str) -> None:
        self._call("begin", producer=producer)

    def send(self, producer: str, topic: str, values: list[str], partition: int = 0) -> None:
        """Write and wait for the acknowledgements."""
        self._call("send", producer=producer, topic=topic, values=values, partition=partition)

    def send_offset(self, producer: str, group: str, topic: str, offset: int) -> None:
        """Commit an offset of partition 0 in the transaction."""
        self._call("offsets", producer=producer, group=group, topic=topic, offset=offset)

    def join(self, group: str, topic: str) -> None:
        """Become a member of a group, and stay what one is now: a real worker learns late that it was replaced."""
        self._call("join", group=group, topic=topic)

    def end(self, producer: str, commit: bool) -> None:
        self._call("end", producer=producer, commit=commit)

    def transact(self, producer: str, topic: str, values: list[str], commit: bool, partition: int = 0) -> None:
        """A whole transaction."""
        self.begin(producer)
        self.send(producer, topic, values, partition)
        self.end(producer, commit)

    def read(self, topic: str, partitions: int = 1, committed: bool = True) -> list[list[str]]:
        """The values of each partition, up to the last one."""
        found: list[list[str]] = self._call("read", topic=topic, partitions=partitions, committed=committed)
        assert [values[-1] for values in found] == [LAST] * partitions
        return [values[:-1] for values in found]

    def list_transactions(self) -> dict[str, str]:
        """The transactional ids and the states of their transactions."""
        return dict(self._call("list_transactions"))

    def describe_transaction(self, transactional_id: str) -> tuple[str, list[str]]:
        """State and partitions."""
        found = self._call("describe_transaction", transactional_id=transactional_id)
        return found["state"], found["partitions"]

    def abort_in(self, topic: str) -> None:
        """Abort whatever transaction is open in partition 0, as an operator does."""
        self._call("abort_in", topic=topic)

    def kill(self) -> None:
        """All producers of this program are gone at once."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


class PythonTransactors(Transactors):
    """A client for Python; its program is a module here."""

    module: ClassVar[str]

    def command(self) -> list[str]:
        return [sys.executable, "-W", "ignore", "-m", f"tests.compat.transactors.{self.module}"]


class ConfluentTransactors(PythonTransactors):
    name: ClassVar[str] = "confluent-kafka"
    module: ClassVar[str] = "confluent_program"
    lacks: ClassVar[frozenset[str]] = frozenset({"admin"})


class KafkaPythonTransactors(PythonTransactors):
    name: ClassVar[str] = "kafka-python"
    module: ClassVar[str] = "kafka_python_program"


class AiokafkaTransactors(PythonTransactors):
    name: ClassVar[str] = "aiokafka"
    module: ClassVar[str] = "aio_program"
    lacks: ClassVar[frozenset[str]] = frozenset({"admin", "member"})


class KafkajsTransactors(Transactors, Kafkajs):
    name: ClassVar[str] = "kafkajs"
    lacks: ClassVar[frozenset[str]] = frozenset({"admin", "member"})

    def command(self) -> list[str]:
        return [*Kafkajs.command(self)[:-1], str(HERE / "transactor.js")]


class FranzGoTransactors(Transactors):
    name: ClassVar[str] = "franz-go"

    def command(self) -> list[str]:
        go = executable("go")
        with locked("franz-go-transactors") as folder:
            run([go, "build", "-o", str(folder / "transactors"), "./transactors"], cwd=HERE.parent / "go")
            return [str(folder / "transactors")]


class JavaTransactors(Transactors):
    name: ClassVar[str] = "java"

    def command(self) -> list[str]:
        return java(str(HERE / "JavaTransactor.java"))


class JavaOfSparkTransactors(Transactors):
    """The Java client that Spark's Kafka connector brings: transactions of version 1."""

    name: ClassVar[str] = "java-3.9"

    def command(self) -> list[str]:
        return java(str(HERE / "JavaTransactor.java"), first_jar=client_jar("3.9.2"))


TRANSACTORS: tuple[type[Transactors], ...] = (
    ConfluentTransactors,
    KafkaPythonTransactors,
    AiokafkaTransactors,
    KafkajsTransactors,
    FranzGoTransactors,
    JavaTransactors,
    JavaOfSparkTransactors,
)

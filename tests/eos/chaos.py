"""Kafka's own exactly-once test in our form: copiers copy, broker and copiers are killed and started again at random.

What dies when is drawn from a seed; how much was copied says when, not the clock, so that a slow machine is treated
like a fast one.
"""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.compat.server import Server
from tests.eos.processes import GROUP, SOURCE, TARGET, Copier
from tests.eos.reading import Stored, as_history, read_committed
from tests.history import Operation, Outcome, Partition, Positioned, Send, anomalies

LOOK_S = 0.02
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 3000,
    "group.consumer.heartbeat.interval.ms": 500,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}
CLIENT: dict[str, str | int | float | bool] = {"reconnect.backoff.max.ms": 200, "log_level": 0}


class Size(NamedTuple):
    """How long a run is."""

    messages: int
    transaction: int
    kills: int
    patience_s: float


class Kill(NamedTuple):
    """Somebody dies when so many transactions have ended."""

    transactions: int
    broker: bool
    copier: int | None


def plan(chance: random.Random, size: Size, copiers: int) -> list[Kill]:
    """Kills over the first part of the run: the broker, a copier, or both at once."""
    last = max(int(0.7 * size.messages / size.transaction), size.kills)
    kills = []
    for at in sorted(chance.choices(range(last), k=size.kills)):
        victims = chance.choice(["broker", "broker", "copier", "copier", "both"])
        copier = None if victims == "broker" else chance.randrange(copiers)
        kills.append(Kill(at, victims != "copier", copier))
    return kills


class Chaos:
    """A broker, its copiers, and the one who kills them."""

    def __init__(self, server: Server, copiers: Sequence[Copier], chance: random.Random) -> None:
        self._server = server
        self._copiers = copiers
        self._chance = chance
        self.transactions = 0
        self.kills = 0
        self.ended_by_themselves: list[str] = []

    def run(self, kills: list[Kill], done: Callable[[], bool], patience_s: float) -> None:
        """Go on until all kills were made and all is copied."""
        deadline = time.monotonic() + patience_s
        left = list(kills)
        for copier in self._copiers:
            copier.start()
        try:
            while left or not done():
                assert time.monotonic() < deadline, self._where(left)
                self._look()
                while left and left[0].transactions <= self.transactions:
                    self._kill(left.pop(0))
        finally:
            for copier in self._copiers:
                copier.kill()

    def _look(self) -> None:
        """Wait a little, count what was copied, start again who has ended."""
        time.sleep(LOOK_S)
        for copier in self._copiers:
            self.transactions += copier.transactions()
            if not copier.alive:
                self.ended_by_themselves.append(f"{copier.name}.{copier.lives}: {copier.code}")
                copier.start()

    def _kill(self, kill: Kill) -> None:
        time.sleep(self._chance.uniform(0, 0.05))  # any moment of a transaction will do
        victim = None if kill.copier is None else self._copiers[kill.copier]
        if victim is not None:
            victim.kill()
        if kill.broker:
            self._server.stop(signal.SIGKILL)
            time.sleep(self._chance.uniform(0, 0.5))
            self._server.start()
        if victim is not None:
            self.transactions += victim.transactions()
            victim.start()
        self.kills += 1

    def _where(self, left: list[Kill]) -> str:
        done = f"{self.transactions} transactions, {self.kills} kills"
        return f"not done after {done}; to come: {left}; ended by themselves: {self.ended_by_themselves}"


@contextmanager
def broker(folder: Path, partitions: int) -> Iterator[Server]:
    """A broker with both topics; no trace of an error may be in its log at the end."""
    with Server(folder, SETTINGS) as server:
        admin = AdminClient(CLIENT | {"bootstrap.servers": server.address})
        for future in admin.create_topics([NewTopic(t, partitions, 1) for t in (SOURCE, TARGET)]).values():
            future.result(30)
        del admin
        yield server
    log = server.log.read_text()
    assert "Traceback" not in log, log[-4000:]


class Feed(threading.Thread):
    """An idempotent producer that fills the source while all the others are killed."""

    def __init__(self, bootstrap: str, partitions: int, count: int, rate: int) -> None:
        super().__init__(name="feed")
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True} | CLIENT)
        self._partitions = partitions
        self._count = count
        self._rate = rate
        self.history: list[Operation | Positioned] = []

    def run(self) -> None:
        began = time.monotonic()
        for number in range(self._count):
            index = number % self._partitions
            self._producer.produce(SOURCE, str(number), str(number % 100), index, on_delivery=self._delivered)
            while number > self._rate * (time.monotonic() - began):
                self._producer.poll(0.01)
        self._producer.flush()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        offset = message.offset() if error is None else None
        send = Send((SOURCE, message.partition() or 0), _text(message.value()), offset)
        self.history.append(Operation("feed", (send,), Outcome.OK if error is None else Outcome.UNKNOWN))


class Progress:
    """Whether the group has committed the end of every partition of the source."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP} | CLIENT)
        self._parts = [TopicPartition(SOURCE, index) for index in range(partitions)]

    def complete(self) -> bool:
        try:
            ends = [self._consumer.get_watermark_offsets(part, 5)[1] for part in self._parts]
            committed = [part.offset for part in self._consumer.committed(self._parts, 5)]
        except KafkaException:
            return False  # the broker is busy with its recovery
        return committed == ends

    def close(self) -> None:
        self._consumer.close()


def check(bootstrap: str, count: int, history: Sequence[Operation | Positioned]) -> None:
    """The copies are the messages: none missing, none twice, in order; and nobody saw what is not so."""
    source, target = read_committed(bootstrap, SOURCE), read_committed(bootstrap, TARGET)
    found = anomalies([*history, *as_history(source), *as_history(target)])
    assert not found, "\n".join(map(str, found[:20]))
    assert sum(map(len, source.values())) == count
    wrong = [difference(index, _values(source, index), _values(target, index)) for _, index in sorted(source)]
    assert not any(wrong), "\n".join(filter(None, wrong))


def difference(index: int, messages: list[str], copies: list[str]) -> str:
    """In what the copies of a partition are not the messages; empty is good."""
    if messages == copies:
        return ""
    missing = sorted((Counter(messages) - Counter(copies)).elements(), key=messages.index)
    more = sorted((Counter(copies) - Counter(messages)).elements(), key=copies.index)
    if missing or more:
        return f"partition {index}: {len(missing)} missing {missing[:20]}, {len(more)} too many {more[:20]}"
    first = next(
        at for at, (message, copy) in enumerate(zip(messages, copies, strict=True)) if message != copy
    )
    return f"partition {index}: {copies[first]} in the place of {messages[first]}, copy {first}"


def _values(found: Mapping[Partition, Sequence[Stored]], index: int) -> list[str]:
    return [
        record.value for partition, records in found.items() if partition[1] == index for record in records
    ]


def _text(content: bytes | str | None) -> str:
    return content.decode() if isinstance(content, bytes) else content or ""

"""Kafka's exactly-once test: a source that fills, copiers, a reader of the copies, a last check."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.eos.chaos import Chaos, Event
from tests.eos.processes import GROUP, SOURCE, TARGET
from tests.support.broker import BrokerProcess
from tests.support.history import Operation, Outcome, Partition, Poll, Positioned, Send, anomalies
from tests.support.reading import Stored, as_history, read_committed, seen, text, wait_until_ended

SEGMENT_BYTES = 32 << 10
BATCH_BYTES = SEGMENT_BYTES // 2  # what waits for a broker goes out in batches, and one must fit a segment
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 3000,
    "group.consumer.heartbeat.interval.ms": 500,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    # small segments, so that logs roll, and the cleaner works on journals that are needed after the next kill
    "log.segment.bytes": SEGMENT_BYTES,
    "offsets.topic.segment.bytes": 4 << 10,
    "transaction.state.log.segment.bytes": 4 << 10,
    "log.cleaner.backoff.ms": 500,
    "log.cleaner.min.cleanable.ratio": 0.1,
}
CLIENT: dict[str, str | int | float | bool] = {"reconnect.backoff.max.ms": 200, "log_level": 0}


@contextmanager
def broker(folder: Path, partitions: int) -> Iterator[BrokerProcess]:
    """A broker with both topics; no trace of an error may be in its log at the end."""
    with BrokerProcess(folder, SETTINGS) as server:
        admin = AdminClient(CLIENT | {"bootstrap.servers": server.bootstrap})
        for future in admin.create_topics([NewTopic(name, partitions, 1) for name in (SOURCE, TARGET)]).values():
            future.result(30)
        del admin
        yield server
    log = server.log.read_text()
    assert "Traceback" not in log, log[-4000:]


class Feed(threading.Thread):
    """An idempotent producer that fills the source while all the others are killed."""

    def __init__(self, bootstrap: str, partitions: int, count: int, rate: int) -> None:
        super().__init__(name="feed")
        self._partitions = partitions
        settings = {"enable.idempotence": True, "batch.size": BATCH_BYTES}
        self._producer = Producer(CLIENT | settings | {"bootstrap.servers": bootstrap})
        self._count = count
        self._rate = rate
        self.history: list[Operation | Positioned] = []
        self.errors: list[str] = []

    def is_done(self) -> bool:
        """Whether all is sent; what was refused will never be there."""
        assert not self.errors, self.errors[0]
        return not self.is_alive()

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
        self.errors += [str(error)] if error is not None else []
        send = Send((SOURCE, message.partition() or 0), text(message.value()), offset)
        self.history.append(Operation("feed", (send,), Outcome.OK if error is None else Outcome.UNKNOWN))


class Watcher(threading.Thread):
    """Reads the copies by assign while they are made: uncommitted records are never read."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        super().__init__(name="watcher")
        settings = {"group.id": "watcher", "isolation.level": "read_committed", "auto.offset.reset": "error"}
        self._consumer = Consumer(CLIENT | settings | {"bootstrap.servers": bootstrap, "enable.auto.commit": False})
        self._parts = [TopicPartition(TARGET, index, 0) for index in range(partitions)]
        self._stopping = threading.Event()
        starts = {(TARGET, index): 0 for index in range(partitions)}
        self.history: list[Operation | Positioned] = [Positioned("watcher", assigned=True, offsets=starts)]
        self.errors: list[str] = []

    def run(self) -> None:
        self._consumer.assign(self._parts)
        while not self._stopping.is_set():
            messages = self._consumer.consume(1000, 0.1)
            poll = Poll(tuple(map(seen, (m for m in messages if m.error() is None))), time.monotonic_ns())
            if poll.records:
                self.history.append(Operation("watcher", (poll,)))
            failed = [m.error() for m in messages]
            self.errors += [str(error) for error in failed if error is not None and not error.retriable()]
        self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join()


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


def copy(chaos: Chaos, events: list[Event], bootstrap: str, partitions: int, feed: Feed | None = None) -> Watcher:
    """Copy all there is while these faults happen; gives what was seen of the copies meanwhile."""
    progress = Progress(bootstrap, partitions)
    watcher = Watcher(bootstrap, partitions)
    watcher.start()
    try:
        chaos.run(events, lambda: (feed is None or feed.is_done()) and progress.complete())
    finally:
        watcher.stop()
        progress.close()
    print(chaos)
    assert watcher.errors == []
    return watcher


def check(bootstrap: str, count: int, history: Sequence[Operation | Positioned]) -> None:
    """The copies are the messages: none missing, none twice, in order; and nobody saw what is not so."""
    wait_until_ended(bootstrap, TARGET)
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
    first = next(at for at, (message, copy) in enumerate(zip(messages, copies, strict=True)) if message != copy)
    return f"partition {index}: {copies[first]} in the place of {messages[first]}, copy {first}"


def _values(found: Mapping[Partition, Sequence[Stored]], index: int) -> list[str]:
    return [record.value for partition, records in found.items() if partition[1] == index for record in records]

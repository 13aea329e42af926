"""Starts brokers on damaged copies of a data directory and checks that no damage is silent.

The rule: after any damage every acknowledged record is readable at its offset with its bytes, or its partition, its
log dir or the broker is offline with a message that names a file; a new record never gets an offset that an
acknowledged one had; an offline partition's files stay, except those that are rebuilt; nothing ends with a traceback.

Nothing can tell that records are missing if the damage takes every trace of them. These are the combinations:
- After an unclean shutdown, batches at or above the recovery point at the end of the last segment that are cut off,
  or whose last one is changed: as after a kill in the middle of a write. The offsets from the recovery point on may be
  given out again.
- After an unclean shutdown, a closed segment above the recovery point together with the id of the boot
  (`.boot-id`): it looks like a power failure, and recovery truncates the log.
- A bit of a record that recovery does not read, until the scrub reads it: the scrub must find it.
- Damage of the metadata store that SQLite does not notice, such as the end of its write-ahead log: if a topic is gone,
  the folders of its partitions are kept as stray, and the log names them.
"""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import Producer
from tests.damage.acts import damage
from tests.support.broker import BrokerThread, crash_image
from tests.support.raw import batch, fetch, produce
from tests.support.waiting import until

from levada.errors import KafkaError
from levada.metadata.store import StoreError
from levada.storage.log.scrub import scrub_segment
from levada.storage.log.segment import CorruptBatchError
from levada.storage.log_dir import BOOT_ID_FILE, LogDirError
from levada.wire.batches import decode, iterate_headers

SETTINGS: dict[str, Any] = {
    "log_segment_bytes": 700,
    "log_index_interval_bytes": 150,
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
    "levada_scrub_bytes_per_second": 0,
    "log_cleaner_enable": "false",
    "log_retention_check_interval_ms": 1 << 40,
}
TOPICS = {"plain": 2, "single": 1, "trimmed": 1}
ABORTED = ("single", 0)  # has aborted transactions
RECORDS = 36
METADATA = "levada-metadata.db"

Name = tuple[str, int]


class ViolationError(AssertionError):
    """The rule does not hold."""


@dataclass
class Prepared:
    """A data directory and what was acknowledged in it."""

    data: Path
    clean: bool
    records: dict[Name, dict[int, bytes]] = field(default_factory=dict)
    recovery_points: dict[Name, int] = field(default_factory=dict)
    starts: dict[Name, int] = field(default_factory=dict)
    aborted: set[tuple[int, int]] = field(default_factory=set)  # producer id and first offset, of ABORTED


class Messages(logging.Handler):
    """Collects what brokers log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.tracebacks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.getMessage()} {getattr(record, 'fields', '')}")
        if record.exc_info and record.exc_info[0] is not None:
            self.tracebacks.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    @contextmanager
    def collected(self) -> Iterator[None]:
        logger = logging.getLogger("levada")
        propagated, logger.propagate = logger.propagate, False
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.propagate = propagated


def prepare(folder: Path) -> list[Prepared]:
    """The same records in a directory that was stopped cleanly and in one whose broker was killed."""
    clean, killed = Prepared(folder / "clean", True), Prepared(folder / "killed", False)
    with BrokerThread(clean.data, **SETTINGS) as broker, broker.connect() as one:
        for topic, partitions in TOPICS.items():
            broker.create(topic, partitions)
        names = [(topic, index) for topic, count in TOPICS.items() for index in range(count)]
        records: dict[Name, dict[int, bytes]] = {name: {} for name in names}
        for number in range(RECORDS):
            for topic, index in names:
                value = f"{topic}-{index} {number} ".encode() * 3
                answer = produce(one, topic, batch(value), partition=index)
                assert answer.error_code == 0
                records[topic, index][answer.base_offset] = value
            if number == RECORDS // 2:
                abort_a_transaction(broker)
                topics = [{"name": "trimmed", "partitions": [{"partition_index": 0, "offset": 8}]}]
                one.call("delete_records", 2, {"topics": topics, "timeout": 1000})
                for name in names:
                    broker.call(broker.partition(*name).log.flush)
                points = {name: broker.partition(*name).log.recovery_point for name in names}
                broker.broker.log_dirs.checkpoints.write()
        aborted = aborted_transactions(broker)
        assert len(aborted) == 2
        crash_image(clean.data, killed.data)
    for one_stop in (clean, killed):
        one_stop.records = records
        one_stop.starts = {("trimmed", 0): 8}
        one_stop.recovery_points = points
        one_stop.aborted = aborted
    return [clean, killed]


def abort_a_transaction(broker: BrokerThread) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "aborting"})
    producer.init_transactions(30)
    for _ in range(2):
        producer.begin_transaction()
        producer.produce(ABORTED[0], b"aborted", partition=ABORTED[1])
        producer.flush(30)
        producer.abort_transaction(30)


def aborted_transactions(broker: BrokerThread) -> set[tuple[int, int]]:
    """What read_committed consumers learn of aborted transactions, from segment to segment."""
    found: set[tuple[int, int]] = set()
    with broker.connect() as one:
        for segment in broker.partition(*ABORTED).log.segments:
            answer = fetch(one, ABORTED[0], segment.base_offset, ABORTED[1], isolation_level=1)
            found |= {(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()}
    return found


class Start:
    """One start on a damaged copy."""

    def __init__(self, prepared: Prepared, folder: Path, seed: str) -> None:
        self.prepared = prepared
        self.random = Random(seed)
        self.data = folder / "data"
        self.messages = Messages()
        self.damaged: list[tuple[Path, str]] = []

    def run(self) -> str:
        """Damage, start, check; what came of it."""
        shutil.copytree(self.prepared.data, self.data)
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            self.damaged.append(damage(self.data, self.random))
        before = self._files()
        try:
            with self.messages.collected(), BrokerThread(self.data, **SETTINGS) as broker:
                outcomes = {name: self._check(broker, name, before) for name in self.prepared.records}
        except (LogDirError, StoreError, KafkaError, OSError) as error:
            if not any(name in str(error) for name in (str(self.data), "the log dirs belong to", "metadata cannot be")):
                raise ViolationError(f"the start fails without the name of a file: {error!r}") from error
            outcomes = {("", 0): "refused"}
        finally:
            shutil.rmtree(self.data)
        if self.messages.tracebacks:
            raise ViolationError(f"tracebacks: {self.messages.tracebacks}")
        return ", ".join(sorted(set(outcomes.values())))

    def _files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.data.rglob("*") if path.is_file()}

    def _check(self, broker: BrokerThread, name: Name, before: dict[Path, bytes]) -> str:
        topic, index = name
        partition = broker.broker.partitions.get(name)
        if topic not in broker.broker.image.topics or index >= len(broker.broker.image.topics[topic].partitions):
            return self._check_stray(name, before)
        if partition is None:
            self._check_offline(name, before)
            return "offline"
        expected = self.prepared.records[name]
        required = {offset: value for offset, value in expected.items() if offset >= self.prepared.starts.get(name, 0)}
        required = {offset: value for offset, value in required.items() if offset < self._required_end(name)}
        served = self._served(broker, name)
        wrong = {offset for offset, value in required.items() if served.get(offset) != value}
        if wrong and not self._found_by_scrub(broker, name):
            raise ViolationError(f"{topic}-{index}: offsets {sorted(wrong)} are not what was acknowledged")
        if name == ABORTED and not wrong and not self.prepared.aborted <= aborted_transactions(broker):
            raise ViolationError(f"{topic}-{index}: aborted records are visible to read_committed consumers")
        with broker.connect() as one:
            answer = produce(one, topic, batch(b"new"), partition=index)
        if answer.error_code == 0 and answer.base_offset < min(self._required_end(name), max(expected) + 1):
            raise ViolationError(f"{topic}-{index}: offset {answer.base_offset} is given out again")
        return "found by the scrub" if wrong else "served"

    def _check_stray(self, name: Name, before: dict[Path, bytes]) -> str:
        """The metadata does not know the topic any more."""
        topic, index = name
        if not any(METADATA in path.name for path, _ in self.damaged):
            raise ViolationError(f"topic {topic} is gone")
        folder = self.data / f"{topic}-{index}"
        if folder in [path for path, _ in self.damaged]:
            return "stray"
        until(lambda: any(self.data.glob(f"{folder.name}.*-stray")), f"{folder.name} is not renamed as stray")
        for stray in self.data.glob(f"{folder.name}.*-stray"):
            if not any(str(stray) in line for line in self.messages.lines):
                raise ViolationError(f"{stray} is not named")
            for path in [path for path in before if path.parent == folder]:
                if (stray / path.name).read_bytes() != before[path]:
                    raise ViolationError(f"{path.name} in {stray} has changed")
        return "stray"

    def _check_offline(self, name: Name, before: dict[Path, bytes]) -> None:
        topic, index = name
        folder = self.data / f"{topic}-{index}"
        if not any(str(self.data) in line for line in self.messages.lines):
            raise ViolationError(f"{topic}-{index} is offline, but no file is named: {self.messages.lines}")
        for path, content in before.items():
            if path.parent != folder or path.name.endswith(("index", "partition.metadata")):  # which are rebuilt
                continue
            if not path.is_file() or path.read_bytes() != content:
                raise ViolationError(f"{path.name} of the offline {topic}-{index} has changed")

    def _required_end(self, name: Name) -> int:
        """The offset below which something still tells of the records."""
        topic, index = name
        last = max(path.name for path in (self.prepared.data / f"{topic}-{index}").glob("*.log"))
        cut = any(path.parent.name == f"{topic}-{index}" and path.name == last for path, _ in self.damaged)
        cut |= any(path.name == BOOT_ID_FILE for path, _ in self.damaged)
        return self.prepared.recovery_points[name] if cut and not self.prepared.clean else 1 << 62

    def _served(self, broker: BrokerThread, name: Name) -> dict[int, bytes]:
        """Everything a consumer can read."""
        topic, index = name
        found: dict[int, bytes] = {}
        log = broker.partition(topic, index).log
        offset, end = log.log_start_offset, log.log_end_offset
        with broker.connect() as one:
            while offset < end:
                answer = fetch(one, topic, offset, partition=index)
                data = memoryview(bytes(answer.records or b""))
                headers = list(iterate_headers(data))
                if answer.error_code or not headers:
                    break
                for position, header in headers:
                    try:
                        batch_records = decode(data[position : position + header.size])
                    except KafkaError:
                        batch_records = []
                    found |= {record.offset: record.value or b"" for record in batch_records}
                following = headers[-1][1].last_offset + 1
                if following <= offset:
                    break
                offset = following
        return found

    def _found_by_scrub(self, broker: BrokerThread, name: Name) -> bool:
        log = broker.partition(*name).log
        following = [segment.base_offset for segment in log.segments[1:]]
        for segment, after in zip(log.segments, [*following, None], strict=True):
            arguments = (segment.path, segment.base_offset, segment.size)
            try:
                scrub_segment(segment.disk, *arguments, after, lambda size: None, contiguous=True)
            except CorruptBatchError:
                return True
        return False

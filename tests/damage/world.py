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

import io
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random

from tests.damage.acts import damage
from tests.damage.prepared import (
    ABORTED,
    COMMITTED,
    COMPACTED,
    LOADING,
    SETTINGS,
    Name,
    Prepared,
    aborted_transactions,
    committed_offset,
    served,
)
from tests.support.broker import BrokerThread
from tests.support.raw import batch, produce
from tests.support.waiting import until

from levada.cli.main import run
from levada.errors import ErrorCode, KafkaError
from levada.metadata.store import StoreError
from levada.model import TopicPartition
from levada.server import METADATA_FILE
from levada.storage.log.scrub import scrub_segment
from levada.storage.log.segment import CorruptBatchError
from levada.storage.log_dir import BOOT_ID_FILE, LogDirError

HIDDEN_IF_COMPACTED = ("cut out", "the end of a batch", "of the offset")  # a compacted log has gaps
OFFSETS: Name = ("__consumer_offsets", 0)
REPAIRS = 0.15  # of the starts follow `levada log repair --accept-loss`


class ViolationError(AssertionError):
    """The rule does not hold."""


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


class Start:
    """One start on a damaged copy."""

    def __init__(self, prepared: Prepared, folder: Path, seed: str) -> None:
        self.prepared = prepared
        self.random = Random(seed)
        self.data = folder / "data"
        self.messages = Messages()
        self.damaged: list[tuple[Path, str]] = []
        self.repaired = False

    @property
    def log_dirs(self) -> list[Path]:
        return [self.data / path.name for path in self.prepared.log_dirs]

    def run(self) -> str:
        """Damage, repair perhaps, start, check; what came of it."""
        shutil.copytree(self.prepared.data, self.data)
        try:
            for _ in range(self.random.choice((1, 1, 1, 2, 3))):
                self.damaged += damage(self.data, self.random)
            if self.random.random() < REPAIRS:
                self._repair()
            outcomes = self._start()
        finally:
            shutil.rmtree(self.data)
        if self.messages.tracebacks:
            raise ViolationError(f"tracebacks: {self.messages.tracebacks}")
        return ("repaired: " if self.repaired else "") + ", ".join(sorted(outcomes))

    def _repair(self) -> None:
        self.repaired = True
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            run(["log", "repair", *map(str, self.log_dirs), "--accept-loss"])

    def _start(self) -> set[str]:
        before = self._files()
        try:
            with self.messages.collected(), BrokerThread(*self.log_dirs, **SETTINGS) as broker:
                outcomes = {self._check(broker, name, before) for name in self.prepared.records}
                return outcomes | {self._check_groups(broker, before)}
        except (LogDirError, StoreError, KafkaError, OSError) as error:
            if not any(name in str(error) for name in (str(self.data), "the log dirs belong to")):
                raise ViolationError(f"the start fails without the name of a file: {error!r}") from error
            return {"refused"}

    def _files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.data.rglob("*") if path.is_file()}

    def _check(self, broker: BrokerThread, name: Name, before: dict[Path, bytes]) -> str:
        topic, index = name
        if outcome := self._check_not_served(broker, name, before):
            return outcome
        expected = self.prepared.records[name]
        required = {offset: value for offset, value in expected.items() if offset >= self.prepared.starts.get(name, 0)}
        required = {offset: value for offset, value in required.items() if offset < self._required_end(name)}
        found = served(broker, name)
        wrong = {offset for offset, value in required.items() if found.get(offset) != value}
        if wrong and not self._may_miss(name, wrong, found) and not self._found_by_scrub(broker, name):
            raise ViolationError(f"{topic}-{index}: offsets {sorted(wrong)} are not what was acknowledged")
        complete = not wrong and not self.repaired
        if name == ABORTED and complete and not self.prepared.aborted <= aborted_transactions(broker):
            raise ViolationError(f"{topic}-{index}: aborted records are visible to read_committed consumers")
        with broker.connect() as one:
            answer = produce(one, topic, batch(b"new"), partition=index)
        if answer.error_code == 0 and answer.base_offset < min(self._required_end(name), max(expected) + 1):
            raise ViolationError(f"{topic}-{index}: offset {answer.base_offset} is given out again")
        return "lost or found by the scrub" if wrong else "served"

    def _check_not_served(self, broker: BrokerThread, name: Name, before: dict[Path, bytes]) -> str:
        """What came of a partition that is not served; empty if it is."""
        topic, index = name
        image = broker.broker.image
        if topic not in image.topics or index >= len(image.topics[topic].partitions):
            return self._check_stray(name, before)
        if name in broker.broker.partitions:
            return ""
        if TopicPartition(*name) not in broker.broker.log_dirs.offline_partitions():
            raise ViolationError(f"{topic}-{index} is not served, but not offline")
        self._check_offline(name, before)
        return "offline"

    def _check_groups(self, broker: BrokerThread, before: dict[Path, bytes]) -> str:
        """Committed offsets are right, or requests for them fail."""
        if outcome := self._check_not_served(broker, OFFSETS, before):
            return f"groups {outcome}"
        is_lost = self._required_end(OFFSETS) < 1 << 62 or self.repaired
        is_lost |= COMMITTED[0] not in broker.broker.image.topics  # its offsets go with it
        with broker.connect() as one:
            for group, committed in self.prepared.committed.items():
                until(lambda group=group: committed_offset(one, group) is not LOADING, "the group is not loaded")  # type: ignore[misc]
                found = committed_offset(one, group)
                if isinstance(found, ErrorCode):
                    self._check_offline(OFFSETS, before)
                elif found != committed and not is_lost:
                    raise ViolationError(f"group {group} has the offset {found}, {committed} was committed")
        return "served"

    def _check_stray(self, name: Name, before: dict[Path, bytes]) -> str:
        """The metadata does not know the topic any more."""
        topic, index = name
        if not any(METADATA_FILE in path.name for path, _ in self.damaged):
            raise ViolationError(f"topic {topic} is gone")
        folder = f"{topic}-{index}"
        if any(path.name == folder for path, _ in self.damaged):
            return "stray"
        until(lambda: any(self.data.glob(f"*/{folder}.*-stray")), f"{folder} is not renamed as stray")
        for stray in self.data.glob(f"*/{folder}.*-stray"):
            if not any(str(stray) in line for line in self.messages.lines):
                raise ViolationError(f"{stray} is not named")
            for path in [path for path in before if path.parent == stray.with_name(folder)]:
                if (stray / path.name).read_bytes() != before[path]:
                    raise ViolationError(f"{path.name} in {stray} has changed")
        return "stray"

    def _check_offline(self, name: Name, before: dict[Path, bytes]) -> None:
        topic, index = name
        if not any(str(self.data) in line for line in self.messages.lines):
            raise ViolationError(f"{topic}-{index} is offline, but no file is named: {self.messages.lines}")
        for path, content in before.items():
            is_rebuilt = path.name.endswith(("index", "partition.metadata"))
            if path.parent.name != f"{topic}-{index}" or is_rebuilt:
                continue
            if not path.is_file() or path.read_bytes() != content:
                raise ViolationError(f"{path.name} of the offline {topic}-{index} has changed")

    def _required_end(self, name: Name) -> int:
        """The offset below which something still tells of the records."""
        folder = "{}-{}".format(*name)
        last = max(path.name for path in self.prepared.data.glob(f"*/{folder}/*.log"))
        cut = any(path.parent.name == folder and path.name == last for path, _ in self.damaged)
        cut |= any(path.name == BOOT_ID_FILE for path, _ in self.damaged)
        cut |= self.repaired and any(path.name == folder for path, _ in self.damaged)  # nothing tells the end
        return self.prepared.recovery_points[name] if cut and not self.prepared.clean else 1 << 62

    def _may_miss(self, name: Name, wrong: set[int], found: Mapping[int, bytes]) -> bool:
        """Whether records may be missing: a repair replaces them, and a compacted log has gaps."""
        if wrong & found.keys():
            return False
        hidden = [how for path, how in self.damaged if path.parent.name == "{}-{}".format(*COMPACTED)]
        is_hidden = name == COMPACTED and any(word in how for how in hidden for word in HIDDEN_IF_COMPACTED)
        return self.repaired or is_hidden

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

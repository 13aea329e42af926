"""A compacted partition in the simulated world: keys are written in and out of transactions, the log is cleaned.

The cleaner runs step by step between everything else that happens, as its process does, and can be killed at each
step; so can the broker, and the power can fail at any call to the disk. A model remembers every record and how its
transaction ended, and says what readers must find whatever was cleaned: the same latest values, from every offset.
"""

from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import cast
from uuid import UUID

from tests.sim.compaction.checks import CleanerChecks
from tests.sim.compaction.model import Batch, Model, Writer
from tests.sim.partition.world import SimFlushQueue
from tests.sim.seeds import Invariant, Violation

from levada.broker.partition.partition import Partition, PartitionContext
from levada.config.topic import TopicConfig, TopicDefaults
from levada.core.partition.producer_state import CorruptSnapshotError
from levada.errors import ErrorCode, KafkaError
from levada.model import Codec
from levada.net.flush import FlushQueue
from levada.storage.compaction.cleaner import Cleaner
from levada.storage.compaction.messages import CleanedSegment, CleaningFinished
from levada.storage.compaction.plan import cleaning_job, inspect_log
from levada.storage.compaction.swap import complete_swap, swap
from levada.storage.log.log import Log
from levada.storage.log.segment import CorruptBatchError, LogSegment
from levada.testing.sim_disk import SimCrash, SimDisk
from levada.wire.batches import TRANSACTIONAL_BIT, Record, encode
from levada.wire.control_records import Marker

DATA = "/data"
DIRECTORY = "/data/compacted-0"
STEPS_UNTIL_CRASH_MAX = 40
STEPS_OF_A_SWAP = 16
KEYS = [b"key-%d" % number for number in range(40)]
CODECS = (Codec.NONE, Codec.NONE, Codec.LZ4, Codec.GZIP)


class CleanerWorld:
    """One compacted partition."""

    def __init__(self, seed: int, disk_type: type[SimDisk] = SimDisk) -> None:
        self.random = random = Random(seed)
        self.disk = disk_type(Random(random.random()))
        self.now_ms = self.disk.now_ms = 1_700_000_000_000
        self.delete_retention_ms = random.choice((0, 400, 4_000))
        self.map_bytes = random.choice((0, 0, 1 << 20))  # the smallest map holds 14 keys
        overrides = {
            "cleanup.policy": "compact",
            "segment.bytes": str(random.choice((900, 2_500, 8_000))),
            "index.interval.bytes": str(random.choice((0, 200))),
            "delete.retention.ms": str(self.delete_retention_ms),
            "min.compaction.lag.ms": str(random.choice((0, 0, 300))),
            "message.timestamp.type": random.choice(("CreateTime", "LogAppendTime")),
        }
        self.config = TopicConfig.build(TopicDefaults(), overrides)
        self.writers = [Writer(-1), *(Writer(number) for number in range(1, 7))]
        self.busy = self.writers  # those that write at the time
        self.model = Model()
        self.checks = CleanerChecks(self)
        self.synced = self.written = 0
        self.recovery_point = self.checkpoint = 0  # as the files of the data dir say
        self.cleaned_at: dict[int, int] = {}  # offset of a tombstone -> when a cleaning began that took it in
        self.forgotten: set[int] = set()  # the last batches of producers that expired
        self.cleaner: Iterator[CleanedSegment | CleaningFinished] | None = None
        self.crashes_in_swaps = True
        self.reports: deque[CleanedSegment | CleaningFinished] = deque()  # not yet taken over
        self.cleaning_since = 0
        self.sources: dict[int, LogSegment] = {}
        self.unsettled = 0  # swaps that the thread for files has not completed
        self.clean_end = 0  # as the broker knows it; the checkpoint follows when the swaps are settled
        self.swaps = self.tombstones_gone = self.markers_gone = 0
        self.trace: list[str] = []
        self.disk.mkdir(DATA)
        self.disk.fsync_dir("/")
        self.partition = self.open(clean=False)

    # The broker

    def open(self, clean: bool) -> Partition:
        self.flush_queue = SimFlushQueue()
        self.lose_cleaner()
        self.unsettled = 0
        self.clean_end = self.checkpoint
        context = PartitionContext(cast(FlushQueue, self.flush_queue), lambda partition: None, self.fail)
        try:
            log = Log.open(
                DIRECTORY,
                self.config,
                self.disk,
                now_ms=self.now_ms,
                clean=clean,
                recovery_point=self.recovery_point,
            )
            return Partition("compacted", UUID(int=1), 0, 0, log, context)
        except (KafkaError, CorruptSnapshotError) as error:
            raise Violation(Invariant.RECOVERY, f"the log does not open: {error}") from error

    def fail(self, partition: Partition, error: OSError | CorruptBatchError) -> None:
        raise Violation(Invariant.RECOVERY, f"the disk does not fail here, but: {error}") from error

    # What can happen

    def run(self, actions: int) -> None:
        for _ in range(actions):
            self.step()
        self.disk.crash_at = None
        for writer in self.writers:
            self.end_transaction(writer)
        self.end_iteration()
        self.roll()
        self.sync()
        self.survive(self.clean_completely)
        self.crash(power_cut=True)

    def step(self) -> None:
        actions = {
            self.produce: 40,
            self.finish_some: 10,
            self.end_iteration: 15,
            self.roll: 4,
            self.sync: 8,
            self.clean: 25,
            self.settle: 5,
            self.lose_cleaner: 1,
            self.clean_completely: 1,
            self.write_checkpoint: 3,
            self.wait: 8,
            self.look_around: 6,
            self.change_writers: 3,
            self.forget_idle: 1,
            self.arm_crash: 2,
            self.kill: 1,
            self.restart_cleanly: 1,
        }
        action = self.random.choices(list(actions), list(actions.values()))[0]
        self.note(action.__name__)
        self.survive(action)

    def survive(self, action: Callable[[], None]) -> None:
        """Do something; if that is the end of this life, the next one begins."""
        try:
            action()
        except SimCrash:
            self.crash(power_cut=self.random.random() < 0.7)

    def produce(self) -> None:
        writer = self.random.choice(self.busy)
        base, count = self.partition.log.next_offset, self.random.choice((1, 1, 3))
        append_time = self.partition.rules.log_append_time
        records = tuple(
            Record(
                base + number,
                self.now_ms - (0 if append_time else self.random.randint(0, 20)),
                self.random.choice(KEYS),
                None if self.random.random() < 0.2 else b"%d-%d" % (base + number, self.random.getrandbits(32)),
            )
            for number in range(count)
        )
        idempotent = writer.producer_id > 0
        data = encode(
            records,
            codec=self.random.choice(CODECS),
            producer_id=writer.producer_id,
            producer_epoch=0 if idempotent else -1,
            base_sequence=writer.sequence if idempotent else -1,
            attributes=TRANSACTIONAL_BIT if writer.transactional else 0,
        )
        if writer.transactional:
            self.partition.transactions.guard(writer.producer_id, 0).verified = True
        try:
            got = self.partition.append(memoryview(data), 0, len(data), self.now_ms)
        except KafkaError as error:
            self.refused(writer, error)
            return
        if got != base:
            raise Violation(Invariant.OFFSETS_RISE, f"a new batch at {base} was given {got}")
        batch = Batch(base, base + count - 1, records, writer.producer_id, writer.sequence, writer.transactional)
        self.model.batches.append(batch)
        writer.sequence += count

    def refused(self, writer: Writer, error: KafkaError) -> None:
        """A producer that expired may have come back with a part of its past: it gives up, as clients do."""
        last = self.last_batch(writer)
        if error.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or not last:
            raise Violation(Invariant.VALID_REQUESTS, f"producer {writer.producer_id} is refused: {error}") from error
        if last.base_offset not in self.forgotten:
            raise Violation(Invariant.PRODUCER_STATE, f"producer {writer.producer_id} is not known: {error}") from error
        self.end_transaction(writer)
        self.writers.remove(writer)
        self.busy = self.writers

    def finish_some(self) -> None:
        self.end_transaction(self.random.choice(self.writers))

    def end_transaction(self, writer: Writer) -> None:
        if writer.producer_id in self.model.open_transactions():
            offset = self.partition.log.next_offset
            committed = self.random.random() < 0.5
            self.partition.transactions.end(writer.producer_id, 0, Marker(committed, 0), False, self.now_ms)
            marker = Batch(offset, offset, (), writer.producer_id, -1, True, committed)
            self.model.batches.append(marker)

    def end_iteration(self) -> None:
        self.flush_queue.flush()
        self.written = self.partition.log.log_end_offset

    def roll(self) -> None:
        self.end_iteration()
        self.partition.log.roll(self.now_ms)

    def sync(self) -> None:
        end = self.partition.log.log_end_offset
        self.partition.log.flush()
        self.synced = max(self.synced, end)

    def write_checkpoint(self) -> None:
        self.recovery_point = self.partition.log.recovery_point

    def wait(self) -> None:
        self.now_ms += self.random.choice((1, 100, 1_500))
        self.disk.now_ms = self.now_ms

    def change_writers(self) -> None:
        """Some are silent for a while, so that their last batches grow old."""
        self.busy = self.random.sample(self.writers, self.random.randint(1, len(self.writers)))

    def forget_idle(self) -> None:
        """Producers expire: from then on their batches need not be known, but a restart may find some of them."""
        self.partition.producers.expire(self.now_ms, 3_000)
        known = {producer_id for producer_id, *_ in self.partition.producers.last_batches(1 << 62)}
        for writer in self.writers:
            last = self.last_batch(writer)
            if last is not None and writer.producer_id not in known:
                self.forgotten.add(last.base_offset)

    # Cleaning

    def clean(self) -> None:
        """The cleaner's next step, or the broker takes over what it reported."""
        if self.reports and self.random.random() < 0.7:
            self.take_report(self.reports.popleft())
        elif self.cleaner is not None:
            report = next(self.cleaner)
            self.reports.append(report)
            if isinstance(report, CleaningFinished):
                self.cleaner = None
        elif not self.reports:
            self.begin_cleaning()

    def begin_cleaning(self) -> None:
        log, partition = self.partition.log, self.partition
        stable_offset = partition.last_stable_offset
        last_batches = list(partition.producers.last_batches(stable_offset))
        self.end_iteration()
        self.sync()  # nothing of what was known then can be lost now
        found = inspect_log(log, stable_offset, self.clean_end, self.now_ms)
        if not found.dirty_bytes:
            return
        job, segments = cleaning_job(
            log, found, last_batches, now_ms=self.now_ms, map_bytes=self.map_bytes, io_bytes_per_second=1e9
        )
        self.sources = {segment.base_offset: segment for segment in segments}
        self.cleaning_since = self.now_ms
        self.cleaner = Cleaner(job, self.disk).run()

    def take_report(self, report: CleanedSegment | CleaningFinished) -> None:
        log = self.partition.log
        if isinstance(report, CleanedSegment):
            replaced = [self.sources[base] for base in report.replaced]
            following = log.segments[log.segments.index(replaced[-1]) + 1].base_offset
            for batch in self.model.batches:
                for record in batch.records:
                    if record.offset < following and record.value is None:
                        self.cleaned_at.setdefault(record.offset, self.cleaning_since)
            if self.crashes_in_swaps and self.disk.crash_at is None and self.random.random() < 0.1:
                self.disk.crash_at = self.disk.steps + self.random.randint(1, STEPS_OF_A_SWAP)
            swap(log, replaced, report, self.now_ms)
            self.swaps += 1
            self.unsettled += 1
        else:
            self.clean_end = report.end_offset

    def settle(self) -> None:
        """What the thread for files does, one after the other."""
        while self.unsettled:
            self.unsettled -= 1
            complete_swap(self.partition.log)
        self.checkpoint = self.clean_end

    def lose_cleaner(self) -> None:
        """Its process is killed."""
        self.cleaner = None
        self.reports.clear()

    def clean_completely(self) -> None:
        self.clean()
        while self.cleaner is not None or self.reports:
            self.clean()

    # Ends and beginnings

    def arm_crash(self) -> None:
        if self.disk.crash_at is None:
            self.disk.crash_at = self.disk.steps + self.random.randint(1, STEPS_UNTIL_CRASH_MAX)

    def kill(self) -> None:
        self.crash(power_cut=False)

    def crash(self, power_cut: bool) -> None:
        self.note(f"crash, power_cut={power_cut}")
        floor = self.synced if power_cut else self.written
        self.end_life(power_cut)
        for cut_short in (self.random.random() < 0.4, self.random.random() < 0.4, False):
            if cut_short:
                self.disk.crash_at = self.disk.steps + self.random.randint(1, STEPS_UNTIL_CRASH_MAX)
            try:
                self.partition = self.open(clean=False)
                break
            except SimCrash:
                power_cut = self.random.random() < 0.7
                floor = self.synced if power_cut else floor
                self.end_life(power_cut)
        self.disk.crash_at = None
        self.opened(floor)

    def end_life(self, power_cut: bool) -> None:
        if power_cut:
            self.disk.cut_power()
        else:
            self.disk.kill()

    def restart_cleanly(self) -> None:
        self.end_iteration()
        self.settle()
        self.partition.close()
        end = self.partition.log.log_end_offset
        self.synced = self.recovery_point = end
        self.disk.crash_at = None
        self.end_life(power_cut=self.random.random() < 0.5)
        self.partition = self.open(clean=True)
        self.opened(end)

    def opened(self, floor: int) -> None:
        end = self.partition.log.log_end_offset
        if not floor <= end <= self.model.end_offset:
            raise Violation(Invariant.DURABILITY, f"the log ends at {end}, owed {floor}, given {self.model.end_offset}")
        self.model.cut(end)
        if self.model.end_offset != end:
            raise Violation(Invariant.RECOVERY, f"the log ends at {end}, within a batch")
        self.written, self.synced = end, max(min(self.synced, end), self.partition.log.recovery_point)
        for writer in self.writers:
            last = self.last_batch(writer)
            writer.sequence = last.sequence + len(last.records) if last else 0
        self.check()
        self.check_again_without_snapshots()

    def last_batch(self, writer: Writer) -> Batch | None:
        mine = [one for one in self.model.batches if one.producer_id == writer.producer_id and one.records]
        return mine[-1] if mine and writer.producer_id > 0 else None

    def check_again_without_snapshots(self) -> None:
        """What a power cut may do to snapshots: all must be known from an older one or the log itself."""
        newest = self.partition.log.producer_snapshots.offsets()
        if newest and self.random.random() < 0.5:
            for offset in newest[: self.random.randint(1, len(newest))]:
                self.disk.unlink(f"{DIRECTORY}/{offset:020d}.snapshot")
            self.disk.kill()
            self.partition = self.open(clean=False)
            self.check()

    # What must hold

    def look_around(self) -> None:
        self.end_iteration()
        self.check()

    def check(self) -> None:
        self.checks.check()

    def note(self, line: str) -> None:
        self.trace.append(f"{self.disk.steps}: {line}")

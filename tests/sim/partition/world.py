"""The simulated world of one partition: the broker's own Partition, Log and ProducerStates over a simulated disk.

Chance chooses what happens next: clients produce and retry, turns end, the disk syncs, segments roll and expire, the
process is killed, the power fails at any call, calls fail. A model remembers what was stored where and what was
promised; after every crash the log is opened and compared with it. All chance comes from one seed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import cast
from uuid import UUID

from tests.sim.partition.clients import Batch, Identity, Producer
from tests.sim.seeds import Invariant, Violation, replayable

from levada.broker.partition.partition import Partition, PartitionContext
from levada.config.topic import TopicConfig, TopicDefaults
from levada.core.partition.producer_state import SEQUENCE_MAX
from levada.errors import ErrorCode, KafkaError
from levada.net.flush import FlushQueue
from levada.storage.log.log import Log
from levada.storage.log.segment import CorruptBatchError
from levada.testing.sim_disk import Faults, SimCrash, SimDisk
from levada.wire.batches import crc_is_valid, decode, iterate_headers

DATA = "/data"
DIRECTORY = "/data/sim-0"
STEPS_UNTIL_CRASH_MAX = 25
RECOVERIES_CUT_MAX = 3
ACTIONS = 150


@dataclass(slots=True)
class Stored:
    """A batch that was given a place in the log; it may not have been written."""

    base_offset: int
    last_offset: int
    data: bytes
    identity: Identity | None
    acknowledged: bool = False


class SimFlushQueue:
    """Flushes when the world calls it."""

    def __init__(self) -> None:
        self.publishers: list[Partition] = []

    def add_publisher(self, publisher: Partition) -> None:
        self.publishers.append(publisher)

    def flush(self) -> None:
        publishers, self.publishers = self.publishers, []
        for publisher in publishers:
            publisher.publish()


@dataclass
class Guaranteed:
    """What the log must hold at least when it is opened again."""

    synced: int = 0  # below this offset everything was fsynced
    written: int = 0  # below this one everything was written; good for a killed process, not for a power cut
    deleted: int = 0  # below this offset nothing is owed

    def after(self, power_cut: bool, disk_failed: bool) -> int:
        return self.synced if power_cut or disk_failed else self.written


class World:
    """One partition and its clients."""

    def __init__(self, seed: int, disk_type: type[SimDisk] = SimDisk) -> None:
        self.random = random = Random(seed)
        self.disk = disk_type(Random(random.random()))
        self.now_ms = self.disk.now_ms = 1_700_000_000_000
        self.waits_for_fsync = random.random() < 0.5
        overrides = {
            "segment.bytes": str(random.choice((4_500, 8_000, 30_000))),
            "index.interval.bytes": str(random.choice((0, 300, 4_096))),
            "segment.index.bytes": str(random.choice((60, 1 << 20))),
            "segment.ms": str(random.choice((200, 1 << 40))),
            "retention.bytes": str(random.choice((-1, 15_000))),
            "message.timestamp.type": random.choice(("CreateTime", "LogAppendTime")),
            "levada.acks.wait.for.fsync": "true" if self.waits_for_fsync else "false",
            "flush.messages": str(random.choice((1, 7, 1 << 40))),
        }
        self.config = TopicConfig.build(TopicDefaults(), overrides)
        self.producers = [Producer(-1), Producer(1), Producer(2), Producer(3, sequence=SEQUENCE_MAX - 3)]
        self.log: list[Stored] = []  # by offset, without gaps
        self.guaranteed = Guaranteed()
        self.disk_failed = False  # in this life of the process
        self.sync_asked = self.sync_done = False
        self.recovery_point = self.log_start_offset = 0  # as the checkpoint files of the data dir say
        self.power_lost = False  # or a failed disk remounted, since the log was last open
        self.leader_epoch = 0
        self.trace: list[str] = []
        self.disk.mkdir(DATA)
        self.disk.fsync_dir("/")
        self.partition = self.open(clean=False)

    # The broker

    def open(self, clean: bool) -> Partition:
        """Start the broker on what the disk holds."""
        try:
            log = Log.open(
                DIRECTORY,
                self.config,
                self.disk,
                now_ms=self.now_ms,
                clean=clean,
                recovery_point=self.recovery_point,
                log_start_offset=self.log_start_offset,
                power_lost=self.power_lost,
            )
            return self.serve(log)
        except KafkaError as error:
            raise Violation(Invariant.RECOVERY, f"the log does not open: {error}") from error

    def serve(self, log: Log) -> Partition:
        self.flush_queue = SimFlushQueue()
        self.sync_asked = self.sync_done = self.disk_failed = False
        context = PartitionContext(cast(FlushQueue, self.flush_queue), self.ask_sync, self.fail)
        return Partition("sim", UUID(int=1), 0, self.leader_epoch, log, context)

    def ask_sync(self, partition: Partition) -> None:
        self.sync_asked = True

    def fail(self, partition: Partition, error: OSError | CorruptBatchError) -> None:
        self.disk_failed = True
        partition.go_offline()

    # What can happen

    def run(self, actions: int) -> None:
        """Let things happen, then heal the disk and look at everything once more."""
        for _ in range(actions):
            self.step()
        self.disk.faults = Faults()
        self.crash(power_cut=self.random.random() < 0.5)
        for producer in self.producers:
            self.retry(producer)
        self.end_iteration()
        self.check_log()

    def step(self) -> None:
        actions = {
            self.produce: 40,
            self.end_iteration: 25,
            self.sync: 8,
            self.deliver_sync: 8,
            self.read: 10,
            self.find_timestamp: 5,
            self.roll: 2,
            self.delete_records: 1,
            self.retain: 2,
            self.checkpoint: 3,
            self.wait: 5,
            self.arm_crash: 2,
            self.kill: 1,
            self.restart_cleanly: 1,
            self.change_faults: 2,
            self.change_leader: 1,
            self.truncate: 1,
        }
        action = self.random.choices(list(actions), list(actions.values()))[0]
        self.note(action.__name__)
        try:
            action()
        except SimCrash:
            self.crash(power_cut=self.random.random() < 0.7)
        if self.partition.offline:
            self.restart_after_failure()

    def produce(self) -> None:
        producer = self.random.choice(self.producers)
        if producer.in_flight and self.random.random() < 0.15:
            self.send(producer, self.random.choice(producer.in_flight))
        elif batch := producer.next_batch(self.random, self.now_ms):
            self.send(producer, batch)

    def send(self, producer: Producer, batch: Batch) -> None:
        """Hand a batch to the broker, as a Produce request does."""
        log = self.partition.log
        view = memoryview(bytearray(batch.data))
        expected = log.next_offset
        known = self.places(batch.identity)
        try:
            base_offset = self.partition.append(view, 0, len(view), self.now_ms)
        except KafkaError as error:
            self.refused(producer, batch, error, known)
            return
        if log.next_offset == expected:
            if base_offset not in [stored.base_offset for stored in known]:
                raise Violation(Invariant.SEQUENCE_ONCE, f"{batch.identity} answered as a duplicate at {base_offset}")
        else:
            if self.not_deleted(known):
                raise Violation(Invariant.SEQUENCE_ONCE, f"{batch.identity} stored again at {base_offset}")
            if base_offset != expected or (self.log and self.log[-1].last_offset + 1 != expected):
                raise Violation(Invariant.OFFSETS_RISE, f"offset {base_offset} given after {self.log[-1:]}")
            stored = Stored(base_offset, base_offset + batch.count - 1, bytes(view), batch.identity)
            self.log.append(stored)
        batch.goal = log.next_offset

    def refused(self, producer: Producer, batch: Batch, error: KafkaError, known: list[Stored]) -> None:
        if error.code == ErrorCode.KAFKA_STORAGE_ERROR and self.disk_failed:
            return
        if error.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or batch.identity is None:
            raise Violation(Invariant.VALID_REQUESTS, f"{batch.identity} refused with {error}") from error
        if not known and self.follows(producer, batch.identity[2]):
            raise Violation(
                Invariant.PRODUCER_STATE, f"{batch.identity} follows what is stored, but: {error}"
            ) from error
        producer.start_over()

    def follows(self, producer: Producer, sequence: int) -> bool:
        """Whether a sequence is the next one of a producer, as far as the log that is owed tells."""
        identity = (producer.producer_id, producer.epoch)
        newest = next((s for s in reversed(self.log) if s.identity and s.identity[:2] == identity), None)
        if newest is None or newest.identity is None:
            return sequence == 0 and not self.guaranteed.deleted
        following = newest.identity[2] + newest.last_offset - newest.base_offset + 1
        return bool(self.not_deleted([newest])) and sequence == following & SEQUENCE_MAX

    def places(self, identity: Identity | None) -> list[Stored]:
        """Where a batch is in the log."""
        return [stored for stored in self.log if identity is not None and stored.identity == identity]

    def not_deleted(self, places: list[Stored]) -> list[Stored]:
        """Those that were not deleted: with its records the broker may forget a producer."""
        return [stored for stored in places if stored.base_offset >= self.guaranteed.deleted]

    def retry(self, producer: Producer) -> None:
        """Send what was not acknowledged again, in order."""
        for batch in list(producer.in_flight):
            if batch in producer.in_flight:
                self.send(producer, batch)

    def end_iteration(self) -> None:
        self.flush_queue.flush()
        partition = self.partition
        self.guaranteed.written = max(self.guaranteed.written, partition.log.log_end_offset)
        for producer in self.producers:
            for batch in [batch for batch in producer.in_flight if 0 <= batch.goal <= partition.high_watermark]:
                producer.in_flight.remove(batch)
                self.acknowledge(batch)

    def acknowledge(self, batch: Batch) -> None:
        places = self.places(batch.identity)
        if not places or len(self.not_deleted(places)) > 1:
            raise Violation(Invariant.ACKNOWLEDGEMENT, f"{batch.identity} acknowledged, but stored {len(places)} times")
        newest = places[-1]
        if newest.last_offset >= self.guaranteed.written:
            raise Violation(Invariant.ACKNOWLEDGEMENT, f"{batch.identity} acknowledged before it was written")
        if self.waits_for_fsync and newest.last_offset >= self.guaranteed.synced:
            raise Violation(Invariant.ACKNOWLEDGEMENT, f"{batch.identity} acknowledged before it was synced")
        newest.acknowledged = True

    def sync(self) -> None:
        """What the thread of the group commit does."""
        if not self.partition.offline and (self.sync_asked or self.random.random() < 0.3):
            end = self.partition.log.log_end_offset
            try:
                self.partition.log.flush()
            except OSError as error:
                self.fail(self.partition, error)
                return
            if self.partition.log.recovery_point < end:
                raise Violation(
                    Invariant.DURABILITY,
                    f"after a flush at {end} the recovery point is {self.partition.log.recovery_point}",
                )
            self.guaranteed.synced = max(self.guaranteed.synced, end)
            self.sync_asked, self.sync_done = False, True

    def deliver_sync(self) -> None:
        if self.sync_done and not self.partition.offline:
            self.sync_done = False
            self.partition.synced()
            self.end_iteration()

    def roll(self) -> None:
        self.guarded(lambda: self.partition.log.roll(self.now_ms))

    def retain(self) -> None:
        log, deleted = self.partition.log, self.guaranteed.deleted
        self.guaranteed.deleted = max(deleted, log.segments[-1].base_offset)  # a crash in between may leave any part
        self.guarded(lambda: log.apply_retention(self.now_ms))
        self.guaranteed.deleted = max(deleted, log.log_start_offset)

    def delete_records(self) -> None:
        log = self.partition.log
        offset = self.random.randint(log.log_start_offset, max(log.log_start_offset, self.partition.high_watermark))
        self.guaranteed.deleted = max(self.guaranteed.deleted, offset)
        self.guarded(lambda: self.partition.log.delete_records(offset))

    def guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            self.fail(self.partition, error)

    def checkpoint(self) -> None:
        """What the data dir writes now and then: the recovery point first, and no log start offset beyond it."""
        log = self.partition.log
        self.recovery_point = min(log.recovery_point, self.guaranteed.synced)
        self.log_start_offset = min(log.log_start_offset, self.recovery_point)

    def wait(self) -> None:
        self.now_ms += self.random.choice((1, 50, 1_000))
        self.disk.now_ms = self.now_ms

    def change_leader(self) -> None:
        self.leader_epoch += 1
        self.partition.leader_epoch = self.leader_epoch
        self.guarded(lambda: self.partition.log.assign_epoch(self.leader_epoch))

    def change_faults(self) -> None:
        """A phase in which the disk misbehaves, or the end of one."""
        chance = self.random.random
        self.disk.faults = Faults(short_write=self.random.choice((0.0, 0.3)))
        if chance() < 0.4:
            self.disk.faults = Faults(
                write_error=self.random.choice((0.0, 0.05)),
                short_write=0.1,
                fsync_error=self.random.choice((0.0, 0.2)),
                no_space=self.random.choice((0.0, 0.05)),
                read_error=self.random.choice((0.0, 0.05)),
            )

    def truncate(self) -> None:
        """What a follower does when it finds that its leader's log parts from its own."""
        self.end_iteration()
        log = self.partition.log
        if self.partition.offline or self.waits_for_fsync or log.log_start_offset == log.log_end_offset:
            return  # with an fsync for each acknowledgement there is nothing a leader could take back
        offset = self.random.randint(log.log_start_offset, log.log_end_offset)
        floor = next((stored.base_offset for stored in self.log if stored.last_offset >= offset), offset)
        self.guaranteed.synced = min(self.guaranteed.synced, floor)
        self.guaranteed.written = min(self.guaranteed.written, floor)
        self.recovery_point = min(self.recovery_point, floor)
        self.log_start_offset = min(self.log_start_offset, floor)
        self.power_lost = True  # a truncation that a kill interrupts looks like a power failure
        self.guarded(lambda: log.truncate_to(offset))
        if not self.partition.offline:
            self.disk.faults = Faults()
            self.partition = self.serve(log)
            self.settle(floor, reopen=False)

    # Ends and beginnings

    def arm_crash(self) -> None:
        if self.disk.crash_at is None:
            self.disk.crash_at = self.disk.steps + self.random.randint(1, STEPS_UNTIL_CRASH_MAX)

    def kill(self) -> None:
        self.crash(power_cut=False)

    def crash(self, power_cut: bool) -> None:
        """The end of a life; the next one begins with the recovery, which may be cut short as well."""
        self.note(f"crash, power_cut={power_cut}")
        floor = self.guaranteed.after(power_cut, self.disk_failed)
        self.disk.faults = Faults()
        self.end_life(power_cut)
        for _ in range(RECOVERIES_CUT_MAX):
            if self.random.random() < 0.3:
                self.disk.crash_at = self.disk.steps + self.random.randint(1, STEPS_UNTIL_CRASH_MAX)
            try:
                self.partition = self.open(clean=False)
                break
            except SimCrash:
                power_cut = self.random.random() < 0.7
                floor = min(floor, self.guaranteed.after(power_cut, self.disk_failed))
                self.end_life(power_cut)
        else:
            self.partition = self.open(clean=False)
        self.disk.crash_at = None
        self.settle(floor)

    def end_life(self, power_cut: bool) -> None:
        self.power_lost |= power_cut or self.disk_failed
        if power_cut:
            self.disk.cut_power()
        elif self.disk_failed:
            self.disk.remount()
        else:
            self.disk.kill()

    def restart_after_failure(self) -> None:
        """The operator mends the disk and starts the broker again."""
        self.crash(power_cut=self.random.random() < 0.3)

    def restart_cleanly(self) -> None:
        self.end_iteration()
        if self.partition.offline:
            return
        try:
            self.partition.close()
        except OSError:
            self.disk_failed = True
            self.partition.go_offline()
            return
        self.guaranteed.synced = end = self.partition.log.log_end_offset
        self.checkpoint()
        power_cut = self.random.random() < 0.5
        self.disk.crash_at = None
        self.end_life(power_cut)
        self.disk.faults = Faults()
        self.partition = self.open(clean=True)
        self.settle(end, clean=True)

    def settle(self, floor: int, clean: bool = False, reopen: bool = True) -> None:
        """The log has been opened after a crash: compare, forget what was rightly lost, let the clients retry."""
        end = self.partition.log.log_end_offset
        self.note(f"opened at {end}, owed {floor}, given {self.log[-1].last_offset + 1 if self.log else 0}")
        if end < floor:
            raise Violation(Invariant.DURABILITY, f"the log ends at {end}, but everything below {floor} was promised")
        if self.waits_for_fsync and any(stored.acknowledged for stored in self.log if stored.base_offset >= end):
            raise Violation(Invariant.DURABILITY, f"an acknowledged batch after {end} is lost")
        if self.log and end > self.log[-1].last_offset + 1:
            raise Violation(
                Invariant.RECOVERY, f"the log ends at {end}, but only {self.log[-1].last_offset + 1} were ever given"
            )
        while self.log and self.log[-1].base_offset >= end:
            self.log.pop()
        if end == self.log_start_offset:  # deleted up to here, and no batch after it survived
            self.log.clear()
        elif end != (self.log[-1].last_offset + 1 if self.log else 0):
            raise Violation(Invariant.RECOVERY, f"the log ends at {end}, within a batch")
        self.power_lost = False
        self.guaranteed.written = end
        self.guaranteed.synced = max(min(self.guaranteed.synced, end), self.partition.log.recovery_point)
        self.check_log()
        self.check_producers()
        if reopen:
            self.check_recovery_is_idempotent(clean)
        for producer in self.producers:
            for batch in producer.in_flight:
                batch.goal = -1
            self.retry(producer)

    # What must hold

    def read(self) -> None:
        partition = self.partition
        low, high = partition.log.log_start_offset, partition.high_watermark
        if low < high:
            offset = self.random.randint(low, high - 1)
            minimum_one = self.random.random() < 0.5
            max_bytes = self.random.choice((0, 100, 900, 1 << 20))
            self.guarded(lambda: self.check_read(offset, max_bytes, minimum_one))

    def check_read(self, offset: int, max_bytes: int, minimum_one: bool) -> int:
        """Read and compare with the model; the offset after the last batch that was read."""
        partition = self.partition
        try:
            data = memoryview(b"".join(partition.read(offset, max_bytes, minimum_one).views))
        except KafkaError as error:
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR and self.disk_failed:
                return offset
            raise Violation(Invariant.STORED_RECORDS, f"offset {offset} cannot be read: {error}") from error
        if len(data) > max_bytes and not minimum_one:
            raise Violation(Invariant.STORED_RECORDS, f"{len(data)} bytes read where {max_bytes} were asked for")
        by_offset = {stored.base_offset: stored for stored in self.log}
        position, after = 0, offset
        for position, header in iterate_headers(data):
            stored = by_offset.get(header.base_offset)
            batch = data[position : position + header.size]
            if stored is None or bytes(batch) != stored.data or not crc_is_valid(batch):
                raise Violation(
                    Invariant.STORED_RECORDS, f"at {header.base_offset} other bytes are served than were stored"
                )
            if header.last_offset < offset or header.last_offset >= partition.high_watermark:
                raise Violation(Invariant.READ_BOUND, f"offset {offset} was asked for, {header.base_offset} served")
            if header.base_offset > after and after >= self.guaranteed.deleted:
                raise Violation(Invariant.STORED_RECORDS, f"read from {offset} skips {after}..{header.base_offset}")
            after = header.last_offset + 1
        if data and position + header.size != len(data):
            raise Violation(Invariant.STORED_RECORDS, f"read from {offset} ends within a batch")
        if not data and minimum_one:
            raise Violation(
                Invariant.STORED_RECORDS, f"nothing at {offset}, below the high watermark {partition.high_watermark}"
            )
        return after

    def check_log(self) -> None:
        """Everything readers can see is what was stored."""
        offset, end = self.partition.log.log_start_offset, self.partition.high_watermark
        if offset > self.guaranteed.deleted:
            raise Violation(
                Invariant.STORED_RECORDS, f"the log starts at {offset}, but only {self.guaranteed.deleted} were deleted"
            )
        while offset < end and not self.partition.offline:
            offset = self.check_read(offset, 2_000, True)
        identities = [stored.identity for stored in self.not_deleted(self.log) if stored.identity]
        if len(identities) != len(set(identities)):
            raise Violation(Invariant.SEQUENCE_ONCE, "a sequence is in the log twice")

    def check_producers(self) -> None:
        """The state folded from snapshot and log is that of the log: the next sequence, and the last five batches."""
        states = self.partition.producers
        for producer in self.producers[1:]:
            own = [s for s in self.log if s.identity and s.identity[0] == producer.producer_id]
            newest = [s for s in own if s.identity and own[-1].identity and s.identity[1] == own[-1].identity[1]][-5:]
            for stored in self.not_deleted(newest):
                assert stored.identity
                producer_id, epoch, sequence = stored.identity
                count = stored.last_offset - stored.base_offset + 1
                following = (sequence + count) & SEQUENCE_MAX
                try:
                    first_offset = states.check(producer_id, epoch, sequence, count)
                    expected = states.check(producer_id, epoch, following, 1) if stored is newest[-1] else -1
                except KafkaError as error:
                    raise Violation(
                        Invariant.PRODUCER_STATE, f"after the start the broker does not know {stored.identity}: {error}"
                    ) from error
                if (first_offset, expected) != (stored.base_offset, -1):
                    raise Violation(
                        Invariant.PRODUCER_STATE,
                        f"after the start {stored.identity} is answered with {first_offset}, {expected}",
                    )

    def check_recovery_is_idempotent(self, clean: bool) -> None:
        """Opening once more finds the same log."""
        before = self.facts()
        self.disk.kill()
        self.partition = self.open(clean)
        if self.facts() != before:
            raise Violation(Invariant.RECOVERY, f"a second recovery found {self.facts()}, the first one {before}")

    def facts(self) -> tuple[object, ...]:
        """What of a log does not depend on how often it was opened."""
        log = self.partition.log
        files = {path: len(data) for path, data in self.disk.contents().items() if path.endswith(".log")}
        epochs = [entry for entry in log.leader_epochs.entries if entry[1] < log.log_end_offset]
        return log.log_start_offset, log.log_end_offset, epochs, self.partition.producers, files

    def find_timestamp(self) -> None:
        """The first record at or after a time is found."""
        partition = self.partition
        wanted = self.now_ms - self.random.randint(-10, 2_000)
        try:
            found = partition.log.offset_for_timestamp(wanted)
        except OSError as error:
            self.fail(partition, error)
            return
        low, high = partition.log.log_start_offset, partition.log.log_end_offset
        records = [
            (record.timestamp, record.offset)
            for stored in self.log
            if stored.last_offset >= low and stored.last_offset < high
            for record in decode(memoryview(stored.data))
        ]
        expected = next((record for record in records if record[0] >= wanted and record[1] >= low), None)
        if found != expected:
            raise Violation(Invariant.TIMESTAMPS, f"at {wanted} found {found}, expected {expected}")

    def note(self, line: str) -> None:
        self.trace.append(f"{self.disk.steps}: {line}")


def simulate(seed: int, disk_type: type[SimDisk] = SimDisk, actions: int = ACTIONS) -> World:
    """Run one seed; a failure says how to replay it."""
    world = World(seed, disk_type)
    with replayable(world, seed, "partition/test_partition.py"):
        world.run(actions)
    return world

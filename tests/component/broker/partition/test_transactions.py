"""Transactions in one partition: read_committed, verification and markers."""

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.logs import NOW_MS, QuickDisk, topic_config

from levada.broker.partition.partition import Partition, PartitionContext
from levada.errors import ErrorCode, KafkaError
from levada.net.flush import FlushQueue
from levada.storage.checkpoints import TransactionIndexChecksums
from levada.storage.log.log import Log
from levada.storage.log.segment import CorruptBatchError
from levada.wire.batches import TRANSACTIONAL_BIT, Record, decode, encode, iterate_headers
from levada.wire.control_records import Marker, decode_marker


@dataclass
class World:
    """A partition on a disk that does not wait; its turn is ended by `publish`."""

    folder: Path
    options: dict[str, Any] = field(default_factory=dict)
    disk: QuickDisk = field(default_factory=QuickDisk)

    def open(self, clean: bool = True, recovery_point: int | None = None) -> Partition:
        config = topic_config(**({"index_interval_bytes": 100} | self.options))
        log = Log.open(str(self.folder), config, self.disk, now_ms=NOW_MS, clean=clean, recovery_point=recovery_point)
        return self.serve(log)

    def serve(self, log: Log) -> Partition:
        context = PartitionContext(FlushQueue(lambda _: None), lambda _: None, self.failed)
        return Partition("orders", UUID(int=1), 0, 0, log, context)

    def failed(self, partition: Partition, error: OSError | CorruptBatchError) -> None:
        raise AssertionError(error)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "orders-0")


def batch_of(*values: bytes, producer: tuple[int, int, int], transactional: bool = True) -> memoryview:
    records = [Record(i, NOW_MS, b"k", value) for i, value in enumerate(values)]
    producer_id, epoch, sequence = producer
    attributes = TRANSACTIONAL_BIT if transactional else 0
    return memoryview(
        encode(
            records,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            attributes=attributes,
        )
    )


def write(partition: Partition, *values: bytes, producer: tuple[int, int, int], transactional: bool = True) -> int:
    batch = batch_of(*values, producer=producer, transactional=transactional)
    offset = partition.append(batch, 0, len(batch), NOW_MS)
    partition.publish()
    return offset


def allow(partition: Partition, producer_id: int, epoch: int) -> None:
    partition.transactions.guard(producer_id, epoch).verified = True


def end(
    partition: Partition,
    producer_id: int,
    epoch: int,
    committed: bool,
    coordinator: int = 0,
    bumped: bool = False,
) -> None:
    partition.transactions.end(producer_id, epoch, Marker(committed, coordinator), bumped, NOW_MS)
    partition.publish()


def refused(action: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        action()
    return caught.value.code


def committed_values(partition: Partition, start: int = 0, max_bytes: int = 1 << 20) -> list[bytes]:
    """What a consumer of committed records makes of its fetches: the way of Kafka's own client."""
    seen: list[bytes] = []
    offset = max(start, partition.log_start_offset)
    while True:
        piece = partition.read(offset, max_bytes, True, committed=True)
        data = memoryview(b"".join(piece.views))
        if not data:
            return seen
        waiting = sorted(partition.transactions.aborted(offset, piece.size), key=lambda transaction: transaction[1])
        aborting: set[int] = set()
        for position, header in iterate_headers(data):
            assert header.last_offset < partition.last_stable_offset
            while waiting and waiting[0][1] <= header.last_offset:
                aborting.add(waiting.pop(0)[0])
            batch = data[position : position + header.size]
            if header.is_control:
                marker = decode_marker(batch)
                if marker is not None and not marker.committed:
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                seen += [record.value or b"" for record in decode(batch) if record.offset >= offset]
            following = header.last_offset + 1
        offset = following


def all_values(partition: Partition) -> list[bytes]:
    data = memoryview(b"".join(partition.read(partition.log_start_offset, 1 << 20, True).views))
    return [
        record.value or b""
        for position, header in iterate_headers(data)
        if not header.is_control
        for record in decode(data[position : position + header.size])
    ]


def test_a_batch_enters_only_with_the_coordinators_word_or_when_its_transaction_is_open(world: World) -> None:
    """KIP-890 part 1: no transaction hangs because of a batch that came late."""
    partition = world.open()
    assert refused(lambda: write(partition, b"a", producer=(7, 0, 0))) == ErrorCode.INVALID_TXN_STATE
    asked = partition.transactions.guard(7, 0)
    assert refused(lambda: write(partition, b"a", producer=(7, 0, 0))) == ErrorCode.INVALID_TXN_STATE
    asked.verified = True
    assert refused(lambda: write(partition, b"a", producer=(8, 0, 0))) == ErrorCode.INVALID_TXN_STATE
    assert refused(lambda: write(partition, b"a", producer=(7, 1, 0))) == ErrorCode.INVALID_TXN_STATE
    assert write(partition, b"a", producer=(7, 0, 0)) == 0
    assert partition.transactions.has_open(7, 0) and not partition.transactions.has_open(7, 1)
    assert write(partition, b"b", producer=(7, 0, 1)) == 1
    end(partition, 7, 0, committed=True)
    assert refused(lambda: write(partition, b"c", producer=(7, 0, 2))) == ErrorCode.INVALID_TXN_STATE


def test_a_marker_removes_the_verification_before_it(world: World) -> None:
    """Invariant 9: a batch verified before the end of its transaction does not open the next."""
    partition = world.open()
    asked = partition.transactions.guard(7, 0)
    end(partition, 7, 0, committed=False)
    asked.verified = True
    assert refused(lambda: write(partition, b"late", producer=(7, 0, 0))) == ErrorCode.INVALID_TXN_STATE
    allow(partition, 7, 0)
    end(partition, 7, 0, committed=False)
    assert refused(lambda: write(partition, b"late", producer=(7, 0, 0))) == ErrorCode.INVALID_TXN_STATE


def test_a_refused_question_leaves_nothing_behind(world: World) -> None:
    partition = world.open()
    partition.transactions.guard(7, 0).error = ErrorCode.TRANSACTION_ABORTABLE
    assert not partition.transactions.is_verified(7, 0)
    assert refused(lambda: write(partition, b"a", producer=(7, 0, 0))) == ErrorCode.TRANSACTION_ABORTABLE
    assert refused(lambda: write(partition, b"a", producer=(7, 0, 0))) == ErrorCode.INVALID_TXN_STATE
    assert partition.transactions._guards == {}


def test_a_producer_of_an_old_epoch_takes_no_permission_away(world: World) -> None:
    """A zombie asks while the first batch of its successor waits for the coordinator."""
    partition = world.open()
    asked = partition.transactions.guard(7, 1)
    zombie = partition.transactions.guard(7, 0)
    zombie.error = ErrorCode.INVALID_PRODUCER_EPOCH
    asked.verified = True
    assert refused(lambda: write(partition, b"old", producer=(7, 0, 0))) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert write(partition, b"new", producer=(7, 1, 0)) == 0
    assert partition.transactions._guards == {}


def test_questions_that_are_never_used_do_not_pile_up(world: World) -> None:
    partition = world.open()
    for producer_id in range(5_000):
        partition.transactions.guard(producer_id, 0)
    assert len(partition.transactions._guards) <= 1_000


def test_a_retry_is_answered_with_its_first_offset_even_after_the_end(world: World) -> None:
    partition = world.open()
    allow(partition, 7, 0)
    assert write(partition, b"a", producer=(7, 0, 0)) == write(partition, b"a", producer=(7, 0, 0)) == 0
    end(partition, 7, 0, committed=True)
    assert write(partition, b"a", producer=(7, 0, 0)) == 0
    assert partition.log.next_offset == 2


def test_a_producer_may_not_write_outside_its_open_transaction(world: World) -> None:
    partition = world.open()
    allow(partition, 7, 0)
    write(partition, b"a", producer=(7, 0, 0))
    outside = partial(write, partition, b"b", producer=(7, 0, 1), transactional=False)
    assert refused(outside) == ErrorCode.INVALID_TXN_STATE
    end(partition, 7, 0, committed=True)
    assert outside() == 2


def test_readers_of_committed_records_stop_before_the_first_open_transaction(world: World) -> None:
    """Invariant 4."""
    partition = world.open()
    write(partition, b"plain", producer=(-1, -1, -1), transactional=False)
    allow(partition, 7, 0)
    allow(partition, 8, 0)
    write(partition, b"a", producer=(7, 0, 0))
    write(partition, b"b", producer=(8, 0, 0))
    assert (partition.high_watermark, partition.last_stable_offset) == (3, 1)
    assert committed_values(partition) == [b"plain"]
    assert all_values(partition) == [b"plain", b"a", b"b"]
    end(partition, 8, 0, committed=True)
    assert partition.last_stable_offset == 1
    end(partition, 7, 0, committed=False)
    assert partition.last_stable_offset == partition.high_watermark == 5
    assert committed_values(partition) == [b"plain", b"b"]
    assert partition.transactions.aborted(0, 1) == [(7, 1)]
    assert partition.transactions.aborted(4, 1) == [(7, 1)] and partition.transactions.aborted(5, 0) == []


def test_a_marker_that_may_be_lost_decides_nothing(world: World) -> None:
    """With an fsync for each acknowledgement the high watermark is behind the log's end."""
    world.options["levada_acks_wait_for_fsync"] = "true"
    partition = world.open()
    allow(partition, 7, 0)
    write(partition, b"a", producer=(7, 0, 0))
    partition.log.flush()
    partition.synced()
    assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
    end(partition, 7, 0, committed=True)
    assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
    partition.log.flush()
    partition.synced()
    assert partition.last_stable_offset == partition.high_watermark == 2


def test_an_old_epoch_neither_writes_nor_ends(world: World) -> None:
    """Invariant 7, and the planted bug `a marker of an old epoch accepted`."""
    partition = world.open()
    allow(partition, 7, 3)
    write(partition, b"a", producer=(7, 3, 0))
    assert refused(lambda: end(partition, 7, 2, committed=True)) == ErrorCode.INVALID_PRODUCER_EPOCH
    end(partition, 7, 4, committed=False)
    allow(partition, 7, 3)
    assert refused(lambda: write(partition, b"b", producer=(7, 3, 1))) == ErrorCode.INVALID_PRODUCER_EPOCH
    allow(partition, 7, 4)
    assert write(partition, b"c", producer=(7, 4, 0)) == 2


def test_with_bumped_epochs_a_marker_that_comes_twice_does_not_end_the_next_transaction(world: World) -> None:
    """KIP-890 part 2, invariant 9."""
    partition = world.open()
    allow(partition, 7, 0)
    write(partition, b"a", producer=(7, 0, 0))
    end(partition, 7, 1, committed=True, bumped=True)
    end(partition, 7, 1, committed=True, bumped=True)
    allow(partition, 7, 1)
    write(partition, b"b", producer=(7, 1, 0))
    again = partial(end, partition, 7, 1, committed=True, bumped=True)
    assert refused(again) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert committed_values(partition) == [b"a"]


def test_a_marker_of_a_coordinator_that_was_replaced_is_refused(world: World) -> None:
    partition = world.open()
    allow(partition, 7, 0)
    write(partition, b"a", producer=(7, 0, 0))
    end(partition, 7, 0, committed=True, coordinator=5)
    old = partial(end, partition, 7, 0, committed=True, coordinator=4)
    assert refused(old) == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_readers_that_wait_wake_only_for_what_they_may_read(world: World) -> None:
    class Listening:
        def __init__(self) -> None:
            self.received: list[int] = []

        def try_complete(self, published_bytes: int) -> None:
            self.received.append(published_bytes)

    partition = world.open()
    listening = Listening()
    partition.last_stable_watch.watchers.add(listening)
    allow(partition, 7, 0)
    write(partition, b"a", producer=(7, 0, 0))
    write(partition, b"b", producer=(7, 0, 1))
    assert listening.received == []
    end(partition, 7, 0, committed=True)
    assert len(listening.received) == 1 and listening.received[0] > 200
    partition.go_offline()
    assert listening.received[1:] == [0]


def test_deleted_records_take_open_transactions_with_them(world: World) -> None:
    partition = world.open()
    allow(partition, 7, 0)
    write(partition, b"a", b"b", b"c", producer=(7, 0, 0))
    partition.delete_records(2)
    assert partition.last_stable_offset == 2


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_knows_open_and_aborted_transactions(world: World, clean: bool) -> None:
    """The snapshot holds the first offset of an open transaction; the index is made again after a crash."""
    world.options["segment_bytes"] = 600
    partition = world.open()
    for number in range(20):
        allow(partition, number, 0)
        write(partition, b"v%d" % number, producer=(number, 0, 0))
        if number % 3:
            end(partition, number, 0, committed=number % 3 == 1)
    open_first = [0, 3, 6, 9, 12, 15, 18]
    assert len(partition.log.segments) > 4
    stable = partition.last_stable_offset
    before = {segment.base_offset: list(segment.txn_index.since(0)) for segment in partition.log.segments}
    if clean:
        partition.close()
    reopened = world.open(clean)
    assert reopened.producers == partition.producers
    assert reopened.last_stable_offset == stable == 0
    assert {segment.base_offset: list(segment.txn_index.since(0)) for segment in reopened.log.segments} == before
    for number in open_first:
        assert reopened.transactions.has_open(number, 0)
        end(reopened, number, 0, committed=True)
    assert committed_values(reopened) == [b"v%d" % number for number in range(20) if number % 3 != 2]


def test_a_disk_that_does_not_take_the_index_takes_the_partition_offline(world: World) -> None:
    """Without its entry the aborted records would be read as committed."""

    class Failing(QuickDisk):
        def pwritev(self, fd: int, views: Any, position: int, /) -> int:  # type: ignore[override]
            if os.readlink(f"/proc/self/fd/{fd}").endswith(".txnindex"):
                raise OSError(5, "broken")
            return super().pwritev(fd, views, position)

    def failed(partition: Partition, _: OSError | CorruptBatchError) -> None:
        broken.append(partition)
        partition.go_offline()

    world.disk = Failing()
    broken: list[Partition] = []
    partition = world.open()
    partition._context = partition._context._replace(failed=failed)
    allow(partition, 7, 0)
    write(partition, b"a", producer=(7, 0, 0))
    assert refused(partial(end, partition, 7, 0, committed=False)) == ErrorCode.KAFKA_STORAGE_ERROR
    assert broken == [partition] and partition.offline
    world.disk = QuickDisk()
    reopened = world.open(clean=False)
    assert reopened.last_stable_offset == 0 and committed_values(reopened) == []


ENTRY_BYTES = 34


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damaged", [1, 99])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:-ENTRY_BYTES]),
        lambda path: path.write_bytes(path.read_bytes()[:9] + b"\xff" + path.read_bytes()[10:]),
        lambda path: os.truncate(path, 1 << 41),
    ],
    ids=["deleted", "emptied", "a byte less", "an entry less", "another producer id", "2 TiB"],
)
def test_a_damaged_index_of_aborted_transactions_is_made_again(
    world: World, damage: Callable[[Path], None], damaged: int, clean: bool
) -> None:
    """Also one below the recovery point, where a start does not read the log."""
    world.options["segment_bytes"] = 400
    partition = world.open()
    for number in range(12):
        allow(partition, 7, 0)
        write(partition, b"v%d" % number, producer=(7, 0, number))
        end(partition, 7, 0, committed=number % 4 == 0)
    expected = committed_values(partition)
    end_offset = partition.log.log_end_offset
    if clean:
        partition.close()
    else:
        partition.log.flush()
    for path in sorted(world.folder.glob("*.txnindex"))[:damaged]:
        damage(path)
    reopened = world.open(clean, recovery_point=end_offset)
    assert committed_values(reopened) == expected == [b"v0", b"v4", b"v8"]
    assert committed_values(world.open(clean=False, recovery_point=end_offset)) == expected


def test_a_snapshot_under_the_name_of_another_is_not_read(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Its open transaction ended in the meantime: the last stable offset would never advance."""
    partition = world.open()
    allow(partition, 7, 0)
    write(partition, b"v", producer=(7, 0, 0))
    partition.save_producers(1)
    end(partition, 7, 0, committed=True)
    partition.close()
    older, newer = sorted(world.folder.glob("*.snapshot"))
    shutil.copy(older, newer)
    reopened = world.open(recovery_point=2)
    assert reopened.last_stable_offset == reopened.log.log_end_offset == 2
    assert [record.message for record in caplog.records] == ["producer snapshot is damaged"]


def test_a_damaged_checksum_rebuilds_every_index_of_aborted_transactions(world: World) -> None:
    partition = world.open()
    for number in range(4):
        allow(partition, 7, 0)
        write(partition, b"v%d" % number, producer=(7, 0, number))
        end(partition, 7, 0, committed=number % 2 == 0)
    partition.close()
    checksums = world.folder / "txnindex-checkpoint"
    checksums.write_bytes(checksums.read_bytes()[:-3])
    for path in world.folder.glob("*.txnindex"):
        path.unlink()
    assert committed_values(world.open()) == [b"v0", b"v2"]
    assert TransactionIndexChecksums(world.disk, str(world.folder)).load(), "the file was stored again"


def test_a_corrupt_checksum_file_is_stored_again_without_aborted_transactions(world: World) -> None:
    partition = world.open()
    allow(partition, 7, 0)
    write(partition, b"a", producer=(7, 0, 0))
    end(partition, 7, 0, committed=True)
    partition.close()
    (world.folder / "txnindex-checkpoint").write_bytes(b"")
    world.open().close()
    assert TransactionIndexChecksums(world.disk, str(world.folder)).load()


def test_an_index_to_rebuild_keeps_its_checksum(world: World) -> None:
    """A kill before it is rebuilt must not make the next start accept that it is missing."""
    partition = world.open()
    allow(partition, 7, 0)
    write(partition, b"a", producer=(7, 0, 0))
    end(partition, 7, 0, committed=False)
    partition.close()
    (world.folder / f"{0:020d}.txnindex").unlink()
    log = Log.open(str(world.folder), topic_config(), world.disk, now_ms=NOW_MS, clean=True, recovery_point=2)
    log.flush()
    assert committed_values(world.open()) == []


def test_a_truncated_log_forgets_the_markers_that_are_gone(world: World) -> None:
    partition = world.open()
    allow(partition, 7, 0)
    write(partition, b"a", producer=(7, 0, 0))
    end(partition, 7, 0, committed=False)
    allow(partition, 7, 0)
    write(partition, b"b", producer=(7, 0, 1))
    end(partition, 7, 0, committed=False)
    partition.log.truncate_to(3)
    shorter = world.serve(partition.log)
    assert (shorter.log.log_end_offset, shorter.last_stable_offset) == (3, 2)
    assert [entry.last_offset for entry in shorter.log.active.txn_index.since(0)] == [1]
    end(shorter, 7, 0, committed=True)
    assert committed_values(shorter) == [b"b"]


@dataclass
class Model:
    """What was written, and how it ended."""

    log: list[tuple[int, bytes, str]] = field(default_factory=list)  # transaction or -1, value, kind
    ended: dict[int, bool] = field(default_factory=dict)

    def visible(self) -> list[bytes]:
        seen: list[bytes] = []
        for transaction, value, kind in self.log:
            if transaction >= 0 and transaction not in self.ended:
                break
            if kind == "data" and (transaction < 0 or self.ended[transaction]):
                seen.append(value)
        return seen


Step = tuple[str, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "plain", "commit", "abort", "reopen", "crash", "roll"]),
        st.integers(0, 3),
    ),
    max_size=60,
)


def play(world: World, steps: Iterable[Step]) -> tuple[Partition, Model]:
    partition, model = world.open(), Model()
    sequences = dict.fromkeys(range(4), 0)
    current: dict[int, int] = {}  # by producer: its open transaction
    for count, (kind, producer) in enumerate(steps):
        value = b"%d" % count
        if kind == "write":
            if producer not in current:
                allow(partition, producer, 0)
                current[producer] = count
            write(partition, value, producer=(producer, 0, sequences[producer]))
            sequences[producer] += 1
            model.log.append((current[producer], value, "data"))
        elif kind == "plain":
            write(partition, value, producer=(-1, -1, -1), transactional=False)
            model.log.append((-1, value, "data"))
        elif kind in ("commit", "abort"):
            end(partition, producer, 0, committed=kind == "commit")
            model.log.append((-1, value, "marker"))
            if producer in current:
                model.ended[current.pop(producer)] = kind == "commit"
        elif kind == "roll":
            partition.log.roll(NOW_MS)
        else:
            if kind == "reopen":
                partition.close()
            partition = world.open(clean=kind == "reopen")
    return partition, model


@settings(max_examples=80, deadline=None)
@given(steps, st.sampled_from([300, 1_000, 1 << 20]), st.integers(0, 500))
def test_committed_readers_see_exactly_what_was_committed(
    steps: list[Step], segment_bytes: int, max_bytes: int
) -> None:
    """No aborted read, none too early, none missing: from any offset and in pieces of any size."""
    with TemporaryDirectory() as folder:
        world = World(Path(folder) / "orders-0", {"segment_bytes": segment_bytes})
        partition, model = play(world, steps)
        assert committed_values(partition, 0, max_bytes) == model.visible()
        for start in range(0, partition.last_stable_offset, 7):
            kept = {value for _, value, kind in model.log[start:] if kind == "data"}
            expected = [value for value in model.visible() if value in kept]
            assert committed_values(partition, start, max_bytes) == expected
        producers = partition.producers
        assert world.open(clean=False).producers == producers

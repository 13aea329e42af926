"""Invariants of transactions: what readers see at any time, and the logs after recovery."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.sim.seeds import Invariant, Violation
from tests.sim.transactions.clients import GROUP, PARTITIONS, Transaction

from levada.broker.coordinator.shard import CoordinatorShard
from levada.broker.partition.partition import Partition
from levada.core.transactions.machine import TransactionsMachine
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartitionKey
from levada.wire.batches import BatchHeader, decode, iterate_headers
from levada.wire.control_records import decode_marker

if TYPE_CHECKING:
    from tests.sim.transactions.world import TxnWorld


class TxnChecks:
    """Readers, and what they have seen."""

    def __init__(self, world: "TxnWorld") -> None:
        self.world = world
        self.seen: dict[TopicPartitionKey, list[tuple[int, bytes]]] = {
            topic_partition: [] for topic_partition in PARTITIONS
        }
        self.positions = dict.fromkeys(PARTITIONS, 0)

    # Readers.

    def read(self) -> None:
        """Readers of committed records go on, as Kafka's client reads."""
        for topic_partition in PARTITIONS:
            partition = self.world.broker.partitions[topic_partition]
            try:
                if not partition.offline:
                    self.seen[topic_partition] += list(self.committed(partition, self.positions[topic_partition]))
                    self.positions[topic_partition] = max(self.positions[topic_partition], partition.last_stable_offset)
            except KafkaError as error:
                if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                    raise Violation(Invariant.STORED_RECORDS, f"{topic_partition} cannot be read: {error}") from error

    def committed(self, partition: Partition, start: int) -> Iterator[tuple[int, bytes]]:
        offset, max_bytes = start, self.world.random.choice((1, 300, 1 << 20))
        while offset < partition.last_stable_offset:
            piece = partition.read(offset, max_bytes, True, committed=True)
            data = memoryview(b"".join(piece.views))
            waiting = sorted(partition.transactions.aborted(offset, piece.size), key=lambda aborted: aborted[1])
            aborting: set[int] = set()
            if not data:
                raise Violation(Invariant.STORED_RECORDS, f"nothing at {offset}, below the last stable offset")
            for position, header in iterate_headers(data):
                check_stable(partition, header)
                while waiting and waiting[0][1] <= header.last_offset:
                    aborting.add(waiting.pop(0)[0])
                batch = data[position : position + header.size]
                if header.is_control:
                    marker = decode_marker(batch)
                    if marker is not None and not marker.committed:
                        aborting.discard(header.producer_id)
                elif header.producer_id not in aborting:
                    yield from ((one.offset, one.value or b"") for one in decode(batch) if one.offset >= offset)
                offset = header.last_offset + 1

    # When all is healed.

    def check(self) -> None:
        for topic_partition in PARTITIONS:
            partition = self.world.broker.partitions[topic_partition]
            if partition.last_stable_offset != partition.high_watermark:
                raise Violation(
                    Invariant.LAST_STABLE_OFFSET,
                    f"a transaction hangs in {topic_partition}: {partition.producers.ongoing_txns}",
                )
            values = list(self.committed(partition, 0))
            if self.seen[topic_partition] != values:
                raise Violation(
                    Invariant.COMMITTED_READS,
                    f"{topic_partition} was seen as {self.seen[topic_partition]}, but is {values}",
                )
        self.check_logs()
        for transaction in self.world.transactions:
            self.check_transaction(transaction)
        self.check_offset()
        self.check_journals()

    def check_logs(self) -> None:
        """What is written in the partitions, batch by batch."""
        ends: dict[int, set[bool]] = {}  # of each transaction, by its number
        for topic_partition in PARTITIONS:
            for number, committed in LogWalk(topic_partition).ends(self.world.broker.partitions[topic_partition]):
                ends.setdefault(number, set()).add(committed)
        for number, kinds in ends.items():
            transaction = self.world.transactions[number]
            if len(kinds) > 1:
                raise Violation(Invariant.TRANSACTION_END, f"{transaction} is committed and aborted")
            if transaction.acknowledged is not None and kinds != {transaction.acknowledged}:
                raise Violation(Invariant.TRANSACTION_END, f"{transaction} was told to be the other way round")

    def check_transaction(self, transaction: Transaction) -> None:
        """As readers see it: all of it is there, once and in order, or nothing."""
        head = b"%d " % transaction.number
        found = {
            topic_partition: values
            for topic_partition in PARTITIONS
            if (values := [value for _, value in self.seen[topic_partition] if value.startswith(head)])
        }
        if not found:
            if transaction.acknowledged:
                raise Violation(Invariant.TRANSACTION_END, f"{transaction} was committed, and is not there")
            return
        if transaction.asked is not True or transaction.acknowledged is False:
            raise Violation(Invariant.TRANSACTION_END, f"{transaction} is there as {found}, and was never committed")
        if found != transaction.written:
            raise Violation(Invariant.TRANSACTION_END, f"{transaction} is torn: {found}")

    def check_offset(self) -> None:
        """The group's offset is that of the last committed transaction that carried one."""
        there = {int(value.split()[0]) for topic_partition in PARTITIONS for _, value in self.seen[topic_partition]}
        carried = [one.number for one in self.world.transactions if one.offset and one.number in there]
        machine = self.world.broker.groups.shard(GROUP).ready
        found = machine.offsets.get(GROUP, PARTITIONS[0])
        expected = max(carried, default=None)
        if (None if found is None else found.offset) != expected:
            raise Violation(Invariant.COMMITTED_OFFSETS, f"the group is at {found}, {expected} was committed last")

    def check_journals(self) -> None:
        """Replaying them gives the state."""
        for shard in self.world.broker.transactions:
            replayed = replay(shard)
            if replayed.transactions != shard.ready.transactions:
                raise Violation(
                    Invariant.JOURNAL_REPLAY, f"replayed {replayed.transactions}, but is {shard.ready.transactions}"
                )

    # After a crash.

    def check_markers(self) -> None:
        """No partition has a marker of an epoch that the journal does not know: its transaction is not decided."""
        known = {
            transaction.producer_id: transaction.producer_epoch
            for shard in self.world.broker.transactions
            for transaction in replay(shard).transactions.values()
        }
        for topic_partition in PARTITIONS:
            for _, header in iterate_headers(whole_log(self.world.broker.partitions[topic_partition])):
                if header.is_control and header.producer_epoch > known.get(header.producer_id, header.producer_epoch):
                    raise Violation(
                        Invariant.MARKER_AFTER_PREPARE,
                        f"{topic_partition}: marker at {header.base_offset} of epoch {header.producer_epoch}, "
                        f"{known[header.producer_id]} is journaled",
                    )


def replay(shard: CoordinatorShard[TransactionsMachine]) -> TransactionsMachine:
    """What the journal alone gives."""
    replayed = shard._new_machine()
    for entry in shard._journal.replay():
        replayed.replay(entry.key, entry.value, entry.batch)
    return replayed


def whole_log(partition: Partition) -> memoryview:
    """All batches of a partition, also those that readers do not get yet."""
    log = partition.log
    return memoryview(b"".join(log.read(log.log_start_offset, 1 << 30, log.log_end_offset, minimum_one=True).views))


def check_stable(partition: Partition, header: BatchHeader) -> None:
    """Nothing is served at or past the last stable offset, which is not past the high watermark."""
    stable = partition.last_stable_offset
    if header.last_offset >= stable or stable > partition.high_watermark:
        raise Violation(
            Invariant.READ_BOUND, f"{header.last_offset} is served, {stable} of {partition.high_watermark} is stable"
        )


class LogWalk:
    """A partition from its first batch to its last."""

    def __init__(self, topic_partition: TopicPartitionKey) -> None:
        self.topic_partition = topic_partition
        self.sequences: set[tuple[int, int, int]] = set()
        self.epochs: dict[int, int] = {}  # the newest of each producer
        self.undecided: dict[int, set[int]] = {}  # of each producer: the transactions with records since its marker

    def ends(self, partition: Partition) -> Iterator[tuple[int, bool]]:
        """The number of each transaction, and how it ended here."""
        data = whole_log(partition)
        for position, header in iterate_headers(data):
            batch = data[position : position + header.size]
            self.check_epoch(header)
            if not header.is_control:
                self.check_sequence(header)
                found = self.undecided.setdefault(header.producer_id, set())
                found |= {int((record.value or b"").split()[0]) for record in decode(batch)}
                continue
            marker = decode_marker(batch)
            numbers = self.undecided.pop(header.producer_id, set())
            if len(numbers) > 1:
                raise Violation(
                    Invariant.ONE_TRANSACTION_A_MARKER,
                    f"{self.topic_partition}: one marker at {header.base_offset} ends transactions {numbers}",
                )
            if marker is not None:
                yield from ((number, marker.committed) for number in numbers)

    def check_sequence(self, header: BatchHeader) -> None:
        """A sequence of a producer is there once."""
        sequence = (header.producer_id, header.producer_epoch, header.base_sequence)
        if sequence in self.sequences:
            raise Violation(Invariant.SEQUENCE_ONCE, f"{self.topic_partition}: {sequence} is there twice")
        self.sequences.add(sequence)

    def check_epoch(self, header: BatchHeader) -> None:
        """After a newer epoch of a producer, none that it fenced off."""
        newest = self.epochs.get(header.producer_id, -1)
        if header.producer_epoch < newest:
            raise Violation(
                Invariant.FENCED_EPOCH,
                f"{self.topic_partition}: epoch {header.producer_epoch} at {header.base_offset} after {newest}",
            )
        self.epochs[header.producer_id] = header.producer_epoch

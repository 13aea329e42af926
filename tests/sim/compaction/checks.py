"""What must hold of a compacted partition at any time: what readers find, and what is known of producers."""

from typing import TYPE_CHECKING

from tests.sim.seeds import Invariant, Violation

from levada.core.partition.producer_state import APPEND
from levada.errors import KafkaError
from levada.wire.batches import BatchHeader, Record, crc_is_valid, decode, iterate_headers
from levada.wire.control_records import ABORT

if TYPE_CHECKING:
    from tests.sim.compaction.world import CleanerWorld


class CleanerChecks:
    """A reader of committed records, and a producer that asks whether it is known."""

    def __init__(self, world: "CleanerWorld") -> None:
        self.world = world

    def check(self) -> None:
        partition = self.world.partition
        if partition.last_stable_offset != self.world.model.stable_offset():
            raise Violation(
                Invariant.LAST_STABLE_OFFSET,
                f"stable up to {partition.last_stable_offset}, but {self.world.model.stable_offset()} is right",
            )
        self.check_producers()
        committed = self.world.model.committed()
        self.check_view(committed, self.consume(0), 0)
        if partition.high_watermark:
            start = self.world.random.randrange(partition.high_watermark)
            self.check_view(committed, self.consume(start), start)

    def check_producers(self) -> None:
        """A producer that sends its last batch again is known."""
        for writer in self.world.writers:
            last = self.world.last_batch(writer)
            if last is None or last.base_offset in self.world.forgotten:
                continue
            try:
                answer = self.world.partition.producers.check_transactional(
                    writer.producer_id, 0, last.sequence, len(last.records)
                )
            except KafkaError as error:
                raise Violation(Invariant.PRODUCER_STATE, f"{last} sent again: {error}") from error
            if answer == APPEND or answer != last.base_offset:
                raise Violation(Invariant.PRODUCER_STATE, f"{last} sent again is answered {answer}")

    def check_view(self, committed: list[Record], seen: list[Record], start: int) -> None:
        """What a reader saw from an offset, against everything that was ever committed."""
        by_offset = {record.offset: record for record in committed}
        offsets = [record.offset for record in seen]
        if offsets != sorted(set(offsets)):
            raise Violation(Invariant.OFFSETS_RISE, f"offsets do not rise: {offsets}")
        for record in seen:
            if by_offset.get(record.offset) != record:
                raise Violation(
                    Invariant.STORED_RECORDS, f"{record} was seen, {by_offset.get(record.offset)} was committed"
                )
        latest = {record.key: record for record in committed if record.offset >= start}
        found = {record.key: record for record in seen}
        for key, record in latest.items():
            if found.get(key) == record:
                continue
            if record.value is not None:
                raise Violation(
                    Invariant.LATEST_OF_A_KEY,
                    f"from {start}: {record} is the latest of its key, {found.get(key)} was found",
                )
            if key in found:
                raise Violation(
                    Invariant.DELETED_KEYS,
                    f"from {start}: {key!r} was deleted at {record.offset}, but {found[key]} is back",
                )
            since = self.world.cleaned_at.get(record.offset)
            if since is None or self.world.now_ms < since + self.world.delete_retention_ms:
                raise Violation(Invariant.TOMBSTONES, f"from {start}: tombstone {record} is gone, cleaned at {since}")
            self.world.tombstones_gone += 1
        limit = self.uncleaned_from()
        missing = [record for record in committed if record.offset >= max(limit, start) and record not in seen]
        if missing:
            raise Violation(
                Invariant.UNCLEANED_RECORDS,
                f"from {start}: {missing[0]} is gone, but nothing after {limit} was ever cleaned",
            )

    def uncleaned_from(self) -> int:
        """No cleaning came so far."""
        return self.world.partition.log.active.base_offset

    def consume(self, start: int) -> list[Record]:
        """What a client with isolation.level=read_committed does."""
        partition, offset, seen = self.world.partition, start, list[Record]()
        end = partition.last_stable_offset
        while offset < end:
            try:
                piece = partition.read(offset, self.world.random.choice((1, 300, 1 << 20)), True, committed=True)
            except KafkaError as error:
                raise Violation(Invariant.STORED_RECORDS, f"offset {offset} cannot be read: {error}") from error
            data = memoryview(b"".join(piece.views))
            if not data:
                raise Violation(Invariant.STORED_RECORDS, f"nothing to read at {offset} below {end}")
            aborted = sorted(partition.transactions.aborted(offset, piece.size), key=lambda pair: pair[1])
            skipped: set[int] = set()
            for position, header in iterate_headers(data):
                batch = data[position : position + header.size]
                while aborted and aborted[0][1] <= header.last_offset:
                    skipped.add(aborted.pop(0)[0])
                seen += self.unpack(header, batch, skipped, offset)
            offset = header.last_offset + 1
        return seen

    def unpack(self, header: BatchHeader, batch: memoryview, skipped: set[int], start: int) -> list[Record]:
        if not crc_is_valid(batch):
            raise Violation(Invariant.STORED_RECORDS, f"the batch at {header.base_offset} has a wrong CRC")
        records = decode(batch)
        if header.is_control:
            if records and records[0].key and records[0].key[3] == ABORT:
                skipped.discard(header.producer_id)
            return []
        if header.is_transactional and header.producer_id in skipped:
            return []
        return [record for record in records if record.offset >= start]

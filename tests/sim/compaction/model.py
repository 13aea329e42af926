"""What a compacted partition must hold: every record that was ever written, and how its transaction ended."""

from dataclasses import dataclass, field
from typing import NamedTuple

from levada.wire.batches import Record


class Batch(NamedTuple):
    """What was appended: records, or a marker."""

    base_offset: int
    last_offset: int
    records: tuple[Record, ...]
    producer_id: int = -1
    sequence: int = -1
    transactional: bool = False
    committed: bool | None = None  # of a marker


@dataclass
class Writer:
    """A producer. The first is not idempotent, those with an even id use transactions."""

    producer_id: int
    sequence: int = 0

    @property
    def transactional(self) -> bool:
        return self.producer_id > 0 and self.producer_id % 2 == 0


@dataclass
class Model:
    """Every batch that is in the log or was, in order."""

    batches: list[Batch] = field(default_factory=list)

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    def cut(self, end_offset: int) -> None:
        while self.batches and self.batches[-1].base_offset >= end_offset:
            self.batches.pop()

    def open_transactions(self) -> dict[int, int]:
        """Producer id -> first offset."""
        open_: dict[int, int] = {}
        for batch in self.batches:
            if batch.committed is not None:
                open_.pop(batch.producer_id, None)
            elif batch.transactional:
                open_.setdefault(batch.producer_id, batch.base_offset)
        return open_

    def stable_offset(self) -> int:
        return min(self.open_transactions().values(), default=self.end_offset)

    def committed(self) -> list[Record]:
        """What readers of committed records would see if nothing were ever cleaned."""
        undecided: dict[int, list[Record]] = {}
        seen: list[Record] = []
        for batch in self.batches:
            if batch.committed is not None:
                decided = undecided.pop(batch.producer_id, [])
                seen += decided if batch.committed else []
            elif batch.transactional:
                undecided.setdefault(batch.producer_id, []).extend(batch.records)
            else:
                seen += batch.records
        stable = self.stable_offset()
        return sorted(record for record in seen if record.offset < stable)

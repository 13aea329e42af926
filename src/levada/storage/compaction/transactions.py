"""Transactions as the cleaner reads a log: what was aborted goes at once, a marker only after its records.

A marker may go when no batch of its transaction is left before it. If it went earlier, a restart would find a
transaction that nothing ends, and readers of committed records would wait at it for ever.
"""

import os
from collections.abc import Iterable, Iterator

from levada.core.partition.producer_state import AbortedTransaction
from levada.storage.disk import Disk, read_file
from levada.storage.file_names import TXN_INDEX_SUFFIX, file_name
from levada.storage.log.txn_index import ENTRY
from levada.wire.batches import BatchHeader, decode
from levada.wire.control_records import read_marker


class CleanedTransactions:
    """What is known of the transactions at one place of a log that is read from its start."""

    __slots__ = ("_aborted", "_begun", "_markers")

    def __init__(self) -> None:
        self._begun: set[int] = set()  # producers of whose current transaction a batch was seen
        self._aborted: dict[int, list[tuple[int, int]]] = {}  # producer id -> (first offset, marker's offset)
        self._markers: dict[int, AbortedTransaction] = {}  # by the offset of the marker

    def know(self, aborted: Iterable[AbortedTransaction]) -> None:
        """These were aborted, of those that have records in the segment that is read next."""
        self._aborted, self._markers = {}, {}
        for transaction in aborted:
            place = (transaction.first_offset, transaction.last_offset)
            self._aborted.setdefault(transaction.producer_id, []).append(place)
            self._markers[transaction.last_offset] = transaction

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch of records belongs to a transaction that was aborted."""
        if not header.is_transactional:
            return False
        places = self._aborted.get(header.producer_id, ())
        return any(first <= header.last_offset < marker for first, marker in places)

    def saw_records(self, header: BatchHeader) -> None:
        """A batch of records was read."""
        if header.is_transactional:
            self._begun.add(header.producer_id)

    def saw_marker(self, header: BatchHeader, batch: memoryview) -> tuple[bool, AbortedTransaction | None]:
        """A control batch was read: whether nothing needs it any more, and the transaction that it aborts."""
        records = decode(batch)
        if not records:
            return True, None  # it was emptied when nothing needed it
        if read_marker(records[0].key, records[0].value) is None:
            return False, None  # of another kind
        if header.producer_id not in self._begun:
            return True, None
        self._begun.remove(header.producer_id)
        return False, self._markers.get(header.last_offset)


def aborted_in(
    disk: Disk, directory: str, bases: Iterable[int], start_offset: int, end_offset: int
) -> Iterator[AbortedTransaction]:
    """The transactions with records between two offsets that were aborted, in the order of their markers.

    `bases` are those of the segments from the one that holds `start_offset` to the newest.
    """
    for base in bases:
        data = read_file(disk, os.path.join(directory, file_name(base, TXN_INDEX_SUFFIX))) or b""
        whole = memoryview(data)[: len(data) // ENTRY.size * ENTRY.size]
        for _, *entry in ENTRY.iter_unpack(whole):
            transaction = AbortedTransaction(*entry)
            if transaction.first_offset < end_offset and transaction.last_offset >= start_offset:
                yield transaction
            if transaction.last_stable_offset >= end_offset:
                return

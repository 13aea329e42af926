"""Tracks transactions while the cleaner reads a log: aborted records are removed at once, a marker after its records.

A marker can be removed when no batch of its transaction remains before it. Otherwise a restart would find a transaction
that never ends, and its last stable offset would never advance.
"""

import os
from collections.abc import Iterable, Iterator

from levada.core.partition.producer_state import AbortedTransaction
from levada.storage.disk import Disk, read_file
from levada.storage.file_names import TXN_INDEX_SUFFIX, file_name
from levada.storage.log.indexes import TRANSACTION_ENTRY, TRANSACTION_INDEX_BYTES_MAX
from levada.wire.batches import BatchHeader, decode
from levada.wire.control_records import read_marker


class CleanedTransactionMetadata:
    """The transactions at the current position of a log that is read from its start."""

    __slots__ = ("_aborted", "_begun", "_markers")

    def __init__(self) -> None:
        self._begun: set[int] = set()  # producers with a batch in their current transaction
        self._aborted: dict[int, list[tuple[int, int]]] = {}  # producer id -> (first offset, offset of the marker)
        self._markers: dict[int, AbortedTransaction] = {}  # by the offset of the marker

    def load(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Set the aborted transactions that have records in the next segment."""
        self._aborted, self._markers = {}, {}
        for transaction in aborted:
            offsets = (transaction.first_offset, transaction.last_offset)
            self._aborted.setdefault(transaction.producer_id, []).append(offsets)
            self._markers[transaction.last_offset] = transaction

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch of records belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        ranges = self._aborted.get(header.producer_id, ())
        return any(first <= header.last_offset < marker for first, marker in ranges)

    def on_data_batch(self, header: BatchHeader) -> None:
        """Process a batch of records."""
        if header.is_transactional:
            self._begun.add(header.producer_id)

    def on_control_batch(self, header: BatchHeader, batch: memoryview) -> tuple[bool, AbortedTransaction | None]:
        """Process a control batch; return whether it is no longer needed, and the transaction that it aborts."""
        records = decode(batch)
        if not records:
            return True, None  # it was emptied because it was not needed
        if read_marker(records[0].key, records[0].value) is None:
            return False, None  # of another type
        if header.producer_id not in self._begun:
            return True, None
        self._begun.remove(header.producer_id)
        return False, self._markers.get(header.last_offset)


def aborted_in(
    disk: Disk, directory: str, bases: Iterable[int], start_offset: int, end_offset: int
) -> Iterator[AbortedTransaction]:
    """Yield the aborted transactions with records between two offsets, in the order of their markers.

    `bases` are the base offsets of the segments from the one that contains `start_offset` to the newest.
    """
    for base in bases:
        path = os.path.join(directory, file_name(base, TXN_INDEX_SUFFIX))
        data = read_file(disk, path, TRANSACTION_INDEX_BYTES_MAX) or b""
        whole = memoryview(data)[: len(data) // TRANSACTION_ENTRY.size * TRANSACTION_ENTRY.size]
        for _, *entry in TRANSACTION_ENTRY.iter_unpack(whole):
            transaction = AbortedTransaction(*entry)
            if transaction.first_offset < end_offset and transaction.last_offset >= start_offset:
                yield transaction
            if transaction.last_stable_offset >= end_offset:
                return

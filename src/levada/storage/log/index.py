"""Sparse indexes in Kafka's format: where in a segment an offset or a time is found.

An index is a hint. Whoever follows an entry checks it against the batch it points to and has the index made
again from the log when it is wrong, so an index needs no fsync and no checksum. Its newest entries live in
memory and are stored a few at a time; older ones are read from the file when they are asked for, so an index
costs the same memory however long it is.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from struct import Struct

from levada.storage.disk import Disk, write_all
from levada.storage.handles import Handle, Handles

OFFSET_ENTRY = Struct(">ii")  # last offset of a batch relative to the segment's base, position of the batch
TIME_ENTRY = Struct(">qi")  # greatest timestamp so far, relative last offset of the batch that has it
TAIL_ENTRIES_MAX = 64
RUN_ENTRIES_MIN = 1_024
RUN_ENTRIES_MAX = 4_096

Entry = tuple[int, int]
_COLUMNS: tuple[Callable[[Entry], int], Callable[[Entry], int]] = (itemgetter(0), itemgetter(1))


class Run:
    """Stored entries that follow one another, by column; `low` is the number of the first."""

    __slots__ = ("columns", "low")

    def __init__(self, low: int, data: bytes, entry: Struct) -> None:
        self.low = low
        self.columns = _columns(data, entry)

    def covers(self, column: int, value: int) -> bool:
        """Whether the last entry up to `value` is surely among these."""
        numbers = self.columns[column]
        return bool(numbers) and numbers[0] <= value < numbers[-1]


def _columns(data: bytes, entry: Struct) -> tuple[Sequence[int], Sequence[int]]:
    if entry is OFFSET_ENTRY:  # the one that every reader needs
        numbers = array("i", data[: len(data) // entry.size * entry.size])
        if sys.byteorder == "little":
            numbers.byteswap()
        return numbers[0::2], numbers[1::2]
    entries = list(entry.iter_unpack(memoryview(data)[: len(data) // entry.size * entry.size]))
    return [first for first, _ in entries], [second for _, second in entries]


class SparseIndex:
    """Entries of two numbers, each column rising; all but the newest are stored in the file."""

    __slots__ = ("_disk", "_entry", "handle", "handles", "stored", "tail")

    def __init__(self, entry: Struct, path: str, disk: Disk, handles: Handles) -> None:
        self._entry = entry
        self._disk = disk
        self.handle = Handle(path)
        self.handles = handles
        self.stored = 0  # entries in the file
        self.tail: list[Entry] = []  # those after them

    def load(self) -> bool:
        """Count the stored entries; whether the file is there and holds whole entries."""
        if not self._disk.exists(self.handle.path):
            return False
        size = self._disk.size(self.handles.fd(self.handle))
        self.stored = size // self._entry.size
        return size % self._entry.size == 0

    def __len__(self) -> int:
        return self.stored + len(self.tail)

    def append(self, first: int, second: int) -> None:
        self.tail.append((first, second))
        if len(self.tail) >= TAIL_ENTRIES_MAX:
            self.store()

    def store(self) -> None:
        """Write the entries that are only in memory; an empty index becomes an empty file."""
        if self.stored and not self.tail:
            return
        handle = self.handle
        fd = self.handles.fd(handle) if self.stored else self.handles.open_or_create(handle)
        if self.tail:
            data = b"".join([self._entry.pack(first, second) for first, second in self.tail])
            write_all(self._disk, fd, [data], self.stored * self._entry.size)
            self.stored += len(self.tail)
            self.tail = []

    def _read(self, number: int, count: int) -> bytes:
        """Stored entries from `number` on, at most `count`, as they are in the file."""
        size = self._entry.size
        count = min(count, self.stored - number, RUN_ENTRIES_MAX)
        return self._disk.pread(self.handles.fd(self.handle), count * size, number * size)

    def entry(self, number: int) -> Entry | None:
        """One entry; None where the file has lost it."""
        if number >= self.stored:
            return self.tail[number - self.stored]
        data = self._read(number, 1)
        if len(data) < self._entry.size:
            return None
        first, second = self._entry.unpack(data)
        return first, second

    def last(self) -> Entry | None:
        return self.entry(len(self) - 1) if len(self) else None

    def floor(self, column: int, value: int, hint: int = -1, span: int = 0) -> tuple[int, Entry] | None:
        """The last entry whose `column` is at most `value`, with its number.

        With `hint`, the number of an entry known to be at or below, only the `span` entries after it are
        looked at.
        """
        tail = self.tail
        if tail and tail[0][column] <= value:
            place = bisect_right(tail, value, key=_COLUMNS[column]) - 1
            return self.stored + place, tail[place]
        if not self.stored:
            return None
        run = self.handle.kept
        if not isinstance(run, Run) or not run.covers(column, value):
            low, count = (hint, span) if 0 <= hint < self.stored else self._narrow(column, value)
            run = self._load(low, count)
        place = bisect_right(run.columns[column], value) - 1
        return None if place < 0 else (run.low + place, (run.columns[0][place], run.columns[1][place]))

    def _load(self, low: int, count: int) -> "Run":
        """Stored entries from `low` on, kept for the next look: most readers go on where they were."""
        data = self._read(low, max(count, RUN_ENTRIES_MIN))
        self.handle.kept = run = Run(low, data, self._entry)
        return run

    def _narrow(self, column: int, value: int) -> tuple[int, int]:
        """The first number and the count of a few stored entries that hold the last one up to `value`."""
        low, high = 0, self.stored
        while high - low > TAIL_ENTRIES_MAX:
            middle = (low + high) // 2
            found = self.entry(middle)
            if found and found[column] <= value:
                low = middle
            else:
                high = middle
        return low, high - low

    def reset(self) -> None:
        """Forget every entry, in memory and on disk."""
        self.handles.close(self.handle)
        if self._disk.exists(self.handle.path):
            self._disk.unlink(self.handle.path)
        self.stored = 0
        self.tail = []

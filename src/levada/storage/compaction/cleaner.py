"""Log compaction: closed segments are written anew with the latest record of each key (R22).

Two readings of the log. The first goes over the dirty part and notes the newest offset of each key, as many as fit
the map; the second goes over everything up to there and keeps a record if it is the newest of its key. What is kept
goes to `.cleaned` files beside the log, fsynced before anybody is told of them; whoever owns the log then swaps them
in (`cleaning_swap`). Offsets stay, and so does the last batch of each new segment, empty if need be: recovery knows
by it that the segment is whole.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator

from levada.storage.compaction.messages import Cleaned, Finished, Job
from levada.storage.compaction.offset_map import OffsetMap
from levada.storage.compaction.plan import Growth, Source
from levada.storage.compaction.transactions import CleanedTransactions, aborted_in
from levada.storage.disk import Disk, write_all
from levada.storage.file_names import CLEANED_SUFFIX, LOG_SUFFIX, file_name
from levada.storage.handles import Handles
from levada.storage.log.index import OFFSET_ENTRY, TIME_ENTRY
from levada.storage.log.segment import SCAN_BLOCK_BYTES, BrokenBatchError, Placed, Segment, walk
from levada.wire.batches import BatchHeader, crc_is_valid, read_header
from levada.wire.record_filter import RecordSpan, empty_batch, locate_records, retain_records

HANDLES = 8
POSITION_MAX = (1 << 31) - 1
TIMESTAMP_MAX = (1 << 63) - 1

Pace = Callable[[int], None]  # told of each piece read or written; waits where that was too fast


def unhurried(_: int) -> None:
    """A pace without limit."""


class Cleaner:
    """One cleaning of one log."""

    __slots__ = (
        "_bases",
        "_disk",
        "_handles",
        "_job",
        "_last_batches",
        "_map",
        "_pace",
        "_transactions",
        "bytes_read",
        "bytes_written",
        "records_kept",
        "records_read",
    )

    def __init__(self, job: Job, disk: Disk, pace: Pace = unhurried) -> None:
        self._job = job
        self._disk = disk
        self._pace = pace
        self._handles = Handles(disk, HANDLES)
        self._bases = [*(source.base_offset for source in job.sources), *job.later]  # of all segments
        self._last_batches = {last.producer_id: last for last in job.last_batches}
        self._transactions = CleanedTransactions()
        self.bytes_read = self.bytes_written = self.records_read = self.records_kept = 0

    def run(self) -> Iterator[Cleaned | Finished]:
        """Clean; each new segment is told of when its files are on disk, in the order of the log."""
        try:
            self._remove_leftovers()
            self._map = self._build_map()
            end = self._map.latest_offset + 1
            sources = [source for source in self._job.sources if source.base_offset < end]
            yield from self._clean(sources)
            yield Finished(
                end_offset=end,
                bytes_read=self.bytes_read,
                bytes_written=self.bytes_written,
                records_read=self.records_read,
                records_kept=self.records_kept,
                keys=self._map.size,
            )
        finally:
            self._handles.close_all()

    def _remove_leftovers(self) -> None:
        """What an earlier cleaning left that was cut short."""
        for name in self._disk.listdir(self._job.directory):
            if name.endswith(CLEANED_SUFFIX):
                self._disk.unlink(os.path.join(self._job.directory, name))

    # Reading.

    def _end_of(self, source: Source) -> int:
        """The base of the segment after this one."""
        return self._bases[bisect_right(self._bases, source.base_offset)]

    def _read(self, source: Source, whole: bool = True) -> Iterator[Placed]:
        """The batches of a segment, with `whole` checked by their CRC and their place, which the CRC does not tell."""
        disk, expected, end = self._disk, source.base_offset, self._end_of(source)
        path = os.path.join(self._job.directory, file_name(source.base_offset, LOG_SUFFIX))
        fd = disk.open(path)
        try:
            for position, header, view in walk(disk, fd, path, 0, source.size, whole):
                if whole:
                    self._pace(header.size)
                    self.bytes_read += header.size
                    if not crc_is_valid(view):
                        raise BrokenBatchError(path, position, "its CRC differs")
                    if not expected <= header.base_offset <= header.last_offset < end:
                        raise BrokenBatchError(path, position, f"offset {header.base_offset} is out of place")
                    expected = header.last_offset + 1
                yield position, header, view
        finally:
            disk.close(fd)

    def _load_aborted(self, source: Source) -> None:
        following = bisect_right(self._bases, source.base_offset)
        start, end = source.base_offset, self._bases[following]
        later = self._bases[following - 1 :]
        self._transactions.know(aborted_in(self._disk, self._job.directory, later, start, end))

    # The first reading.

    def _build_map(self) -> OffsetMap:
        """The newest offsets of the keys in the dirty part, from its start as far as the map reaches."""
        job = self._job
        dirty = [source for source in job.sources if self._end_of(source) > job.first_dirty_offset]
        keys_max = sum(
            [header.record_count for source in dirty for _, header, _ in self._read(source, False)]
        )
        offsets = OffsetMap(job.map_bytes, keys_max)
        offsets.latest_offset = job.first_dirty_offset - 1
        for source in dirty:
            self._load_aborted(source)
            for _, header, view in self._read(source):
                if header.last_offset >= job.first_dirty_offset and not self._note_keys(
                    offsets, header, view
                ):
                    return offsets
            offsets.latest_offset = max(offsets.latest_offset, self._end_of(source) - 1)
        return offsets

    def _note_keys(self, offsets: OffsetMap, header: BatchHeader, view: memoryview) -> bool:
        """Note the keys of one batch; False when the map is full."""
        if not header.is_control and header.record_count and not self._transactions.is_aborted(header):
            for span in locate_records(view, header)[1]:
                offset = header.base_offset + span.offset_delta
                if span.key is not None and offset >= self._job.first_dirty_offset:
                    if not offsets.put(span.key, offset):
                        return False
                    offsets.latest_offset = offset
        offsets.latest_offset = header.last_offset
        return True

    # The second reading.

    def _clean(self, sources: list[Source]) -> Iterator[Cleaned]:
        """Write what is kept of the segments to new ones, each made of as many as become one."""
        job, output = self._job, None
        for source in sources:
            end = self._end_of(source)
            if output and not output.growth.takes(source, end, job.segment_bytes, job.index_bytes):
                yield self._finish(output)
                output = None
            if output is None:
                output = _Output(job, source.base_offset, self._disk, self._handles, self._pace)
            self._load_aborted(source)
            for _, header, view in self._read(source):
                output.add(header, self._retain(header, view, output))
            output.replaced.append(source.base_offset)
        if output:
            yield self._finish(output)

    def _finish(self, output: "_Output") -> Cleaned:
        cleaned = output.finish()
        self.bytes_written += cleaned.size
        return cleaned

    def _retain(
        self, header: BatchHeader, view: memoryview, output: "_Output"
    ) -> bytearray | memoryview | None:
        """What of a batch is kept; None if nothing is."""
        self.records_read += header.record_count
        needless = False
        if header.is_control:
            needless, aborted = self._transactions.saw_marker(header, view)
            if aborted is not None:
                output.segment.txn_index.append(aborted)
        else:
            self._transactions.saw_records(header)
        if header.base_offset > self._map.latest_offset:
            self.records_kept += header.record_count
            return view  # not yet this time
        if header.is_control:
            kept = self._retain_marker(header, view, needless)
        elif self._transactions.is_aborted(header):
            kept = None
        else:
            kept = self._retain_records(header, view)
        if kept is None and self._is_last_of_producer(header):
            return empty_batch(header)
        return kept

    def _retain_marker(
        self, header: BatchHeader, view: memoryview, needless: bool
    ) -> bytearray | memoryview | None:
        """A marker that nothing needs stays for delete.retention.ms: readers may be between it and its records."""
        horizon_ms = header.delete_horizon_ms
        if header.record_count == 0 or (
            needless and horizon_ms is not None and horizon_ms <= self._job.now_ms
        ):
            return None
        self.records_kept += header.record_count
        if not needless or horizon_ms is not None:
            return view
        return retain_records(header, *locate_records(view, header), self._new_horizon_ms())

    def _retain_records(self, header: BatchHeader, view: memoryview) -> bytearray | memoryview | None:
        """The records that are the newest of their keys; tombstones until their horizon."""
        data, spans = locate_records(view, header)
        horizon_ms = header.delete_horizon_ms
        tombstones_stay = horizon_ms is None or self._job.now_ms < horizon_ms
        kept = [span for span in spans if self._is_newest(header, span, tombstones_stay)]
        if not kept:
            return None
        self.records_kept += len(kept)
        decided = horizon_ms is None and header.last_offset <= self._map.latest_offset
        needs_horizon = decided and not all(span.has_value for span in kept)
        if len(kept) == len(spans) and not needs_horizon:
            return view
        return retain_records(header, data, kept, self._new_horizon_ms() if needs_horizon else None)

    def _is_newest(self, header: BatchHeader, span: RecordSpan, tombstones_stay: bool) -> bool:
        offset = header.base_offset + span.offset_delta
        if offset > self._map.latest_offset:
            return True
        if span.key is None or not (span.has_value or tombstones_stay):
            return False
        return offset >= self._map.get(span.key)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether a batch tells what its producer wrote last: the sequence number, or else the epoch."""
        last = self._last_batches.get(header.producer_id)
        if last is None:
            return False
        if last.data_offset >= 0:
            return header.last_offset == last.data_offset
        if last.marker_offset >= 0:
            return header.last_offset == last.marker_offset
        return header.is_control and header.producer_epoch == last.epoch

    def _new_horizon_ms(self) -> int:
        return min(self._job.now_ms + self._job.delete_retention_ms, TIMESTAMP_MAX)


class _Output:
    """The `.cleaned` files of one new segment."""

    __slots__ = (
        "_disk",
        "_dropped",
        "_indexed",
        "_interval",
        "_pace",
        "_pieces",
        "replaced",
        "segment",
        "size",
    )

    def __init__(self, job: Job, base_offset: int, disk: Disk, handles: Handles, pace: Pace) -> None:
        self.segment = Segment(job.directory, base_offset, disk, handles, job.now_ms, CLEANED_SUFFIX)
        self.replaced: list[int] = []  # the bases of the segments that are in it
        self.size = 0  # with what is not yet written
        self._disk = disk
        self._pace = pace
        self._interval = job.index_interval_bytes
        self._indexed = 0
        self._pieces: list[bytearray | memoryview] = []
        self._dropped: BatchHeader | None = None  # the last batch, if nothing of it is kept
        handles.open(self.segment.handle, create=True)
        handles.open(self.segment.txn_index.handle, create=True)  # a swap finds it, empty or not

    @property
    def growth(self) -> Growth:
        segment = self.segment
        index_bytes = max(len(segment.index) * OFFSET_ENTRY.size, len(segment.time_index) * TIME_ENTRY.size)
        return Growth(segment.base_offset, len(self.replaced), self.size, index_bytes)

    def add(self, source: BatchHeader, kept: bytearray | memoryview | None) -> None:
        """Take over what is kept of the next batch."""
        self._dropped = source if kept is None else None
        if kept is None:
            return
        segment, header, position = self.segment, read_header(kept), self.size
        if position + len(kept) > POSITION_MAX:
            raise BrokenBatchError(segment.path, position, "it grew beyond what a segment can hold")
        segment.note_timestamp(header.max_timestamp, header.last_offset)
        if position - self._indexed > self._interval:
            segment.add_entry(header.last_offset, position)
            self._indexed = position
        self._pieces.append(kept)
        self.size += len(kept)
        if self.size - segment.size >= SCAN_BLOCK_BYTES:
            self._write()

    def _write(self) -> None:
        segment = self.segment
        self._pace(self.size - segment.size)
        pieces = [memoryview(piece) for piece in self._pieces]
        segment.size = write_all(self._disk, segment.fd(), pieces, segment.size)
        self._pieces = []

    def finish(self) -> Cleaned:
        """Bring everything to the disk; the file is as old as the last one that is in it, for retention by age."""
        segment = self.segment
        newest = os.path.join(os.path.dirname(segment.path), file_name(self.replaced[-1], LOG_SUFFIX))
        if self._dropped is not None:
            self.add(self._dropped, empty_batch(self._dropped))
        self._write()
        segment.seal()
        self._disk.fsync(segment.fd())
        self._disk.fsync(segment.handles.fd(segment.txn_index.handle))
        segment.close()
        self._disk.set_modified_ms(segment.path, self._disk.modified_ms(newest))
        return Cleaned(self.replaced, segment.size, segment.max_timestamp, segment.max_timestamp_offset)

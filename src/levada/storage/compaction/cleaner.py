"""Compacts a log: rewrites closed segments with the latest record of each key.

The first pass reads the dirty part and maps each key to its latest offset, as many as fit the offset map. The second
pass reads everything up to there and retains a record if it is the latest of its key. Retained records go to
`.cleaned` files, which are fsynced before they are reported; the broker swaps them in (`swap`). Offsets do not change.
The last batch of each new segment remains, empty if necessary: it shows recovery that the segment is complete.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator

from levada.storage.compaction.messages import CleanedSegment, CleaningFinished, CleaningJob, SourceSegment
from levada.storage.compaction.offset_map import OffsetMap
from levada.storage.compaction.plan import SegmentGroup
from levada.storage.compaction.transactions import CleanedTransactionMetadata, aborted_in
from levada.storage.disk import Disk, write_all
from levada.storage.file_names import CLEANED_SUFFIX, LOG_SUFFIX, file_name
from levada.storage.handles import FileHandleCache
from levada.storage.log.segment import (
    SCAN_BLOCK_BYTES,
    CorruptBatchError,
    LogSegment,
    StoredBatch,
    read_batches,
)
from levada.wire.batches import BatchHeader, crc_is_valid, read_header
from levada.wire.record_filter import RecordSpan, empty_batch, locate_records, retain_records

OPEN_FILES_MAX = 8
POSITION_MAX = (1 << 31) - 1
TIMESTAMP_MAX = (1 << 63) - 1

Throttle = Callable[[int], None]  # called with the bytes of each read or write; sleeps to limit the rate


def unthrottled(_: int) -> None:
    """Do not limit the rate."""


class Cleaner:
    """Cleans one log once."""

    __slots__ = (
        "_bases",
        "_disk",
        "_handles",
        "_job",
        "_last_batches",
        "_map",
        "_throttle",
        "_transactions",
        "bytes_read",
        "bytes_written",
        "records_kept",
        "records_read",
    )

    def __init__(self, job: CleaningJob, disk: Disk, throttle: Throttle = unthrottled) -> None:
        self._job = job
        self._disk = disk
        self._throttle = throttle
        self._handles = FileHandleCache(disk, OPEN_FILES_MAX)
        self._bases = [*(source.base_offset for source in job.sources), *job.later]  # of all segments
        self._last_batches = {last.producer_id: last for last in job.last_batches}
        self._transactions = CleanedTransactionMetadata()
        self.bytes_read = self.bytes_written = self.records_read = self.records_kept = 0

    def run(self) -> Iterator[CleanedSegment | CleaningFinished]:
        """Clean; yield each new segment when its files are durable, in the order of the log."""
        try:
            self._delete_cleaned_files()
            self._map = self._build_map()
            end = self._map.latest_offset + 1
            sources = [source for source in self._job.sources if source.base_offset < end]
            yield from self._clean(sources)
            yield CleaningFinished(
                end_offset=end,
                bytes_read=self.bytes_read,
                bytes_written=self.bytes_written,
                records_read=self.records_read,
                records_kept=self.records_kept,
                keys=self._map.size,
            )
        finally:
            self._handles.close_all()

    def _delete_cleaned_files(self) -> None:
        """Delete the files of an interrupted cleaning."""
        for name in self._disk.listdir(self._job.directory):
            if name.endswith(CLEANED_SUFFIX):
                self._disk.unlink(os.path.join(self._job.directory, name))

    def _end_of(self, source: SourceSegment) -> int:
        """Return the base offset of the next segment."""
        return self._bases[bisect_right(self._bases, source.base_offset)]

    def _read(self, source: SourceSegment, whole: bool = True) -> Iterator[StoredBatch]:
        """Yield the batches of a segment; with `whole`, check their CRCs and offsets (which the CRC does not cover)."""
        disk, expected, end = self._disk, source.base_offset, self._end_of(source)
        path = os.path.join(self._job.directory, file_name(source.base_offset, LOG_SUFFIX))
        fd = disk.open(path)
        try:
            for position, header, view in read_batches(disk, fd, path, 0, source.size, whole):
                if whole:
                    self._throttle(header.size)
                    self.bytes_read += header.size
                    if not crc_is_valid(view):
                        raise CorruptBatchError(path, position, "its CRC differs")
                    if not expected <= header.base_offset <= header.last_offset < end:
                        raise CorruptBatchError(path, position, f"offset {header.base_offset} is out of order")
                    expected = header.last_offset + 1
                yield position, header, view
        finally:
            disk.close(fd)

    def _load_aborted(self, source: SourceSegment) -> None:
        following = bisect_right(self._bases, source.base_offset)
        start, end = source.base_offset, self._bases[following]
        later = self._bases[following - 1 :]
        self._transactions.load(aborted_in(self._disk, self._job.directory, later, start, end))

    # The first pass.

    def _build_map(self) -> OffsetMap:
        """Map the keys of the dirty part, from its start, until the map is full."""
        job = self._job
        dirty = [source for source in job.sources if self._end_of(source) > job.first_dirty_offset]
        keys_max = sum([header.record_count for source in dirty for _, header, _ in self._read(source, False)])
        offsets = OffsetMap(job.map_bytes, keys_max)
        offsets.latest_offset = job.first_dirty_offset - 1
        for source in dirty:
            self._load_aborted(source)
            for _, header, view in self._read(source):
                if header.last_offset >= job.first_dirty_offset and not self._map_keys(offsets, header, view):
                    return offsets
            offsets.latest_offset = max(offsets.latest_offset, self._end_of(source) - 1)
        return offsets

    def _map_keys(self, offsets: OffsetMap, header: BatchHeader, view: memoryview) -> bool:
        """Map the keys of one batch; return False if the map is full."""
        if not header.is_control and header.record_count and not self._transactions.is_aborted(header):
            for span in locate_records(view, header)[1]:
                offset = header.base_offset + span.offset_delta
                if span.key is not None and offset >= self._job.first_dirty_offset:
                    if not offsets.put(span.key, offset):
                        return False
                    offsets.latest_offset = offset
        offsets.latest_offset = header.last_offset
        return True

    # The second pass.

    def _clean(self, sources: list[SourceSegment]) -> Iterator[CleanedSegment]:
        """Write the retained records to new segments, each of as many sources as fit one."""
        job, output = self._job, None
        for source in sources:
            end = self._end_of(source)
            if output and not output.group.fits(source, end, job.segment_bytes, job.index_bytes):
                yield self._finish(output)
                output = None
            if output is None:
                output = _Output(job, source.base_offset, self._disk, self._handles, self._throttle)
            self._load_aborted(source)
            for _, header, view in self._read(source):
                output.add(header, self._retain(header, view, output))
            output.replaced.append(source.base_offset)
        if output:
            yield self._finish(output)

    def _finish(self, output: "_Output") -> CleanedSegment:
        cleaned = output.finish()
        self.bytes_written += cleaned.size
        return cleaned

    def _retain(self, header: BatchHeader, view: memoryview, output: "_Output") -> bytearray | memoryview | None:
        """Return the retained part of a batch; None if nothing is retained."""
        self.records_read += header.record_count
        unneeded = False
        if header.is_control:
            unneeded, aborted = self._transactions.on_control_batch(header, view)
            if aborted is not None:
                output.segment.txn_index.append(aborted)
        else:
            self._transactions.on_data_batch(header)
        if header.base_offset > self._map.latest_offset:
            self.records_kept += header.record_count
            return view  # beyond the map: left to the next cleaning
        if header.is_control:
            kept = self._retain_marker(header, view, unneeded)
        elif self._transactions.is_aborted(header):
            kept = None
        else:
            kept = self._retain_records(header, view)
        if kept is None and self._is_last_of_producer(header):
            return empty_batch(header)
        return kept

    def _retain_marker(self, header: BatchHeader, view: memoryview, unneeded: bool) -> bytearray | memoryview | None:
        """Retain a marker; an unneeded one for delete.retention.ms, as consumers may be between it and its records."""
        horizon_ms = header.delete_horizon_ms
        if header.record_count == 0 or (unneeded and horizon_ms is not None and horizon_ms <= self._job.now_ms):
            return None
        self.records_kept += header.record_count
        if not unneeded or horizon_ms is not None:
            return view
        return retain_records(header, *locate_records(view, header), self._new_horizon_ms())

    def _retain_records(self, header: BatchHeader, view: memoryview) -> bytearray | memoryview | None:
        """Retain the latest records of their keys, and tombstones until their delete horizon."""
        data, spans = locate_records(view, header)
        horizon_ms = header.delete_horizon_ms
        retain_tombstones = horizon_ms is None or self._job.now_ms < horizon_ms
        kept = [span for span in spans if self._is_latest(header, span, retain_tombstones)]
        if not kept:
            return None
        self.records_kept += len(kept)
        complete = horizon_ms is None and header.last_offset <= self._map.latest_offset
        needs_horizon = complete and not all(span.has_value for span in kept)
        if len(kept) == len(spans) and not needs_horizon:
            return view
        return retain_records(header, data, kept, self._new_horizon_ms() if needs_horizon else None)

    def _is_latest(self, header: BatchHeader, span: RecordSpan, retain_tombstones: bool) -> bool:
        offset = header.base_offset + span.offset_delta
        if offset > self._map.latest_offset:
            return True
        if span.key is None or not (span.has_value or retain_tombstones):
            return False
        return offset >= self._map.get(span.key)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether a batch holds the last sequence number of its producer, or else its epoch."""
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
    """Writes the `.cleaned` files of one new segment."""

    __slots__ = (
        "_disk",
        "_dropped",
        "_indexed",
        "_interval",
        "_pieces",
        "_throttle",
        "replaced",
        "segment",
        "size",
    )

    def __init__(
        self, job: CleaningJob, base_offset: int, disk: Disk, handles: FileHandleCache, throttle: Throttle
    ) -> None:
        self.segment = LogSegment(job.directory, base_offset, disk, handles, job.now_ms, CLEANED_SUFFIX)
        self.replaced: list[int] = []  # the base offsets of the segments cleaned into it
        self.size = 0  # including what is not written yet
        self._disk = disk
        self._throttle = throttle
        self._interval = job.index_interval_bytes
        self._indexed = 0
        self._pieces: list[bytearray | memoryview] = []
        self._dropped: BatchHeader | None = None  # the last batch, if nothing of it is retained
        handles.open(self.segment.handle, create=True)
        handles.open(self.segment.txn_index.handle, create=True)  # a swap expects the file, even if empty

    @property
    def group(self) -> SegmentGroup:
        segment = self.segment
        return SegmentGroup(segment.base_offset, len(self.replaced), self.size, segment.index_bytes)

    def add(self, source: BatchHeader, kept: bytearray | memoryview | None) -> None:
        """Add the retained part of the next batch."""
        self._dropped = source if kept is None else None
        if kept is None:
            return
        segment, header, position = self.segment, read_header(kept), self.size
        if position + len(kept) > POSITION_MAX:
            raise CorruptBatchError(segment.path, position, "it grows beyond the largest segment")
        segment.update_max_timestamp(header.max_timestamp, header.last_offset)
        if position - self._indexed > self._interval:
            segment.add_entry(header.last_offset, position)
            self._indexed = position
        self._pieces.append(kept)
        self.size += len(kept)
        if self.size - segment.size >= SCAN_BLOCK_BYTES:
            self._write()

    def _write(self) -> None:
        segment = self.segment
        self._throttle(self.size - segment.size)
        pieces = [memoryview(piece) for piece in self._pieces]
        segment.size = write_all(self._disk, segment.fd(), pieces, segment.size)
        self._pieces = []

    def finish(self) -> CleanedSegment:
        """Make the files durable. The modification time is that of the last source, for retention by time."""
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
        return CleanedSegment(self.replaced, segment.size, segment.max_timestamp, segment.max_timestamp_offset)

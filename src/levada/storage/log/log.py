"""The log of one partition: batches are reserved, published with one write, and read as slices of files.

`reserve` assigns offsets and queues batches: `next_offset` advances at once. `publish` writes them all, and only then
`log_end_offset` advances. Nothing beyond `log_end_offset` is ever read. After a failed write or fsync the content of
the file is unknown, so the log accepts nothing more until it is reopened and recovered. A log belongs to one thread;
only `flush` and `delete_segment_files` may run in another. `truncate_to` and `restart_at` copy files and wait for the
device: their caller hands the whole log over to a thread until they are done.
"""

import os
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Self

from levada.config.topic import TopicConfig
from levada.errors import ErrorCode, KafkaError
from levada.storage.checkpoints import LogCheckpoint
from levada.storage.disk import IOVECS_MAX, Disk, write_all
from levada.storage.handles import FileHandleCache
from levada.storage.log.deletion import deletable_segments, delete_last_segments, truncate_segment
from levada.storage.log.reader import NOTHING, LogReader, Slice
from levada.storage.log.recovery import RecoveredLog, Recovery
from levada.storage.log.scan import Progress, unreported
from levada.storage.log.segment import RELATIVE_OFFSET_MAX, LogSegment
from levada.wire.batches import BatchHeader

OPEN_FILES_MAX = 64  # of a log that shares no handle cache
_NEVER = 2**63


class Log:
    """The batches of one partition on disk."""

    __slots__ = (
        "_clean_end",
        "_config",
        "_directories_dirty",
        "_disk",
        "_end",
        "_failure",
        "_flush_lock",
        "_handles",
        "_index_after",
        "_queue",
        "_roll_now",
        "_roll_offset",
        "_roll_size",
        "_roll_timestamp",
        "active",
        "directory",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "next_offset",
        "on_roll",
        "producer_snapshots",
        "reader",
        "recovery_point",
        "segments",
        "segments_to_delete",
        "truncations",
        "txn_checksums",
    )

    def __init__(
        self, directory: str, config: TopicConfig, disk: Disk, handles: FileHandleCache, recovered: RecoveredLog
    ) -> None:
        self.directory = directory
        self._config = config
        self._disk = disk
        self._handles = handles
        self.segments = recovered.segments
        self.leader_epochs = recovered.leader_epochs
        self.producer_snapshots = recovered.producer_snapshots
        self.txn_checksums = recovered.txn_checksums
        self.log_start_offset = 0
        self.next_offset = self.log_end_offset = recovered.end_offset
        self.recovery_point = 0  # every batch below is fsynced
        self.segments_to_delete: list[LogSegment] = []  # no longer in the log, but their files still exist
        self.on_roll: Callable[[int], None] | None = None  # called with the base offset of a new segment
        self.reader = LogReader(self.segments, config.index_interval_bytes)
        self._queue: list[memoryview] = []
        self._failure: OSError | None = None
        self._flush_lock = Lock()  # a flush and a truncation exclude each other
        self._directories_dirty = {directory, os.path.dirname(directory)}  # not fsynced yet; two threads change it
        self._clean_end = -1  # the log end offset of the clean shutdown before this start
        self.truncations = 0  # counts how often the end of the log was truncated
        self._activate_last_segment()

    @classmethod
    def open(
        cls,
        directory: str,
        config: TopicConfig,
        disk: Disk,
        *,
        now_ms: int,
        clean: bool,
        recovery_point: int | None = None,
        log_start_offset: int | None = None,
        power_lost: bool = True,
        may_have_gaps: bool = False,
        handles: FileHandleCache | None = None,
        progress: Progress = unreported,
    ) -> Self:
        """Open and recover the log of a directory, or create one. All logs of a broker share `handles`."""
        checkpoint = LogCheckpoint(clean, recovery_point, log_start_offset, power_lost, may_have_gaps)
        recovered = Recovery(directory, config, disk, now_ms, checkpoint, progress).run()
        handles = FileHandleCache(disk, OPEN_FILES_MAX) if handles is None else handles
        for segment in recovered.segments:
            segment.use(handles)
        log = cls(directory, config, disk, handles, recovered)
        log.log_start_offset = max(log_start_offset or 0, log.segments[0].base_offset)
        log.recovery_point = log.log_end_offset if clean else recovery_point or 0
        log._clean_end = log.log_end_offset if clean else -1
        if clean and log.active.size:
            log._directories_dirty.clear()  # they were fsynced with the batches of the active segment
        if config.levada_acks_wait_for_fsync and not clean:
            log.flush()  # a retry of a batch that a killed process left in the page cache is acknowledged at once
        return log

    def use(self, handles: FileHandleCache) -> None:
        """Close the present handles and use another cache from now on, after a thread has opened the log."""
        self._handles = handles
        for segment in self.segments:
            segment.use(handles)

    @property
    def config(self) -> TopicConfig:
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._config = config
        self.reader.interval = max(1, config.index_interval_bytes)
        self._roll_size = -1  # the next append recomputes the limits

    @property
    def size_bytes(self) -> int:
        return sum([segment.size for segment in self.segments])

    def _activate_last_segment(self) -> None:
        self.active = active = self.segments[-1]
        self._end = active.size  # of the reserved bytes in the active segment
        last_entry = active.offset_index.last()
        self._index_after = (last_entry[1] if last_entry else 0) + self._config.index_interval_bytes
        self._roll_size = -1
        self._roll_offset = active.base_offset + RELATIVE_OFFSET_MAX
        self._roll_timestamp = self._roll_now = _NEVER

    # Append.

    def reserve(self, batch: memoryview, record_span: int, max_timestamp: int, now_ms: int) -> None:
        """Queue a batch that has `next_offset` as its base offset and spans `record_span` offsets."""
        size = len(batch)
        position = self._end
        following = self.next_offset + record_span
        if (
            position + size > self._roll_size
            or max_timestamp > self._roll_timestamp
            or now_ms > self._roll_now
            or following > self._roll_offset
        ):
            self._make_room(size, following, max_timestamp, now_ms)
            position = self._end
        self._queue.append(batch)
        self._end = position + size
        self.next_offset = following
        active = self.active
        if max_timestamp > active.max_timestamp:
            active.max_timestamp = max_timestamp
            active.max_timestamp_offset = following - 1
        if position > self._index_after:
            active.add_entry(following - 1, position)
            self._index_after = position + self._config.index_interval_bytes
            if active.index_is_full(self._config.segment_index_bytes):
                self._roll_size = -1

    def _make_room(self, size: int, following: int, max_timestamp: int, now_ms: int) -> None:
        """Roll if the active segment cannot take the batch; set the limits of the segment that takes it."""
        if self._failure:
            raise self._failure
        config, active = self._config, self.active
        if size > config.segment_bytes:
            detail = f"a batch of {size} bytes does not fit a segment of {config.segment_bytes}"
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, detail)
        if self._end and active.first_timestamp is None:
            header = active.header_at(0)
            active.first_timestamp = header.max_timestamp if header else -1
        self._set_limits(active)
        if self._end and (
            self._end + size > config.segment_bytes
            or max_timestamp > self._roll_timestamp
            or now_ms > self._roll_now
            or following > self._roll_offset
            or active.index_is_full(config.segment_index_bytes)
        ):
            self.roll(now_ms)
        if not self._end:
            self.active.first_timestamp = max_timestamp
            self._set_limits(self.active)

    def _set_limits(self, active: LogSegment) -> None:
        first, age = active.first_timestamp, self._config.segment_ms
        self._roll_size = self._config.segment_bytes
        self._roll_timestamp = first + age if first is not None and first >= 0 else _NEVER
        self._roll_now = active.created_ms + age if first is not None and first < 0 else _NEVER

    def publish(self) -> None:
        """Write all reserved batches; the log end offset advances only after the last byte."""
        queue = self._queue
        if not queue:
            return
        active, end = self.active, self._end
        handle = active.handle
        fd = handle.fd
        if fd < 0:
            fd = self._handles.open(handle)
        handle.used = True
        try:
            start = active.size
            if len(queue) > IOVECS_MAX or self._disk.pwritev(fd, queue, start) != end - start:
                write_all(self._disk, fd, queue, start)
        except OSError as error:
            self._fail(error)
            raise
        queue.clear()
        active.size = end
        self.log_end_offset = self.next_offset

    def _fail(self, error: OSError) -> None:
        self._failure = error
        self._roll_size = -1

    def roll(self, now_ms: int) -> None:
        """Seal the active segment and create a new one, unless it is empty."""
        self.publish()
        if not self.active.size:
            return
        try:
            self.active.seal()
            self._create_segment(now_ms)
        except OSError as error:
            self._fail(error)
            raise
        if self.on_roll:
            self.on_roll(self.next_offset)

    def _create_segment(self, now_ms: int) -> None:
        segment = LogSegment(self.directory, self.next_offset, self._disk, self._handles, now_ms)
        self._handles.open(segment.handle, create=True)
        self._directories_dirty.add(self.directory)
        self.reader.append(segment)
        self._activate_last_segment()

    # Read.

    def read(self, offset: int, max_bytes: int, end_offset: int, minimum_one: bool) -> Slice:
        """Return whole batches below `end_offset`, a batch boundary, from the batch that contains `offset`.

        They have at most `max_bytes`; only with `minimum_one` the first batch may be larger.
        """
        log_end = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end:
            detail = f"offset {offset} is not in {self.log_start_offset}..{log_end}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, detail)
        if offset >= end_offset or offset == log_end:
            return NOTHING
        return self.reader.read(offset, max_bytes, end_offset, log_end, minimum_one)

    def headers(self, start_offset: int) -> Iterator[BatchHeader]:
        """Yield the headers of the published batches from the one that contains `start_offset` on."""
        return self.reader.headers(start_offset)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the first record that is not older."""
        self.publish()  # the indexes already contain reserved batches, and are validated against the file
        return self.reader.offset_for_timestamp(timestamp, self.log_start_offset)

    def max_timestamp(self) -> tuple[int, int]:
        """Return (timestamp, offset) of the record with the greatest timestamp; (-1, -1) if there is none."""
        self.publish()
        return self.reader.max_timestamp()

    # Leader epochs.

    def assign_epoch(self, leader_epoch: int, start_offset: int | None = None) -> None:
        """Record that batches from `start_offset` (default: `next_offset`) on have this leader epoch."""
        if self.leader_epochs.assign(leader_epoch, self.next_offset if start_offset is None else start_offset):
            self._store_epochs()

    def forget_empty_epochs(self) -> None:
        """Forget the leader epochs that start at the log end: no batch has them."""
        self.leader_epochs.truncate_from_end(self.log_end_offset)
        self._store_epochs()

    def _store_epochs(self) -> None:
        self.leader_epochs.store()
        self._directories_dirty.add(self.directory)

    def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:
        """Return the largest known epoch up to `leader_epoch` and its end offset; (-1, -1) if unknown."""
        return self.leader_epochs.end_offset_for(leader_epoch, self.log_end_offset)

    # Retention, truncation, deletion.

    def delete_records(self, offset: int) -> None:
        """Advance the log start offset; the next retention check deletes the segments below it."""
        if offset > self.log_end_offset:
            detail = f"offset {offset} is beyond the log end offset {self.log_end_offset}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, detail)
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)
            self._store_epochs()

    def apply_retention(self, now_ms: int, end_offset: int | None = None) -> int:
        """Remove the segments that retention deletes, all below `end_offset`; return their number.

        Their files are renamed; `delete_segment_files` deletes them.
        """
        end_offset = self.log_end_offset if end_offset is None else end_offset
        count = deletable_segments(self.segments, self._config, now_ms, self.log_start_offset, end_offset)
        if count == len(self.segments):
            if end_offset < self.next_offset:
                count -= 1
            else:
                self.roll(now_ms)
        for segment in self.segments[:count]:
            segment.mark_deleted()
        if count:
            self.segments_to_delete += self.reader.remove(0, count)
            self.delete_records(self.segments[0].base_offset)
        return count

    def delete_segment_files(self) -> None:
        """Delete the files of removed segments. Runs in a thread."""
        while self.segments_to_delete:
            self.segments_to_delete.pop().delete_files()

    def truncate_to(self, offset: int) -> None:
        """Truncate the batches that end at or after `offset`; nothing may be reserved.

        The caller must store the lower recovery point before it appends again: after a crash the new batches would
        otherwise be taken for fsynced ones.
        """
        assert not self._queue
        if offset < self.log_end_offset:
            with self._flush_lock:
                self._truncate_to(offset)

    def _truncate_to(self, offset: int) -> None:
        self.truncations += 1
        created_ms = self.active.created_ms
        segment, position = self.reader.locate(offset)
        header = segment.header_at(position)
        end_offset = min(offset, header.base_offset) if header else offset
        self.producer_snapshots.delete_after(end_offset)  # first: recovery misses the batches below a snapshot
        kept = self.segments.index(segment) + 1 if offset >= segment.base_offset else 0
        delete_last_segments(self.reader.remove(kept, len(self.segments)))
        self.next_offset = self.log_end_offset = end_offset
        if kept:
            truncate_segment(segment, position)
            segment.txn_index.truncate(end_offset)
            segment.rebuild_indexes(self._config.index_interval_bytes)
            self._activate_last_segment()
        else:
            self._create_segment(created_ms)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.recovery_point = min(self.recovery_point, end_offset)
        self.leader_epochs.truncate_from_end(end_offset)
        self._store_epochs()

    def restart_at(self, offset: int) -> None:
        """Delete every batch and continue at an offset: the leader has nothing that this log could be joined to.

        The caller must have removed the log from the checkpoints. The leader epochs go first: they tell recovery where
        a log starts. A crash before the end leaves a shorter log, or an empty one.
        """
        assert not self._queue
        with self._flush_lock:
            self.truncations += 1
            self.leader_epochs.entries.clear()
            self.leader_epochs.store()
            self.leader_epochs.fsync()
            self.producer_snapshots.delete_after(-1)
            self.recovery_point = self.log_start_offset = 0
            created_ms = self.active.created_ms
            delete_last_segments(self.reader.remove(0, len(self.segments)))
            self.next_offset = self.log_end_offset = self.log_start_offset = offset
            self._create_segment(created_ms)

    # Durability.

    def flush(self) -> None:
        """Fsync the published batches. Runs in a thread, during appends. A failure is final."""
        with self._flush_lock:
            self._flush()

    def _flush(self) -> None:
        if self._failure:
            raise self._failure
        end_offset, truncations = self.log_end_offset, self.truncations
        segments = list(self.segments)  # read after the offset: they contain everything below it
        directories = [self._directories_dirty.pop() for _ in range(len(self._directories_dirty))]
        try:
            for number, segment in enumerate(segments):
                if number + 1 == len(segments) or segments[number + 1].base_offset > self.recovery_point:
                    segment.fsync()
            self.txn_checksums.store(self.reader.txn_checksums())
            if directories:
                self.leader_epochs.fsync()
            for directory in sorted(directories):
                self._disk.fsync_dir(directory)
        except OSError as error:
            self._fail(error)
            raise
        if truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, end_offset)

    @property
    def has_failed(self) -> bool:
        """Whether a write or an fsync has failed: nothing is accepted until the log is opened again."""
        return self._failure is not None

    @property
    def is_unchanged(self) -> bool:
        """Whether a clean close has nothing to write: no batch was ever written, or none since the last one."""
        is_dirty = self._directories_dirty and self.next_offset
        to_store = self.active.offset_index.tail or self.active.time_index.tail or self.segments_to_delete
        return self.next_offset == self._clean_end and not is_dirty and not to_store

    def close(self, clean: bool) -> None:
        """Close the files; a clean close publishes, stores the indexes and flushes first."""
        if clean:
            self.publish()
            self.active.seal()
            if self.recovery_point < self.log_end_offset:
                self.flush()
            self.delete_segment_files()
            self._disk.fsync_dir(self.directory)  # deletions are durable: the next start trusts the directory
        for segment in self.segments:
            segment.close()
        self.on_roll = None  # it refers to the owner of this log: a cycle

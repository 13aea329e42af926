"""A partition's log: batches are reserved, published with one write, and read as slices of files (R9, R17).

Append reserves, publish makes it true: `next_offset` runs ahead while batches are queued, and `log_end_offset`
follows once all their bytes are written. Nothing beyond `log_end_offset` is ever read. After a failed write or
fsync the log is of no use any more: what the file holds is unknown until it is opened and checked anew.
A log belongs to one thread; only `flush`, `warm` and `unlink_removed` may run in another.
"""

import os
from collections.abc import Callable, Iterator
from typing import Self

from levada.config.topic import TopicConfig
from levada.errors import ErrorCode, KafkaError
from levada.storage.disk import IOVECS_MAX, Disk, write_all
from levada.storage.file_names import deleted_directory
from levada.storage.handles import Handles
from levada.storage.log import leader_epochs, retention, snapshots
from levada.storage.log import timestamps as times
from levada.storage.log.reader import Reader
from levada.storage.log.recovery import Recovered, Recovery, cut, drop_segments
from levada.storage.log.segment import RELATIVE_OFFSET_MAX, Segment
from levada.storage.log.slices import NOTHING, Slice
from levada.wire.batches import BatchHeader

HANDLES_ALONE = 64
_FOREVER = 2**63


class Log:
    """The batches of one partition on disk."""

    __slots__ = (
        "_config",
        "_disk",
        "_end",
        "_failure",
        "_handles",
        "_index_after",
        "_names_dirty",
        "_queue",
        "_roll_now",
        "_roll_offset",
        "_roll_size",
        "_roll_timestamp",
        "active",
        "directory",
        "epochs",
        "log_end_offset",
        "log_start_offset",
        "next_offset",
        "on_roll",
        "reader",
        "recovery_point",
        "removed",
        "segments",
        "truncations",
    )

    def __init__(
        self, directory: str, config: TopicConfig, disk: Disk, handles: Handles, recovered: Recovered
    ) -> None:
        self.directory = directory
        self._config = config
        self._disk = disk
        self._handles = handles
        self.segments = recovered.segments
        self.epochs = recovered.epochs
        self.log_start_offset = 0
        self.next_offset = self.log_end_offset = recovered.end_offset
        self.recovery_point = 0  # everything below it is fsynced
        self.removed: list[Segment] = []  # taken out of the log, their files not yet unlinked
        self.on_roll: Callable[[int], None] | None = None  # called with the base offset of a new segment
        self.reader = Reader(self.segments, config.index_interval_bytes)
        self._queue: list[memoryview] = []
        self._failure: OSError | None = None
        self._names_dirty = frozenset((directory, os.path.dirname(directory)))  # folders not yet fsynced
        self.truncations = 0  # how often batches were cut off its end
        self._take_active()

    @classmethod
    def open(
        cls,
        directory: str,
        config: TopicConfig,
        disk: Disk,
        *,
        now_ms: int,
        clean: bool,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        handles: Handles | None = None,
    ) -> Self:
        """Open what the folder holds, or begin a log in it. `handles` are shared by all logs of a broker."""
        recovered = Recovery(directory, config, disk, now_ms).run(clean, recovery_point, log_start_offset)
        handles = Handles(disk, HANDLES_ALONE) if handles is None else handles
        for segment in recovered.segments:
            segment.use(handles)
        log = cls(directory, config, disk, handles, recovered)
        log.log_start_offset = max(log_start_offset, log.segments[0].base_offset)
        log.recovery_point = log.log_end_offset if clean else min(recovery_point, log.log_end_offset)
        if clean and log.active.size:
            log._names_dirty = frozenset()  # they were fsynced with the active segment's batches
        if config.levada_acks_wait_for_fsync and not clean:
            log.flush()  # a killed process leaves batches in the page cache; a retry of one is answered at once
        return log

    @property
    def config(self) -> TopicConfig:
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._config = config
        self.reader.interval = max(1, config.index_interval_bytes)
        self._roll_size = -1  # the next append looks at the limits anew

    @property
    def size_bytes(self) -> int:
        return sum([segment.size for segment in self.segments])

    def _take_active(self) -> None:
        self.active = active = self.segments[-1]
        self._end = active.size  # of the reserved bytes in the active file
        last_entry = active.index.last()
        self._index_after = (last_entry[1] if last_entry else 0) + self._config.index_interval_bytes
        self._roll_size = -1
        self._roll_offset = active.base_offset + RELATIVE_OFFSET_MAX
        self._roll_timestamp = self._roll_now = _FOREVER

    # -- appending

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
        """Close the active segment if it may not take the batch; set the limits of the one that does."""
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

    def _set_limits(self, active: Segment) -> None:
        first, age = active.first_timestamp, self._config.segment_ms
        self._roll_size = self._config.segment_bytes
        self._roll_timestamp = first + age if first is not None and first >= 0 else _FOREVER
        self._roll_now = active.created_ms + age if first is not None and first < 0 else _FOREVER

    def publish(self) -> None:
        """Write everything reserved. Only after the last byte does the log end move."""
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
        """Close the active segment and begin a new one, unless it is empty."""
        self.publish()
        if not self.active.size:
            return
        try:
            self.active.seal()
            self._begin_segment(now_ms)
        except OSError as error:
            self._fail(error)
            raise
        if self.on_roll:
            self.on_roll(self.next_offset)

    def _begin_segment(self, now_ms: int) -> None:
        segment = Segment(self.directory, self.next_offset, self._disk, self._handles, now_ms)
        self._handles.open(segment.handle, create=True)
        self._names_dirty |= {self.directory}
        self.reader.append(segment)
        self._take_active()

    # -- reading

    def read(self, offset: int, max_bytes: int, end_offset: int, minimum_one: bool) -> Slice:
        """Whole batches below `end_offset`, a batch boundary, from the one that holds `offset`.

        At most `max_bytes`; only with `minimum_one` the first batch may be larger.
        """
        log_end = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end:
            detail = f"offset {offset} is not in {self.log_start_offset}..{log_end}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, detail)
        if offset >= end_offset or offset == log_end:
            return NOTHING
        return self.reader.read(offset, max_bytes, end_offset, log_end, minimum_one)

    def headers(self, start_offset: int) -> Iterator[BatchHeader]:
        """The headers of the published batches from the one that holds `start_offset` on."""
        return self.reader.headers(start_offset)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record that is at least as late."""
        self.publish()  # the indexes already tell of what is reserved, and are checked against the file
        interval = self._config.index_interval_bytes
        return times.offset_for_timestamp(self.segments, timestamp, self.log_start_offset, interval)

    def max_timestamp(self) -> tuple[int, int]:
        """(timestamp, offset) of the latest record; (-1, -1) if there is none."""
        self.publish()
        return times.max_timestamp(self.segments, self._config.index_interval_bytes)

    # -- leader epochs and producer snapshots

    def assign_epoch(self, leader_epoch: int) -> None:
        """Batches from `next_offset` on are written under this leader epoch."""
        if leader_epochs.assign(self.epochs, leader_epoch, self.next_offset):
            self._store_epochs()

    def _store_epochs(self) -> None:
        leader_epochs.store(self._disk, self.directory, self.epochs)
        self._names_dirty |= {self.directory}

    def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:
        """The largest epoch known up to `leader_epoch` and where it ends; (-1, -1) if that is unknown."""
        return leader_epochs.end_offset(self.epochs, leader_epoch, self.log_end_offset)

    def snapshots(self) -> list[int]:
        """The offsets of the producer snapshots, the newest first; none is beyond the log's end."""
        return snapshots.offsets(self._disk, self.directory)

    def read_snapshot(self, offset: int) -> bytes | None:
        return snapshots.read(self._disk, self.directory, offset)

    def write_snapshot(self, offset: int, data: bytes) -> None:
        snapshots.write(self._disk, self.directory, offset, data)

    # -- giving up data

    def delete_records(self, offset: int) -> None:
        """Move the start of the log; segments wholly below it go with the next retention."""
        if offset > self.log_end_offset:
            detail = f"offset {offset} is beyond the log's end {self.log_end_offset}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, detail)
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            leader_epochs.cut_start(self.epochs, offset)
            self._store_epochs()

    def apply_retention(self, now_ms: int, end_offset: int | None = None) -> int:
        """Take out the segments that are too old or too many, wholly below `end_offset`; how many they were.

        Their files are renamed; `unlink_removed`, which may run in a thread, frees the space.
        """
        end_offset = self.log_end_offset if end_offset is None else end_offset
        count = retention.expired(self.segments, self._config, now_ms, self.log_start_offset, end_offset)
        if count == len(self.segments):
            if end_offset < self.next_offset:
                count -= 1
            else:
                self.roll(now_ms)
        for segment in self.segments[:count]:
            segment.remove()
        if count:
            self.removed += self.reader.drop(0, count)
            self.delete_records(self.segments[0].base_offset)
        return count

    def unlink_removed(self) -> None:
        """Free the space of removed segments; for a thread."""
        while self.removed:
            self.removed.pop().unlink_removed()

    def truncate_to(self, offset: int) -> None:
        """Cut the batches that end at or after `offset`; nothing may be reserved.

        The caller must store the lower recovery point before it appends again: after a crash the new batches
        would otherwise pass for fsynced ones.
        """
        assert not self._queue
        if offset >= self.log_end_offset:
            return
        self.truncations += 1
        created_ms = self.active.created_ms
        segment, position, _ = self.reader.locate(offset)
        header = segment.header_at(position)
        kept = self.segments.index(segment) + 1 if offset >= segment.base_offset else 0
        drop_segments(self.reader.drop(kept, len(self.segments)))
        self.next_offset = self.log_end_offset = min(offset, header.base_offset) if header else offset
        if kept:
            cut(segment, position)
            segment.txn_index.truncate(self.log_end_offset)
            segment.rebuild_indexes(self._config.index_interval_bytes)
            self._take_active()
        else:
            self._begin_segment(created_ms)
        self._truncated(self.log_end_offset)

    def _truncated(self, end_offset: int) -> None:
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.recovery_point = min(self.recovery_point, end_offset)
        leader_epochs.cut_end(self.epochs, end_offset)
        self._store_epochs()
        snapshots.remove(self._disk, self.directory, above=end_offset)

    def delete(self) -> str:
        """Take the whole log away; the folder under its new name, for `remove_tree` in a thread."""
        self.close(clean=False)
        parent, name = os.path.split(self.directory)
        path = os.path.join(parent, deleted_directory(name))
        self._disk.rename(self.directory, path)
        return path

    # -- durability

    def flush(self) -> None:
        """Fsync what is published, for a thread; appends may go on. A failure is final."""
        if self._failure:
            raise self._failure
        end_offset, truncations = self.log_end_offset, self.truncations
        segments = list(self.segments)  # taken after the offset: they hold everything below it
        names_dirty, self._names_dirty = self._names_dirty, frozenset()
        try:
            for number, segment in enumerate(segments):
                if number + 1 == len(segments) or segments[number + 1].base_offset > self.recovery_point:
                    segment.fsync()
            if names_dirty:
                leader_epochs.fsync(self._disk, self.directory)
            for directory in sorted(names_dirty):
                self._disk.fsync_dir(directory)
        except OSError as error:
            self._fail(error)
            raise
        if truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, end_offset)

    def close(self, clean: bool) -> None:
        """Let go of the files; a clean close first publishes, stores the indexes and fsyncs."""
        if clean:
            self.publish()
            self.active.seal()
            if self.recovery_point < self.log_end_offset:
                self.flush()
            self.unlink_removed()
            self._disk.fsync_dir(self.directory)  # what is gone stays gone: the next opening trusts the names
        for segment in self.segments:
            segment.close()

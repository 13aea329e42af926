"""Encodes Arrow columns as record batches, with one kernel call for all rows of an Arrow batch.

Python does only what there is once per record batch: header, CRC and compression.
"""

import random
from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from levada.errors import ErrorCode, KafkaError
from levada.model import NO_PRODUCER_ID, NO_TIMESTAMP, Codec
from levada.spark.kernels import encode as kernels
from levada.wire.batches import (
    ATTRIBUTES_OFFSET,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
)
from levada.wire.compression import compress

STICKY_BYTES = 128 << 10  # rows without key that go to one partition before the next, about
BATCH_LENGTH_MAX = (1 << 31) - 1
SEQUENCE_MASK = (1 << 31) - 1  # sequence numbers wrap to 0

_PER_MS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}  # multiply by, divide by
_EMPTY = np.frombuffer(b"", np.uint8)


class InvalidRow(KafkaError):  # noqa: N818
    """A row that cannot become a record of any topic."""


class Rows(NamedTuple):
    """Rows to be written, as columns of one length."""

    key: Any  # pyarrow binary or string array (also large), nullable; None: no row has a key
    value: Any  # pyarrow binary or string array (also large), nullable
    headers: Any | None = None  # pyarrow list<struct<key: string, value: binary>>, nullable
    timestamp: Any | None = None  # pyarrow timestamp of any unit, or int64 milliseconds; null: now
    partition: Any | None = None  # pyarrow int32, nullable; null: by key


class ProducerIdAndEpoch(NamedTuple):
    """Producer id and epoch in the headers of the batches."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    transactional: bool = False


class StickyPartition:
    """The partition of rows without key and partition: it changes after about STICKY_BYTES, as in Kafka's clients.

    A writer keeps one for each topic, over all its Arrow batches. The first partition is random, so that many writers
    with few rows each do not all choose the same one.
    """

    __slots__ = ("left", "partition")

    def __init__(self, partition: int | None = None) -> None:
        self.partition = partition  # None: random
        self.left = 0  # rows that still go to it


class EncodedBatch(NamedTuple):
    """One record batch, ready for Produce."""

    partition: int
    data: memoryview  # the whole batch; its base offset is 0, the broker assigns it
    rows: int
    base_sequence: int  # -1 without a producer id


def assign_partitions(rows: Rows, count: int, sticky: StickyPartition) -> Any:
    """A numpy int32 array with the partition of each row in a topic of `count` partitions.

    The column `partition` comes first, then murmur2 of the key as in Kafka's clients, then the sticky partition. A
    partition that the topic does not have raises KafkaError(INVALID_PARTITIONS).
    """
    found = np.empty(len(rows.value), np.int32)
    given = np.empty(0, np.int32) if rows.partition is None else _given(rows.partition, count)
    if sticky.partition is None:
        sticky.partition = random.randrange(count)
    state = np.array([sticky.partition % count, sticky.left], np.int64)
    sticky_rows = max(STICKY_BYTES * len(found) // max(rows.value.nbytes, 1), 1)
    kernels.assign_partitions(given, _cells(rows.key, len(found)), count, sticky_rows, state, found)
    sticky.partition, sticky.left = int(state[0]), int(state[1])
    return found


def _given(partition: Any, count: int) -> Any:
    """The column `partition`, -1 where it is null."""
    wrong = pc.or_(pc.less(partition, 0), pc.greater_equal(partition, count))
    if pc.any(wrong).as_py():
        row = pc.index(wrong, True).as_py()
        why = f"row {row} is for partition {partition[row].as_py()}, and the topic has {count} partitions"
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, why)
    return pc.fill_null(partition, -1).to_numpy(zero_copy_only=False, writable=True)


def rows_digest(key: Any, value: Any, headers: Any) -> int:
    """The sum of the hashes of all rows, modulo 2^64; columns as in `Rows`."""
    from levada.spark.kernels.digest import digest  # only tasks of named jobs need it

    count = len(value)
    return int(digest(_cells(key, count), _cells(value, count), _lists(headers)))


def encode_rows(
    rows: Rows,
    partitions: Any,
    *,
    now_ms: int,
    codec: Codec = Codec.NONE,
    max_batch_bytes: int = 1 << 20,
    identity: ProducerIdAndEpoch = ProducerIdAndEpoch(),  # noqa: B008
    sequences: MutableMapping[int, int] | None = None,
) -> Iterator[EncodedBatch]:
    """Record batches of at most `max_batch_bytes` before compression; a larger row is a batch by itself.

    `partitions` is the result of `assign_partitions`. Rows of a partition keep their order. `sequences` holds the next
    sequence number of each partition, 0 if it is missing, and is advanced by each batch. Without a producer id it is
    not needed. A header without a name raises InvalidRow(INVALID_RECORD), a time before 1970, other than Kafka's -1 for
    no timestamp, InvalidRow(INVALID_TIMESTAMP).
    """
    count = len(partitions)
    if not count:
        return
    source = kernels.Source(
        _order(partitions),
        partitions,
        _milliseconds(rows.timestamp, now_ms, count),
        _cells(rows.key, count),
        _cells(rows.value, count),
        _lists(rows.headers),
    )
    bodies = np.empty(count, np.int64)
    table = np.empty((count, kernels.BATCH_FIELDS), np.int64)
    state = np.zeros(kernels.STATE_FIELDS, np.int64)
    if kernels.plan_batches(source, max_batch_bytes, bodies, table, state) != kernels.OK:
        raise InvalidRow(ErrorCode.INVALID_RECORD, f"row {state[kernels.BAD_ROW]} has a header without a name")
    written = np.empty(state[kernels.TOTAL_BYTES], np.uint8)
    kernels.write_records(source, bodies, table, state[kernels.BATCH_COUNT], written)
    view: memoryview = written.data
    for batch in table[: state[kernels.BATCH_COUNT]].tolist():
        partition, rows_in_it = batch[kernels.PARTITION], batch[kernels.ROWS]
        sequence = -1
        if identity.producer_id != NO_PRODUCER_ID and sequences is not None:
            sequence = sequences.get(partition, 0)
            sequences[partition] = (sequence + rows_in_it) & SEQUENCE_MASK
        data = _finish(view, batch, codec, identity, sequence)
        yield EncodedBatch(partition, data, rows_in_it, sequence)


def _finish(
    view: memoryview, batch: list[int], codec: Codec, identity: ProducerIdAndEpoch, sequence: int
) -> memoryview:
    """Compress a batch if a codec is set, and write its header."""
    data = view[batch[kernels.AT] : batch[kernels.AT] + batch[kernels.SIZE]]
    if codec:
        data = memoryview(bytearray(HEADER_BYTES) + compress(codec, data[HEADER_BYTES:]))
    length = len(data) - LOG_OVERHEAD
    if length > BATCH_LENGTH_MAX:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a row of {length} bytes")
    attributes = codec | TRANSACTIONAL_BIT if identity.transactional else int(codec)
    count = batch[kernels.ROWS]
    fields = (
        *(attributes, count - 1, batch[kernels.BASE_TIMESTAMP], batch[kernels.MAX_TIMESTAMP]),
        *(identity.producer_id, identity.producer_epoch, sequence, count),
    )
    HEADER.pack_into(data, 0, 0, length, -1, MAGIC, 0, *fields)
    HEADER.pack_into(data, 0, 0, length, -1, MAGIC, crc32c(data[ATTRIBUTES_OFFSET:]), *fields)
    return data


def _order(partitions: Any) -> Any:
    """Row indexes by partition, in their order within each."""
    counts = np.bincount(partitions)
    starts = np.zeros(len(counts), np.int64)
    np.cumsum(counts[:-1], out=starts[1:])
    order = np.empty(len(partitions), np.int64)
    kernels.order_rows(partitions, starts, order)
    return order


def _milliseconds(column: Any, now_ms: int, count: int) -> Any:
    """Timestamps in milliseconds since 1970."""
    if column is None:
        return np.full(count, now_ms, np.int64)
    times, over = _PER_MS[column.type.unit] if pa.types.is_timestamp(column.type) else (1, 1)
    missing = column.is_null() if column.null_count else None
    found = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    found = found * times if times > 1 else found // over
    if missing is not None:
        found[missing.to_numpy(zero_copy_only=False)] = now_ms
    if found.min() < NO_TIMESTAMP:
        row = int(np.argmax(found < NO_TIMESTAMP))
        when = np.datetime64(int(found[row]), "ms")  # any year, unlike datetime
        raise InvalidRow(ErrorCode.INVALID_TIMESTAMP, f"row {row} is from before 1970: {when}")
    return found


def _cells(column: Any, count: int) -> kernels.Cells:
    """A binary or string column in the kernel's form; None is a column of nulls."""
    if column is None:
        return kernels.Cells(np.zeros(count, np.int64), np.full(count, -1, np.int64), _EMPTY)
    is_large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    _, offsets, data = column.buffers()
    ends = _offsets(offsets, is_large, column.offset, count)
    sizes = np.diff(ends)
    if column.null_count:
        sizes[column.is_null().to_numpy(zero_copy_only=False)] = -1
    content = _EMPTY if data is None else np.frombuffer(data, np.uint8)
    content.flags.writeable = False  # as in the kernel's signature
    return kernels.Cells(ends[:-1], sizes, content)


def _offsets(buffer: Any, is_large: bool, first: int, count: int) -> Any:
    """Arrow's `count` + 1 offsets of `count` rows."""
    if buffer is None or not count:
        return np.zeros(count + 1, np.int64)
    found = np.frombuffer(buffer, np.int64 if is_large else np.int32)
    return found[first : first + count + 1].astype(np.int64)


def _lists(column: Any) -> kernels.Lists:
    """The headers of rows in the kernel's form."""
    if column is None:
        empty = _cells(None, 0)
        return kernels.Lists(np.empty(0, np.int64), np.empty(0, np.int64), empty, empty)
    is_large = pa.types.is_large_list(column.type)
    ends = _offsets(column.buffers()[1], is_large, column.offset, len(column))
    counts = np.diff(ends)
    if column.null_count:
        counts[column.is_null().to_numpy(zero_copy_only=False)] = 0
    names, values = column.values.flatten()  # null where the pair is null
    return kernels.Lists(ends[:-1], counts, _cells(names, len(names)), _cells(values, len(values)))

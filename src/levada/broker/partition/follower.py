"""Appends batches to a follower's log as its leader sent them.

The bytes of a batch are never changed: offset, leader epoch and timestamps are the leader's. Its CRC is checked, so a
batch that a device or the network has damaged does not spread. Offsets may be missing between batches, because the
leader has compacted its log.
"""

from collections.abc import Callable

from levada.broker.partition.partition import Partition
from levada.errors import ErrorCode, KafkaError
from levada.wire.batches import BatchHeader, crc_is_valid, iterate_headers
from levada.wire.control_records import decode_marker


class OffsetsMissingError(Exception):
    """Offsets are missing before a batch of a log that nothing tells to have been compacted."""


def append_received(
    partition: Partition, records: memoryview, now_ms: int, may_be_compacted: Callable[[Partition], bool]
) -> int:
    """Append the whole batches of a Fetch response; return the number of their bytes.

    Raises CORRUPT_MESSAGE at the first batch that is invalid, OffsetsMissingError, and KAFKA_STORAGE_ERROR; the batches
    before it are appended. Nothing is queued afterwards.
    """
    received = 0
    try:
        for position, header in iterate_headers(records):
            if header.last_offset < partition.log.next_offset:
                continue  # of a batch that begins below the fetch offset
            batch = records[position : position + header.size]
            _check(partition, header, batch)
            if header.base_offset > partition.log.next_offset and not may_be_compacted(partition):
                raise OffsetsMissingError
            _append(partition, header, batch, now_ms)
            received += header.size
    except OSError as error:
        raise partition.failed(error) from None
    finally:
        partition.publish_received(received)
    return received


def _check(partition: Partition, header: BatchHeader, batch: memoryview) -> None:
    expected, epochs = partition.log.next_offset, partition.log.leader_epochs.entries
    if header.base_offset < expected or header.last_offset_delta < 0:
        problem = f"offsets {header.base_offset} to {header.last_offset} where {expected} is expected"
    elif not (epochs[-1][0] if epochs else 0) <= header.partition_leader_epoch <= partition.leader_epoch:
        problem = f"leader epoch {header.partition_leader_epoch}"
    elif not crc_is_valid(batch):
        problem = "its CRC does not match its bytes"
    else:
        return
    where = f"{partition.topic}-{partition.index} at offset {header.base_offset}"
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"invalid batch from the leader of {where}: {problem}")


def _append(partition: Partition, header: BatchHeader, batch: memoryview, now_ms: int) -> None:
    log = partition.log
    log.reserve(batch, header.last_offset + 1 - log.next_offset, header.max_timestamp, now_ms)
    log.assign_epoch(header.partition_leader_epoch, header.base_offset)
    if header.producer_id >= 0:
        marker = decode_marker(batch) if header.is_control else None
        partition.producers.replay([(header, marker)], log.reader.add_aborted)

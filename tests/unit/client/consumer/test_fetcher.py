"""Decoding of fetched batches: control records and aborted ones are skipped, wrong CRCs found."""

from struct import Struct

import pytest

from levada.client.consumer.fetch import decode_batches
from levada.client.data import FetchedPartition
from levada.errors import ErrorCode, KafkaError
from levada.model import TopicPartition
from levada.wire.batches import CONTROL_BIT, TRANSACTIONAL_BIT, Record, encode, iterate_headers

PLACE = TopicPartition("orders", 0)
MARKER = Struct(">hh")
ABORT, COMMIT = 0, 1


def data(offset: int, *values: bytes, producer_id: int = -1) -> bytes:
    """A batch, transactional if it has a producer."""
    attributes = TRANSACTIONAL_BIT if producer_id >= 0 else 0
    records = [Record(0, 0, None, value) for value in values]
    return bytes(encode(records, base_offset=offset, producer_id=producer_id, producer_epoch=0, attributes=attributes))


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    record = Record(0, 0, MARKER.pack(0, kind), b"\0" * 6)
    attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    return bytes(encode([record], base_offset=offset, producer_id=producer_id, producer_epoch=0, attributes=attributes))


def decoded(log: bytes, *aborted: tuple[int, int]) -> list[tuple[list[bytes | None], int]]:
    """The values of each batch, and the offset after it."""
    answer = FetchedPartition(0, 100, 100, 0, aborted, memoryview(log))
    batches = decode_batches(PLACE, answer, list(iterate_headers(answer.records)))
    return [([record.value for record in batch.records], batch.end) for batch in batches]


def test_markers_are_passed_over_and_count_as_read() -> None:
    log = data(0, b"a", b"b", producer_id=7) + marker(2, 7, COMMIT) + data(3, b"c")
    assert decoded(log) == [([b"a", b"b"], 2), ([], 3), ([b"c"], 4)]


def test_aborted_records_are_left_out_up_to_their_marker() -> None:
    """Two producers, of which one aborts, begins again and commits."""
    log = (
        data(0, b"aborted", producer_id=7)
        + data(1, b"other", producer_id=8)
        + data(2, b"aborted too", producer_id=7)
        + marker(3, 7, ABORT)
        + data(4, b"second try", producer_id=7)
        + data(5, b"plain")
        + marker(6, 8, COMMIT)
        + marker(7, 7, COMMIT)
    )
    values = [value for batch, _ in decoded(log, (7, 0)) for value in batch]
    assert values == [b"other", b"second try", b"plain"]
    assert decoded(log, (7, 0))[-1][1] == 8


def test_a_producer_that_aborts_twice() -> None:
    log = (
        data(0, b"one", producer_id=7)
        + marker(1, 7, ABORT)
        + data(2, b"two", producer_id=7)
        + marker(3, 7, COMMIT)
        + data(4, b"three", producer_id=7)
        + marker(5, 7, ABORT)
    )
    values = [value for batch, _ in decoded(log, (7, 4), (7, 0)) for value in batch]
    assert values == [b"two"]


def test_a_wrong_crc_is_reported() -> None:
    broken = bytearray(data(0, b"a") + data(1, b"b"))
    broken[-1] ^= 1
    with pytest.raises(KafkaError, match="the batch at offset 1 has a wrong CRC") as caught:
        decoded(bytes(broken))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_an_unfinished_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    log = data(0, b"a") + data(1, b"b")[:-3]
    assert decoded(log) == [([b"a"], 1)]

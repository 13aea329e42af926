"""A batch without the records that compaction removes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.logs import NOW_MS

from levada.errors import KafkaError
from levada.model import Codec
from levada.wire import batches
from levada.wire.batches import Record, crc_is_valid, decode, read_header
from levada.wire.record_filter import empty_batch, locate_records, retain_records

RECORDS = [
    Record(40, NOW_MS, b"a", b"1", (("h", b"x"), ("n", None))),
    Record(41, NOW_MS + 7, b"", None),
    Record(42, NOW_MS - 300, None, b"v" * 200),
    Record(43, NOW_MS + 2, b"b" * 90, b""),
]

HOUR_MS = 3_600_000


def batch_of(codec: Codec, **options: int) -> memoryview:
    return memoryview(batches.encode(RECORDS, base_offset=40, codec=codec, **options))


@pytest.mark.parametrize("codec", list(Codec))
def test_what_stays_of_a_batch_is_what_it_was(codec: Codec) -> None:
    """Offsets, timestamps, headers, the producer and the codec are kept; the last offset too."""
    view = batch_of(codec, producer_id=9, producer_epoch=2, base_sequence=77)
    header = read_header(view)
    data, spans = locate_records(view, header)
    assert [span.key for span in spans] == [record.key for record in RECORDS]
    assert [span.has_value for span in spans] == [record.value is not None for record in RECORDS]
    left = memoryview(retain_records(header, data, [spans[0], spans[2]], None))
    assert crc_is_valid(left) and decode(left) == [RECORDS[0], RECORDS[2]]
    after = read_header(left)
    assert after.codec is codec and after.max_timestamp == NOW_MS and after.record_count == 2
    assert after[:1] + after[6:8] + after[9:12] == header[:1] + header[6:8] + header[9:12]
    assert after.size == len(left)


@pytest.mark.parametrize("append_time", [False, True])
def test_a_delete_horizon_moves_no_timestamp(append_time: bool) -> None:
    """KIP-534: it stands where the base timestamp was."""
    view = batch_of(Codec.NONE)
    if append_time:
        batches.set_log_append_time(view, NOW_MS + 99)
    expected = decode(view)[1:]
    header = read_header(view)
    data, spans = locate_records(view, header)
    left = memoryview(retain_records(header, data, spans[1:], NOW_MS + HOUR_MS))
    after = read_header(left)
    assert crc_is_valid(left) and decode(left) == expected
    assert (header.delete_horizon_ms, after.delete_horizon_ms) == (None, NOW_MS + HOUR_MS)
    data, spans = locate_records(left, after)
    again = memoryview(retain_records(after, data, spans[1:], None))
    assert decode(again) == expected[1:] and read_header(again).delete_horizon_ms == NOW_MS + HOUR_MS


def test_an_emptied_batch_still_tells_of_its_producer() -> None:
    header = read_header(batch_of(Codec.ZSTD, producer_id=9, producer_epoch=2, base_sequence=77))
    left = memoryview(empty_batch(header))
    after = read_header(left)
    assert crc_is_valid(left) and decode(left) == [] and len(left) == 61
    assert (after.base_offset, after.last_offset, after.max_timestamp) == (40, 43, NOW_MS + 7)
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (9, 2, 77)
    assert after.codec is Codec.NONE


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_batch_is_refused(data: Any) -> None:
    """Whatever bytes are there: an error that says so, or records that are within the batch."""
    codec = data.draw(st.sampled_from(list(Codec)))
    view = batch_of(codec)
    for _ in range(data.draw(st.integers(1, 4))):
        view[data.draw(st.integers(21, len(view) - 1))] = data.draw(st.integers(0, 255))
    try:
        unfolded, spans = locate_records(view, read_header(view))
    except KafkaError:
        return
    assert all(0 <= span.start < span.body <= span.end <= len(unfolded) for span in spans)

"""Frames and batches that benchmarks send are valid."""

import pytest
from bench.generator import coordinator_requests as coordination
from bench.generator import wire

from levada.wire import batches
from levada.wire.schema import messages


def test_a_generated_batch_is_a_valid_record_batch() -> None:
    batch = wire.batch(15, 1024, producer_id=7, producer_epoch=1)
    assert batches.crc_is_valid(memoryview(batch))
    records = batches.decode(memoryview(batch))
    assert [len(record.value or b"") for record in records] == [1024] * 15
    assert [record.offset for record in records] == list(range(15))


def test_a_produce_frame_says_where_its_batch_is() -> None:
    batch = wire.batch(1, 100)
    frame, at = wire.produce(bytes(16), 3, batch)
    assert frame[at : at + len(batch)] == batch
    assert wire.I32.unpack_from(frame)[0] == len(frame) - 4


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 1 << 20])
def test_varints_come_back(value: int) -> None:
    assert wire.read_varint(wire.varint(value), 0) == (value, len(wire.varint(value)))


def test_frames_for_coordinators_are_what_the_broker_reads() -> None:
    frame, positions = coordination.offset_commit("g", "m", 3, "t", 2)
    wire.I64.pack_into(frame, positions[1], 77)
    api_key, version, _, _, position = messages.read_request_header(memoryview(frame)[4:])
    commit = messages.read_request(api_key, version, memoryview(frame)[4:], position)
    assert (commit.group_id, commit.member_id, commit.generation_id_or_member_epoch) == ("g", "m", 3)
    assert [part.committed_offset for part in commit.topics[0].partitions] == [0, 77]
    assert len(frame) == 4 + wire.I32.unpack_from(frame)[0]

"""Idempotent producers: a retry is stored once and in order."""

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import pack_into

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.core.partition.producer_state import APPEND, SEQUENCE_MAX, CorruptSnapshotError, ProducerStates
from levada.errors import ErrorCode, KafkaError
from levada.wire import batches
from levada.wire.control_records import Marker

EXTENSION_BYTES = 12  # of a snapshot without earlier batches


def append(
    states: ProducerStates,
    producer_id: int,
    epoch: int,
    sequence: int,
    count: int,
    offset: int,
    timestamp: int = 0,
) -> None:
    assert states.check(producer_id, epoch, sequence, count) == APPEND
    states.apply(producer_id, epoch, sequence, offset + count - 1, count, timestamp)


def refused(check: Callable[[], int]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        check()
    return caught.value.code


def test_batches_in_sequence_are_appended_and_retries_of_the_last_five_get_their_first_offset() -> None:
    states = ProducerStates()
    for number in range(7):
        append(states, 1, 0, number * 10, 10, 100 + number * 10)
    assert [states.check(1, 0, number * 10, 10) for number in range(2, 7)] == [120, 130, 140, 150, 160]
    assert refused(lambda: states.check(1, 0, 10, 10)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_duplicate_has_the_same_first_and_last_sequence() -> None:
    states = ProducerStates()
    append(states, 1, 0, 0, 10, 0)
    assert refused(lambda: states.check(1, 0, 0, 9)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(lambda: states.check(1, 0, 1, 9)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_refused() -> None:
    states = ProducerStates()
    append(states, 1, 0, 0, 1, 0)
    assert refused(lambda: states.check(1, 0, 2, 1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_go_on_with_zero_after_the_largest() -> None:
    states = ProducerStates()
    append(states, 1, 0, SEQUENCE_MAX - 1, 2, 50)
    append(states, 1, 0, 0, 1, 52)
    wrapping = ProducerStates()
    append(wrapping, 1, 0, SEQUENCE_MAX, 3, 10)  # sequences max, 0, 1
    append(wrapping, 1, 0, 2, 1, 13)
    assert wrapping.check(1, 0, SEQUENCE_MAX, 3) == 10
    reloaded = ProducerStates()
    append(reloaded, 1, 0, SEQUENCE_MAX, 3, 10)
    assert ProducerStates.decode_snapshot(reloaded.encode_snapshot(13), 13).check(1, 0, SEQUENCE_MAX, 3) == 10


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    states = ProducerStates()
    append(states, 1, 3, 0, 5, 0)
    assert refused(lambda: states.check(1, 4, 5, 1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(states, 1, 4, 0, 1, 5)
    assert refused(lambda: states.check(1, 3, 5, 1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(lambda: states.check(1, 3, 0, 5)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert states.check(1, 4, 0, 1) == 5


def test_an_unknown_producer_may_start_anywhere_as_in_kafka_4() -> None:
    states = ProducerStates()
    append(states, 1, 2, 1_000, 5, 0)
    append(states, 1, 2, 1_005, 5, 5)
    assert refused(lambda: states.check(2, -2, 0, 1)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_producers_expire_by_their_newest_timestamp() -> None:
    states = ProducerStates()
    append(states, 1, 0, 0, 1, 0, timestamp=1_000)
    append(states, 2, 0, 0, 1, 1, timestamp=2_000)
    assert states.expire(now_ms=2_500, expiration_ms=1_500) == 1
    assert (len(states), states.check(2, 0, 0, 1)) == (1, 1)
    append(states, 1, 0, 7, 1, 2)


def test_the_number_of_producers_is_bounded_and_the_longest_silent_go_first() -> None:
    states = ProducerStates(producers_max=32)
    for producer_id in range(100):
        append(states, producer_id, 0, 0, 1, producer_id)
        assert len(states) <= 32
    assert states.check(99, 0, 0, 1) == 99
    assert states.check(0, 0, 0, 1) == APPEND


def test_producers_whose_markers_a_snapshot_brought_are_forgotten_before_new_ones() -> None:
    """Coordinators write without sequence numbers, and a snapshot does not know where."""
    states = ProducerStates(producers_max=32)
    for producer_id in range(32):
        states.end(producer_id, 0, Marker(True, 0), producer_id, 0)
    states = ProducerStates.decode_snapshot(states.encode_snapshot(32), 32, producers_max=32)
    for producer_id in range(100, 120):
        states.end(producer_id, 0, Marker(True, 0), producer_id, 0)
        assert len(states) <= 32
    assert {producer_id for producer_id, _ in states.items()} >= set(range(100, 120))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:3],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"\0\2" + data[2:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data[:2] + bytes([data[2] ^ 1]) + data[3:],
        lambda data: b"",
    ],
)
def test_a_damaged_snapshot_is_refused(damage: Callable[[bytes], bytes]) -> None:
    states = ProducerStates()
    append(states, 1, 0, 0, 1, 0)
    with pytest.raises(CorruptSnapshotError):
        ProducerStates.decode_snapshot(damage(states.encode_snapshot(1)), 1)


def test_a_snapshot_under_another_name_is_refused() -> None:
    """It holds the state of another offset: its transactions would never end. Kafka's does not have its offset."""
    states = ProducerStates()
    append(states, 1, 0, 0, 1, 0)
    data = states.encode_snapshot(1)
    assert len(ProducerStates.decode_snapshot(data, 1)) == 1
    with pytest.raises(CorruptSnapshotError, match="it is the snapshot of offset 1, under another name"):
        ProducerStates.decode_snapshot(data, 2)
    kafkas = data[6:-EXTENSION_BYTES]
    assert len(ProducerStates.decode_snapshot(data[:2] + crc32c(kafkas).to_bytes(4, "big") + kafkas, 2)) == 1


def test_a_snapshot_with_a_wrong_count_and_a_valid_crc_is_refused() -> None:
    states = ProducerStates()
    append(states, 1, 0, 0, 1, 0)
    for count in (-1, 0, 2, SEQUENCE_MAX):
        data = bytearray(states.encode_snapshot(1))
        pack_into(">i", data, 6, count)
        pack_into(">I", data, 2, crc32c(data[6:]))
        with pytest.raises(CorruptSnapshotError):
            ProducerStates.decode_snapshot(bytes(data), 1)


def test_the_snapshot_has_kafkas_bytes() -> None:
    states = ProducerStates()
    append(states, 7, 2, 5, 3, 40, timestamp=99)
    body = bytes.fromhex(
        "00000001"  # one entry
        "0000000000000007"
        "0002"
        "00000007"
        "000000000000002a"
        "00000002"
        "0000000000000063"
        "ffffffff"
        "ffffffffffffffff"
        "00000000"  # not read by Kafka: no earlier batches
        "000000000000002b"  # and the offset of the snapshot
    )
    assert states.encode_snapshot(43) == b"\x00\x01" + crc32c(body).to_bytes(4, "big") + body


@dataclass
class Model:
    """The same rules, written as a search through the list of all batches."""

    log: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # id, epoch, sequence, count, offset

    def check(self, producer_id: int, epoch: int, sequence: int, count: int) -> int | ErrorCode:
        own = [batch for batch in self.log if batch[0] == producer_id]
        if not own:
            return APPEND
        current = own[-1][1]
        if epoch < current:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if epoch > current:
            return APPEND if sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        same_epoch = [batch for batch in own if batch[1] == epoch]
        for batch in same_epoch[-5:]:
            if batch[2:4] == (sequence, count):
                return batch[4]
        follows = (same_epoch[-1][2] + same_epoch[-1][3]) % (SEQUENCE_MAX + 1)
        return APPEND if sequence == follows else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


sequences = st.one_of(st.integers(0, 12), st.integers(SEQUENCE_MAX - 6, SEQUENCE_MAX))
steps = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), sequences | st.none(), st.integers(1, 4), st.booleans()),
    max_size=60,
)


def run(steps: list[tuple[int, int, int | None, int, bool]]) -> tuple[Model, ProducerStates]:
    """Drive machine and model with the same requests; a sequence of None means the one that is expected."""
    model, states, offset = Model(), ProducerStates(), 0
    for producer_id, epoch, sequence, count, newest_epoch in steps:
        own = [batch for batch in model.log if batch[0] == producer_id]
        if own and newest_epoch:
            epoch = own[-1][1]
        if sequence is None:
            follows = own and own[-1][1] == epoch
            sequence = (own[-1][2] + own[-1][3]) % (SEQUENCE_MAX + 1) if follows else 0
        expected = model.check(producer_id, epoch, sequence, count)
        try:
            answer: int | ErrorCode = states.check(producer_id, epoch, sequence, count)
        except KafkaError as error:
            answer = error.code
        assert (type(answer), answer) == (type(expected), expected)
        if answer == APPEND and not isinstance(answer, ErrorCode):
            model.log.append((producer_id, epoch, sequence, count, offset))
            states.apply(producer_id, epoch, sequence, offset + count - 1, count, timestamp=offset)
            offset += count
    return model, states


@given(steps)
def test_the_machine_agrees_with_the_model(steps: list[tuple[int, int, int | None, int, bool]]) -> None:
    run(steps)


def header_of(batch: tuple[int, int, int, int, int]) -> batches.BatchHeader:
    producer_id, epoch, sequence, count, offset = batch
    records = [batches.Record(offset + i, offset, None, b"x", ()) for i in range(count)]
    return batches.read_header(
        memoryview(
            batches.encode(
                records,
                base_offset=offset,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
        )
    )


@settings(max_examples=50)
@given(steps)
def test_replaying_the_log_rebuilds_the_state(steps: list[tuple[int, int, int | None, int, bool]]) -> None:
    model, states = run(steps)
    replayed = ProducerStates()
    replayed.replay((header_of(batch), None) for batch in model.log)
    assert replayed == states


@settings(max_examples=50)
@given(steps, st.data())
def test_a_snapshot_and_the_rest_of_the_log_continue_where_the_state_ended(
    steps: list[tuple[int, int, int | None, int, bool]], data: st.DataObject
) -> None:
    """The snapshot knows all batches that may be retried, not only the newest as Kafka's does."""
    model, states = run(steps)
    cut = data.draw(st.integers(0, len(model.log)))
    early = ProducerStates()
    early.replay((header_of(batch), None) for batch in model.log[:cut])
    restored = ProducerStates.decode_snapshot(early.encode_snapshot(cut), cut)
    restored.replay((header_of(batch), None) for batch in model.log[cut:])
    assert restored == states
    assert restored.encode_snapshot(0) == states.encode_snapshot(0)
    for producer_id, epoch, sequence, count, offset in {batch[0]: batch for batch in model.log}.values():
        assert restored.check(producer_id, epoch, sequence, count) == offset
        assert restored.check(producer_id, epoch, (sequence + count) & SEQUENCE_MAX, 1) == APPEND

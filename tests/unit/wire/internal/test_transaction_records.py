"""Records of `__transaction_state` and markers: Kafka's bytes, and nothing lost in between."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core.transactions.state import Transaction, restored
from levada.errors import ErrorCode, KafkaError
from levada.wire.batches import TRANSACTIONAL_BIT, Record, encode, read_header
from levada.wire.control_records import MARKER_ATTRIBUTES, Marker, decode_marker, encode_marker, read_marker
from levada.wire.internal.transaction_records import (
    TRANSACTIONS,
    Status,
    TransactionLogKey,
    TransactionLogValue,
)

# As Kafka 4.3.1 wrote it: a transaction of version 2, decided.
KAFKA_KEY = bytes.fromhex("000000177472616e736163746f722d643038316365663935616138")
KAFKA_VALUE = bytes.fromhex(
    "0001"  # version
    "0000000000000010" "0001"  # producer id and epoch
    "0000ea60" "02"  # timeout, PrepareCommit
    "02" "11" "74786e2d666438643538383931663434" "02" "00000000" "00"  # a topic, a partition, no tags
    "000001a1dec305f8" "000001a1dec305e5"  # last update, start
    "02" "00" "08" "0000000000000010" "02" "02" "0002"  # tags: previous producer id, version of the client
)  # fmt: skip

transactions = st.builds(
    Transaction,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    timeout_ms=st.integers(1, 2**31 - 1),
    last_update_ms=st.integers(0, 2**62),
    status=st.sampled_from([status for status in Status if status is not Status.EMPTY]),
    partitions=st.frozensets(st.tuples(st.text(min_size=1, max_size=20), st.integers(0, 2**31 - 1))),
    start_ms=st.integers(-1, 2**62),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_epoch=st.integers(-1, 2**15 - 1),
    last_producer_epoch=st.integers(-1, 2**15 - 1),
    version=st.integers(0, 2),
)


@given(st.text(min_size=1, max_size=50), transactions)
def test_a_state_survives_as_it_is(name: str, transaction: Transaction) -> None:
    key, value = TRANSACTIONS.encode(TransactionLogKey(name), transaction.record())
    found = TRANSACTIONS.decode(key, value)
    assert found is not None
    assert found[0].transactional_id == name
    assert restored(found[1]) == transaction
    assert len(fields(Transaction)) == len(TransactionLogValue._fields), "a field is not in the record"


def test_a_record_of_kafka_is_understood_and_written_alike() -> None:
    found = TRANSACTIONS.decode(KAFKA_KEY, KAFKA_VALUE)
    assert found is not None and found[0] == TransactionLogKey("transactor-d081cef95aa8")
    transaction = restored(found[1])
    assert transaction is not None
    assert (transaction.producer_id, transaction.producer_epoch) == (16, 1)
    assert (transaction.status, transaction.timeout_ms) == (Status.PREPARE_COMMIT, 60_000)
    assert transaction.partitions == {("txn-fd8d58891f44", 0)}
    assert (transaction.version, transaction.previous_producer_id) == (2, 16)
    assert transaction.last_update_ms - transaction.start_ms == 19
    assert TRANSACTIONS.encode(found[0], transaction.record()) == (KAFKA_KEY, KAFKA_VALUE)


def test_records_of_older_brokers_are_understood() -> None:
    """Version 0, before flexible encoding."""
    value = bytes.fromhex(
        "0000" "0000000000000007" "0003" "0000ea60" "01" "00000001" "0001" "74" "00000001" "00000001"
        "0000018bcfe56800" "0000018bcfe56400"
    )  # fmt: skip
    found = TRANSACTIONS.decode(KAFKA_KEY, value)
    assert found is not None
    transaction = restored(found[1])
    assert transaction is not None and transaction.partitions == {("t", 1)}
    assert transaction.status is Status.ONGOING and transaction.version == 0


def test_an_empty_transaction_has_no_list_and_a_removed_id_no_value() -> None:
    value = Transaction(7, 0, 60_000, 1).record()
    assert value.transaction_partitions is None
    assert TRANSACTIONS.encode(TransactionLogKey("x"), None) == (b"\0\0\0\1x", None)
    assert restored(value._replace(transaction_status=6)) is None, "Kafka's Dead says that the id goes"


@pytest.mark.parametrize("size", [0, 1, 2, 5, 20])
def test_a_damaged_record_is_named_so(size: int) -> None:
    with pytest.raises(KafkaError) as caught:
        TRANSACTIONS.decode(KAFKA_KEY, KAFKA_VALUE[:size])
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_a_control_batch_of_one_record(committed: bool) -> None:
    batch = encode_marker(Marker(committed, 9), producer_id=7, producer_epoch=3, timestamp=1_700_000_000_000)
    header = read_header(batch)
    assert header.attributes == MARKER_ATTRIBUTES and header.is_control and header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    assert (header.record_count, header.size) == (1, 78)
    assert decode_marker(memoryview(batch)) == Marker(committed, 9)


def test_other_control_records_are_no_markers() -> None:
    leader_change = Record(0, 0, bytes.fromhex("00000002"), b"\0\0\0\0\0\0\0\0")
    assert decode_marker(memoryview(encode([leader_change], attributes=TRANSACTIONAL_BIT))) is None
    assert decode_marker(memoryview(encode([]))) is None
    assert read_marker(None, b"") is None and read_marker(b"\0\0", b"\0" * 6) is None

"""Names of files and text of checkpoints are Kafka's."""

import pytest
from crc32c import crc32c

from levada.model import TopicPartition
from levada.storage.checkpoints import (
    CorruptCheckpointError,
    decode_epochs,
    decode_offsets,
    encode_epochs,
    encode_offsets,
)
from levada.storage.file_names import file_name, parse_file_name, parse_partition_directory


def test_names_are_kafkas() -> None:
    assert file_name(42, ".log") == "00000000000000000042.log"
    assert parse_file_name("00000000000000000042.log.deleted") == (42, ".log.deleted")
    for name in (
        "42.log",
        "0000000000000000004x.log",
        "leader-epoch-checkpoint",
        "²" * 20 + ".log",
        f"{1 << 63:020d}.log",
    ):
        assert parse_file_name(name) is None
    assert parse_partition_directory("a-b.c_d-10") == TopicPartition("a-b.c_d", 10)
    assert parse_partition_directory("__consumer_offsets-0") == TopicPartition("__consumer_offsets", 0)
    for name in ("plain", "-1", "a-", "a-01", "a-1x", "t-0.0f1e-delete", "a-²"):
        assert parse_partition_directory(name) is None


def test_checkpoints_are_kafkas_text() -> None:
    offsets = {TopicPartition("a-b", 0): 5, TopicPartition("c", 12): 0}
    assert encode_offsets(offsets) == b"1\n%08x\n2\na-b 0 5\nc 12 0\n" % crc32c(b"2\na-b 0 5\nc 12 0\n")
    assert decode_offsets(encode_offsets(offsets)) == offsets
    assert decode_offsets(b"0\n2\na-b 0 5\nc 12 0\n") == offsets
    assert decode_epochs(encode_epochs([(0, 0), (3, 17)])) == [(0, 0), (3, 17)]
    assert decode_epochs(b"0\n2\n0 0\n3 17\n") == [(0, 0), (3, 17)]
    for data in (
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n2\na 0 5\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 -5\n",
        b"0\n1\na 0 %d\n" % (1 << 63),
        b"0\n1\na x 5\n",
        b"\xff",
    ):
        with pytest.raises(CorruptCheckpointError):
            decode_offsets(data)
    for data in (b"0\n1\n1\n", b"0\n2\n1 5\n1 6\n", b"0\n2\n1 5\n2 5\n", b"0\n1\n-1 0\n"):
        with pytest.raises(CorruptCheckpointError):
            decode_epochs(data)


def test_a_checkpoint_of_another_log_dir_is_corrupt() -> None:
    offsets = {TopicPartition("a-b", 0): 5}
    data = encode_offsets(offsets, "one")
    assert decode_offsets(data) == decode_offsets(data, "one") == offsets
    with pytest.raises(CorruptCheckpointError, match=r"directory\.id=one"):
        decode_offsets(data, "another")
    assert decode_offsets(encode_offsets(offsets), "another") == offsets  # of a former version


@pytest.mark.parametrize("directory_id", ["", "ASNFZ4mrze8BI0VniavN7w"])
def test_every_changed_bit_of_a_checkpoint_is_found(directory_id: str) -> None:
    data = encode_offsets({TopicPartition("orders", 0): 17, TopicPartition("orders", 1): 170}, directory_id)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptCheckpointError):
            decode_offsets(bytes(damaged))

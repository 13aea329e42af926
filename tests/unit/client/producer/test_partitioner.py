"""Keys choose partitions as Kafka's Java client does."""

import pytest

from levada.client.producer.partitioner import another_partition, murmur2, partition_for_key


@pytest.mark.parametrize(
    ("key", "expected"),
    [  # from the tests of Kafka's Utils.murmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_kafka(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


def test_same_key_same_partition_and_all_partitions_are_used() -> None:
    keys = [b"key-%d" % number for number in range(1_000)]
    chosen = [partition_for_key(key, 7) for key in keys]
    assert chosen == [partition_for_key(key, 7) for key in keys]
    assert set(chosen) == set(range(7))


def test_another_partition_moves_on_if_it_can() -> None:
    assert another_partition([3], 3) == 3
    assert all(another_partition([1, 2], 1) == 2 for _ in range(20))
    assert {another_partition(range(4), None) for _ in range(200)} == set(range(4))

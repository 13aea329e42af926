"""Chooses the partition of a record as Kafka's Java client does.

A key is hashed by murmur2, so both clients put records of one key into the same partition. Records without a key fill
the batch of one partition, then of another.
"""

import random
from collections.abc import Sequence

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_SHIFT = 24
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32 bit hash of Kafka's default partitioner."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little")
        word = (word * _MULTIPLIER) & _MASK
        word ^= word >> _SHIFT
        word = (word * _MULTIPLIER) & _MASK
        value = ((value * _MULTIPLIER) & _MASK) ^ word
    if length > whole:
        value ^= int.from_bytes(data[whole:], "little")
        value = (value * _MULTIPLIER) & _MASK
    value ^= value >> 13
    value = (value * _MULTIPLIER) & _MASK
    return value ^ (value >> 15)


def partition_for_key(key: bytes, count: int) -> int:
    """The partition of a key in a topic of `count` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % count


def another_partition(available: Sequence[int], current: int | None) -> int:
    """Any available partition, and not the current one if there is a choice."""
    others = [index for index in available if index != current]
    return random.choice(others or available)

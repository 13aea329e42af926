"""Maps keys to their latest offsets in a fixed amount of memory.

An entry has 24 bytes: a 128-bit hash of the key and the offset, in a preallocated open-addressing table. The hash
consists of Python's hash of the key and of the key with a salt. Python's hash is keyed with a secret of the process, so
it is fast and clients cannot construct collisions.
"""

from secrets import token_bytes
from typing import Final

ENTRY_BYTES: Final = 24
LOAD_MAX: Final = 0.9  # the load factor; beyond it probe sequences become long
SLOTS_MIN: Final = 16
SALT_BYTES: Final = 16

_COLUMN_BYTES: Final = ENTRY_BYTES // 3


class OffsetMap:
    """Up to `capacity` keys with their latest offset."""

    __slots__ = ("_firsts", "_offsets", "_salt", "_seconds", "_slots", "capacity", "latest_offset", "size")

    def __init__(self, memory_bytes: int, keys_expected: int) -> None:
        """Use at most `memory_bytes`, and no more than `keys_expected` require."""
        slots = min(memory_bytes // ENTRY_BYTES, int(keys_expected / LOAD_MAX) + 1)
        self._slots = slots = max(SLOTS_MIN, slots)
        self._firsts, self._seconds, self._offsets = (
            memoryview(bytearray(slots * _COLUMN_BYTES)).cast("q") for _ in range(3)
        )  # two hashes and the offset plus one; 0 in a free slot
        self._salt = token_bytes(SALT_BYTES)
        self.capacity = int(slots * LOAD_MAX)
        self.size = 0
        self.latest_offset = -1  # every key of the cleaned range up to it is in the map

    @property
    def full(self) -> bool:
        return self.size >= self.capacity

    def _find(self, key: bytes) -> tuple[int, int, int]:
        """Return the slot of a key, or the free slot for it, and its hashes."""
        first, second = hash(key), hash(self._salt + key)
        firsts, seconds, offsets, slots = self._firsts, self._seconds, self._offsets, self._slots
        slot = first % slots
        while offsets[slot] and (firsts[slot] != first or seconds[slot] != second):
            slot += 1
            if slot == slots:
                slot = 0
        return slot, first, second

    def put(self, key: bytes, offset: int) -> bool:
        """Set the offset of a key, greater than all before; return False if the map is full."""
        slot, first, second = self._find(key)
        if not self._offsets[slot]:
            if self.full:
                return False
            self._firsts[slot], self._seconds[slot] = first, second
            self.size += 1
        self._offsets[slot] = offset + 1
        return True

    def get(self, key: bytes) -> int:
        """Return the latest offset of a key; -1 if it is not in the map."""
        return self._offsets[self._find(key)[0]] - 1

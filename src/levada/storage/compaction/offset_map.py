"""The newest offset of each key, in memory of a fixed size: what compaction compares records with.

Keys are kept as 128 bits of hash beside their offset, 24 bytes an entry in one preallocated table, so the memory is
known before the first key is seen. The hashes are Python's own, which are keyed with a secret of the process, of the
key and of the key behind a salt: quick, and nobody can make two keys of which one would pass for the other.
"""

from secrets import token_bytes
from typing import Final

ENTRY_BYTES: Final = 24
LOAD_MAX: Final = 0.9  # of the slots; beyond that searches become long
SLOTS_MIN: Final = 16
SALT_BYTES: Final = 16

_COLUMN_BYTES: Final = ENTRY_BYTES // 3


class OffsetMap:
    """Up to `capacity` keys with an offset each."""

    __slots__ = ("_firsts", "_followers", "_salt", "_seconds", "_slots", "capacity", "latest_offset", "size")

    def __init__(self, memory_bytes: int, keys_expected: int) -> None:
        """As large as `memory_bytes` allows, but no larger than needed for `keys_expected`."""
        slots = min(memory_bytes // ENTRY_BYTES, int(keys_expected / LOAD_MAX) + 1)
        self._slots = slots = max(SLOTS_MIN, slots)
        self._firsts, self._seconds, self._followers = (
            memoryview(bytearray(slots * _COLUMN_BYTES)).cast("q") for _ in range(3)
        )  # two hashes and the offset after the key's; 0 where the slot is free
        self._salt = token_bytes(SALT_BYTES)
        self.capacity = int(slots * LOAD_MAX)
        self.size = 0
        self.latest_offset = -1  # up to it every key of the range is in the map

    @property
    def full(self) -> bool:
        return self.size >= self.capacity

    def _find(self, key: bytes) -> tuple[int, int, int]:
        """The slot of a key, or the free one where it belongs; and its hashes."""
        first, second = hash(key), hash(self._salt + key)
        firsts, seconds, followers, slots = self._firsts, self._seconds, self._followers, self._slots
        slot = first % slots
        while followers[slot] and (firsts[slot] != first or seconds[slot] != second):
            slot += 1
            if slot == slots:
                slot = 0
        return slot, first, second

    def put(self, key: bytes, offset: int) -> bool:
        """Note the offset of a key, greater than any before; False if there is no room for it."""
        slot, first, second = self._find(key)
        if not self._followers[slot]:
            if self.full:
                return False
            self._firsts[slot], self._seconds[slot] = first, second
            self.size += 1
        self._followers[slot] = offset + 1
        return True

    def get(self, key: bytes) -> int:
        """The newest offset of a key; -1 if it is not here."""
        return self._followers[self._find(key)[0]] - 1

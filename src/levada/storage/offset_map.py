"""The newest offset of each key, in memory of a fixed size: what compaction compares records with.

Keys are kept as hashes of 128 bits beside their offset, 24 bytes an entry in one preallocated table, so the memory
is known before the first key is seen. The hash is keyed with a secret of the process: nobody can make two keys of
which one would pass for the other.
"""

from hashlib import blake2b
from secrets import token_bytes
from typing import Final

ENTRY_BYTES: Final = 24
HASH_BYTES: Final = 16
LOAD_MAX: Final = 0.9  # of the slots; beyond that searches become long
SLOTS_MIN: Final = 16

_EMPTY: Final = bytes(HASH_BYTES)
_OFFSET_BYTES: Final = ENTRY_BYTES - HASH_BYTES


class OffsetMap:
    """Up to `capacity` keys with an offset each."""

    __slots__ = ("_end", "_hash", "_slots", "_table", "capacity", "latest_offset", "size")

    def __init__(self, memory_bytes: int, keys_expected: int) -> None:
        """As large as `memory_bytes` allows, but no larger than needed for `keys_expected`."""
        slots = min(memory_bytes // ENTRY_BYTES, int(keys_expected / LOAD_MAX) + 1)
        self._slots = max(SLOTS_MIN, slots)
        self._end = self._slots * ENTRY_BYTES
        self._table = bytearray(self._end)
        self._hash = blake2b(digest_size=HASH_BYTES, key=token_bytes(32)).copy
        self.capacity = int(self._slots * LOAD_MAX)
        self.size = 0
        self.latest_offset = -1  # up to it every key of the range is in the map

    @property
    def full(self) -> bool:
        return self.size >= self.capacity

    def _find(self, key: bytes) -> tuple[int, bytes]:
        """The position of a key's entry, or of the empty one where it belongs; and its hash."""
        state = self._hash()
        state.update(key)
        digest = state.digest()
        table, end = self._table, self._end
        position = int.from_bytes(digest[:8], "little") % self._slots * ENTRY_BYTES
        while True:
            found = table[position : position + HASH_BYTES]
            if found in (digest, _EMPTY):
                return position, digest
            position += ENTRY_BYTES
            if position == end:
                position = 0

    def put(self, key: bytes, offset: int) -> bool:
        """Note the offset of a key, greater than any before; False if there is no room for it."""
        position, digest = self._find(key)
        after = position + HASH_BYTES
        if self._table[position:after] != digest:
            if self.full:
                return False
            self._table[position:after] = digest
            self.size += 1
        self._table[after : position + ENTRY_BYTES] = offset.to_bytes(_OFFSET_BYTES, "little")
        return True

    def get(self, key: bytes) -> int:
        """The newest offset of a key; -1 if it is not here."""
        position, digest = self._find(key)
        after = position + HASH_BYTES
        if self._table[position:after] != digest:
            return -1
        return int.from_bytes(self._table[after : position + ENTRY_BYTES], "little")

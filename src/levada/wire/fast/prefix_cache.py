"""Recognises requests that repeat an earlier one except for one field, so that they are not decoded again.

Clients send nearly the same bytes over and over: the requests of a producer differ in their records, those of a
consumer in the fetch offset, the heartbeats of a member in the generation. The bytes before the field that varies, and
those after it where there are any, are the key of the decoded request: a lookup is much cheaper than decoding.
"""

from typing import Any, TypeVar

T = TypeVar("T")

Key = tuple[Any, ...]  # the API version, the bytes before the field that varies, and those after it


class PrefixCache(dict[Key, T]):
    """Decoded requests of one API, found with `get`. A broker or a connection owns it.

    Peers choose the keys, so it is bounded: it is cleared when it is full, and long keys are not stored.
    """

    __slots__ = ("_bytes_max", "_entries_max", "_seen", "prefix_bytes")

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        super().__init__()
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._seen: set[int] = set()  # hashes of keys
        self.prefix_bytes = 0  # of the key stored last: where to look for the field that varies

    def store(self, key: Key, request: T) -> T:
        """Keep a decoded request, if its key is not too long, and return it."""
        if sum(map(len, key[1:])) <= self._bytes_max:
            if len(self) >= self._entries_max:
                self.clear()
            self[key] = request
            self.prefix_bytes = len(key[1])
        return request

    def is_repeated(self, key: Key) -> bool:
        """Whether the key was seen before. Requests that are sent once, as by new members, need not be decoded here."""
        key_hash = hash(key)
        if key_hash in self._seen:
            return True
        if len(self._seen) >= 4 * self._entries_max:
            self._seen.clear()
        self._seen.add(key_hash)
        return False

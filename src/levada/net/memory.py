"""Where received bytes live until they are written to the log.

All connections share one arena: each receive is handed the next free stretch, frames are parsed in place, and queued
appends are views into it. So a stretch must not be handed out again before the turn has ended; when the arena is
full, the turn is ended early. A frame that has not arrived whole gets a buffer of its own, lent from a small pool.
"""

from collections.abc import Callable

ARENA_BYTES = 1 << 20
ROOM_BYTES_MIN = 64 * 1024
FIRST_BUFFER_BYTES_MAX = 1 << 20
POOLED_BYTES_MAX = 8 << 20


class ReceiveMemory:
    """The arena of one broker, and the buffers lent for frames that span receives."""

    __slots__ = ("_end_turn", "_lent", "_pool", "_pooled_bytes", "arena", "position")

    def __init__(self, end_turn: Callable[[], None]) -> None:
        self.arena = memoryview(bytearray(ARENA_BYTES))
        self.position = 0  # everything before it may be referred to by queued appends
        self._end_turn = end_turn
        self._pool: dict[int, list[bytearray]] = {}
        self._pooled_bytes = 0
        self._lent: list[bytearray] = []  # buffers of frames that were parsed in this turn

    def room(self) -> memoryview:
        """A stretch for the next receive."""
        if ARENA_BYTES - self.position < ROOM_BYTES_MIN:
            self._end_turn()
        return self.arena[self.position :]

    def reset(self) -> None:
        """The turn has ended: nothing refers to received bytes any more."""
        self.position = 0
        for buffer in self._lent:
            if self._pooled_bytes + len(buffer) <= POOLED_BYTES_MAX:
                self._pool.setdefault(len(buffer), []).append(buffer)
                self._pooled_bytes += len(buffer)
        self._lent.clear()

    def lend(self, size: int) -> bytearray:
        """A buffer for a frame of `size` bytes; at first no more than a mebibyte, since a frame may claim anything."""
        room = ROOM_BYTES_MIN
        while room < min(size, FIRST_BUFFER_BYTES_MAX):
            room *= 2
        room = max(room, ROOM_BYTES_MIN)
        spare = self._pool.get(room)
        if spare:
            self._pooled_bytes -= room
            return spare.pop()
        return bytearray(room)

    def give_back(self, buffer: bytearray) -> None:
        """The frame in it has been handled; it can be lent again after the turn."""
        self._lent.append(buffer)

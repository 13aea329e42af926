"""Where received bytes live until they are written to the log.

All connections share one arena: each receive is handed the next free stretch, frames are parsed in place, and queued
appends are views into it. So a stretch must not be handed out again before the turn has ended; when the arena is
full, the turn is ended early. A frame that has not arrived whole gets a buffer of its own, lent from a small pool;
clients that announce much and send little share a bounded amount of them.
"""

from collections.abc import Callable

ARENA_BYTES = 1 << 20
ROOM_BYTES_MIN = 64 * 1024
FIRST_BUFFER_BYTES_MIN = 1024
FIRST_BUFFER_BYTES_MAX = 1 << 20
POOLED_BYTES_MAX = 8 << 20
LENT_BYTES_MAX = 64 << 20  # above it a frame's first buffer holds little more than what has come of it


class ReceiveMemory:
    """The arena of one broker, and the buffers lent for frames that span receives."""

    __slots__ = ("_done", "_end_turn", "_lent_bytes", "_pool", "_pooled_bytes", "arena", "position")

    def __init__(self, end_turn: Callable[[], None]) -> None:
        self.arena = memoryview(bytearray(ARENA_BYTES))
        self.position = 0  # everything before it may be referred to by queued appends
        self._end_turn = end_turn
        self._pool: dict[int, list[bytearray]] = {}
        self._pooled_bytes = 0
        self._lent_bytes = 0  # in buffers of frames that are not whole
        self._done: list[bytearray] = []  # buffers of frames that were parsed in this turn

    def room(self) -> memoryview:
        """A stretch for the next receive."""
        if ARENA_BYTES - self.position < ROOM_BYTES_MIN:
            self._end_turn()
        return self.arena[self.position :]

    def reset(self) -> None:
        """The turn has ended: nothing refers to received bytes any more."""
        self.position = 0
        for buffer in self._done:
            fits = len(buffer).bit_count() == 1  # a size that `lend` asks for
            if fits and self._pooled_bytes + len(buffer) <= POOLED_BYTES_MAX:
                self._pool.setdefault(len(buffer), []).append(buffer)
                self._pooled_bytes += len(buffer)
        self._done.clear()

    def lend(self, size: int, filled: int) -> bytearray:
        """A buffer for a frame of `size` bytes of which `filled` have come; smaller where it may claim too much."""
        room = FIRST_BUFFER_BYTES_MIN
        largest = FIRST_BUFFER_BYTES_MAX if self._lent_bytes < LENT_BYTES_MAX else filled
        while room < min(size, largest):
            room *= 2
        spare = self._pool.get(room)
        if spare:
            self._pooled_bytes -= room
            buffer = spare.pop()
        else:
            buffer = bytearray(room)
        self._lent_bytes += room
        return buffer

    def grow(self, buffer: bytearray, size: int) -> bytearray:
        """A bigger buffer with the same content: more of the frame has come, so it is worth one."""
        bigger = bytearray(min(size, 4 * len(buffer)))
        bigger[: len(buffer)] = buffer
        self._lent_bytes += len(bigger) - len(buffer)
        return bigger

    def discard(self, buffer: bytearray) -> None:
        """The rest of the frame in it will never come."""
        self._lent_bytes -= len(buffer)

    def give_back(self, buffer: bytearray) -> None:
        """The frame in it has been handled; it can be lent again after the turn."""
        self._lent_bytes -= len(buffer)
        self._done.append(buffer)

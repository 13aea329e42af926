"""Where received bytes live until they are written to the log.

All connections share one arena: each receive is handed the next free stretch, frames are parsed in place, and queued
appends are views into it. So a stretch must not be handed out again before the turn has ended; when the arena is
full, the turn is ended early. A frame that has not arrived whole gets a buffer of its own, lent from a small pool;
clients that announce much and send little share a bounded amount of them. With `queued.max.request.bytes` no frame
is begun while those being received claim that much.
"""

from typing import Protocol

ARENA_BYTES = 1 << 20
ROOM_BYTES_MIN = 64 * 1024
POSITION_MAX = ARENA_BYTES - ROOM_BYTES_MIN  # beyond it the turn must be ended
PARSED_BYTES_MAX = 8 << 20  # likewise, of buffers with frames that were parsed in this turn
FIRST_BUFFER_BYTES_MIN = 1024
FIRST_BUFFER_BYTES_MAX = 1 << 20
POOLED_BYTES_MAX = 8 << 20
LENT_BYTES_MAX = 64 << 20  # above it a frame's first buffer holds little more than what has come of it
UNLIMITED = -1


class Waiting(Protocol):
    """Who wants to begin a frame (a connection)."""

    def wake(self) -> None:
        """There may be memory now."""
        ...


class ReceiveMemory:
    """The arena of one broker, and the buffers lent for frames that span receives."""

    __slots__ = (
        "_claimed_bytes",
        "_claimed_bytes_max",
        "_lent_bytes",
        "_parsed",
        "_pool",
        "_pooled_bytes",
        "arena",
        "parsed_bytes",
        "position",
        "waiting",
    )

    def __init__(self, frames_bytes_max: int = UNLIMITED) -> None:
        self.arena = memoryview(bytearray(ARENA_BYTES))
        self.position = 0  # everything before it may be referred to by queued appends
        self.parsed_bytes = 0
        self.waiting: list[Waiting] = []
        self._parsed: list[bytearray] = []  # buffers of frames that were parsed in this turn
        self._pool: dict[int, list[bytearray]] = {}
        self._pooled_bytes = 0
        self._lent_bytes = 0  # in buffers of frames that are not whole
        self._claimed_bytes = 0  # what these frames will have when they are
        self._claimed_bytes_max = frames_bytes_max

    def room(self) -> memoryview:
        """A stretch for the next receive."""
        return self.arena[self.position :]

    def reset(self) -> None:
        """The turn has ended: nothing refers to received bytes any more."""
        self.position = 0
        for buffer in self._parsed:
            fits = len(buffer).bit_count() == 1  # a size that `lend` asks for
            if fits and self._pooled_bytes + len(buffer) <= POOLED_BYTES_MAX:
                self._pool.setdefault(len(buffer), []).append(buffer)
                self._pooled_bytes += len(buffer)
        self._parsed.clear()
        self.parsed_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no further frame may be begun; who wants to adds itself to `waiting`."""
        return UNLIMITED < self._claimed_bytes_max <= self._claimed_bytes

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
        self._claimed_bytes += size
        return buffer

    def grow(self, buffer: bytearray, size: int) -> bytearray:
        """A bigger buffer with the same content: more of the frame has come, so it is worth one."""
        bigger = bytearray(min(size, 4 * len(buffer)))
        bigger[: len(buffer)] = buffer
        self._lent_bytes += len(bigger) - len(buffer)
        return bigger

    def discard(self, buffer: bytearray, size: int) -> None:
        """The rest of the frame of `size` bytes in it will never come."""
        self._lent_bytes -= len(buffer)
        self._claimed_bytes -= size
        if self.waiting and not self.is_full:
            waiting, self.waiting = self.waiting, []
            for connection in waiting:
                connection.wake()

    def give_back(self, buffer: bytearray, size: int) -> None:
        """The frame in it is whole; the buffer can be lent again after the turn."""
        self.discard(buffer, size)
        self._parsed.append(buffer)
        self.parsed_bytes += len(buffer)

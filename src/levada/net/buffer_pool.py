"""Where received bytes live until they are written to the log.

All connections share one arena: each receive is handed the next free stretch, frames are parsed in place, and queued
appends are views into it. So a stretch must not be handed out again before the turn has ended; when the arena is
full, the turn is ended early. A frame that has not arrived whole gets a buffer of its own, lent from a small pool;
clients that announce much and send little share a bounded amount of them.

All these buffers together are bounded too (`levada.receive.buffers.bytes.max`): beyond it no frame is begun, and of
those that have begun one at a time grows, so that each comes to its end. Small frames have a reserve beyond it, lest
they wait for large ones. With `queued.max.request.bytes` no frame is begun while those being received claim that much.
"""

from itertools import islice
from typing import Protocol

ARENA_BYTES = 1 << 20
ROOM_BYTES_MIN = 64 * 1024
POSITION_MAX = ARENA_BYTES - ROOM_BYTES_MIN  # beyond it the turn must be ended
PARSED_BYTES_MAX = 8 << 20  # likewise, of buffers with frames that were parsed in this turn
FIRST_BUFFER_BYTES_MIN = 1024
FIRST_BUFFER_BYTES_MAX = 1 << 20
POOLED_BYTES_MAX = 8 << 20
LENT_BYTES_MAX = 32 << 20  # above it a frame's first buffer holds little more than what has come of it
UNLIMITED = -1
BUFFERS_BYTES_MAX = 64 << 20
SMALL_BYTES_MAX = 1 << 20
RESERVE_BYTES = 16 << 20  # for small frames
SCANT_ROOM_BYTES = 16 * 1024  # of a receive while there is no memory for what would be left over
WOKEN_MAX = 16  # of those that wait, each time a frame ends


class Owner(Protocol):
    """Who receives a frame, or wants to (a connection)."""

    def wake(self) -> None:
        """There may be memory now."""
        ...

    def close(self, reason: str) -> None:
        """What it has of a frame is given up."""
        ...


class ReceiveMemory:
    """The arena of one broker, and the buffers lent for frames that span receives."""

    __slots__ = (
        "_buffers_bytes_max",
        "_claimed_bytes",
        "_claimed_bytes_max",
        "_lent_bytes",
        "_overdrawn",
        "_parsed",
        "_pool",
        "_pooled_bytes",
        "arena",
        "cramped",
        "frames",
        "parsed_bytes",
        "position",
        "waiting",
    )

    def __init__(self, frames_bytes_max: int = UNLIMITED, buffers_bytes_max: int = BUFFERS_BYTES_MAX) -> None:
        self.arena = memoryview(bytearray(ARENA_BYTES))
        self.position = 0  # everything before it may be referred to by queued appends
        self.parsed_bytes = 0
        self.waiting: dict[Owner, None] = {}  # to begin a frame, in their order
        self.cramped: dict[Owner, None] = {}  # those that have begun and wait to grow
        self.frames: dict[Owner, float] = {}  # those that are not whole, and since when their owners may send
        self._parsed: list[bytearray] = []  # buffers of frames that were parsed in this turn
        self._pool: dict[int, list[bytearray]] = {}
        self._pooled_bytes = 0
        self._lent_bytes = 0  # in buffers of frames that are not whole
        self._claimed_bytes = 0  # what these frames will have when they are
        self._claimed_bytes_max = frames_bytes_max
        self._buffers_bytes_max = buffers_bytes_max
        self._overdrawn: Owner | None = None  # the one who may go beyond it

    def room(self) -> memoryview:
        """A stretch for the next receive."""
        if self._lent_bytes >= self._buffers_bytes_max:
            return self.arena[self.position : self.position + SCANT_ROOM_BYTES]
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

    def is_full(self, size: int) -> bool:
        """Whether no further frame of `size` bytes may be begun; who wants to adds itself to `waiting`."""
        return UNLIMITED < self._claimed_bytes_max <= self._claimed_bytes or self._lent_bytes >= self._limit(
            size
        )

    def _limit(self, size: int) -> int:
        """Up to where buffers for frames of this size may be lent."""
        return self._buffers_bytes_max + (RESERVE_BYTES if size <= SMALL_BYTES_MAX else 0)

    def lend(self, owner: Owner, size: int, filled: int, now: float) -> bytearray:
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
        self.frames[owner] = now
        return buffer

    def grow(self, owner: Owner, buffer: bytearray, size: int, now: float) -> bytearray | None:
        """A bigger buffer with the same content, since more of the frame has come; None if its owner must wait."""
        room = min(size, 4 * len(buffer))
        if self._lent_bytes + room - len(buffer) > self._limit(size):
            if self._overdrawn not in (None, owner):
                self.cramped[owner] = None
                return None
            self._overdrawn = owner
        if owner in self.cramped:
            del self.cramped[owner]
            self.frames[owner] = now  # the time it waited is not its own
        bigger = bytearray(room)
        bigger[: len(buffer)] = buffer
        self._lent_bytes += room - len(buffer)
        return bigger

    def discard(self, owner: Owner, buffer: bytearray, size: int) -> None:
        """The rest of the frame of `size` bytes in it will never come."""
        self._lent_bytes -= len(buffer)
        self._claimed_bytes -= size
        del self.frames[owner]
        self.cramped.pop(owner, None)
        if self._overdrawn is owner:
            self._overdrawn = None
        if self.cramped or self.waiting:
            self.wake(WOKEN_MAX)

    def give_back(self, owner: Owner, buffer: bytearray, size: int) -> None:
        """The frame in it is whole; the buffer can be lent again after the turn."""
        self.discard(owner, buffer, size)
        self._parsed.append(buffer)
        self.parsed_bytes += len(buffer)

    def wake(self, count: int) -> None:
        """Let so many try again: of those that have begun, and of the others if there may be memory for one."""
        woken = list(islice(self.cramped, count))
        if not self.is_full(0):
            woken += islice(self.waiting, count)
        for owner in woken:
            owner.wake()

    def begun_before(self, time: float) -> list[Owner]:
        """Who could have sent a whole frame since then, and has not."""
        return [owner for owner, since in self.frames.items() if since < time and owner not in self.cramped]

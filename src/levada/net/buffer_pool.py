"""Receive buffers and their memory limit.

All connections share one arena: each receive gets its next free part, frames are parsed in place, and queued appends
are views into it. A part is reused only after a flush; when the arena is full, the flush happens early. A frame that
has not arrived whole gets a buffer of its own from the pool, which grows as its bytes arrive: a size on the wire
allocates nothing.

All these buffers together are limited (`levada.receive.buffers.bytes.max`). At the limit no frame begins, and of the
frames that have begun one at a time grows, so that each completes. Small frames have a reserve beyond the limit, so
that they do not wait for large ones. With `queued.max.request.bytes` no frame begins while the sizes of partial
frames sum to that much. A connection whose frame takes too long while others wait for memory is closed.
"""

import asyncio
from itertools import islice
from typing import Protocol

ARENA_BYTES = 1 << 20
RECEIVE_BYTES_MIN = 64 * 1024
POSITION_MAX = ARENA_BYTES - RECEIVE_BYTES_MIN  # beyond it a flush is due
PARSED_BYTES_MAX = 8 << 20  # likewise, of buffers with frames parsed since the last flush
FIRST_BUFFER_BYTES_MIN = 1024
FIRST_BUFFER_BYTES_MAX = 1 << 20
FREE_BYTES_MAX = 8 << 20
ALLOCATED_BYTES_MAX = 32 << 20  # above it a frame's first buffer holds little more than what has arrived
UNLIMITED = -1
BUFFERS_BYTES_MAX = 64 << 20
SMALL_BYTES_MAX = 1 << 20
RESERVE_BYTES = 16 << 20  # for small frames
RECEIVE_BYTES_AT_LIMIT = 16 * 1024  # of a receive while there is no memory for a rest that it leaves
WOKEN_MAX = 16  # of the waiting connections, each time a frame completes
FRAME_SECONDS_MAX = 10.0  # for a frame to arrive whole while others wait for memory
CHECK_SECONDS = 1.0


class Owner(Protocol):
    """The receiver of a frame (a connection)."""

    def wake(self) -> None:
        """There may be memory now."""
        ...

    def close(self, reason: str) -> None:
        """Its partial frame is dropped."""
        ...


class BufferPool:
    """The arena of one broker, and the buffers of frames that span receives."""

    __slots__ = (
        "_allocated_bytes",
        "_announced_bytes",
        "_announced_bytes_max",
        "_buffers_bytes_max",
        "_free",
        "_free_bytes",
        "_over_limit",
        "_parsed",
        "arena",
        "parsed_bytes",
        "partial_frames",
        "position",
        "stalled",
        "waiting",
    )

    def __init__(self, frames_bytes_max: int = UNLIMITED, buffers_bytes_max: int = BUFFERS_BYTES_MAX) -> None:
        self.arena = memoryview(bytearray(ARENA_BYTES))
        self.position = 0  # queued appends may refer to everything before it
        self.parsed_bytes = 0
        self.waiting: dict[Owner, None] = {}  # to begin a frame, first in, first out
        self.stalled: dict[Owner, None] = {}  # with a partial frame that cannot grow yet
        self.partial_frames: dict[Owner, float] = {}  # and since when their owners may send
        self._parsed: list[bytearray] = []  # buffers of frames parsed since the last flush
        self._free: dict[int, list[bytearray]] = {}  # by size
        self._free_bytes = 0
        self._allocated_bytes = 0  # in buffers of partial frames, and in copies of those that wait
        self._announced_bytes = 0  # the sizes that these frames will have
        self._announced_bytes_max = frames_bytes_max
        self._buffers_bytes_max = buffers_bytes_max
        self._over_limit: Owner | None = None  # the one frame that may grow beyond the limit

    def receive_buffer(self) -> memoryview:
        """The part of the arena for the next receive."""
        if self._allocated_bytes >= self._buffers_bytes_max:
            return self.arena[self.position : self.position + RECEIVE_BYTES_AT_LIMIT]
        return self.arena[self.position :]

    def reset(self, _now: float = 0.0) -> None:
        """Reuse everything, after a flush: nothing refers to received bytes any more."""
        self.position = 0
        for buffer in self._parsed:
            fits = len(buffer).bit_count() == 1  # a size that `allocate` asks for
            if fits and self._free_bytes + len(buffer) <= FREE_BYTES_MAX:
                self._free.setdefault(len(buffer), []).append(buffer)
                self._free_bytes += len(buffer)
        self._parsed.clear()
        self.parsed_bytes = 0

    def is_full(self, size: int) -> bool:
        """Whether no frame of `size` bytes may begin; its connection then adds itself to `waiting`."""
        is_announced = UNLIMITED < self._announced_bytes_max <= self._announced_bytes
        return is_announced or self._allocated_bytes >= self._limit(size)

    def _limit(self, size: int) -> int:
        """The memory limit for frames of this size."""
        return self._buffers_bytes_max + (RESERVE_BYTES if size <= SMALL_BYTES_MAX else 0)

    def allocate(self, owner: Owner, size: int, filled: int, now: float) -> bytearray:
        """A buffer for a frame of `size` bytes of which `filled` have arrived; it may be smaller than the frame."""
        room = FIRST_BUFFER_BYTES_MIN
        largest = FIRST_BUFFER_BYTES_MAX if self._allocated_bytes < ALLOCATED_BYTES_MAX else filled
        while room < min(size, largest):
            room *= 2
        free = self._free.get(room)
        if free:
            self._free_bytes -= room
            buffer = free.pop()
        else:
            buffer = bytearray(room)
        self._allocated_bytes += room
        self._announced_bytes += size
        self.partial_frames[owner] = now
        return buffer

    def grow(self, owner: Owner, buffer: bytearray, size: int, now: float) -> bytearray | None:
        """A larger buffer with the same content, for more of the frame; None if its owner must wait."""
        room = min(size, 4 * len(buffer))
        if self._allocated_bytes + room - len(buffer) > self._limit(size):
            if self._over_limit not in (None, owner):
                self.stalled[owner] = None
                return None
            self._over_limit = owner
        if owner in self.stalled:
            del self.stalled[owner]
            self.partial_frames[owner] = now  # the wait for memory is not the owner's time
        larger = bytearray(room)
        larger[: len(buffer)] = buffer
        self._allocated_bytes += room - len(buffer)
        return larger

    def discard(self, owner: Owner, buffer: bytearray, size: int) -> None:
        """Free the buffer of a frame of `size` bytes that is complete or will never be."""
        self._allocated_bytes -= len(buffer)
        self._announced_bytes -= size
        del self.partial_frames[owner]
        self.stalled.pop(owner, None)
        if self._over_limit is owner:
            self._over_limit = None
        if self.stalled or self.waiting:
            self.wake(WOKEN_MAX)

    def release(self, owner: Owner, buffer: bytearray, size: int) -> None:
        """The frame is complete; its buffer is reused after the flush."""
        self.discard(owner, buffer, size)
        self._parsed.append(buffer)
        self.parsed_bytes += len(buffer)

    def reserve(self, size: int) -> None:
        """Count the copy of a request that waits as a buffer; a negative size frees it."""
        self._allocated_bytes += size
        if size < 0 and (self.stalled or self.waiting):
            self.wake(WOKEN_MAX)

    def wake(self, count: int) -> None:
        """Wake up to `count` stalled connections, and as many waiting ones if there may be memory for a frame."""
        woken = list(islice(self.stalled, count))
        if not self.is_full(0):
            woken += islice(self.waiting, count)
        for owner in woken:
            owner.wake()

    def begun_before(self, time: float) -> list[Owner]:
        """The owners of partial frames that could have been sent whole since then."""
        return [owner for owner, since in self.partial_frames.items() if since < time and owner not in self.stalled]


class MemoryLimit:
    """Closes connections whose frames take too long, as long as others wait for their memory."""

    __slots__ = ("_loop", "_pool", "_timer")

    def __init__(self, pool: BufferPool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def check_later(self) -> None:
        """A connection waits for memory: check until none does."""
        if self._timer is None:
            self._timer = self._loop.call_later(CHECK_SECONDS, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        pool = self._pool
        if pool.stalled or pool.waiting:
            for owner in pool.begun_before(self._loop.time() - FRAME_SECONDS_MAX):
                owner.close("a request took too long to arrive while memory for requests was short")
            pool.wake(len(pool.stalled) + len(pool.waiting))
            self.check_later()

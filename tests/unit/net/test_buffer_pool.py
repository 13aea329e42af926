"""The buffer pool: buffers are reused after the flush, and memory is taken as bytes arrive."""

from random import Random

from levada.net.buffer_pool import (
    ALLOCATED_BYTES_MAX,
    ARENA_BYTES,
    FIRST_BUFFER_BYTES_MAX,
    FREE_BYTES_MAX,
    POSITION_MAX,
    RESERVE_BYTES,
    SMALL_BYTES_MAX,
    BufferPool,
)


class Receiver:
    """A connection with a frame of `size` bytes of which some have come."""

    def __init__(self, pool: BufferPool, size: int, now: float = 0.0) -> None:
        self._pool = pool
        self.size = size
        self.woken = 0
        self.buffer = pool.allocate(self, size, 4, now)

    def grow(self, now: float = 0.0) -> bool:
        """Whether there was memory for the next piece."""
        bigger = self._pool.grow(self, self.buffer, self.size, now)
        if bigger is not None:
            assert len(self.buffer) < len(bigger) <= min(self.size, 4 * len(self.buffer))
            self.buffer = bigger
        return bigger is not None

    def fill(self) -> None:
        while len(self.buffer) < self.size:
            assert self.grow()

    def finish(self) -> None:
        self._pool.release(self, self.buffer, self.size)

    def leave(self) -> None:
        self._pool.discard(self, self.buffer, self.size)

    def wake(self) -> None:
        self.woken += 1

    def close(self, reason: str) -> None:
        raise AssertionError(reason)


def test_stretches_follow_one_another_until_the_iteration_ends() -> None:
    pool = BufferPool()
    first = pool.receive_buffer()
    pool.position += 100
    second = pool.receive_buffer()
    assert len(first) == ARENA_BYTES and len(second) == ARENA_BYTES - 100
    first[:100], second[:100] = b"a" * 100, b"b" * 100
    assert bytes(pool.arena[:200]) == b"a" * 100 + b"b" * 100
    pool.reset()
    assert len(pool.receive_buffer()) == ARENA_BYTES


def test_before_the_iteration_must_end_there_is_room() -> None:
    pool = BufferPool()
    pool.position = POSITION_MAX
    assert len(pool.receive_buffer()) >= 64 * 1024


def test_a_parsed_buffer_is_lent_again_only_after_the_iteration() -> None:
    pool = BufferPool()
    one = Receiver(pool, 100_000)
    one.finish()
    assert pool.parsed_bytes == len(one.buffer)
    assert Receiver(pool, 100_000).buffer is not one.buffer
    pool.reset()
    assert pool.parsed_bytes == 0
    assert Receiver(pool, 100_000).buffer is one.buffer


def test_a_claim_is_not_believed() -> None:
    """A frame that claims 100 MB gets a buffer for what may come next, then one for what has come."""
    one = Receiver(BufferPool(), 100 << 20)
    assert len(one.buffer) <= FIRST_BUFFER_BYTES_MAX
    content = Random(1).randbytes(len(one.buffer))
    one.buffer[:] = content
    one.fill()
    assert len(one.buffer) == 100 << 20 and one.buffer[: len(content)] == content


def test_many_claims_share_a_bounded_amount() -> None:
    pool = BufferPool()
    all_of_them = [Receiver(pool, 100 << 20) for _ in range(10_000)]
    lent = sum(len(one.buffer) for one in all_of_them)
    assert lent < ALLOCATED_BYTES_MAX + FIRST_BUFFER_BYTES_MAX + 10_000 * 1024
    for one in all_of_them:
        one.leave()
    assert len(Receiver(pool, 100 << 20).buffer) == FIRST_BUFFER_BYTES_MAX


def test_the_pool_is_bounded_and_holds_what_can_be_lent() -> None:
    pool, random = BufferPool(), Random(2)
    for _ in range(30):
        for size in (random.randrange(8, 5 << 20) for _ in range(10)):
            one = Receiver(pool, size)
            one.fill()
            one.finish()
        pool.reset()
    pooled = [buffer for spare in pool._free.values() for buffer in spare]
    assert 0 < sum(map(len, pooled)) <= FREE_BYTES_MAX
    assert {id(Receiver(pool, len(buffer)).buffer) for buffer in pooled} == {id(buffer) for buffer in pooled}


def test_frames_wait_while_those_being_received_claim_enough() -> None:
    """queued.max.request.bytes"""
    pool = BufferPool(1000)
    one = Receiver(pool, 900)
    before = pool.is_full(900)
    other = Receiver(pool, 900)
    assert (before, pool.is_full(900)) == (False, True)
    waiting = Receiver(BufferPool(), 900)
    pool.waiting[waiting] = None
    one.finish()
    assert (pool.is_full(900), waiting.woken) == (False, 1)
    other.leave()
    assert waiting.woken == 2


def test_without_a_limit_no_frame_waits_for_claims() -> None:
    pool = BufferPool()
    for _ in range(100):
        Receiver(pool, 100 << 20)
    assert not pool.is_full(100 << 20)


def test_buffers_are_bounded_and_one_frame_at_a_time_grows_beyond() -> None:
    """levada.receive.buffers.bytes.max"""
    pool = BufferPool(buffers_bytes_max=20 << 20)
    frames = [Receiver(pool, 50 << 20) for _ in range(10)]
    for one in frames:
        one.grow()
    first = next(one for one in frames if one in pool.stalled)
    growing = next(one for one in frames if one.grow())
    growing.fill()
    assert sum(len(one.buffer) for one in frames) <= (20 << 20) + (50 << 20)
    assert not any(one.grow() for one in frames if one is not growing)
    assert pool.is_full(50 << 20) and len(pool.receive_buffer()) < ARENA_BYTES
    growing.finish()
    assert first.woken and first.grow(), "the next one comes to its end"


def test_all_frames_come_to_their_end_in_little_memory() -> None:
    """Whatever the order in which their pieces come."""
    pool, random = BufferPool(buffers_bytes_max=8 << 20), Random(3)
    frames = [Receiver(pool, random.randrange(1 << 20, 30 << 20)) for _ in range(40)]
    while frames:
        progress = False
        for one in random.sample(frames, len(frames)):
            if len(one.buffer) == one.size:
                one.finish()
                frames.remove(one)
                progress = True
            else:
                progress |= one.grow()
        pool.reset()
        assert progress
    assert not pool.stalled and not pool.partial_frames and not pool.is_full(1 << 30)


def test_small_frames_do_not_wait_for_large_ones() -> None:
    pool = BufferPool(buffers_bytes_max=4 << 20)
    large = Receiver(pool, 5 << 20)
    large.fill()
    assert pool.is_full(SMALL_BYTES_MAX + 1) and not pool.is_full(SMALL_BYTES_MAX)
    small = []
    while not pool.is_full(SMALL_BYTES_MAX):
        small.append(Receiver(pool, SMALL_BYTES_MAX))
        small[-1].fill()
    lent = len(large.buffer) + sum(len(one.buffer) for one in small)
    assert lent <= (4 << 20) + RESERVE_BYTES + SMALL_BYTES_MAX


def test_who_has_had_the_time_is_known() -> None:
    """The time that a frame had to wait for memory is not counted."""
    pool = BufferPool(buffers_bytes_max=4 << 20)
    slow = Receiver(pool, 50 << 20, now=0.0)
    slow.fill()
    patient = Receiver(pool, 50 << 20, now=1.0)
    assert not patient.grow(now=2.0)
    assert pool.begun_before(5.0) == [slow]
    slow.leave()
    assert patient.grow(now=6.0)
    assert pool.begun_before(6.0) == []
    assert pool.begun_before(7.0) == [patient]


def test_copies_of_requests_that_wait_count_as_buffers() -> None:
    pool = BufferPool(buffers_bytes_max=4 << 20)
    stalled = Receiver(pool, 50 << 20)
    pool.reserve(5 << 20)
    assert pool.is_full(SMALL_BYTES_MAX + 1) and not pool.is_full(SMALL_BYTES_MAX)
    assert stalled.grow() and not Receiver(pool, 50 << 20).grow(), "only one frame at a time grows beyond the limit"
    pool.stalled[stalled] = None
    pool.reserve(-(5 << 20))
    stalled.leave()
    assert stalled.woken == 1 and not pool.is_full(SMALL_BYTES_MAX + 1)

"""Buffers for received bytes: reused only after the turn, and never given on a mere promise (R49)."""

from random import Random

from levada.net.memory import (
    ARENA_BYTES,
    FIRST_BUFFER_BYTES_MAX,
    LENT_BYTES_MAX,
    POOLED_BYTES_MAX,
    POSITION_MAX,
    ReceiveMemory,
)


class Waiter:
    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def test_stretches_follow_one_another_until_the_turn_ends() -> None:
    memory = ReceiveMemory()
    first = memory.room()
    memory.position += 100
    second = memory.room()
    assert len(first) == ARENA_BYTES and len(second) == ARENA_BYTES - 100
    first[:100], second[:100] = b"a" * 100, b"b" * 100
    assert bytes(memory.arena[:200]) == b"a" * 100 + b"b" * 100
    memory.reset()
    assert len(memory.room()) == ARENA_BYTES


def test_before_the_turn_must_end_there_is_room() -> None:
    memory = ReceiveMemory()
    memory.position = POSITION_MAX
    assert len(memory.room()) >= 64 * 1024


def test_a_parsed_buffer_is_lent_again_only_after_the_turn() -> None:
    memory = ReceiveMemory()
    buffer = memory.lend(100_000, 10)
    memory.give_back(buffer, 100_000)
    assert memory.parsed_bytes == len(buffer)
    assert memory.lend(100_000, 10) is not buffer
    memory.reset()
    assert memory.parsed_bytes == 0
    assert memory.lend(100_000, 10) is buffer


def test_a_claim_is_not_believed() -> None:
    """A frame that claims 100 MB gets a buffer for what may come next, then one for what has come."""
    memory = ReceiveMemory()
    size = 100 << 20
    buffer = memory.lend(size, 4)
    assert len(buffer) <= FIRST_BUFFER_BYTES_MAX
    content = Random(1).randbytes(len(buffer))
    buffer[:] = content
    while len(buffer) < size:
        bigger = memory.grow(buffer, size)
        assert len(buffer) < len(bigger) <= 4 * len(buffer)
        buffer = bigger
    assert len(buffer) == size and buffer[: len(content)] == content


def test_many_claims_share_a_bounded_amount() -> None:
    memory = ReceiveMemory()
    lent = [memory.lend(100 << 20, 4) for _ in range(10_000)]
    assert sum(map(len, lent)) < LENT_BYTES_MAX + FIRST_BUFFER_BYTES_MAX + 10_000 * 1024
    for buffer in lent:
        memory.discard(buffer, 100 << 20)
    assert len(memory.lend(100 << 20, 4)) == FIRST_BUFFER_BYTES_MAX


def test_the_pool_is_bounded_and_holds_what_can_be_lent() -> None:
    memory, random = ReceiveMemory(), Random(2)
    for _ in range(30):
        for size in (random.randrange(8, 5 << 20) for _ in range(10)):
            buffer = memory.lend(size, 4)
            while len(buffer) < size:
                buffer = memory.grow(buffer, size)
            memory.give_back(buffer, size)
        memory.reset()
    pooled = [buffer for spare in memory._pool.values() for buffer in spare]
    assert 0 < sum(map(len, pooled)) <= POOLED_BYTES_MAX
    assert {id(memory.lend(len(buffer), 4)) for buffer in pooled} == {id(buffer) for buffer in pooled}


def test_frames_wait_while_those_being_received_claim_enough() -> None:
    """queued.max.request.bytes"""
    memory, waiter = ReceiveMemory(1000), Waiter()
    buffers, full = [], []
    for _ in range(2):
        full.append(memory.is_full)
        buffers.append(memory.lend(900, 4))
    assert [*full, memory.is_full] == [False, False, True]
    one, other = buffers
    memory.waiting.append(waiter)
    memory.give_back(one, 900)
    assert (memory.is_full, waiter.woken, memory.waiting) == (False, 1, [])
    memory.waiting.append(waiter)
    memory.discard(other, 900)
    assert waiter.woken == 2


def test_without_a_limit_no_frame_waits() -> None:
    memory = ReceiveMemory()
    for _ in range(100):
        memory.lend(100 << 20, 4)
    assert not memory.is_full

"""Immediate and batched responses: rules of `Connection.can_send_now`."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from levada.api.fast.groups import FastHeartbeat, HeartbeatFastPath
from levada.api.fast.offset_commit import FastCommit
from levada.errors import ErrorCode
from levada.net.buffer_pool import BufferPool
from levada.net.connection import Connection, RequestLimits
from levada.net.flush import FlushQueue
from levada.net.listener import ConnectionLimits, Listener
from levada.wire.fast.offset_commit import CommitPrefix

LIMITS = RequestLimits(frame_bytes_max=1 << 20, requests_in_flight_max=10, queued_bytes_max=1 << 20, idle_ms_max=-1)


class Client:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_read = True

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def abort(self) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, _: str) -> tuple[str, int]:
        return "127.0.0.1", 1


class World:
    """A connection and the turn that it is in."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.iterations = 0
        flush_queue = FlushQueue(self.soon.append)
        flush_queue.after_flush(self.count)
        pool = BufferPool(1 << 20, 1 << 20)
        listener = Listener("one", lambda *_: None, flush_queue, pool, LIMITS, ConnectionLimits(10, 10))
        self.client = Client()
        self.templates = HeartbeatFastPath().templates
        self.connection = Connection(listener)
        self.connection.connection_made(cast(asyncio.Transport, self.client))

    def count(self, _now: float) -> None:
        self.iterations += 1

    def end_iteration(self) -> None:
        while self.soon:
            self.soon.pop()()

    def heartbeat(self) -> FastHeartbeat:
        heartbeat = FastHeartbeat(self.templates, self.connection, 7, 3, None, 1)
        self.connection.outbox.add(heartbeat)
        return heartbeat


@pytest.fixture
def world() -> World:
    async def made() -> World:
        return World()

    return asyncio.run(made())


def test_the_only_answer_leaves_at_once_and_the_iteration_still_flushes(world: World) -> None:
    printed = world.heartbeat()
    world.connection.outbox.queued_bytes = 5  # of answers that have left before it
    printed.complete(None)
    assert len(world.client.sent) == 1 and world.iterations == 0
    assert not world.connection.outbox.slots and world.connection.outbox.queued_bytes == 0
    world.end_iteration()
    assert len(world.client.sent) == 1 and world.iterations == 1


HELD_UP: dict[str, Callable[[Connection], None]] = {
    "another is behind it": lambda connection: connection.outbox.add(b"behind"),
    "one is about to be sent": Connection.wake,
    "the client does not take its answers": Connection.pause_writing,
    "the client is not read from": lambda connection: connection._hold(memoryview(b"")),
    "the connection is closed": lambda connection: connection.close("by the test"),
}


@pytest.mark.parametrize("why", HELD_UP)
def test_others_wait_for_the_end_of_the_iteration(world: World, why: str) -> None:
    printed = world.heartbeat()
    HELD_UP[why](world.connection)
    printed.complete(None)
    assert world.client.sent == []


def test_one_that_comes_second_waits_for_the_first(world: World) -> None:
    first, second = world.heartbeat(), world.heartbeat()
    second.complete(None)
    world.end_iteration()
    assert world.client.sent == []
    first.complete(None)
    world.end_iteration()
    assert b"".join(world.client.sent).count(b"\0\0\0\x07") == 2


def test_a_client_that_is_not_read_from_is_read_again_after_its_answer(world: World) -> None:
    printed = world.heartbeat()
    world.connection._hold(memoryview(b""))
    printed.complete(None)
    world.end_iteration()
    assert len(world.client.sent) == 1 and world.client.is_read


def test_a_client_that_reads_again_is_served(world: World) -> None:
    world.connection.pause_writing()
    world.connection.active = False
    world.connection.resume_writing()
    assert world.connection.active


def test_commits_are_answered_together(world: World) -> None:
    prefix = CommitPrefix("g", 1, "m", None, "t", None, b"")
    commit = FastCommit(world.connection, 7, 9, "t", prefix, [(0, 1, -1, 0, 0)])
    world.connection.outbox.add(commit)
    commit.complete([ErrorCode.NONE])
    assert world.client.sent == []
    world.end_iteration()
    assert len(world.client.sent) == 1

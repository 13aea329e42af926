"""Connections over the memory limit pause, and resume when memory is free."""

import asyncio
import threading
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.listener import KIB, LIMITS, MIB, Server, ask_until, framed, receipt, receive, serving

from levada.broker.purgatory import DelayedResponse
from levada.loop import new_event_loop
from levada.net.buffer_pool import ARENA_BYTES, BufferPool
from levada.net.connection import Connection
from levada.net.flush import FlushQueue
from levada.net.listener import Listener

LARGE = 40 * MIB
LOOPS = {"uvloop": new_event_loop, "asyncio": asyncio.new_event_loop}


def gathered(server: Server) -> int:
    """Bytes that connections hold, by any counter."""
    return server.call(
        lambda: sum(
            len(one._held) + (0 if one._frame is None else len(one._frame)) for one in server.listeners[0].connections
        )
    )


@pytest.mark.parametrize("loop", LOOPS)
def test_what_comes_behind_requests_that_wait_stays_in_the_sockets(loop: str) -> None:
    waiting: list[Connection] = []

    def park(connection: Connection, view: memoryview) -> None:
        if len(view) == LARGE:
            server.journal.take(connection, view)
        else:
            connection.muted = True
            waiting.append(connection)

    with serving(loop=LOOPS[loop]()) as server:
        server.handle = park
        clients = [server.connect() for _ in range(8)]
        content = bytes(LARGE)
        for one in clients:
            one.sendall(framed(b"it waits") + framed(content)[:100])
        server.wait_for(lambda: server.dispatched == len(clients))
        rest = framed(content)[100:]
        senders = [threading.Thread(target=one.sendall, args=(rest,), daemon=True) for one in clients]
        for sender in senders:
            sender.start()
        with server.connect() as other:
            server.handle = server.journal.take
            ask_until(other, lambda: not any(one.transport.is_reading() for one in waiting))
        held_bytes = gathered(server)

        def go_on() -> None:
            for connection in waiting:
                connection.muted = False
                connection.wake()

        server.call(go_on)
        for one, sender in zip(clients, senders, strict=True):
            assert receive(one, 8) == receipt(content)
            sender.join()
            one.close()
    assert held_bytes <= len(clients) * ARENA_BYTES


@pytest.mark.parametrize("loop", LOOPS)
def test_a_frame_does_not_become_whole_while_its_client_takes_no_answers(loop: str) -> None:
    answers: list[DelayedResponse] = []
    content, large_answer = bytes(LARGE), bytes(20 * MIB)

    def wait(connection: Connection, view: memoryview) -> None:
        answers.append(DelayedResponse(connection))
        connection.respond(answers[-1])

    with serving(loop=LOOPS[loop]()) as server, server.connect() as one:
        server.handle = wait
        one.sendall(framed(b"a question") + framed(content)[: 100 * KIB])
        server.wait_for(lambda: server.dispatched == 1)
        (connection,) = server.connections()
        server.call(lambda: answers[0].complete(large_answer))
        server.handle = server.journal.take
        sender = threading.Thread(target=one.sendall, args=(framed(content)[100 * KIB :],), daemon=True)
        sender.start()
        with server.connect() as other:
            ask_until(other, lambda: not connection.transport.is_reading())
        held_bytes = gathered(server)
        assert receipt(receive(one, len(large_answer))) == receipt(large_answer)
        assert receive(one, 8) == receipt(content)
        sender.join()
    assert held_bytes <= 2 * ARENA_BYTES


class Wire:
    """A transport whose other side is a test, and a client whose requests are numbered."""

    def __init__(self) -> None:
        self.reading = True
        self.taken = bytearray()
        self.connection: Connection = cast(Connection, None)
        self.pause_at_next_write = False

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: bytes) -> None:
        self.taken += data
        if self.pause_at_next_write:
            self.pause_at_next_write = False
            self.connection.pause_writing()  # as a loop does it: inside the write

    def abort(self) -> None:
        raise AssertionError("closed")


class Scene:
    """One connection among many events in any order."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.iterations: list[Any] = []
        self.flush_queue = FlushQueue(self.iterations.append)
        self.pool = BufferPool(buffers_bytes_max=random.choice((0, 3 * KIB, 1 << 30)))
        self.flush_queue.after_flush(self.pool.reset)
        listener = SimpleNamespace(
            dispatch=self.dispatch,
            buffer_pool=self.pool,
            flush_queue=self.flush_queue,
            name="",
            limits=LIMITS._replace(
                requests_in_flight_max=random.choice((1, 3, 100)),
                queued_bytes_max=random.choice((10, 1 << 20)),
            ),
            now=float,
            memory_limit=SimpleNamespace(check_later=lambda: None),
            accept=lambda connection: None,
        )
        self.wire = Wire()
        self.wire.connection = self.connection = Connection(cast(Listener, listener))
        self.connection.connection_made(cast(Any, self.wire))
        self.contents = [random.randbytes(random.choice((8, 50, 5_000))) for _ in range(40)]
        self.unsent = memoryview(b"".join(map(framed, self.contents)))
        self.seen: list[bytes] = []
        self.open: list[DelayedResponse] = []

    def dispatch(self, connection: Connection, view: memoryview, start: int, stop: int) -> None:
        assert not connection.muted and not connection._write_paused
        self.seen.append(bytes(view[start:stop]))
        what = self.random.randrange(4)
        if what == 0:
            connection.muted = True
        elif what == 1:
            self.open.append(DelayedResponse(connection))
            connection.respond(self.open[-1])
        else:
            connection.respond(b"answer", 6)

    def receive(self) -> None:
        if not (self.wire.reading and self.unsent):
            return
        room = self.connection.get_buffer(0)
        size = min(len(room), len(self.unsent), self.random.choice((1, 3, 60, 2_000, 30_000)))
        room[:size] = self.unsent[:size]
        self.unsent = self.unsent[size:]
        self.connection.buffer_updated(size)

    def end_iteration(self) -> None:
        iterations, self.iterations[:] = list(self.iterations), []
        for action in iterations:
            action()

    def go_on(self) -> None:
        if self.connection.muted:
            self.connection.muted = False
            self.connection.respond(b"late", 4)

    def answer(self) -> None:
        if self.open:
            self.open.pop(0).complete(b"at last")

    def slow(self) -> None:
        if not self.connection._write_paused:
            self.wire.pause_at_next_write = True

    def take(self) -> None:
        if self.connection._write_paused:
            self.connection.resume_writing()

    def memory_is_back(self) -> None:
        self.pool._buffers_bytes_max = 1 << 30
        self.pool.wake(10)

    def check(self) -> None:
        one = self.connection
        assert self.wire.reading == one._reading
        if one._write_paused or one.muted:
            assert one._frame is None or not one._reading, "a frame grows that may not be begun"
        assert not (one._held and one._reading), "what is held would be overtaken"
        assert not (one._held and one._frame is not None)


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_every_request_is_begun_once_and_in_order(seed: int) -> None:
    """No connection is paused for ever: when memory is free again, all its requests are served."""
    scene = Scene(seed)
    events = [scene.receive] * 4 + [scene.end_iteration] * 4
    events += [scene.go_on, scene.answer, scene.slow, scene.take]
    for _ in range(scene.random.choice((20, 100, 500))):
        scene.random.choice(events)()
        scene.check()
    scene.wire.pause_at_next_write = False
    scene.memory_is_back()
    for _ in range(1_000):
        for event in (scene.receive, scene.take, scene.go_on, scene.answer, scene.end_iteration):
            event()
            scene.check()
    assert scene.seen == scene.contents
    assert not scene.pool.partial_frames and scene.connection._reading

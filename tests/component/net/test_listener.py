"""The listener on real sockets: framing, backpressure, limits, idle connections, stop."""

import asyncio
import contextlib
import logging
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from tests.support.listener import (
    KIB,
    LIMITS,
    MIB,
    TIMEOUT_S,
    Server,
    ask,
    ask_until,
    framed,
    receipt,
    receive,
    serving,
)

from levada.broker.purgatory import DelayedResponse
from levada.loop import new_event_loop
from levada.net import buffer_pool, idle_reaper, listener
from levada.net.buffer_pool import BufferPool, Owner
from levada.net.connection import UNSENT_BYTES_HIGH, Connection
from levada.net.listener import ConnectionLimits
from levada.wire.frames import Response


@pytest.fixture(params=["uvloop", "asyncio"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    loop = new_event_loop() if request.param == "uvloop" else asyncio.new_event_loop()
    with serving(loop=loop) as one:
        yield one


def is_closed(one: socket.socket) -> bool:
    """Whether the server ends the conversation (and says nothing more)."""
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True


# Frames.


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Server], None]:
    """Let the server note what it has received, so that a test can send the next part after that."""

    def begin(server: Server) -> None:
        original = Connection.buffer_updated

        def counted(connection: Connection, nbytes: int) -> None:
            original(connection, nbytes)
            server.note_received(nbytes)

        monkeypatch.setattr(Connection, "buffer_updated", counted)

    return begin


def test_frames_split_at_every_byte(server: Server, counting: Callable[[Server], None]) -> None:
    counting(server)
    contents = [bytes(range(size)) for size in (8, 13, 40)]
    stream = b"".join(map(framed, contents))
    expected = b"".join(map(receipt, contents))
    with server.connect() as one:
        for split in range(1, len(stream)):
            before = server.received_bytes
            one.sendall(stream[:split])
            server.wait_for(lambda: server.received_bytes == before + split)  # noqa: B023 (asked at once)
            one.sendall(stream[split:])
            assert receive(one, len(expected)) == expected


def test_frames_byte_by_byte(server: Server, counting: Callable[[Server], None]) -> None:
    counting(server)
    content = bytes(range(50))
    with server.connect() as one:
        for number, byte in enumerate(framed(content)):
            server.wait_for(lambda: server.received_bytes == number)  # noqa: B023 (asked at once)
            one.sendall(bytes([byte]))
        assert receive(one, 8) == receipt(content)


def test_many_frames_in_one_receive(server: Server) -> None:
    contents = [bytes([number % 256]) * (8 + number % 50) for number in range(900)]
    with server.connect() as one:
        one.sendall(b"".join(map(framed, contents)))
        assert receive(one, 8 * len(contents)) == b"".join(map(receipt, contents))


@pytest.mark.parametrize("size", [64 * KIB - 4, 64 * KIB, MIB - 5, MIB - 4, MIB, MIB + 1, 20 * MIB])
def test_frames_around_and_beyond_the_arena(server: Server, size: int) -> None:
    content = Random(size).randbytes(size)
    with server.connect() as one:
        for _ in range(2):
            one.sendall(framed(b"before--") + framed(content) + framed(b"after---"))
            expected = receipt(b"before--") + receipt(content) + receipt(b"after---")
            assert receive(one, len(expected)) == expected


def hammer(server: Server, seed: int, total_bytes: int) -> int:
    """One client that pipelines frames of all sizes; how many of them arrived changed."""
    random = Random(seed)
    wrong = 0
    with server.connect() as one:
        while total_bytes > 0:
            sizes = [int(2 ** random.uniform(3, random.choice((8, 14, 17, 21)))) for _ in range(20)]
            contents = [random.randbytes(size) for size in sizes]
            total_bytes -= sum(sizes)
            stream = memoryview(b"".join(map(framed, contents)))
            while stream:
                sent = random.randrange(1, len(stream) + 1)
                one.sendall(stream[:sent])
                stream = stream[sent:]
            answers = receive(one, 8 * len(contents))
            wrong += sum(answers[8 * i : 8 * i + 8] != receipt(content) for i, content in enumerate(contents))
    return wrong


def hammer_all(server: Server, clients: int, total_bytes: int) -> int:
    wrong: list[int] = []
    threads = [
        threading.Thread(target=lambda seed=seed: wrong.append(hammer(server, seed, total_bytes)))
        for seed in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert len(wrong) == clients
    return sum(wrong)


def test_nothing_is_overwritten_before_the_iteration_ends(server: Server) -> None:
    """Many connections share the arena: each byte queued must still be there when it is written."""
    assert hammer_all(server, clients=12, total_bytes=5 * MIB) == 0


def test_one_buffer_for_all_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test before this one has teeth: it finds the arena's trap."""

    def receive_buffer(pool: BufferPool) -> memoryview:
        pool.position = 0
        return pool.arena

    monkeypatch.setattr(BufferPool, "receive_buffer", receive_buffer)
    with serving() as server:
        assert hammer_all(server, clients=12, total_bytes=MIB) > 0


def test_buffers_reused_within_an_iteration_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Likewise for the buffers of frames that span receives."""
    release = BufferPool.release

    def at_once(pool: BufferPool, owner: Owner, buffer: bytearray, size: int) -> None:
        release(pool, owner, buffer, size)
        position = pool.position
        pool.reset()
        pool.position = position

    monkeypatch.setattr(BufferPool, "release", at_once)
    with serving() as server:
        assert hammer_all(server, clients=12, total_bytes=5 * MIB) > 0


def test_a_client_that_is_gone_while_the_arena_is_full(server: Server) -> None:
    """The turn is then ended early, and to close a connection in libuv's allocation callback would be a crash."""
    server.handle = lambda connection, view: connection.respond(b"x" * 1_000, 1_000)
    with server.connect() as bystander:
        for _ in range(10):
            with server.connect() as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
                with contextlib.suppress(ConnectionError):
                    one.sendall(framed(bytes(5_000)) * 1_000)
        bystander.sendall(framed(bytes(8)))
        assert receive(bystander, 1_000) == b"x" * 1_000


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, 100 * MIB + 1, 2**31 - 1])
@pytest.mark.parametrize("byte_by_byte", [False, True])
def test_impossible_sizes_end_the_conversation(server: Server, size: int, byte_by_byte: bool) -> None:
    with server.connect() as one, server.connect() as healthy:
        ask(one, b"something good")
        data = struct.pack(">i", size) + b"x"
        for piece in [data[i : i + 1] for i in range(5)] if byte_by_byte else [data]:
            with contextlib.suppress(ConnectionError):
                one.sendall(piece)
        assert is_closed(one)
        ask(healthy, b"still here")


# RequestLimits.


def test_requests_in_flight_are_limited() -> None:
    """A client may have so many requests unanswered; the others wait in its socket."""
    answers: list[DelayedResponse] = []

    def park(connection: Connection, view: memoryview) -> None:
        answers.append(DelayedResponse(connection))
        connection.respond(answers[-1])

    with serving(LIMITS._replace(requests_in_flight_max=10)) as server, server.connect() as one:
        server.handle = park
        one.sendall(framed(b"12345678") * 100)
        server.wait_for(lambda: server.dispatched == 10)
        (connection,) = server.connections()
        assert not connection.transport.is_reading()
        for number in range(100):
            server.wait_for(lambda: server.dispatched > number)  # noqa: B023 (asked at once)
            assert server.dispatched <= number + 10
            server.call(lambda: answers[number].complete(struct.pack(">i", number)))  # noqa: B023
            assert receive(one, 4) == struct.pack(">i", number)
        server.handle = lambda connection, view: connection.respond(b"done", 4)
        one.sendall(framed(b"12345678"))
        assert receive(one, 4) == b"done"


@pytest.mark.parametrize("kind", ["bytes", "views"])
def test_a_client_that_does_not_read_waits_and_is_then_served(kind: str) -> None:
    """What lies with the broker for one client is bounded, and nothing is lost or out of order."""
    size, count, queued_bytes_max = 100 * KIB, 400, 2 * MIB
    most = 0

    def big(connection: Connection, view: memoryview) -> None:
        nonlocal most
        answer = view[:4].tobytes() * (size // 4)
        connection.respond([answer[:10], memoryview(answer)[10:]] if kind == "views" else answer, size)
        most = max(most, connection.transport.get_write_buffer_size() + connection.outbox.queued_bytes)

    with serving(LIMITS._replace(queued_bytes_max=queued_bytes_max)) as server:
        server.handle = big
        with server.connect() as slow, server.connect() as healthy:
            slow.sendall(b"".join(framed(struct.pack(">ii", number, 0)) for number in range(count)))
            server.wait_for(lambda: server.dispatched >= queued_bytes_max // size)
            healthy.sendall(framed(b"quick---"))
            assert receive(healthy, size)[:5] == b"quicq"
            begun = server.dispatched
            assert begun < count
            for number in range(count):
                answer = receive(slow, size)
                assert answer == struct.pack(">i", number) * (size // 4)
    assert most <= queued_bytes_max + size + UNSENT_BYTES_HIGH + size


def test_large_answers_are_given_to_the_socket_one_by_one() -> None:
    """Fetched data is not queued in the socket beyond one answer, whatever was asked for in advance."""
    data = memoryview(bytes(4 * MIB))
    most = 0

    def fetched(connection: Connection, view: memoryview) -> None:
        connection.respond([b"h", data], len(data) + 1)

    class Watched(Connection):
        __slots__ = ()

        def _write(self, buffers: list[bytes | memoryview]) -> None:
            nonlocal most
            super()._write(buffers)
            most = max(most, self.transport.get_write_buffer_size())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "Connection", Watched)
        with serving(LIMITS._replace(queued_bytes_max=1 << 30)) as server, server.connect() as one:
            server.handle = fetched
            one.sendall(framed(bytes(8)) * 10)
            server.wait_for(lambda: server.dispatched == 10)
            assert len(receive(one, 10 * (len(data) + 1))) == 10 * (len(data) + 1)
    assert 0 < most <= UNSENT_BYTES_HIGH + len(data) + 1


def test_connections_are_limited_over_all_listeners() -> None:
    with serving(connection_limits=ConnectionLimits(2, 10_000), listeners=2) as server:
        first, second = server.connect(0), server.connect(1)
        ask(first, b"one of two")
        ask(second, b"two of two")
        for number in (0, 1):
            with server.connect(number) as third:
                assert is_closed(third)
        ask(first, b"still here")
        first.close()
        with admitted(server, 1) as third:
            ask(third, b"there is room again")
        second.close()


def test_connections_from_one_address_are_limited() -> None:
    with serving(connection_limits=ConnectionLimits(10_000, 2)) as server:
        with server.connect() as first, server.connect() as second:
            ask(first, b"one of two")
            ask(second, b"two of two")
            with server.connect() as third:
                assert is_closed(third)
            with server.connect(source="127.0.0.2") as other:
                ask(other, b"another address")
        with admitted(server, 0) as third:
            ask(third, b"there is room again")


def admitted(server: Server, number: int) -> socket.socket:
    """Connect as soon as the server has noticed that another client is gone."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        one = server.connect(number)
        try:
            ask(one, b"may I?--")
            return one
        except (AssertionError, ConnectionError):
            one.close()
    raise AssertionError("never admitted")


def test_an_idle_connection_is_closed() -> None:
    with serving(LIMITS._replace(idle_ms_max=1_000)) as server, server.connect() as one:
        ask(one, b"and then silence")
        assert is_closed(one)
        server.wait_for(lambda: not server.listeners[0].connections)


def test_a_connection_that_waits_for_its_answer_is_not_idle() -> None:
    parked: list[DelayedResponse] = []

    def park(connection: Connection, view: memoryview) -> None:
        parked.append(DelayedResponse(connection))
        connection.respond(parked[-1])

    with serving(LIMITS._replace(idle_ms_max=500)) as server, server.connect() as patient:
        server.handle = park
        patient.sendall(framed(b"long poll"))
        server.wait_for(lambda: bool(parked))
        server.handle = server.journal.take
        for _ in range(3):  # three others come and are closed as idle meanwhile
            with server.connect() as other:
                assert is_closed(other)
        server.call(lambda: parked[0].complete(b"at last"))
        assert receive(patient, 7) == b"at last"


@pytest.mark.skipif(not idle_reaper.HAS_TCP_INFO, reason="only Linux tells")
@pytest.mark.parametrize("way", ["closed", "reset"])
def test_a_client_that_goes_while_it_is_not_read_is_noticed(way: str) -> None:
    """It has asked as much as it may behind an answer that does not come."""
    limits = LIMITS._replace(idle_ms_max=500, requests_in_flight_max=3)
    with serving(limits) as server, server.connect() as patient:
        server.handle = lambda connection, view: connection.respond(DelayedResponse(connection))
        for one in (patient, server.connect()):
            one.sendall(framed(b"long poll") * 10)
        server.wait_for(lambda: server.dispatched == 6)
        if way == "reset":
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        address = one.getsockname()
        one.close()
        deadline = time.monotonic() + TIMEOUT_S
        while len(server.connections()) > 1 and time.monotonic() < deadline:
            server.call(lambda: None)
        (left,) = server.connections()
        assert left.peer != f"{address[0]}:{address[1]}", "who waits is left alone"
        assert server.dispatched == 6


def test_a_connection_that_never_takes_its_answers_is_idle() -> None:
    with serving(LIMITS._replace(idle_ms_max=300)) as server, server.connect() as one:
        server.handle = lambda connection, view: connection.respond(bytes(MIB), MIB)
        one.sendall(framed(bytes(8)) * 50)
        server.wait_for(lambda: server.dispatched > 0)
        deadline = time.monotonic() + TIMEOUT_S
        while server.connections() and time.monotonic() < deadline:
            server.call(lambda: None)
        assert server.connections() == []


def test_a_delayed_connection_begins_no_further_request() -> None:
    seen: list[bytes] = []

    def delay(connection: Connection, view: memoryview) -> None:
        seen.append(bytes(view))
        connection.muted = True

    with serving() as server, server.connect() as one, server.connect() as other:
        server.handle = delay
        one.sendall(framed(b"first---") + framed(b"second--") + framed(b"third---")[:9])
        server.wait_for(lambda: server.dispatched == 1)
        (connection,) = [each for each in server.connections() if each.muted]
        server.handle = server.journal.take
        ask(other, b"not delayed")
        assert server.dispatched == 2 and seen == [b"first---"]

        def go_on() -> None:
            connection.muted = False
            connection.wake()

        server.call(go_on)
        one.sendall(framed(b"third---")[9:])
        assert receive(one, 16) == receipt(b"second--") + receipt(b"third---")


# Memory.


def anonymous_bytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is Linux's")
def test_frames_that_are_announced_and_never_come_take_little() -> None:
    with serving() as server:
        before = anonymous_bytes()
        liars = [server.connect() for _ in range(300)]
        for one in liars:
            one.sendall(struct.pack(">i", 100 * MIB) + bytes(100))
        with server.connect() as healthy:
            ask(healthy, bytes(100))
            assert len(server.connections()) == 301
            assert anonymous_bytes() - before < 128 * MIB
        for one in liars:
            one.close()


@pytest.mark.parametrize("ending", ["the rest comes", "the client goes"])
def test_frames_wait_while_the_memory_for_them_is_claimed(server: Server, ending: str) -> None:
    """queued.max.request.bytes: no further frame is begun, whole small ones pass."""
    server.pool._announced_bytes_max = MIB
    large, waiting = Random(1).randbytes(2 * MIB), Random(2).randbytes(3 * MIB)
    with server.connect() as one, server.connect() as other, server.connect() as small:
        one.sendall(framed(large)[:1000])
        ask_until(small, lambda: server.pool.is_full(MIB))
        sender = threading.Thread(target=other.sendall, args=(framed(waiting),))
        sender.start()
        ask_until(small, lambda: bool(server.pool.waiting))
        ask(small, b"a heartbeat passes")
        if ending == "the rest comes":
            one.sendall(framed(large)[1000:])
            assert receive(one, 8) == receipt(large)
        else:
            one.close()
        assert receive(other, 8) == receipt(waiting)
        sender.join(TIMEOUT_S)
        ask_until(small, lambda: not server.pool.is_full(MIB) and not server.pool.waiting)


def test_requests_wait_for_the_memory_of_others_and_all_come_through(server: Server) -> None:
    """levada.receive.buffers.bytes.max: 20 requests of 3 MiB in buffers of 4 MiB, by turns."""
    server.pool._buffers_bytes_max = 4 * MIB
    contents = [Random(number).randbytes(3 * MIB) for number in range(20)]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in contents]
        senders = [
            threading.Thread(target=one.sendall, args=(framed(content),))
            for one, content in zip(clients, contents, strict=True)
        ]
        for sender in senders:
            sender.start()
        for one, content in zip(clients, contents, strict=True):
            assert receive(one, 8) == receipt(content)
        for sender in senders:
            sender.join(TIMEOUT_S)
    assert not (server.pool.stalled or server.pool.waiting)


def test_who_keeps_memory_from_others_and_does_not_go_on_is_cut_off(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer_pool, "FRAME_SECONDS_MAX", 0.3)
    monkeypatch.setattr(buffer_pool, "CHECK_SECONDS", 0.05)
    server.pool._buffers_bytes_max = 4 * MIB
    content = Random(1).randbytes(3 * MIB)
    with server.connect() as greedy, server.connect() as honest:
        greedy.sendall(framed(bytes(6 * MIB))[: 5 * MIB])
        server.wait_for(lambda: server.pool.is_full(3 * MIB))
        honest.sendall(framed(content))
        assert receive(honest, 8) == receipt(content)
        assert is_closed(greedy)


# The end, good or bad.


def test_a_stop_does_not_wait_for_a_client_that_never_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "STOP_SECONDS", 0.1)
    with contextlib.ExitStack() as clients:
        with serving() as server:
            server.handle = lambda connection, view: connection.respond(bytes(MIB), MIB)
            one = clients.enter_context(server.connect())
            one.sendall(framed(bytes(8)) * 50)
            server.wait_for(lambda: server.dispatched > 0)
        assert server.listeners[0].connections == set()


def test_a_stop_lets_clients_take_their_answers() -> None:
    with serving() as server:
        server.handle = lambda connection, view: connection.respond(b"x" * 100 * KIB, 100 * KIB)
        one = server.connect()
        one.sendall(framed(bytes(8)) * 20)
        server.wait_for(lambda: server.dispatched == 20)
        server.call(lambda: None)
    with one:
        assert receive(one, 20 * 100 * KIB) == b"x" * (20 * 100 * KIB)
        assert is_closed(one)


class Crashing:
    def collect(self) -> Response | None:
        raise ValueError("a planted bug in an answer")

    def cancel(self) -> None:
        pass


def test_a_bug_costs_its_client_the_connection_and_no_other(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def buggy(connection: Connection, view: memoryview) -> None:
        if bytes(view) == b"read bug":
            raise ValueError("a planted bug in a handler")
        if bytes(view) == b"send bug":
            connection.respond(Crashing())
        else:
            server.journal.take(connection, view)

    server.handle = buggy
    with server.connect() as healthy, caplog.at_level(logging.ERROR):
        for kind in (b"read bug", b"send bug"):
            with server.connect() as one:
                ask(one, b"good one")
                one.sendall(framed(kind))
                assert is_closed(one)
            ask(healthy, b"still here")
    traces = [record.exc_info for record in caplog.records]
    assert [str(trace[1]) for trace in traces if trace] == [
        "a planted bug in a handler",
        "a planted bug in an answer",
    ]


def test_waiters_learn_that_their_client_is_gone(server: Server) -> None:
    gone = threading.Event()

    class Patient:
        def collect(self) -> Response | None:
            return None

        def cancel(self) -> None:
            gone.set()

    server.handle = lambda connection, view: connection.respond(Patient())
    with server.connect() as one:
        one.sendall(framed(b"long poll"))
        server.wait_for(lambda: server.dispatched == 1)
    assert gone.wait(TIMEOUT_S)

"""The request scheduler serves other connections between the requests of one that sends many."""

import asyncio
import contextlib
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker import BrokerThread

from levada.api.request import Request
from levada.wire.schema import messages

DESCRIBE, VERSIONS = messages.api_key("describe_groups"), messages.api_key("api_versions")
NAMES = [f"group-{number}" for number in range(500)]
REQUESTS = 600

Event = tuple[str, int]  # what happened to a request, and of which API it is
PASS: Event = ("a pass of the loop", 0)


def test_a_client_that_sends_much_at_once_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a few of its requests are carried out in a pass of the loop, and while one of another waits.

    It hears its answers in order.
    """
    met = watch_requests(monkeypatch)
    with (
        BrokerThread(tmp_path, offsets_topic_num_partitions=3) as one,
        one.connect() as much,
        one.connect() as little,
    ):
        little.call("find_coordinator", 4, {"key_type": 0, "coordinator_keys": ["g"]})
        frames: list[bytes] = []
        with monkeypatch.context() as before:
            before.setattr(much, "send_frame", frames.append)
            sent = [much.send("describe_groups", 5, {"groups": NAMES}) for _ in range(REQUESTS)]
        at_once = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)

        received: list[int] = []

        def receive_all() -> None:
            while len(received) < REQUESTS:
                received.append(much.receive()[0])

        def look() -> None:
            met.append(PASS)
            if len(received) < REQUESTS:
                asyncio.get_running_loop().call_soon(look)

        one.call(look)
        client = [
            threading.Thread(target=much.socket.sendall, args=(at_once,)),
            threading.Thread(target=receive_all),
        ]
        for thread in client:
            thread.start()
        while len(received) < REQUESTS:
            little.call("api_versions", 0, {})
        for thread in client:
            thread.join()
        assert received == sent
    assert max(passed_between(met, ("comes", VERSIONS), ("is done", VERSIONS))) < REQUESTS // 10
    assert max(passed_between(met, PASS, PASS)) < REQUESTS // 10


def passed_between(met: list[Event], start: Event, end: Event) -> list[int]:
    """How many of the client that sends much were done from each start to the next end."""
    found, passed = [], 0
    for event in met:
        if event == end:
            found.append(passed)
        if event == start:
            passed = 0
        passed += event == ("is done", DESCRIBE)
    return found


def watch_requests(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """What happens to requests of which APIs, as the broker sees it: how long a client takes says nothing of it."""
    met: list[Event] = []
    begin, handle = Request.__init__, Request.handle

    def comes(self: Request, *about: Any) -> None:
        begin(self, *about)
        met.append(("comes", self.api_key))

    def is_done(self: Request) -> None:
        handle(self)
        met.append(("is done", self.api_key))

    monkeypatch.setattr(Request, "__init__", comes)
    monkeypatch.setattr(Request, "handle", is_done)
    return met


def test_a_request_that_waited_and_cannot_be_read_ends_its_connection_only(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as one, one.connect() as bad, one.connect() as good:
        broken: dict[str, Any] = {"groups": NAMES}
        for _ in range(50):
            bad.send("describe_groups", 5, broken)
        bad.send_frame(b"\0\x0f\0\x05" + bytes(4) + b"\0\0" + b"\0" + b"\xff" * 9)
        with contextlib.suppress(ConnectionResetError):
            while bad.socket.recv(1 << 16):
                pass  # the answers before it, as far as they had left
        assert good.call("api_versions", 0, {}).error_code == 0

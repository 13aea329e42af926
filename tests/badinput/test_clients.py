"""Bad clients: too slow, too many, too greedy, requests in a wrong order or with a wrong identity."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from tests.badinput.broker import HEALTHY, PROBE, Broker, Offender, produce
from tests.badinput.golden import TOPIC, batch, header
from tests.support.raw import Connection, fetch

from levada.errors import ErrorCode

CONNECTIONS = 1_000


@contextmanager
def many_connections(broker: Broker, count: int, greeting: bytes) -> Iterator[list[socket.socket]]:
    """Many connections that all have sent the same."""
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(broker.address, timeout=10)) for _ in range(count)]
        for one in connections:
            one.sendall(greeting)
        yield connections


@pytest.mark.parametrize(
    "greeting",
    [b"", b"\0", struct.pack(">i", 1 << 20), struct.pack(">i", 100 << 20) + bytes(2_000), PROBE[:-1]],
    ids=["silent", "one byte", "a size", "a hundred mebibytes announced", "all but one byte"],
)
def test_slow_loris(greeting: bytes, broker: Broker) -> None:
    """A thousand clients that never finish their request cost little, and the others are served."""
    with many_connections(broker, CONNECTIONS, greeting):
        broker.check_health()
        broker.check_memory()


@pytest.mark.parametrize("api_key", [3, 18])
def test_clients_that_never_read(api_key: int, broker: Broker) -> None:
    """Requests are not even read any more once the answers pile up."""
    request = header(api_key, 0, flexible=False) + (struct.pack(">i", 0) if api_key == 3 else b"")
    frame = struct.pack(">i", len(request)) + request
    with many_connections(broker, 4, b"") as connections:
        for one in connections:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            one.settimeout(0.2)
            for _ in range(100):
                try:
                    one.sendall(frame * 1_000)
                except (TimeoutError, ConnectionError):
                    break
        broker.check_health()
        broker.check_memory()


def test_fetchers_that_never_read(broker: Broker) -> None:
    with Connection(broker.bootstrap) as one:
        for _ in range(20):
            produce(one, TOPIC, batch())
    with ExitStack() as stack:
        fetchers = [stack.enter_context(Connection(broker.bootstrap)) for _ in range(20)]
        for fetcher in fetchers:
            fetcher.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            fetcher.socket.settimeout(0.2)
            place = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50 << 20}
            fields = {"max_bytes": 50 << 20, "topics": [{"topic": TOPIC, "partitions": [place]}]}
            try:
                for _ in range(500):
                    fetcher.send("fetch", 12, fields)
            except (TimeoutError, ConnectionError):
                continue
        broker.check_health()
        broker.check_memory()


def test_waiting_fetchers_that_leave(broker: Broker) -> None:
    """A long poll ends with its client."""
    place = {"partition": 0, "fetch_offset": 1 << 40, "partition_max_bytes": 1 << 20}
    for offset in (0, 1 << 40):
        place["fetch_offset"] = offset
        for _ in range(200):
            with Connection(broker.bootstrap) as one:
                fields = {"max_wait": 2**31 - 1, "min_bytes": 2**31 - 1, "max_bytes": 1 << 20}
                one.send("fetch", 12, {**fields, "topics": [{"topic": HEALTHY, "partitions": [place]}]})


def test_a_false_replica_reads_no_more_than_a_consumer(broker: Broker) -> None:
    """A replica id is only a number: it must not open what is not committed, nor move the high watermark."""
    with Connection(broker.bootstrap) as one:
        before = fetch(one, HEALTHY, 0).high_watermark
        place = {
            "partition": 0,
            "fetch_offset": before + 1_000,
            "partition_max_bytes": 1 << 20,
            "current_leader_epoch": -1,
        }
        for replica_id in (0, 1, 2, 3, 2**31 - 1, -2, -(2**31)):
            fields = {"replica_id": replica_id, "max_bytes": 1 << 20, "session_epoch": -1}
            place["current_leader_epoch"] = -1
            answer = one.call("fetch", 12, {**fields, "topics": [{"topic": HEALTHY, "partitions": [place]}]})
            codes = {answer.error_code} | {part.error_code for topic in answer.responses for part in topic.partitions}
            assert codes - {ErrorCode.NONE}, f"replica {replica_id} may read past the end"
        assert fetch(one, HEALTHY, 0).high_watermark == before


def test_sessions_in_an_illegal_order(broker: Broker) -> None:
    with Connection(broker.bootstrap) as one:
        for session_id in (-1, 0, 1, 2**31 - 1, -(2**31)):
            for epoch in (1, 2**31 - 1, -2, -(2**31)):
                fields = {
                    "max_bytes": 1 << 20,
                    "session_id": session_id,
                    "session_epoch": epoch,
                    "topics": [],
                }
                code = one.call("fetch", 12, fields).error_code
                assert code in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)


def test_a_flood_of_fetch_sessions_is_bounded(broker: Broker) -> None:
    """Thousands of sessions over thousands of partitions that do not exist."""
    places = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 1} for number in range(2_000)]
    fields = {"max_bytes": 1, "session_epoch": 0, "topics": [{"topic": "nowhere", "partitions": places}]}
    with Connection(broker.bootstrap) as one:
        for _ in range(25):
            one.call("fetch", 12, fields)
        broker.check_memory()


def test_a_flood_of_metadata_for_topics_that_do_not_exist(broker: Broker) -> None:
    with Connection(broker.bootstrap) as one:
        for round_ in range(8):
            names = [{"name": f"never-{round_}-{number}"} for number in range(2_000)]
            answer = one.call("metadata", 9, {"topics": names, "allow_auto_topic_creation": False})
            assert len(answer.topics) == 2_000


def test_requests_before_any_greeting(offender: Offender) -> None:
    """SASL after data, SASL without need, an end without a beginning."""
    for key, version in (
        (36, 0),
        (17, 0),
        (17, 1),
        (26, 0),
        (14, 0),
        (12, 0),
        (42, 0),
        (52, 0),
        (62, 0),
        (7, 0),
    ):
        offender.attack(header(key, version, flexible=False) + bytes(20))


def test_thousands_of_connections_that_come_and_go(broker: Broker) -> None:
    for _ in range(3_000):
        socket.create_connection(broker.address, timeout=10).close()

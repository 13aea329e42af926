"""Floods of valid and invalid requests: time, memory and the log stay bounded."""

import itertools
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.badinput.broker import HEALTHY, Broker, Offender, produce
from tests.badinput.golden import TOPIC, header
from tests.support.raw import Connection, api_key

from levada.errors import ErrorCode
from levada.logs import EVENTS_PER_WINDOW_MAX
from levada.wire import batches
from levada.wire.primitives import ELEMENTS_MAX

MUCH = ELEMENTS_MAX - 2  # beside the topic, and the transaction, that they are in
TIMEOUT_S = 60.0
MIB = 1 << 20


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def array(one: Callable[[int], bytes], count: int) -> bytes:
    return struct.pack(">i", count) + b"".join(map(one, range(count)))


def topic(partition: Callable[[int], bytes], count: int) -> bytes:
    """One topic with many partitions."""
    return struct.pack(">i", 1) + text(TOPIC) + array(partition, count)


def packed(form: str, *fields: int) -> Callable[[int], bytes]:
    layout = struct.Struct(form)
    return lambda number: layout.pack(number, *fields)


def flood(api: str, count: int) -> tuple[int, bytes]:
    """A version of an API, and a request that names so many of whatever it takes a list of."""
    names = array(lambda number: text(f"g-{number}"), count)
    offsets = topic(lambda number: struct.pack(">iq", number, 1) + text(""), count)
    bodies: dict[str, tuple[int, bytes]] = {
        "produce": (3, struct.pack(">hhi", -1, 1, 1_000) + topic(packed(">ii", 0), count)),
        "fetch": (4, struct.pack(">iiiib", -1, 0, 0, MIB, 0) + topic(packed(">iqi", 0, 1), count)),
        "list_offsets": (1, struct.pack(">i", -1) + topic(packed(">iq", -1), count)),
        "metadata": (4, names + b"\0"),
        "offset_commit": (2, text("g") + struct.pack(">i", -1) + text("") + struct.pack(">q", -1) + offsets),
        "offset_fetch": (1, text("g") + topic(packed(">i"), count)),
        "offset_delete": (0, text("g") + topic(packed(">i"), count)),
        "offset_for_leader_epoch": (2, topic(packed(">iii", -1, 0), count)),
        "delete_records": (0, topic(packed(">iq", 0), count) + struct.pack(">i", 1_000)),
        "add_partitions_to_txn": (0, text("t") + struct.pack(">qh", 1, 0) + topic(packed(">i"), count)),
        "txn_offset_commit": (0, text("t") + text("g") + struct.pack(">qh", 1, 0) + offsets),
        "leave_group": (3, text("g") + array(lambda number: text(f"m-{number}") + text(""), count)),
        "describe_groups": (0, names),
        "delete_groups": (0, names),
        "delete_topics": (1, names + struct.pack(">i", 1_000)),
        "create_partitions": (
            0,
            array(lambda number: text(f"t-{number}") + struct.pack(">ii", 9, -1), count)
            + struct.pack(">ib", 1_000, 0),
        ),
    }  # fmt: skip
    return bodies[api]


FLOODS = (
    "produce", "fetch", "list_offsets", "metadata", "offset_commit", "offset_fetch", "offset_delete",
    "offset_for_leader_epoch", "delete_records", "add_partitions_to_txn", "txn_offset_commit", "leave_group",
    "describe_groups", "delete_groups", "delete_topics", "create_partitions",
)  # fmt: skip


@pytest.mark.parametrize("api", FLOODS)
def test_a_request_may_name_much(api: str, broker: Broker) -> None:
    """More than ten thousand: a consumer of a topic with as many partitions can name all of them."""
    version, body = flood(api, MUCH)
    with Connection(broker.bootstrap) as one:
        one.socket.settimeout(TIMEOUT_S)
        one.send_frame(header(api_key(api), version, flexible=False) + body)
        assert len(one.receive_frame()) > 4
    broker.check_memory()


@pytest.mark.parametrize("api", FLOODS)
def test_a_request_may_not_name_more(api: str, offender: Offender) -> None:
    """Everybody else would wait for it; it costs its client the connection, and is not even read."""
    version, body = flood(api, ELEMENTS_MAX + 1)
    assert not offender.attack(header(api_key(api), version, flexible=False) + body)


@pytest.mark.parametrize("api", ["produce", "fetch"])
def test_neither_may_what_is_read_by_hand_name_more_in_many_topics(api: str, offender: Offender) -> None:
    """Nor topics without partitions, of which a frame could hold millions."""
    starts = {"produce": struct.pack(">hhi", -1, 1, 1_000), "fetch": struct.pack(">iiiib", -1, 0, 0, MIB, 0)}
    version, partition = {
        "produce": (3, struct.pack(">ii", 0, -1)),
        "fetch": (4, struct.pack(">iqi", 0, 0, 1)),
    }[api]
    two = text(TOPIC) + struct.pack(">i", 2) + 2 * partition
    none = text(TOPIC) + struct.pack(">i", 0)
    for topics in (array(lambda _: two, ELEMENTS_MAX // 2 + 1), array(lambda _: none, ELEMENTS_MAX + 1)):
        assert not offender.attack(header(api_key(api), version, flexible=False) + starts[api] + topics)


def test_requests_that_stop_before_their_end_share_a_bounded_memory(tmp_path: Path) -> None:
    """Most of a hundred mebibytes has come of each, and the rest never will; big requests of others still pass."""
    piece = bytes(MIB)
    with Broker(tmp_path) as broker, ExitStack() as stack:
        broker.prepare()
        greedy = [stack.enter_context(socket.create_connection(broker.address, timeout=0.5)) for _ in range(12)]
        for one in greedy:
            one.sendall(struct.pack(">i", 100 * MIB))
        unsent = dict.fromkeys(greedy, 90)
        while unsent:
            for one in list(unsent):
                try:
                    one.sendall(piece)
                    unsent[one] -= 1
                except OSError:  # it is not read from any more, or cut off
                    unsent[one] = 0
                if not unsent[one]:
                    del unsent[one]
            broker.check_memory()
        with Connection(broker.bootstrap) as honest:
            honest.socket.settimeout(TIMEOUT_S)
            produce(honest, HEALTHY, batches.encode([batches.Record(0, 0, None, bytes(900 * 1024))]))
        broker.check_memory()


def test_members_that_say_much_share_a_bounded_memory(tmp_path: Path) -> None:
    """Members of many groups send hundreds of mebibytes; those beyond the limit are rejected, the others served."""
    pending = {"group.initial.rebalance.delay.ms": 3_000}  # no response before all requests are sent
    with Broker(tmp_path, pending) as broker, ExitStack() as stack:
        broker.prepare()
        connections = [stack.enter_context(Connection(broker.bootstrap)) for _ in range(8)]
        connections[0].call("find_coordinator", 3, {"key": "g"})
        protocols = [{"name": "range", "metadata": bytes(2 * MIB)}]
        member = {"session_timeout": 60_000, "protocol_type": "consumer", "protocols": protocols}
        for one, number in itertools.product(connections, range(20)):
            one.send("join_group", 0, {"group_id": f"g-{id(one)}-{number}", **member})
        answers = [one.receive()[1].error_code for one in connections for _ in range(20)]
        assert set(answers) == {0, ErrorCode.GROUP_MAX_SIZE_REACHED}
        assert 50 < answers.count(0) < 64, "of two mebibytes each, in 128"
        broker.check_memory()
        broker.check_health()


def test_a_flood_of_bad_requests_does_not_flood_the_log(tmp_path: Path) -> None:
    """What clients cause is logged some times, then only counted."""
    with Broker(tmp_path) as broker:
        broker.prepare()
        for _ in range(20 * EVENTS_PER_WINDOW_MAX):
            with socket.create_connection(broker.address, timeout=10) as one:
                one.sendall(struct.pack(">i", -1))
                assert one.recv(1) == b""
        logged = [line for line in broker.log.read_text().splitlines() if "connection closed" in line]
        assert EVENTS_PER_WINDOW_MAX <= len(logged) < 10 * EVENTS_PER_WINDOW_MAX
        assert "only counted" in logged[EVENTS_PER_WINDOW_MAX - 1]
        broker.check_health()

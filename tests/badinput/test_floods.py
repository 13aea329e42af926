"""Much of what is allowed, and much of what is not: time, memory and the log stay bounded."""

import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.badinput.broker import HEALTHY, Broker, Offender, produce, running
from tests.badinput.golden import TOPIC, header
from tests.compat.raw import Connection, api_key

from levada.api.registry import ENTRIES_MAX
from levada.logs import REPEATS_MAX
from levada.wire import batches

PARTITIONS = 100_000
PATIENCE_S = 60.0
MIB = 1 << 20


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def array(one: Callable[[int], bytes], count: int = ENTRIES_MAX) -> bytes:
    return struct.pack(">i", count) + b"".join(map(one, range(count)))


def topic(partition: Callable[[int], bytes]) -> bytes:
    """One topic with all the partitions there could be."""
    return struct.pack(">i", 1) + text(TOPIC) + array(partition, PARTITIONS)


def packed(form: str, *fields: int) -> Callable[[int], bytes]:
    layout = struct.Struct(form)
    return lambda number: layout.pack(number, *fields)


CROWDED: dict[str, tuple[int, bytes]] = {
    "produce": (3, struct.pack(">hhi", -1, 1, 1_000) + topic(packed(">ii", 0))),
    "fetch": (4, struct.pack(">iiiib", -1, 0, 0, MIB, 0) + topic(packed(">iqi", 0, 1))),
    "list_offsets": (1, struct.pack(">i", -1) + topic(packed(">iq", -1))),
    "metadata": (4, array(lambda number: text(f"never-{number}")) + b"\0"),
    "offset_commit": (2, text("g") + struct.pack(">i", -1) + text("") + struct.pack(">q", -1)
                      + topic(lambda number: struct.pack(">iq", number, 1) + text(""))),
    "offset_fetch": (1, text("g") + topic(packed(">i"))),
    "offset_for_leader_epoch": (2, topic(packed(">iii", -1, 0))),
    "delete_records": (0, topic(packed(">iq", 0)) + struct.pack(">i", 1_000)),
    "add_partitions_to_txn": (0, text("nobody") + struct.pack(">qh", 1, 0) + topic(packed(">i"))),
    "describe_groups": (0, array(lambda number: text(f"g-{number}"))),
    "delete_groups": (0, array(lambda number: text(f"g-{number}"))),
    "create_partitions": (0, array(lambda number: text(f"t-{number}") + struct.pack(">ii", PARTITIONS, -1))
                          + struct.pack(">ib", 1_000, 0)),
}  # fmt: skip


@pytest.mark.parametrize("api", CROWDED)
def test_a_request_may_name_much(api: str, broker: Broker) -> None:
    version, body = CROWDED[api]
    with Connection(broker.bootstrap) as one:
        one.socket.settimeout(PATIENCE_S)
        one.send_frame(header(api_key(api), version, flexible=False) + body)
        assert len(one.receive_frame()) > 4
    broker.check_memory()


@pytest.mark.parametrize("api", ["describe_groups", "delete_groups", "metadata"])
@pytest.mark.parametrize("name", ["g", "a name that is rather long " * 9], ids=["many", "large"])
def test_a_request_may_not_name_millions(api: str, name: str, offender: Offender) -> None:
    """What would take minutes, or gigabytes as objects, costs its client the connection."""
    version, _ = CROWDED[api]
    body = array(lambda _: text(name), count=ENTRIES_MAX + 1) + (b"\0" if api == "metadata" else b"")
    assert not offender.attack(header(api_key(api), version, flexible=False) + body)


def test_requests_that_stop_before_their_end_share_a_bounded_memory(tmp_path: Path) -> None:
    """Most of a hundred mebibytes has come of each, and the rest never will; big requests of others still pass."""
    piece = bytes(MIB)
    with running(tmp_path) as broker, ExitStack() as stack:
        broker.prepare()
        greedy = [stack.enter_context(socket.create_connection(broker.place, timeout=0.5)) for _ in range(12)]
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
            honest.socket.settimeout(PATIENCE_S)
            produce(honest, HEALTHY, batches.encode([batches.Record(0, 0, None, bytes(900 * 1024))]))
        broker.check_memory()


def test_a_flood_of_bad_requests_does_not_flood_the_log(tmp_path: Path) -> None:
    """What clients cause is told some times, then only counted."""
    with running(tmp_path) as broker:
        broker.prepare()
        for _ in range(20 * REPEATS_MAX):
            with socket.create_connection(broker.place, timeout=10) as one:
                one.sendall(struct.pack(">i", -1))
                assert one.recv(1) == b""
        told = [line for line in broker.log.read_text().splitlines() if "connection closed" in line]
        assert REPEATS_MAX <= len(told) < 10 * REPEATS_MAX
        assert "only counted" in told[REPEATS_MAX - 1]
        broker.check_health()

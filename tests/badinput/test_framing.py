"""Frames and headers that no client would send: wrong sizes, unknown APIs, other protocols, random bytes."""

import socket
import struct
from random import Random

import pytest
from tests.badinput.broker import PROBE, Broker, Offender
from tests.badinput.golden import header, uvarint
from tests.badinput.hostile import NO_UTF8

FRAME_BYTES_MAX = 100 << 20  # socket.request.max.bytes
API_VERSIONS = header(18, 0, flexible=False)

OTHER_PROTOCOLS = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(range(192)),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "redis": b"*1\r\n$4\r\nPING\r\n",
    "zookeeper": b"ruok",
    "postgres": struct.pack(">ii", 8, 80877103),
    "proxy": b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n",
}


@pytest.mark.parametrize("size", [-(2**31), -2, -1, 0, 1, 4, 7, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_an_impossible_size_closes_the_connection(size: int, offender: Offender) -> None:
    assert not offender.attack_raw(struct.pack(">i", size) + bytes(20))


@pytest.mark.parametrize("data", OTHER_PROTOCOLS.values(), ids=OTHER_PROTOCOLS)
def test_other_protocols_are_turned_away(data: bytes, offender: Offender) -> None:
    assert not offender.attack_raw(data + bytes(1_000))


@pytest.mark.parametrize("key", [-32768, -1, 4, 5, 6, 7, 89, 500, 32767])
def test_an_unknown_api_closes_the_connection(key: int, offender: Offender) -> None:
    for version in (-1, 0, 1, 32767):
        assert not offender.attack(header(key, version, flexible=False))


@pytest.mark.parametrize("key", range(100))
@pytest.mark.parametrize("version", [-32768, -1, 99, 32767])
def test_an_unknown_version_closes_the_connection(key: int, version: int, offender: Offender) -> None:
    """But for ApiVersions, which answers in its oldest version, so that clients can learn what there is."""
    assert offender.attack(header(key, version, flexible=False)) == (key == 18)


def test_client_ids_that_are_none(offender: Offender) -> None:
    for key in (0, 1, 3, 18):
        for size in (-2, -32768, 1, 4, 32767):
            head = struct.pack(">hhih", key, 1, 1, size)
            for rest in (b"", b"abc", bytes(100)):
                offender.attack(head + rest)
        for text in NO_UTF8:
            offender.attack(struct.pack(">hhih", key, 1, 1, len(text)) + text + bytes(50))


def test_tags_in_the_header(offender: Offender) -> None:
    for key, version in ((0, 9), (1, 12), (3, 9), (18, 3), (19, 5)):
        head = header(key, version, flexible=False)
        for tags in (
            uvarint(2**31 - 1),
            b"\xff" * 10,
            uvarint(10_000) + b"".join(uvarint(i) + b"\0" for i in range(10_000)),
            b"\x01\x00" + uvarint(2**31 - 1) + b"x",
            b"\x01\x00" + uvarint(1 << 20) + bytes(1 << 20),
        ):
            offender.attack(head + tags + bytes(10))


def test_random_frames(offender: Offender) -> None:
    random = Random(1)
    for _ in range(1_500):
        size = random.choice((8, 10, 20, 100, 1_000))
        offender.attack(random.randbytes(size))


def test_random_bodies_behind_valid_headers(offender: Offender) -> None:
    random = Random(2)
    for _ in range(3_000):
        key, version = random.randrange(76), random.randrange(16)
        offender.attack(header(key, version, random.random() < 0.7) + random.randbytes(random.choice((3, 30, 300))))


def test_a_request_that_comes_byte_by_byte_is_answered(broker: Broker) -> None:
    with socket.create_connection(broker.address, timeout=5) as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(len(PROBE)):
            one.send(PROBE[number : number + 1])
        assert len(one.recv(4)) == 4


def test_a_client_that_leaves_within_a_frame(broker: Broker) -> None:
    for cut in range(1, len(PROBE)):
        with socket.create_connection(broker.address, timeout=5) as one:
            one.sendall(PROBE[:cut])


def test_a_client_that_says_no_more_still_gets_its_answer(broker: Broker) -> None:
    with socket.create_connection(broker.address, timeout=5) as one:
        one.sendall(PROBE)
        one.shutdown(socket.SHUT_WR)
        assert len(one.recv(4)) in (0, 4)  # Kafka hangs up; both are fine, waiting for ever is not


def test_thousands_of_requests_in_one_write_are_all_answered(broker: Broker) -> None:
    count = 5_000
    with socket.create_connection(broker.address, timeout=10) as one:
        one.sendall(PROBE)
        (size,) = struct.unpack(">i", one.recv(4, socket.MSG_WAITALL))
        one.recv(size, socket.MSG_WAITALL)
        one.settimeout(20)
        sent = 0
        for _ in range(count // 100):
            one.sendall(PROBE * 100)
            for _ in range(100):
                assert len(one.recv(4 + size, socket.MSG_WAITALL)) == 4 + size
                sent += 1
        assert sent == count

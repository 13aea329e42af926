"""What a client is told that comes back after its transaction was aborted by the timeout (R26).

Every answer was taken from Apache Kafka 4.3.1, and the tests run against it too (COMPAT_BOOTSTRAP).
"""

from collections.abc import Callable
from typing import Any

import pytest
from tests.compat.drivers.base import eventually
from tests.compat.transactions.test_protocol import (
    VERSION_1,
    Producer,
    add,
    end,
    find_coordinator,
    init,
    init_reply,
    name,
    send,
    state,
    topic,
)
from tests.support.raw import Connection, fitting

from levada.errors import ErrorCode

__all__ = ["name", "topic"]  # fixtures

Expired = Callable[[bool], Producer]
EPOCH, FENCED = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED


@pytest.fixture
def expired(wire: Connection, name: str, topic: str) -> Expired:
    """Opens a transaction, of version 2 or 1, and waits until it is aborted."""

    def expire(second: bool) -> Producer:
        producer = init(wire, name, transaction_timeout=300)
        if not second:
            assert add(wire, name, producer, topic, 0) == [ErrorCode.NONE]
        version = 12 if second else VERSION_1
        assert send(wire, name, producer, topic, b"1", version=version).error_code == ErrorCode.NONE
        eventually(lambda: state(wire, name), "CompleteAbort")
        return producer

    return expire


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize(
    ("version", "error"), [(0, EPOCH), (1, EPOCH), (2, FENCED), (3, FENCED), (4, FENCED)]
)
def test_the_end_of_a_transaction_of_version_1(
    wire: Connection, name: str, expired: Expired, version: int, error: ErrorCode, commit: bool
) -> None:
    producer = expired(False)
    for _ in range(2):
        assert end(wire, name, producer, commit, version).error_code == error


def test_the_end_of_a_transaction_of_version_2(
    wire: Connection, name: str, topic: str, expired: Expired
) -> None:
    """It cannot be committed any more; who aborts it has what it asks for, and goes on in the next epoch."""
    producer = expired(True)
    assert end(wire, name, producer, True).error_code == ErrorCode.INVALID_TXN_STATE
    for _ in range(2):
        reply = end(wire, name, producer, False)
        assert reply.error_code == ErrorCode.NONE
        following = Producer(reply.producer_id, reply.producer_epoch)
        assert following == Producer(producer.id, producer.epoch + 1)
    assert send(wire, name, following, topic, b"next").error_code == ErrorCode.NONE
    assert end(wire, name, following, True).error_code == ErrorCode.NONE


@pytest.mark.parametrize("second", [False, True], ids=["version 1", "version 2"])
def test_nothing_more_goes_into_it(
    wire: Connection, name: str, topic: str, expired: Expired, second: bool
) -> None:
    producer = expired(second)
    for version in (5, VERSION_1, 12):
        answer = send(wire, name, producer, topic, b"late", sequence=1, version=version)
        assert answer.error_code == EPOCH
    for version in range(4):
        assert add(wire, name, producer, topic, 0, version=version) == [EPOCH if version < 2 else FENCED]
    who = {"transactional_id": name, "producer_id": producer.id, "producer_epoch": producer.epoch}
    for version in range(5):
        answer = wire.call("add_offsets_to_txn", version, {**who, "group_id": name})
        assert answer.error_code == (EPOCH if version < 2 else FENCED)
    find_coordinator(wire, name, key_type=0)
    place = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    fields: dict[str, Any] = {
        **who,
        "group_id": name,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [place]}],
    }
    for version in range(6):
        answer = wire.call("txn_offset_commit", version, fitting("txn_offset_commit", version, fields))
        assert answer.topics[0].partitions[0].error_code == EPOCH


@pytest.mark.parametrize("second", [False, True], ids=["version 1", "version 2"])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_that_says_who_it_was_goes_on(
    wire: Connection, name: str, topic: str, expired: Expired, second: bool, version: int
) -> None:
    """KIP-360, KIP-588."""
    producer = expired(second)
    who = {"producer_id": producer.id, "producer_epoch": producer.epoch}
    reply = init_reply(wire, name, version, **who)
    following = Producer(reply.producer_id, reply.producer_epoch)
    assert (reply.error_code, following) == (ErrorCode.NONE, Producer(producer.id, producer.epoch + 1))
    assert send(wire, name, following, topic, b"next").error_code == ErrorCode.NONE


def test_another_producer_fences_it(wire: Connection, name: str, expired: Expired) -> None:
    producer = expired(True)
    assert init(wire, name) == Producer(producer.id, producer.epoch + 2)
    assert end(wire, name, producer, False).error_code == FENCED

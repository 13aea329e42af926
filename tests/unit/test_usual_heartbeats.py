"""Heartbeats by their bytes, against the general codec: what is taken means the same, and so do the answers (R32)."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.brokers import Running, running
from tests.compat.raw import Connection
from tests.unit.messages_at_random import random_message
from tests.unit.test_hot_messages import HEADER_TAGS, kio_bytes

from levada.api import usual_heartbeats
from levada.api.usual_heartbeats import FLEXIBLE_FROM, HEARTBEAT
from levada.errors import ErrorCode, KafkaError
from levada.wire import messages
from levada.wire.versions import APIS

EXAMPLES = 400
VERSIONS = range(5)
TEXTS = ["g", "orders", "é✓", "x" * 126, "x" * 127, "x" * 300]


def heartbeat(random: Random, version: int) -> bytes:
    """The bytes behind the client id."""
    request = random_message(random, APIS[HEARTBEAT], version, "request")
    request = replace(request, group_id=random.choice(TEXTS), generation_id=random.choice((0, 7, 1 << 20)))
    return (HEADER_TAGS if version >= FLEXIBLE_FROM else b"") + kio_bytes(request)


def as_the_codec_reads(body: bytes, version: int) -> tuple[Any, ...] | None:
    try:
        shape = messages.read_request(HEARTBEAT, version, body, int(version >= FLEXIBLE_FROM))
    except KafkaError:
        return None
    return (shape.group_id, shape.member_id, shape.group_instance_id), shape.generation_id


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_taken_is_read_as_the_codec_reads_it(version: int) -> None:
    random, taken = Random(version), 0
    for _ in range(EXAMPLES):
        body = heartbeat(random, version)
        found = usual_heartbeats.read(body, version)
        if found is not None:
            assert found == as_the_codec_reads(body, version)
            taken += 1
    assert taken > EXAMPLES / 4


@pytest.mark.parametrize("version", VERSIONS)
def test_cut_and_damaged_heartbeats_are_not_taken_for_others(version: int) -> None:
    """Also behind whole ones of the same member, of which all but the generation is known."""
    random = Random(version)
    for _ in range(EXAMPLES):
        body = bytearray(heartbeat(random, version))
        usual_heartbeats.read(bytes(body), version)
        assert usual_heartbeats.read(bytes(body[: random.randrange(len(body))]), version) is None
        body[random.randrange(len(body))] = random.randrange(256)
        found = usual_heartbeats.read(bytes(body), version)
        if found is not None:
            assert not version >= FLEXIBLE_FROM or not body[0]
            assert found == as_the_codec_reads(bytes(body), version)


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    with running(tmp_path / "data", group_initial_rebalance_delay_ms=0) as one:
        one.wait(one.broker.groups.create_topic())
        yield one


def join(connection: Connection) -> str:
    """The only member of a group, in its first generation."""
    timeouts = {"session_timeout": 30_000, "rebalance_timeout": 30_000}
    protocols = [{"name": "range", "metadata": b""}]
    fields = {"group_id": "g", **timeouts, "protocol_type": "consumer", "protocols": protocols}
    joined = connection.call("join_group", 3, {**fields, "member_id": ""})
    member_id = str(joined.member_id)
    assigned = [{"member_id": member_id, "assignment": b""}]
    who = {"group_id": "g", "generation_id": 1, "member_id": member_id}
    synced = connection.call("sync_group", 2, {**who, "assignments": assigned})
    assert synced.error_code == ErrorCode.NONE
    return member_id


@pytest.mark.parametrize("version", VERSIONS)
def test_members_are_told_how_they_stand(broker: Running, version: int) -> None:
    def beat(member_id: str, generation: int = 1, group_id: str = "g") -> Any:
        fields = {"group_id": group_id, "generation_id": generation, "member_id": member_id}
        return connection.call("heartbeat", version, fields).error_code

    with broker.connect() as connection, broker.connect() as other:
        member_id = join(connection)
        assert [beat(member_id) for _ in range(3)] == [ErrorCode.NONE] * 3
        assert beat(member_id, generation=2) == ErrorCode.ILLEGAL_GENERATION
        assert beat("nobody") == ErrorCode.UNKNOWN_MEMBER_ID
        assert beat(member_id, group_id="") == ErrorCode.INVALID_GROUP_ID
        leaving = {"group_id": "g", "member_id": member_id}
        assert other.call("leave_group", 1, leaving).error_code == ErrorCode.NONE
        assert beat(member_id) == ErrorCode.UNKNOWN_MEMBER_ID

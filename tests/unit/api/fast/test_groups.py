"""Fast paths of group requests against the general codec: the same bytes mean the same."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple, cast

import pytest
from tests.support.kio_codec import HEADER_TAGS, kio_bytes
from tests.support.random_messages import random_message

from levada.api.coordinator import groups
from levada.api.fast import groups as fast_groups
from levada.api.fast.groups import NOT_DECODED, GroupFastPath, HeartbeatFastPath, JoinFastPath, SyncFastPath
from levada.core.groups.classic.draft import JoinResult, SyncResult
from levada.core.groups.classic.group import NO_GENERATION
from levada.errors import KafkaError
from levada.wire.schema import messages
from levada.wire.schema.versions import APIS

EXAMPLES = 400

VERSIONS_OF = {"heartbeat": range(5), "join_group": range(10), "sync_group": range(6)}


TEXTS = ["g", "orders", "é✓", "x" * 126, "x" * 127, "x" * 300]


class Api(NamedTuple):
    """A group API: its fast path, and what the general handler makes of a request."""

    name: str
    path: Callable[[], GroupFastPath]
    expected: Callable[[Any, int], Any]

    @property
    def api_key(self) -> int:
        return messages.api_key(self.name)

    def tags(self, version: int) -> int:
        return int(version >= APIS[self.api_key].flexible)

    def random_body(self, random: Random, version: int) -> bytes:
        """The bytes after the client id."""
        request = random_message(random, APIS[self.api_key], version, "request")
        fields: dict[str, Any] = {
            "group_id": random.choice(TEXTS),
            "generation_id": random.choice((0, 7, 1 << 20)),
        }
        if random.random() < 0.5:  # a dynamic follower that rejoins
            fields |= {"group_instance_id": None, "assignments": (), "member_id": "m"}
            fields |= {"protocol_type": "consumer", "protocol_name": "range"}
        known = {name: value for name, value in fields.items() if hasattr(request, name)}
        return HEADER_TAGS[: self.tags(version)] + kio_bytes(replace(request, **known))

    def decode(self, body: bytes, version: int) -> Any:
        """What the general codec and handler make of a request; None if it is malformed."""
        try:
            return self.expected(messages.read_request(self.api_key, version, body, self.tags(version)), version)
        except KafkaError:
            return None


def heartbeat(shape: Any, _: int) -> Any:
    return (shape.group_id, shape.member_id, shape.group_instance_id), shape.generation_id


def joining(shape: Any, version: int) -> Any:
    return groups.to_join_request(shape, version), NO_GENERATION


def syncing(shape: Any, version: int) -> Any:
    sync = groups.to_sync_request(shape, version)
    return sync._replace(generation=0), sync.generation


APIS_TESTED = [
    Api("heartbeat", HeartbeatFastPath, heartbeat),
    Api("join_group", JoinFastPath, joining),
    Api("sync_group", SyncFastPath, syncing),
]


EACH = pytest.mark.parametrize(
    ("api", "version"),
    [
        pytest.param(api, version, id=f"{api.name}-{version}")
        for api in APIS_TESTED
        for version in VERSIONS_OF[api.name]
    ],
)


def decode_twice(path: GroupFastPath, body: bytes, version: int) -> Any:
    """How the fast path decodes a request that was sent before; None if it leaves it to the general path."""
    try:
        path.decode(body, version)
        return path.decode(body, version)
    except NOT_DECODED:
        return None


@EACH
def test_repeated_requests_are_decoded_as_by_the_codec(api: Api, version: int) -> None:
    random, path, taken = Random(version), api.path(), 0
    for _ in range(EXAMPLES):
        body = api.random_body(random, version)
        found = decode_twice(path, body, version)
        if found is not None:
            assert found == api.decode(body, version)
            taken += 1
    assert taken > EXAMPLES / 8


@pytest.mark.parametrize("api", [api for api in APIS_TESTED if api.name != "heartbeat"], ids=lambda api: api.name)
def test_requests_sent_once_are_left_to_the_general_path(api: Api) -> None:
    random = Random(1)
    bodies = [api.random_body(random, 0) for _ in range(EXAMPLES)]
    taken = [body for body in bodies if decode_twice(api.path(), body, 0) is not None]
    assert taken
    for body in taken:
        path = api.path()
        assert path.decode(body, 0) is None
        assert path.decode(body, 0) is not None


@pytest.mark.parametrize("version", VERSIONS_OF["join_group"])
def test_the_join_of_new_members_is_decoded_once(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no member id, so all of them send the same bytes; the cache holds that the general path handles them."""
    api = next(api for api in APIS_TESTED if api.name == "join_group")
    request: Any = random_message(Random(1), APIS[api.api_key], version, "request")
    body = HEADER_TAGS[: api.tags(version)] + kio_bytes(replace(request, group_id="g", member_id=""))
    decoded: list[bytes] = []
    monkeypatch.setattr(fast_groups, "_decode_join", lambda body, _: decoded.append(body))
    path = api.path()
    assert [path.decode(body, version) for _ in range(10)] == [None] * 10
    assert decoded == [body]


@EACH
def test_truncated_and_corrupted_requests_are_not_mistaken_for_others(api: Api, version: int) -> None:
    """Also after whole ones of the same member, of which all but the generation is cached."""
    random, path = Random(version), api.path()
    for _ in range(EXAMPLES):
        body = bytearray(api.random_body(random, version))
        decode_twice(path, bytes(body), version)
        assert decode_twice(path, bytes(body[: random.randrange(len(body))]), version) is None
        body[random.randrange(len(body))] = random.randrange(256)
        found = decode_twice(path, bytes(body), version)
        if found is not None:
            assert not any(body[: api.tags(version)])
            assert found == api.decode(bytes(body), version)


@pytest.mark.parametrize("version", VERSIONS_OF["join_group"])
@pytest.mark.parametrize("member_id", ["m", "é✓", "x" * 126, "x" * 127, "x" * 300])
def test_followers_get_the_response_that_the_codec_writes(version: int, member_id: str) -> None:
    for protocol, leader in (("range", "l"), ("sticky", "l" * 200)):
        reply = JoinResult(1 << 20, "consumer", protocol, leader, member_id)
        written = fast_groups.FastJoin(JoinFastPath().templates, cast(Any, None), 7, version, None, 1).encode(reply)
        response = groups.join_response(reply)
        assert written == messages.write_response_frame(fast_groups.JOIN_GROUP, version, 7, response)


@pytest.mark.parametrize("version", VERSIONS_OF["sync_group"])
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 20_000])
def test_assignments_are_written_as_by_the_codec(version: int, size: int) -> None:
    for protocol in ("range", "sticky"):
        reply = SyncResult("consumer", protocol, bytes(size))
        written = fast_groups.FastSync(SyncFastPath().templates, cast(Any, None), 7, version, None, 1).encode(reply)
        response = groups.sync_response(reply)
        assert written == messages.write_response_frame(fast_groups.SYNC_GROUP, version, 7, response)

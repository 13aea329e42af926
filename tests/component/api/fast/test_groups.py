"""The fast paths of Heartbeat, JoinGroup and SyncGroup decode and respond as the general codec does."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple, cast

import pytest
from tests.support.broker import BrokerThread
from tests.support.kio_codec import HEADER_TAGS, kio_bytes
from tests.support.random_messages import random_message
from tests.support.raw import Connection, fitting

from levada.api import groups
from levada.api.fast import groups as fast_groups
from levada.api.fast.groups import NOT_DECODED, GroupFastPath, HeartbeatFastPath, JoinFastPath, SyncFastPath
from levada.core.groups.classic.draft import JoinResult, SyncResult
from levada.core.groups.classic.group import NO_GENERATION
from levada.errors import ErrorCode, KafkaError
from levada.wire.schema import messages
from levada.wire.schema.versions import APIS

EXAMPLES = 400
VERSIONS = range(5)
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
            return self.expected(
                messages.read_request(self.api_key, version, body, self.tags(version)), version
            )
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
VERSIONS_OF = {"heartbeat": range(5), "join_group": range(10), "sync_group": range(6)}
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


@pytest.mark.parametrize(
    "api", [api for api in APIS_TESTED if api.name != "heartbeat"], ids=lambda api: api.name
)
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
        written = fast_groups.FastJoin(JoinFastPath().templates, cast(Any, None), 7, version, None, 1).encode(
            reply
        )
        response = groups.join_response(reply)
        assert written == messages.write_response_frame(fast_groups.JOIN_GROUP, version, 7, response)


@pytest.mark.parametrize("version", VERSIONS_OF["sync_group"])
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 20_000])
def test_assignments_are_written_as_by_the_codec(version: int, size: int) -> None:
    for protocol in ("range", "sticky"):
        reply = SyncResult("consumer", protocol, bytes(size))
        written = fast_groups.FastSync(SyncFastPath().templates, cast(Any, None), 7, version, None, 1).encode(
            reply
        )
        response = groups.sync_response(reply)
        assert written == messages.write_response_frame(fast_groups.SYNC_GROUP, version, 7, response)


@pytest.fixture(params=[True, False], ids=["fast", "general"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerThread]:
    """A broker with fast paths and one without: clients see no difference."""
    with BrokerThread(levada_fast_paths=request.param, group_initial_rebalance_delay_ms=0) as own:
        own.wait(own.broker.groups.create_topic())
        yield own


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
def test_members_learn_their_state(broker: BrokerThread, version: int) -> None:
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


class RawMember:
    """A member with a connection of its own and one version; it sends requests and receives responses separately."""

    def __init__(self, connection: Connection, version: int, member_id: str = "") -> None:
        self.connection = connection
        self.join_version, self.sync_version = version, min(version, 5)
        self.member_id = member_id

    def send_join(self, metadata: bytes = b"m") -> None:
        fields = {
            "group_id": "g",
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "member_id": self.member_id,
        }
        protocols = [{"name": "range", "metadata": metadata}]
        fields_sent = {**fields, "protocol_type": "consumer", "protocols": protocols}
        self.connection.send(
            "join_group", self.join_version, fitting("join_group", self.join_version, fields_sent)
        )

    def joined(self) -> Any:
        return self.connection.receive()[1]

    def enter(self) -> None:
        """Get a member id and send a JoinGroup with it, whose response waits for all members."""
        self.send_join()
        if self.join_version >= groups.MEMBER_ID_REQUIRED_FROM:
            refused = self.joined()
            assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
            self.member_id = refused.member_id
            self.send_join()

    def follow(self, generation: int) -> None:
        """Rejoin as soon as a Heartbeat returns REBALANCE_IN_PROGRESS."""
        self.await_rebalance(generation)
        self.send_join()

    def await_rebalance(self, generation: int) -> None:
        beat = {"group_id": "g", "generation_id": generation, "member_id": self.member_id}
        deadline = time.monotonic() + 10.0
        while self.connection.call("heartbeat", 1, beat).error_code != ErrorCode.REBALANCE_IN_PROGRESS:
            assert time.monotonic() < deadline, "nobody rebalances"

    def send_sync(self, generation: int, assignments: dict[str, bytes]) -> None:
        parts = [{"member_id": member, "assignment": part} for member, part in assignments.items()]
        who = {
            "group_id": "g",
            "generation_id": generation,
            "member_id": self.member_id,
            "assignments": parts,
        }
        if self.sync_version >= groups.PROTOCOL_NAMED_FROM:
            who |= {"protocol_type": "consumer", "protocol_name": "range"}
        self.connection.send("sync_group", self.sync_version, who)

    def synced(self) -> Any:
        return self.connection.receive()[1]


@pytest.mark.parametrize("version", VERSIONS_OF["join_group"])
def test_a_group_rebalances_over_and_over(
    broker: BrokerThread, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every generation has one leader, which gets all members, and each member gets its own assignment."""
    with broker.connect() as one, broker.connect() as two, broker.connect() as three:
        members = [RawMember(connection, version) for connection in (one, two, three)]
        members[0].enter()
        taken: list[Any] = []
        decide = fast_groups.FastJoin.decide

        def counted(self: Any, *arguments: Any) -> Any:
            taken.append(self)
            return decide(self, *arguments)

        monkeypatch.setattr(fast_groups.FastJoin, "decide", counted)
        generation, leader = settle(members[:1], [members[0].joined()])
        for count in (2, 3):
            members[count - 1].enter()
            for member in members[: count - 1]:
                member.follow(generation)
            generation, leader = settle(members[:count], [member.joined() for member in members[:count]])
        for _ in range(3):  # the leader may begin a generation whenever it likes
            leader.send_join()
            for member in members:
                if member is not leader:
                    member.follow(generation)
            generation, leader = settle(members, [member.joined() for member in members])
        assert bool(taken) is broker.broker.config.levada_fast_paths


def settle(members: list[RawMember], responses: list[Any]) -> tuple[int, RawMember]:
    """All members are in one generation; its leader syncs last. Return the generation and the leader."""
    generation = responses[0].generation_id
    for member, response in zip(members, responses, strict=True):
        member.member_id = response.member_id
        assert (response.error_code, response.generation_id) == (ErrorCode.NONE, generation)
        assert (response.leader, response.protocol_name) == (responses[0].leader, "range")
    leader = next(index for index, member in enumerate(members) if member.member_id == responses[0].leader)
    ids = {member.member_id for member in members}
    assert {member.member_id for member in responses[leader].members} == ids
    assert all(not response.members for index, response in enumerate(responses) if index != leader)
    assignments = {member_id: f"{member_id} in {generation}".encode() for member_id in ids}
    for index, member in sorted(enumerate(members), key=lambda item: item[0] == leader):
        member.send_sync(generation, assignments if index == leader else {})
    for member in members:
        received = member.synced()
        assert (received.error_code, received.assignment) == (ErrorCode.NONE, assignments[member.member_id])
    return generation, members[leader]


def test_cached_requests_of_a_member_that_left_are_rejected(broker: BrokerThread) -> None:
    """The cache holds decoded requests, not membership."""
    with broker.connect() as connection, broker.connect() as other:
        member = RawMember(connection, 5)
        member.enter()
        settle([member], [member.joined()])
        member.send_join()  # cached from now on
        settle([member], [member.joined()])
        member.send_sync(1, {})
        assert member.synced().error_code == ErrorCode.ILLEGAL_GENERATION
        leaving = {"group_id": "g", "member_id": member.member_id}
        assert other.call("leave_group", 1, leaving).error_code == ErrorCode.NONE
        member.send_join()
        refused = member.joined()
        assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, member.member_id)
        member.send_sync(2, {})
        assert member.synced().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_waiting_member_that_is_removed_gets_an_error(broker: BrokerThread) -> None:
    """The JoinGroup that waits gets UNKNOWN_MEMBER_ID."""
    with broker.connect() as one, broker.connect() as two, broker.connect() as third:
        first, second = RawMember(one, 5), RawMember(two, 5)
        first.enter()
        settle([first], [first.joined()])
        second.enter()
        first.follow(1)
        settle([first, second], [first.joined(), second.joined()])
        second.send_join(b"other")  # waits for the first, which does not come
        first.await_rebalance(2)
        leaving = {"group_id": "g", "member_id": second.member_id}
        assert third.call("leave_group", 1, leaving).error_code == ErrorCode.NONE
        refused = second.joined()
        assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, second.member_id)


def test_responses_are_sent_in_the_order_of_the_requests(broker: BrokerThread) -> None:
    """Responses to Heartbeats after a JoinGroup that waits are sent after it, even if they complete before."""
    with broker.connect() as one, broker.connect() as two:
        first, second = RawMember(one, 5), RawMember(two, 5)
        first.enter()
        generation, _ = settle([first], [first.joined()])
        second.enter()  # waits for the first
        first.await_rebalance(generation)
        beat = {"group_id": "g", "generation_id": generation, "member_id": second.member_id}
        before = broker.broker.request_counts[fast_groups.HEARTBEAT]
        sent = [two.send("heartbeat", 1, beat) for _ in range(3)]
        deadline = time.monotonic() + 10.0
        while broker.broker.request_counts[fast_groups.HEARTBEAT] < before + 3:
            assert time.monotonic() < deadline, "the heartbeats do not come"
        first.send_join()
        assert second.joined().generation_id == generation + 1
        received = [two.receive() for _ in sent]
        assert [(number, response.error_code) for number, response in received] == [
            (number, ErrorCode.REBALANCE_IN_PROGRESS) for number in sent
        ]
        assert first.joined().generation_id == generation + 1
        beat |= {"generation_id": generation + 1, "member_id": first.member_id}
        sent = [one.send("heartbeat", 1, beat) for _ in range(5)]
        received = [one.receive() for _ in sent]
        assert [(number, response.error_code) for number, response in received] == [
            (number, ErrorCode.NONE) for number in sent
        ]


@pytest.mark.parametrize("broker", [True], indirect=True)
def test_a_response_that_cannot_be_written_closes_only_its_connection(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug that shows there must not keep the coordinator from telling the others."""
    with broker.connect() as one, broker.connect() as two, broker.connect() as three:
        members = [RawMember(connection, 5) for connection in (one, two, three)]
        generation, leader = 0, members[0]
        for count in (1, 2, 3):
            members[count - 1].enter()
            for member in members[: count - 1]:
                member.follow(generation)
            generation, leader = settle(members[:count], [member.joined() for member in members[:count]])
        unlucky, lucky = (member for member in members if member is not leader)
        leader.send_join()
        for member in (unlucky, lucky):
            member.follow(generation)
        (generation,) = {member.joined().generation_id for member in members}
        encode = fast_groups.FastSync.encode

        def failing(self: Any, result: Any) -> bytes:
            assert self.request.member_id != unlucky.member_id, "a bug"
            return encode(self, result)

        monkeypatch.setattr(fast_groups.FastSync, "encode", failing)
        for member in (unlucky, lucky):
            member.send_sync(generation, {})
        leader.send_sync(generation, {member.member_id: b"part" for member in members})
        assert lucky.synced().assignment == leader.synced().assignment == b"part"
        with pytest.raises(ConnectionError):
            unlucky.synced()

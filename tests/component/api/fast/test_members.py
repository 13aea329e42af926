"""What members say over and over, by its bytes, against the general codec: it means the same (R32)."""

import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple, cast

import pytest
from tests.support.broker import BrokerThread
from tests.support.kio_codec import HEADER_TAGS, kio_bytes
from tests.support.random_messages import random_message
from tests.support.raw import Connection, fitting

from levada.api import groups
from levada.api.fast import members as usual_members
from levada.core.groups.classic.draft import JoinResult, SyncResult
from levada.core.groups.classic.group import NO_GENERATION
from levada.errors import ErrorCode, KafkaError
from levada.wire.schema import messages
from levada.wire.schema.versions import APIS

EXAMPLES = 400
VERSIONS = range(5)
TEXTS = ["g", "orders", "é✓", "x" * 126, "x" * 127, "x" * 300]


class Kind(NamedTuple):
    """A request that members repeat: how its bytes are read, and how the general handler means it."""

    name: str
    read: Callable[[bytes, int], Any]
    means: Callable[[Any, int], Any]

    @property
    def api_key(self) -> int:
        return messages.api_key(self.name)

    def tags(self, version: int) -> int:
        return int(version >= APIS[self.api_key].flexible)

    def at_random(self, random: Random, version: int) -> bytes:
        """The bytes behind the client id."""
        request = random_message(random, APIS[self.api_key], version, "request")
        fields: dict[str, Any] = {
            "group_id": random.choice(TEXTS),
            "generation_id": random.choice((0, 7, 1 << 20)),
        }
        if random.random() < 0.5:  # what a member says that is neither new nor static nor leads
            fields |= {"group_instance_id": None, "assignments": (), "member_id": "m"}
            fields |= {"protocol_type": "consumer", "protocol_name": "range"}
        known = {name: value for name, value in fields.items() if hasattr(request, name)}
        return HEADER_TAGS[: self.tags(version)] + kio_bytes(replace(request, **known))

    def as_the_codec_reads(self, body: bytes, version: int) -> Any:
        """None where it is refused."""
        try:
            return self.means(messages.read_request(self.api_key, version, body, self.tags(version)), version)
        except KafkaError:
            return None


def beating(shape: Any, _: int) -> Any:
    return (shape.group_id, shape.member_id, shape.group_instance_id), shape.generation_id


def joining(shape: Any, version: int) -> Any:
    return groups.joining(shape, version), NO_GENERATION


def syncing(shape: Any, version: int) -> Any:
    said = groups.syncing(shape, version)
    return said._replace(generation=0), said.generation


KINDS = [
    Kind("heartbeat", usual_members.read_heartbeat, beating),
    Kind("join_group", usual_members.read_join, joining),
    Kind("sync_group", usual_members.read_sync, syncing),
]
VERSIONS_OF = {"heartbeat": range(5), "join_group": range(10), "sync_group": range(6)}
EACH = pytest.mark.parametrize(
    ("kind", "version"),
    [
        pytest.param(kind, version, id=f"{kind.name}-{version}")
        for kind in KINDS
        for version in VERSIONS_OF[kind.name]
    ],
)


def again(kind: Kind, body: bytes, version: int) -> Any:
    """How something is read that was said before."""
    kind.read(body, version)
    return kind.read(body, version)


@EACH
def test_what_is_taken_is_read_as_the_codec_reads_it(kind: Kind, version: int) -> None:
    random, taken = Random(version), 0
    for _ in range(EXAMPLES):
        body = kind.at_random(random, version)
        found = again(kind, body, version)
        if found is not None:
            assert found == kind.as_the_codec_reads(body, version)
            taken += 1
    assert taken > EXAMPLES / 8


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.name != "heartbeat"], ids=lambda kind: kind.name
)
def test_who_comes_once_is_not_read_twice(kind: Kind) -> None:
    """What nobody has said before is left to the general way; also after so much else that it is forgotten."""
    random = Random(1)
    bodies = [kind.at_random(random, 0) for _ in range(EXAMPLES)]
    taken = [body for body in bodies if again(kind, body, 0) is not None]
    assert taken
    for body in taken:
        usual_members._said.clear()
        assert kind.read(body, 0) is None
        assert kind.read(body, 0) is not None
    for number in range(usual_members.SAID_MAX + 1):
        usual_members._was_said(-number)
        assert len(usual_members._said) <= usual_members.SAID_MAX
    assert kind.read(taken[-1], 0) is None


@pytest.mark.parametrize("version", VERSIONS_OF["join_group"])
def test_what_all_newcomers_say_is_read_here_once(version: int) -> None:
    """It has no id in it, so they say the same; that it is not usual is known then (R32)."""
    kind = next(kind for kind in KINDS if kind.name == "join_group")
    request: Any = random_message(Random(1), APIS[kind.api_key], version, "request")
    body = HEADER_TAGS[: kind.tags(version)] + kio_bytes(replace(request, group_id="g", member_id=""))
    misses = usual_members._join.cache_info().misses
    assert [usual_members.read_join(body, version) for _ in range(10)] == [None] * 10
    assert usual_members._join.cache_info().misses <= misses + 1


@EACH
def test_cut_and_damaged_requests_are_not_taken_for_others(kind: Kind, version: int) -> None:
    """Also behind whole ones of the same member, of which all but the generation is known."""
    random = Random(version)
    for _ in range(EXAMPLES):
        body = bytearray(kind.at_random(random, version))
        again(kind, bytes(body), version)
        assert again(kind, bytes(body[: random.randrange(len(body))]), version) is None
        body[random.randrange(len(body))] = random.randrange(256)
        found = again(kind, bytes(body), version)
        if found is not None:
            assert not any(body[: kind.tags(version)])
            assert found == kind.as_the_codec_reads(bytes(body), version)


@pytest.mark.parametrize("version", VERSIONS_OF["join_group"])
@pytest.mark.parametrize("member_id", ["m", "é✓", "x" * 126, "x" * 127, "x" * 300])
def test_who_follows_is_answered_as_the_codec_would(version: int, member_id: str) -> None:
    """All but its own id is the same for everybody (R32)."""
    for protocol, leader in (("range", "l"), ("sticky", "l" * 200)):
        reply = JoinResult(1 << 20, "consumer", protocol, leader, member_id)
        written = usual_members.UsualJoin(cast(Any, None), 7, version, None, 1).encode(reply)
        response = groups.joined(reply)
        assert written == messages.write_response_frame(usual_members.JOIN_GROUP, version, 7, response)


@pytest.mark.parametrize("version", VERSIONS_OF["sync_group"])
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 20_000])
def test_a_part_is_told_as_the_codec_would(version: int, size: int) -> None:
    for protocol in ("range", "sticky"):
        reply = SyncResult("consumer", protocol, bytes(size))
        written = usual_members.UsualSync(cast(Any, None), 7, version, None, 1).encode(reply)
        response = groups.synced(reply)
        assert written == messages.write_response_frame(usual_members.SYNC_GROUP, version, 7, response)


@pytest.fixture
def broker(fresh_broker: BrokerThread) -> BrokerThread:
    fresh_broker.wait(fresh_broker.broker.groups.create_topic())
    return fresh_broker


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
def test_members_are_told_how_they_stand(broker: BrokerThread, version: int) -> None:
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


class Voice:
    """A member on a connection of its own that speaks one version; asking and hearing are apart."""

    def __init__(self, connection: Connection, version: int, member_id: str = "") -> None:
        self.connection = connection
        self.join_version, self.sync_version = version, min(version, 5)
        self.member_id = member_id

    def ask_to_join(self, metadata: bytes = b"m") -> None:
        fields = {
            "group_id": "g",
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "member_id": self.member_id,
        }
        protocols = [{"name": "range", "metadata": metadata}]
        said = {**fields, "protocol_type": "consumer", "protocols": protocols}
        self.connection.send("join_group", self.join_version, fitting("join_group", self.join_version, said))

    def joined(self) -> Any:
        return self.connection.receive()[1]

    def enter(self) -> None:
        """Be given an id; the JoinGroup with it is not answered before everybody has joined."""
        self.ask_to_join()
        if self.join_version >= groups.MEMBER_ID_REQUIRED_FROM:
            refused = self.joined()
            assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
            self.member_id = refused.member_id
            self.ask_to_join()

    def follow(self, generation: int) -> None:
        """Join again, as soon as a heartbeat tells to."""
        self.await_rebalance(generation)
        self.ask_to_join()

    def await_rebalance(self, generation: int) -> None:
        beat = {"group_id": "g", "generation_id": generation, "member_id": self.member_id}
        deadline = time.monotonic() + 10.0
        while self.connection.call("heartbeat", 1, beat).error_code != ErrorCode.REBALANCE_IN_PROGRESS:
            assert time.monotonic() < deadline, "nobody rebalances"

    def ask_to_sync(self, generation: int, assignments: dict[str, bytes]) -> None:
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
def test_a_group_rebalances_over_and_over(broker: BrokerThread, version: int) -> None:
    """Every generation has one leader, who is told all, and everybody gets the part that was meant for it."""
    with broker.connect() as one, broker.connect() as two, broker.connect() as three:
        voices = [Voice(connection, version) for connection in (one, two, three)]
        voices[0].enter()
        known = usual_members._join.cache_info().hits
        generation, leader = settle(voices[:1], [voices[0].joined()])
        for count in (2, 3):
            voices[count - 1].enter()
            for voice in voices[: count - 1]:
                voice.follow(generation)
            generation, leader = settle(voices[:count], [voice.joined() for voice in voices[:count]])
        for _ in range(3):  # the leader may begin a generation whenever it likes
            leader.ask_to_join()
            for voice in voices:
                if voice is not leader:
                    voice.follow(generation)
            generation, leader = settle(voices, [voice.joined() for voice in voices])
        assert usual_members._join.cache_info().hits > known


def settle(voices: list[Voice], answers: list[Any]) -> tuple[int, Voice]:
    """All are in one generation: have its leader assign, last of all; which one, and who leads."""
    generation = answers[0].generation_id
    for voice, answer in zip(voices, answers, strict=True):
        voice.member_id = answer.member_id
        assert (answer.error_code, answer.generation_id) == (ErrorCode.NONE, generation)
        assert (answer.leader, answer.protocol_name) == (answers[0].leader, "range")
    leader = next(place for place, voice in enumerate(voices) if voice.member_id == answers[0].leader)
    ids = {voice.member_id for voice in voices}
    assert {member.member_id for member in answers[leader].members} == ids
    assert all(not answer.members for place, answer in enumerate(answers) if place != leader)
    parts = {member_id: f"{member_id} in {generation}".encode() for member_id in ids}
    for place, voice in sorted(enumerate(voices), key=lambda item: item[0] == leader):
        voice.ask_to_sync(generation, parts if place == leader else {})
    for voice in voices:
        told = voice.synced()
        assert (told.error_code, told.assignment) == (ErrorCode.NONE, parts[voice.member_id])
    return generation, voices[leader]


def test_a_member_that_says_the_same_is_still_refused_when_it_is_out(broker: BrokerThread) -> None:
    """What is known of its bytes is not who it is."""
    with broker.connect() as connection, broker.connect() as other:
        voice = Voice(connection, 5)
        voice.enter()
        settle([voice], [voice.joined()])
        voice.ask_to_join()  # known from now on
        settle([voice], [voice.joined()])
        voice.ask_to_sync(1, {})
        assert voice.synced().error_code == ErrorCode.ILLEGAL_GENERATION
        leaving = {"group_id": "g", "member_id": voice.member_id}
        assert other.call("leave_group", 1, leaving).error_code == ErrorCode.NONE
        voice.ask_to_join()
        refused = voice.joined()
        assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, voice.member_id)
        voice.ask_to_sync(2, {})
        assert voice.synced().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_waits_is_told_when_the_group_goes_on_without_it(broker: BrokerThread) -> None:
    """A JoinGroup that waits is answered with the reason."""
    with broker.connect() as one, broker.connect() as two, broker.connect() as third:
        first, second = Voice(one, 5), Voice(two, 5)
        first.enter()
        settle([first], [first.joined()])
        second.enter()
        first.follow(1)
        settle([first, second], [first.joined(), second.joined()])
        second.ask_to_join(b"other")  # waits for the first, which does not come
        first.await_rebalance(2)
        leaving = {"group_id": "g", "member_id": second.member_id}
        assert third.call("leave_group", 1, leaving).error_code == ErrorCode.NONE
        refused = second.joined()
        assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, second.member_id)


def test_answers_leave_in_the_order_of_the_requests(broker: BrokerThread) -> None:
    """Heartbeats behind a JoinGroup that waits are told after it, also where their answers are known before."""
    with broker.connect() as one, broker.connect() as two:
        first, second = Voice(one, 5), Voice(two, 5)
        first.enter()
        generation, _ = settle([first], [first.joined()])
        second.enter()  # waits for the first
        first.await_rebalance(generation)
        beat = {"group_id": "g", "generation_id": generation, "member_id": second.member_id}
        before = broker.broker.request_counts[usual_members.HEARTBEAT]
        sent = [two.send("heartbeat", 1, beat) for _ in range(3)]
        deadline = time.monotonic() + 10.0
        while broker.broker.request_counts[usual_members.HEARTBEAT] < before + 3:
            assert time.monotonic() < deadline, "the heartbeats do not come"
        first.ask_to_join()
        assert second.joined().generation_id == generation + 1
        told = [two.receive() for _ in sent]
        assert [(number, answer.error_code) for number, answer in told] == [
            (number, ErrorCode.REBALANCE_IN_PROGRESS) for number in sent
        ]
        assert first.joined().generation_id == generation + 1
        beat |= {"generation_id": generation + 1, "member_id": first.member_id}
        sent = [one.send("heartbeat", 1, beat) for _ in range(5)]
        told = [one.receive() for _ in sent]
        assert [(number, answer.error_code) for number, answer in told] == [
            (number, ErrorCode.NONE) for number in sent
        ]


def test_an_answer_that_cannot_be_written_is_its_own_clients_loss(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug that shows there must not keep the coordinator from telling the others."""
    with broker.connect() as one, broker.connect() as two, broker.connect() as three:
        voices = [Voice(connection, 5) for connection in (one, two, three)]
        generation, leader = 0, voices[0]
        for count in (1, 2, 3):
            voices[count - 1].enter()
            for voice in voices[: count - 1]:
                voice.follow(generation)
            generation, leader = settle(voices[:count], [voice.joined() for voice in voices[:count]])
        unlucky, lucky = (voice for voice in voices if voice is not leader)
        leader.ask_to_join()
        for voice in (unlucky, lucky):
            voice.follow(generation)
        (generation,) = {voice.joined().generation_id for voice in voices}
        encode = usual_members.UsualSync.encode

        def failing(self: Any, result: Any) -> bytes:
            assert self.request.member_id != unlucky.member_id, "a bug"
            return encode(self, result)

        monkeypatch.setattr(usual_members.UsualSync, "encode", failing)
        for voice in (unlucky, lucky):
            voice.ask_to_sync(generation, {})
        leader.ask_to_sync(generation, {voice.member_id: b"part" for voice in voices})
        assert lucky.synced().assignment == leader.synced().assignment == b"part"
        with pytest.raises(ConnectionError):
            unlucky.synced()

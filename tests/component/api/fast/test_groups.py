"""The fast paths of Heartbeat, JoinGroup and SyncGroup decode and respond as the general codec does."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.broker import BrokerThread
from tests.support.raw import Connection, fitting

from levada.api.coordinator import groups
from levada.api.fast import groups as fast_groups
from levada.errors import ErrorCode

VERSIONS = range(5)


VERSIONS_OF = {"heartbeat": range(5), "join_group": range(10), "sync_group": range(6)}


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
        self.connection.send("join_group", self.join_version, fitting("join_group", self.join_version, fields_sent))

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
def test_a_group_rebalances_over_and_over(broker: BrokerThread, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
        before = broker.broker.request_metrics.requests(fast_groups.HEARTBEAT)
        sent = [two.send("heartbeat", 1, beat) for _ in range(3)]
        deadline = time.monotonic() + 10.0
        while broker.broker.request_metrics.requests(fast_groups.HEARTBEAT) < before + 3:
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

"""Groups and committed offsets on the wire, version by version and error by error.

Every code and every field here is what Apache Kafka 4.3.1 answered to the same request.
"""

import time
import uuid
from functools import partial
from typing import Any

import pytest
from tests.compat.groups.members import GROUP_SETTINGS, make_topic
from tests.support import raw
from tests.support.raw import Connection, versions_known
from tests.support.waiting import until

from levada.errors import ErrorCode

# With `COMPAT_BOOTSTRAP` the other broker must have the same settings.
pytestmark = pytest.mark.broker(**GROUP_SETTINGS, group_max_size=3, offsets_topic_num_partitions=5)
SUBSCRIPTION = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"
NONE = ErrorCode.NONE


@pytest.fixture
def topic(wire: Connection, name: str) -> str:
    return make_topic(wire, name, partitions=2)


@pytest.fixture
def group(wire: Connection) -> str:
    """The id of a group that nobody else uses, on a broker that coordinates it."""
    name = f"group-{uuid.uuid4().hex[:8]}"
    deadline = time.monotonic() + 30
    while (found := coordinator(wire, name)).error_code or offsets(wire, name, [], 8).error_code:
        assert time.monotonic() < deadline, found
    return name


def coordinator(wire: Connection, group: str) -> Any:
    return wire.call("find_coordinator", 4, {"key_type": 0, "coordinator_keys": [group]}).coordinators[0]


def join(wire: Connection, group: str, member_id: str = "", version: int = 9, **more: Any) -> Any:
    return wire.call("join_group", version, join_fields(group, member_id, version, **more))


def join_fields(group: str, member_id: str = "", version: int = 9, **more: Any) -> dict[str, Any]:
    fields = {
        "group_id": group,
        "member_id": member_id,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        "group_instance_id": None,
        **more,
    }
    return raw.fitting("join_group", version, fields)


def sync(wire: Connection, group: str, member_id: str, generation: int, version: int = 5, **more: Any) -> Any:
    return wire.call("sync_group", version, sync_fields(group, member_id, generation, version, **more))


def sync_fields(group: str, member_id: str, generation: int, version: int = 5, **more: Any) -> dict[str, Any]:
    fields = {
        "group_id": group,
        "member_id": member_id,
        "generation_id": generation,
        "protocol_type": "consumer",
        "protocol_name": "range",
        **more,
    }
    return raw.fitting("sync_group", version, fields)


def heartbeat(wire: Connection, group: str, member_id: str, generation: int, version: int = 4, **more: Any) -> int:
    fields = {"group_id": group, "member_id": member_id, "generation_id": generation, **more}
    return int(wire.call("heartbeat", version, raw.fitting("heartbeat", version, fields)).error_code)


def leave(wire: Connection, group: str, member_id: str, version: int = 5, instance: str | None = None) -> Any:
    if version < 3:
        return wire.call("leave_group", version, {"group_id": group, "member_id": member_id})
    member = {"member_id": member_id, "group_instance_id": instance}
    return wire.call("leave_group", version, {"group_id": group, "members": [member]})


def member_of(wire: Connection, group: str, **more: Any) -> str:
    """Join with an id of one's own, as clients since v4 do."""
    first = join(wire, group, **more)
    if first.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        assert join(wire, group, first.member_id, **more).error_code == NONE
    return str(first.member_id)


def stable(wire: Connection, group: str, **more: Any) -> str:
    """A group of one member that has its assignment."""
    member_id = member_of(wire, group, **more)
    mine = [{"member_id": member_id, "assignment": b"mine"}]
    instance = more.get("group_instance_id")
    reply = sync(wire, group, member_id, 1, assignments=mine, group_instance_id=instance)
    assert reply.error_code == NONE
    return member_id


def commit(
    wire: Connection,
    group: str,
    topics: list[tuple[Any, list[dict[str, Any]]]],
    version: int = 9,
    member_id: str = "",
    generation: int = -1,
    **more: Any,
) -> Any:
    key = "topic_id" if version >= 10 else "name"
    fields = {
        "group_id": group,
        "member_id": member_id,
        "generation_id_or_member_epoch": generation,
        "topics": [{key: name, "partitions": parts} for name, parts in topics],
        "retention_time": -1,
        **more,
    }
    return wire.call("offset_commit", version, raw.fitting("offset_commit", version, fields)).topics


def commit_one(wire: Connection, group: str, topic: str, offset: int, **more: Any) -> int:
    part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "note"}
    return int(commit(wire, group, [(topic, [part])], **more)[0].partitions[0].error_code)


def offsets(
    wire: Connection, group: str, topics: list[tuple[Any, list[int]]] | None, version: int = 9, **more: Any
) -> Any:
    key = "topic_id" if version >= 10 else "name"
    asked = None if topics is None else [{key: name, "partition_indexes": indexes} for name, indexes in topics]
    if version >= 8:
        one = {"group_id": group, "topics": asked}
        return wire.call("offset_fetch", version, {"groups": [one], **more}).groups[0]
    return wire.call("offset_fetch", version, {"group_id": group, "topics": asked, **more})


def topic_id(wire: Connection, topic: str) -> Any:
    return wire.call("metadata", 12, {"topics": [{"name": topic}]}).topics[0].topic_id


class TestMembers:
    @pytest.mark.parametrize("version", versions_known("join_group"))
    def test_every_version_joins(self, wire: Connection, group: str, version: int) -> None:
        reply = join(wire, group, version=version)
        if version >= 4:
            assert reply.error_code == ErrorCode.MEMBER_ID_REQUIRED
            assert (reply.generation_id, reply.leader, reply.members) == (-1, "", ())
            assert reply.protocol_name == (None if version >= 7 else "")
            reply = join(wire, group, reply.member_id, version=version)
        assert reply.error_code == NONE
        assert reply.member_id.startswith("compat-raw-")
        assert (reply.generation_id, reply.protocol_name, reply.leader) == (1, "range", reply.member_id)
        assert [(one.member_id, bytes(one.metadata)) for one in reply.members] == [(reply.member_id, SUBSCRIPTION)]
        if version >= 7:
            assert reply.protocol_type == "consumer"
        if version >= 9:
            assert not reply.skip_assignment

    @pytest.mark.parametrize("version", versions_known("sync_group"))
    def test_every_version_syncs(self, wire: Connection, group: str, version: int) -> None:
        member_id = member_of(wire, group)
        mine = [{"member_id": member_id, "assignment": b"mine"}]
        reply = sync(wire, group, member_id, 1, version, assignments=mine)
        assert (reply.error_code, bytes(reply.assignment)) == (NONE, b"mine")
        if version >= 5:
            assert (reply.protocol_type, reply.protocol_name) == ("consumer", "range")

    @pytest.mark.parametrize("version", versions_known("heartbeat"))
    def test_every_version_stays(self, wire: Connection, group: str, version: int) -> None:
        member_id = stable(wire, group)
        assert heartbeat(wire, group, member_id, 1, version) == NONE
        assert heartbeat(wire, group, member_id, 2, version) == ErrorCode.ILLEGAL_GENERATION
        assert heartbeat(wire, group, "other", 1, version) == ErrorCode.UNKNOWN_MEMBER_ID

    @pytest.mark.parametrize("version", versions_known("leave_group"))
    def test_every_version_leaves(self, wire: Connection, group: str, version: int) -> None:
        member_id = stable(wire, group)
        unknown = leave(wire, group, "other", version)
        reply = leave(wire, group, member_id, version)
        if version < 3:
            assert unknown.error_code == ErrorCode.UNKNOWN_MEMBER_ID
            assert reply.error_code == NONE
        else:
            assert unknown.error_code == reply.error_code == NONE
            assert unknown.members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
            assert reply.members[0].member_id == member_id
            assert reply.members[0].error_code == NONE
        assert heartbeat(wire, group, member_id, 1) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_group_with_members_needs_an_id(self, wire: Connection) -> None:
        assert join(wire, "").error_code == ErrorCode.INVALID_GROUP_ID
        assert sync(wire, "", "m", 1).error_code == ErrorCode.INVALID_GROUP_ID
        assert heartbeat(wire, "", "m", 1) == ErrorCode.INVALID_GROUP_ID
        assert leave(wire, "", "m").error_code == ErrorCode.INVALID_GROUP_ID

    def test_nobody_is_a_member_of_a_group_that_is_not_there(self, wire: Connection, group: str) -> None:
        reply = join(wire, group, "m")
        assert (reply.error_code, reply.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "m")
        assert (reply.generation_id, reply.leader, reply.protocol_name) == (-1, "", None)
        assert sync(wire, group, "m", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert heartbeat(wire, group, "m", 1) == ErrorCode.UNKNOWN_MEMBER_ID
        reply = leave(wire, group, "m")
        assert (reply.error_code, reply.members[0].error_code) == (NONE, ErrorCode.UNKNOWN_MEMBER_ID)

    @pytest.mark.parametrize("timeout", [999, 1_800_001, 0, -1])
    def test_session_timeouts_have_bounds(self, wire: Connection, group: str, timeout: int) -> None:
        reply = join(wire, group, session_timeout=timeout)
        assert reply.error_code == ErrorCode.INVALID_SESSION_TIMEOUT

    @pytest.mark.parametrize(
        "other",
        [
            {"protocol_type": "connect"},
            {"protocols": [{"name": "sticky", "metadata": b""}]},
            {"protocols": []},
            {"protocol_type": ""},
        ],
    )
    def test_members_share_a_protocol(self, wire: Connection, group: str, other: dict[str, Any]) -> None:
        stable(wire, group)
        assert join(wire, group, **other).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    @pytest.mark.parametrize("nothing", [{"protocol_type": ""}, {"protocols": []}])
    def test_the_first_member_has_a_protocol(self, wire: Connection, group: str, nothing: dict[str, Any]) -> None:
        assert join(wire, group, **nothing).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def test_a_sync_names_the_protocol_that_was_chosen(self, wire: Connection, group: str) -> None:
        member_id = stable(wire, group)
        others: list[dict[str, Any]] = [
            {"protocol_name": "sticky"},
            {"protocol_type": "connect"},
            {"protocol_name": None},
            {"protocol_type": None},
        ]
        for other in others:
            assert sync(wire, group, member_id, 1, **other).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert sync(wire, group, member_id, 2).error_code == ErrorCode.ILLEGAL_GENERATION

    def test_a_second_member_starts_a_rebalance(self, broker: str, wire: Connection, group: str) -> None:
        first = stable(wire, group)
        with Connection(broker) as other:
            second = join(other, group).member_id
            other.send("join_group", 9, join_fields(group, second))
            until(lambda: heartbeat(wire, group, first, 1) == ErrorCode.REBALANCE_IN_PROGRESS)
            assert sync(wire, group, first, 1).error_code == ErrorCode.REBALANCE_IN_PROGRESS
            leader = join(wire, group, first)
            follower = other.receive()[1]
            assert leader.generation_id == follower.generation_id == 2
            assert leader.leader == follower.leader == first
            assert {one.member_id for one in leader.members} == {first, second}
            assert follower.members == ()
            other.send("sync_group", 5, sync_fields(group, second, 2))
            shares = [{"member_id": first, "assignment": b"one"}, {"member_id": second, "assignment": b"two"}]
            assert bytes(sync(wire, group, first, 2, assignments=shares).assignment) == b"one"
            assert bytes(other.receive()[1].assignment) == b"two"
            assert join(other, group, second).generation_id == 2, "nothing has changed"
            assert leave(other, group, second).members[0].error_code == NONE
            assert heartbeat(wire, group, first, 2) == ErrorCode.REBALANCE_IN_PROGRESS
            assert join(wire, group, first).generation_id == 3

    def test_heartbeats_while_the_leader_assigns(self, wire: Connection, group: str) -> None:
        member_id = member_of(wire, group)
        assert heartbeat(wire, group, member_id, 1) == NONE

    def test_a_member_without_assignment_gets_an_empty_one(self, wire: Connection, group: str) -> None:
        member_id = member_of(wire, group)
        assert bytes(sync(wire, group, member_id, 1, assignments=[]).assignment) == b""

    def test_a_group_is_full(self, broker: str, wire: Connection, group: str) -> None:
        waiting = [Connection(broker) for _ in range(2)]
        first = stable(wire, group)

        def has_members(count: int) -> bool:
            return len(described(wire, group).members) == count

        for number, one in enumerate(waiting):
            member_id = join(one, group).member_id
            one.send("join_group", 9, join_fields(group, member_id))
            until(partial(has_members, number + 2))
        join(wire, group, first)
        assert [one.receive()[1].error_code for one in waiting] == [NONE, NONE]
        assert join(wire, group).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        for one in waiting:
            one.socket.close()

    def test_a_silent_member_is_removed(self, wire: Connection, group: str) -> None:
        member_id = stable(wire, group, session_timeout=1_000)
        deadline = time.monotonic() + 20
        while described(wire, group).group_state != "Empty":
            assert time.monotonic() < deadline
        assert heartbeat(wire, group, member_id, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def described(wire: Connection, group: str, version: int = 5) -> Any:
    return wire.call("describe_groups", version, {"groups": [group]}).groups[0]


class TestStaticMembers:
    """KIP-345 and KIP-814."""

    def test_it_needs_no_id_first(self, wire: Connection, group: str) -> None:
        reply = join(wire, group, group_instance_id="one")
        assert (reply.error_code, reply.generation_id) == (NONE, 1)
        assert reply.member_id.startswith("one-")
        assert reply.members[0].group_instance_id == "one"

    def test_it_keeps_its_place_over_a_restart(self, wire: Connection, group: str) -> None:
        old = stable(wire, group, group_instance_id="one")
        back = join(wire, group, group_instance_id="one")
        assert (back.error_code, back.generation_id, back.skip_assignment) == (NONE, 1, True)
        assert back.member_id != old
        assert back.leader == back.member_id
        assert [one.member_id for one in back.members] == [back.member_id]
        mine = sync(wire, group, back.member_id, 1, group_instance_id="one")
        assert (mine.error_code, bytes(mine.assignment)) == (NONE, b"mine")

    def test_an_old_client_does_not_learn_that_it_leads(self, wire: Connection, group: str) -> None:
        old = stable(wire, group, group_instance_id="one")
        back = join(wire, group, group_instance_id="one", version=8)
        assert (back.error_code, back.generation_id, back.leader, back.members) == (NONE, 1, old, ())

    def test_its_former_self_is_fenced(self, wire: Connection, group: str) -> None:
        old = stable(wire, group, group_instance_id="one")
        join(wire, group, group_instance_id="one")
        fenced = ErrorCode.FENCED_INSTANCE_ID
        one: dict[str, Any] = {"group_instance_id": "one"}
        assert heartbeat(wire, group, old, 1, **one) == fenced
        assert sync(wire, group, old, 1, **one).error_code == fenced
        assert join(wire, group, old, **one).error_code == fenced
        assert leave(wire, group, old, instance="one").members[0].error_code == fenced
        assert heartbeat(wire, group, old, 1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert heartbeat(wire, group, "x", 1, group_instance_id="two") == ErrorCode.UNKNOWN_MEMBER_ID

    def test_an_operator_removes_it_by_its_name(self, wire: Connection, group: str) -> None:
        stable(wire, group, group_instance_id="one")
        gone = leave(wire, group, "", instance="one").members[0]
        assert (gone.error_code, gone.member_id, gone.group_instance_id) == (NONE, "", "one")
        again = leave(wire, group, "", instance="one").members[0]
        assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert described(wire, group).group_state == "Empty"


class TestOperators:
    @pytest.mark.parametrize("version", versions_known("describe_groups"))
    def test_describe(self, wire: Connection, group: str, version: int) -> None:
        member_id = stable(wire, group)
        found = described(wire, group, version)
        assert found.error_code == NONE
        assert (found.group_id, found.group_state) == (group, "Stable")
        assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
        (member,) = found.members
        assert (member.member_id, member.client_id) == (member_id, "compat-raw")
        assert member.client_host == "/127.0.0.1"
        assert (bytes(member.member_metadata), bytes(member.member_assignment)) == (SUBSCRIPTION, b"mine")

    @pytest.mark.parametrize("version", versions_known("describe_groups"))
    def test_describe_a_group_that_is_not_there(self, wire: Connection, group: str, version: int) -> None:
        found = described(wire, group, version)
        assert (found.group_state, found.members) == ("Dead", ())
        if version < 6:
            assert found.error_code == NONE
        else:
            assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            assert found.error_message == f"Group {group} not found."

    def test_describe_a_group_on_its_way(self, wire: Connection, group: str) -> None:
        member_id = member_of(wire, group)
        found = described(wire, group)
        assert (found.group_state, found.protocol_data) == ("CompletingRebalance", "")
        (member,) = found.members
        assert (member.member_id, bytes(member.member_metadata), bytes(member.member_assignment)) == (
            member_id,
            b"",
            b"",
        )
        leave(wire, group, member_id)
        found = described(wire, group)
        assert (found.group_state, found.protocol_type, found.members) == ("Empty", "consumer", ())

    def test_what_may_be_done(self, wire: Connection, group: str) -> None:
        stable(wire, group)
        fields = {"groups": [group], "include_authorized_operations": True}
        asked = wire.call("describe_groups", 5, fields).groups[0]
        assert asked.authorized_operations == sum(1 << bit for bit in (3, 6, 8, 10, 11))
        assert described(wire, group).authorized_operations == -(2**31)

    @pytest.mark.parametrize("version", versions_known("list_groups"))
    def test_list(self, wire: Connection, group: str, version: int) -> None:
        stable(wire, group)
        reply = wire.call("list_groups", version, {})
        assert reply.error_code == NONE
        found = {one.group_id: one for one in reply.groups}[group]
        assert found.protocol_type == "consumer"
        if version >= 4:
            assert found.group_state == "Stable"
        if version >= 5:
            assert found.group_type == "classic"

    def test_list_by_state_and_type(self, wire: Connection, group: str) -> None:
        stable(wire, group)

        def is_listed(states: list[str], types: list[str]) -> bool:
            reply = wire.call("list_groups", 5, {"states_filter": states, "types_filter": types})
            assert reply.error_code == NONE
            return group in {one.group_id for one in reply.groups}

        assert is_listed(["Stable"], [])
        assert is_listed(["stable", "Empty"], ["classic"])
        assert is_listed([], ["Classic"])
        assert not is_listed(["Empty"], [])
        assert not is_listed([], ["consumer"])
        assert not is_listed(["Nonsense"], [])

    @pytest.mark.parametrize("version", versions_known("delete_groups"))
    def test_delete(self, wire: Connection, group: str, topic: str, version: int) -> None:
        def deleted(name: str) -> int:
            (result,) = wire.call("delete_groups", version, {"groups_names": [name]}).results
            assert result.group_id == name
            return int(result.error_code)

        assert deleted(group) == ErrorCode.GROUP_ID_NOT_FOUND
        member_id = stable(wire, group)
        assert commit_one(wire, group, topic, 3, member_id=member_id, generation=1) == NONE
        assert deleted(group) == ErrorCode.NON_EMPTY_GROUP
        leave(wire, group, member_id)
        assert deleted(group) == NONE
        assert deleted(group) == ErrorCode.GROUP_ID_NOT_FOUND
        assert offsets(wire, group, [(topic, [0])]).topics[0].partitions[0].committed_offset == -1


class TestOffsets:
    @pytest.mark.parametrize("version", versions_known("offset_commit"))
    def test_every_version_commits(self, wire: Connection, group: str, topic: str, version: int) -> None:
        place = topic_id(wire, topic) if version >= 10 else topic
        parts: list[dict[str, Any]] = [
            {"partition_index": 0, "committed_offset": 7, "committed_metadata": "note"},
            {"partition_index": 1, "committed_offset": 9, "committed_metadata": None},
        ]
        if version >= 6:
            parts[0]["committed_leader_epoch"] = 0
        (reply,) = commit(wire, group, [(place, parts)], version)
        assert [(part.partition_index, part.error_code) for part in reply.partitions] == [
            (0, NONE),
            (1, NONE),
        ]
        assert (reply.topic_id if version >= 10 else reply.name) == place
        found = offsets(wire, group, [(topic, [0, 1])]).topics[0].partitions
        assert [(part.committed_offset, part.metadata) for part in found] == [(7, "note"), (9, "")]
        assert [part.committed_leader_epoch for part in found] == [0 if version >= 6 else -1, -1]

    @pytest.mark.parametrize("version", versions_known("offset_fetch"))
    def test_every_version_fetches(self, wire: Connection, group: str, topic: str, version: int) -> None:
        commit_one(wire, group, topic, 7)
        place = topic_id(wire, topic) if version >= 10 else topic
        reply = offsets(wire, group, [(place, [0, 1])], version)
        assert version < 2 or reply.error_code == NONE
        (found,) = reply.topics
        assert [(part.partition_index, part.committed_offset) for part in found.partitions] == [
            (0, 7),
            (1, -1),
        ]
        assert [part.metadata for part in found.partitions] == ["note", ""]
        assert [part.error_code for part in found.partitions] == [NONE, NONE]
        if version >= 2:
            (all_of_it,) = offsets(wire, group, None, version).topics
            assert [(part.partition_index, part.committed_offset) for part in all_of_it.partitions] == [(0, 7)]
            assert (all_of_it.topic_id if version >= 10 else all_of_it.name) == place

    @pytest.mark.parametrize("version", versions_known("offset_fetch"))
    def test_an_unknown_group_has_none_and_that_is_no_error(
        self, wire: Connection, group: str, topic: str, version: int
    ) -> None:
        place = topic_id(wire, topic) if version >= 10 else topic
        reply = offsets(wire, group, [(place, [0])], version)
        assert version < 2 or reply.error_code == NONE
        (part,) = reply.topics[0].partitions
        assert (part.committed_offset, part.error_code, part.metadata) == (-1, NONE, "")
        if version >= 2:
            assert offsets(wire, group, None, version).topics == ()

    def test_many_groups_at_once(self, wire: Connection, group: str, topic: str) -> None:
        """KIP-709."""
        names = [f"{group}-{number}" for number in range(4)]
        for number, name in enumerate(names[:3]):
            commit_one(wire, name, topic, number)
        asked = [{"group_id": name, "topics": [{"name": topic, "partition_indexes": [0]}]} for name in names]
        found = {one.group_id: one for one in wire.call("offset_fetch", 8, {"groups": asked}).groups}
        assert [found[name].topics[0].partitions[0].committed_offset for name in names] == [0, 1, 2, -1]

    def test_topics_that_are_not_there(self, wire: Connection, group: str, topic: str) -> None:
        part = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
        known, unknown = commit(wire, group, [(topic, [part]), ("no-such-topic", [part])])
        if known.name != topic:
            known, unknown = unknown, known
        assert known.partitions[0].error_code == NONE
        assert unknown.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        stranger = uuid.uuid4()
        (reply,) = commit(wire, group, [(stranger, [part])], 10)
        assert (reply.topic_id, reply.partitions[0].error_code) == (stranger, ErrorCode.UNKNOWN_TOPIC_ID)
        (asked,) = offsets(wire, group, [("no-such-topic", [0])]).topics
        assert (asked.partitions[0].committed_offset, asked.partitions[0].error_code) == (-1, NONE)
        (asked,) = offsets(wire, group, [(stranger, [0])], 10).topics
        assert asked.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    def test_a_partition_that_is_not_there(self, wire: Connection, group: str, topic: str) -> None:
        part = {"partition_index": 77, "committed_offset": 7, "committed_metadata": ""}
        (reply,) = commit(wire, group, [(topic, [part])])
        assert reply.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_too_much_metadata(self, wire: Connection, group: str, topic: str) -> None:
        parts = [
            {"partition_index": 0, "committed_offset": 7, "committed_metadata": "x" * 4096},
            {"partition_index": 1, "committed_offset": 7, "committed_metadata": "x" * 4097},
        ]
        (reply,) = commit(wire, group, [(topic, parts)])
        assert [part.error_code for part in reply.partitions] == [NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE]

    def test_who_may_commit(self, wire: Connection, group: str, topic: str) -> None:
        assert commit_one(wire, group, topic, 1, member_id="m", generation=1, version=8) == (
            ErrorCode.ILLEGAL_GENERATION
        )
        member_id = stable(wire, group)
        assert commit_one(wire, group, topic, 1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert commit_one(wire, group, topic, 1, member_id=member_id) == ErrorCode.ILLEGAL_GENERATION
        assert commit_one(wire, group, topic, 1, member_id="m", generation=1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert commit_one(wire, group, topic, 1, member_id=member_id, generation=0) == (ErrorCode.ILLEGAL_GENERATION)
        assert commit_one(wire, group, topic, 1, member_id=member_id, generation=1) == NONE
        leave(wire, group, member_id)
        assert commit_one(wire, group, topic, 2) == NONE
        assert commit_one(wire, group, topic, 3, member_id=member_id, generation=1) == (ErrorCode.UNKNOWN_MEMBER_ID)

    def test_the_newest_version_says_that_the_group_is_gone(self, wire: Connection, group: str, topic: str) -> None:
        assert commit_one(wire, group, topic, 1, member_id="m", generation=1, version=9) == (
            ErrorCode.GROUP_ID_NOT_FOUND
        )

    def test_no_commit_while_the_leader_assigns(self, wire: Connection, group: str, topic: str) -> None:
        member_id = member_of(wire, group)
        assert commit_one(wire, group, topic, 1, member_id=member_id, generation=1) == (ErrorCode.REBALANCE_IN_PROGRESS)

    def test_delete(self, wire: Connection, group: str, topic: str) -> None:
        """KIP-496."""

        def deleted(*names: str) -> Any:
            asked = [{"name": name, "partitions": [{"partition_index": 0}]} for name in names]
            return wire.call("offset_delete", 0, {"group_id": group, "topics": asked})

        assert deleted(topic).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        subscribed = b"\0\0" + b"\0\0\0\1" + len(topic).to_bytes(2, "big") + topic.encode() + b"\xff" * 4
        protocols = [{"name": "range", "metadata": subscribed}]
        member_id = stable(wire, group, protocols=protocols)
        commit_one(wire, group, topic, 1, member_id=member_id, generation=1)
        reply = deleted(topic, "no-such-topic")
        assert reply.error_code == NONE
        assert {one.name: one.partitions[0].error_code for one in reply.topics} == {
            topic: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            "no-such-topic": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        leave(wire, group, member_id)
        assert deleted(topic).topics[0].partitions[0].error_code == NONE
        assert offsets(wire, group, None).topics == ()

    def test_the_group_without_a_name_keeps_offsets(self, wire: Connection, group: str, topic: str) -> None:
        """Old clients have no group id and commit all the same."""
        assert commit_one(wire, "", topic, 5) == NONE
        assert offsets(wire, "", [(topic, [0])]).topics[0].partitions[0].committed_offset == 5

    def test_a_topic_made_anew_has_no_offsets(self, wire: Connection, group: str, topic: str) -> None:
        commit_one(wire, group, topic, 5)
        wire.call("delete_topics", 5, {"topic_names": [topic], "timeout": 10_000})
        deadline = time.monotonic() + 20
        while offsets(wire, group, [(topic, [0])]).topics[0].partitions[0].committed_offset != -1:
            assert time.monotonic() < deadline

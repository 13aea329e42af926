"""Committed offsets: validation, fetches, expiry."""

from typing import Any

import pytest
from tests.support.classic_groups import World, header

from levada.core.groups.classic.group import State
from levada.core.groups.classic.join import PENDING_MEMBERS_MAX
from levada.core.groups.classic.requests import LeavingMember
from levada.core.groups.machine import GroupsMachine
from levada.core.groups.offsets import FetchedOffset
from levada.core.machine import NO_PRODUCER, Outcome
from levada.errors import ErrorCode, KafkaError

DAY_MS = 86_400_000
PRODUCER: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
TOPICS = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\0"  # a subscription to the topic t


def end(world: World, committed: bool, producer_id: int = 7) -> None:
    world.submit(lambda machine, _, handle: machine.end_transaction(producer_id, 0, committed, 0, handle))


def delete(world: World, *topic_partitions: tuple[str, int]) -> Any:
    handle = world.submit(lambda machine, _, handle: machine.delete_offsets("g", topic_partitions, handle))
    return world.responses[handle]


def fetch(world: World, *topic_partitions: tuple[str, int], stable: bool = False) -> list[FetchedOffset]:
    return world.machine.fetch("g", topic_partitions or None, require_stable=stable)


def test_a_client_without_a_group_keeps_its_offsets_here() -> None:
    world = World()
    assert world.commit(5, metadata="where I am") is ErrorCode.NONE
    (found,) = fetch(world)
    assert found.value is not None
    assert (found.topic_partition, found.value.offset, found.value.metadata) == (("t", 0), 5, "where I am")
    assert world.is_in(State.EMPTY)
    assert world.group.protocol_type is None


def test_an_unknown_group_has_no_offsets_and_that_is_no_error() -> None:
    world = World()
    assert fetch(world, ("t", 0)) == [FetchedOffset(("t", 0), None)]
    assert fetch(world) == []


def test_a_member_commits_in_its_generation_only() -> None:
    world = World()
    (member,) = world.stable()
    assert world.commit(1, member, 1) is ErrorCode.NONE
    assert world.commit(2, member, 0) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit(2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit(2, "other", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.committed() == 1


def test_a_commit_of_a_group_that_is_gone_is_refused() -> None:
    world = World()
    assert world.commit(1, "member", 3) is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.commit(1, "member", 3, **PRODUCER) is ErrorCode.ILLEGAL_GENERATION


def test_members_may_commit_until_the_next_generation_begins() -> None:
    world = World()
    (member,) = world.stable()
    world.join()
    assert world.is_in(State.PREPARING_REBALANCE)
    assert world.commit(1, member, 1) is ErrorCode.NONE
    world.join(member)
    assert world.is_in(State.COMPLETING_REBALANCE)
    assert world.commit(2, member, 1) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit(2, member, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.committed() == 1


def test_a_commit_is_a_sign_of_life() -> None:
    world = World()
    (member,) = world.stable()
    for offset in range(4):
        world.wait(9_000)
        assert world.commit(offset, member, 1) is ErrorCode.NONE


def test_too_much_metadata_is_refused_alone() -> None:
    world = World(offset_metadata_max_bytes=10)
    assert world.commit(1, metadata="x" * 11) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert world.commit(1, metadata="x" * 10) is ErrorCode.NONE


def test_offsets_survive_a_restart_and_the_last_commit_counts() -> None:
    world = World()
    world.commit(5)
    world.commit(3, metadata="back")
    world.commit(9, topic_partition=("u", 2), expire_ms=world.now_ms + 50_000)
    world.restart()
    assert world.committed() == 3
    assert world.committed(("u", 2)) == 9
    assert dict(world.machine.offsets.of("g"))["u", 2].expire_timestamp == world.now_ms + 50_000


# Transactions


def test_offsets_of_a_transaction_count_when_it_commits() -> None:
    world = World()
    world.commit(1)
    world.commit(5, **PRODUCER)
    assert world.committed() == 1
    assert fetch(world, ("t", 0), stable=True)[0].error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert fetch(world, ("t", 0), ("t", 1), stable=True)[1].error is ErrorCode.NONE
    assert fetch(world, ("t", 0))[0].error is ErrorCode.NONE
    end(world, committed=True)
    assert world.committed() == 5
    assert fetch(world, ("t", 0), stable=True)[0].error is ErrorCode.NONE


def test_offsets_of_an_aborted_transaction_never_were() -> None:
    world = World()
    world.commit(5, **PRODUCER)
    assert "g" in world.machine.groups
    end(world, committed=False)
    assert world.committed() is None
    assert "g" not in world.machine.groups


def test_a_plain_commit_after_a_pending_one_wins() -> None:
    world = World()
    world.commit(5, **PRODUCER)
    world.commit(8)
    end(world, committed=True)
    assert world.committed() == 8


def test_pending_offsets_survive_a_restart() -> None:
    world = World()
    world.commit(1)
    world.commit(5, **PRODUCER)
    world.restart()
    assert world.committed() == 1
    assert world.machine.offsets.is_pending("g", ("t", 0))
    end(world, committed=True)
    world.restart()
    assert world.committed() == 5


def test_a_transaction_need_not_name_a_member_but_if_it_does_it_must_be_one() -> None:
    """KIP-447: a zombie that says its generation is fenced."""
    world = World()
    (member,) = world.stable()
    assert world.commit(1, **PRODUCER) is ErrorCode.NONE
    assert world.commit(1, member, 1, **PRODUCER) is ErrorCode.NONE
    assert world.commit(1, member, 0, **PRODUCER) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit(1, "other", 1, **PRODUCER) is ErrorCode.UNKNOWN_MEMBER_ID


# Forgetting


def test_offsets_of_a_client_without_a_group_are_kept_for_a_while_after_each_commit() -> None:
    world = World(offsets_retention_ms=DAY_MS)
    world.commit(1)
    world.wait(DAY_MS - 1_000_000)
    world.commit(2, topic_partition=("t", 1))
    world.wait(2_000_000)
    assert [found.topic_partition for found in fetch(world)] == [("t", 1)]
    world.wait(DAY_MS)
    assert "g" not in world.machine.groups
    assert world.replayed().groups == {}


def test_offsets_of_a_group_are_kept_while_it_has_members_and_a_while_longer() -> None:
    world = World(offsets_retention_ms=DAY_MS)
    (member,) = world.stable(protocols=(("range", TOPICS),), session_timeout_ms=1_800_000)
    world.commit(1, member, 1)
    for _ in range(100):
        world.wait(1_000_000)
        assert world.heartbeat(member, 1) is ErrorCode.NONE
    assert world.committed() == 1
    world.leave((member, None))
    world.wait(DAY_MS - 1_000_000)
    assert world.committed() == 1
    world.wait(2_000_000)
    assert world.committed() is None
    assert "g" not in world.machine.groups
    assert world.replayed().groups == {}


def test_offsets_of_topics_that_members_do_not_read_are_forgotten() -> None:
    world = World(offsets_retention_ms=DAY_MS)
    (member,) = world.stable(protocols=(("range", TOPICS),), session_timeout_ms=1_800_000)
    world.commit(1, member, 1)
    world.commit(1, member, 1, topic_partition=("u", 0))
    for _ in range(100):
        world.wait(1_000_000)
        world.heartbeat(member, 1)
    assert [found.topic_partition for found in fetch(world)] == [("t", 0)]


def test_an_offset_with_a_time_of_its_own_goes_then() -> None:
    world = World()
    world.commit(1, expire_ms=world.now_ms + 10_000)
    world.commit(1, topic_partition=("t", 1))
    world.wait(700_000)
    assert [found.topic_partition for found in fetch(world)] == [("t", 1)]


def test_offsets_in_an_open_transaction_are_not_forgotten() -> None:
    world = World(offsets_retention_ms=DAY_MS)
    world.commit(1)
    world.commit(2, **PRODUCER)
    world.wait(2 * DAY_MS)
    assert world.committed() == 1
    assert "g" in world.machine.groups


def test_what_is_forgotten_at_once_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levada.core.groups.machine.REMOVALS_PER_CHECK_MAX", 3)
    world = World(offsets_retention_ms=1)
    for number in range(10):
        world.commit(1, group_id=f"g{number}")
    world.wait(600_000)
    assert 0 < len(world.machine.groups) < 10
    world.wait(5_000)
    assert world.machine.groups == {}


def test_offsets_are_deleted_on_request_where_nobody_reads() -> None:
    """KIP-496."""
    world = World()
    error = delete(world, ("t", 0))
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.GROUP_ID_NOT_FOUND
    (member,) = world.stable(protocols=(("range", TOPICS),))
    world.commit(1, member, 1)
    world.commit(1, member, 1, topic_partition=("u", 0))
    assert delete(world, ("t", 0), ("u", 0), ("u", 1)) == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert [found.topic_partition for found in fetch(world)] == [("t", 0)]
    assert [found.topic_partition for found in world.replayed().fetch("g", None, require_stable=False)] == [("t", 0)]


def test_offsets_of_members_with_a_protocol_of_their_own_are_not_deleted() -> None:
    world = World()
    (member,) = world.stable(protocol_type="connect")
    world.commit(1, member, 1)
    error = delete(world, ("t", 0))
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.NON_EMPTY_GROUP


def test_a_group_without_members_is_deleted_with_its_offsets() -> None:
    """KIP-229."""
    world = World()

    def deleted() -> Any:
        handle = world.submit(lambda machine, _, mine: Outcome(machine.delete_group("g"), [(mine, None)]))
        return world.responses[handle]

    assert deleted().code is ErrorCode.GROUP_ID_NOT_FOUND
    (member,) = world.stable()
    world.commit(1, member, 1)
    assert deleted().code is ErrorCode.NON_EMPTY_GROUP
    world.leave((member, None))
    world.commit(2, topic_partition=("t", 1), **PRODUCER)
    assert deleted() is None
    assert world.machine.groups == {}
    assert not world.machine.offsets.has("g")
    assert world.replayed().groups == {}
    assert not world.replayed().offsets.has("g")


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    world = World()
    world.commit(1)
    world.commit(1, topic_partition=("u", 0))
    world.commit(2, topic_partition=("t", 7), group_id="h")
    world.submit(lambda machine, _, handle: machine.on_topics_deleted(lambda name: name == "t", handle))
    assert [found.topic_partition for found in fetch(world)] == [("u", 0)]
    assert set(world.machine.groups) == set(world.replayed().groups) == {"g"}


def test_clients_that_were_given_ids_cannot_fill_the_memory() -> None:
    world = World()
    for _ in range(PENDING_MEMBERS_MAX):
        assert world.error(world.join(require_member_id=True)) is ErrorCode.MEMBER_ID_REQUIRED
    assert world.error(world.join(require_member_id=True)) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_deciding_changes_nothing() -> None:
    """An outcome that is not applied leaves no trace: a failed append is as if nobody had asked."""
    world = World()
    (member,) = world.stable()
    world.commit(1, member, 1)
    before = repr(world.machine)
    asked: list[Outcome] = []
    world._apply_outcome = asked.append  # type: ignore[method-assign, assignment]
    world.join()
    world.join(member, protocols=(("range", b"other"),))
    world.join(instance_id="one")
    world.sync(member, 1, {})
    for decide in (
        lambda machine, now_ms, handle: machine.leave("g", [LeavingMember(member)], now_ms, handle),
        lambda machine, now_ms, handle: machine.heartbeat("g", member, None, 1, now_ms, handle),
        lambda machine, now_ms, handle: machine.on_topics_deleted(lambda _: True, handle),
        lambda machine, now_ms, handle: machine.end_transaction(1, 1, True, 0, handle),
    ):
        world.submit(decide)
    assert len(asked) == 8
    assert repr(world.machine) == before


def test_a_record_of_an_unknown_kind_is_left_out() -> None:
    machine = GroupsMachine()
    machine.replay(b"\x00\x63whatever", b"\x00\x00", header(NO_PRODUCER))
    assert machine.groups == {}

"""Metadata of members is limited for a group and for all groups."""

from typing import Any

from tests.support.classic_groups import World
from tests.support.consumer_groups import ConsumerWorld, subscription

from levada.core.groups.classic.group import State
from levada.core.groups.memory_limit import GROUP_SHARE, NAME_BYTES_MAX
from levada.errors import ErrorCode

KIB = 1024
LIMIT = 64 * KIB
FULL = ErrorCode.GROUP_MAX_SIZE_REACHED


def says(size: int) -> dict[str, Any]:
    return {"protocols": (("range", bytes(size)),)}


class Many(World):
    """A broker whose only shard this is."""

    def __init__(self) -> None:
        super().__init__(members_bytes_max=LIMIT)
        self.machine.total_memory_bytes = lambda: self.machine.memory_bytes


def test_a_member_that_says_too_much_is_refused_and_the_others_go_on() -> None:
    world = Many()
    (member_id,) = world.stable()
    assert world.error(world.join(**says(LIMIT // GROUP_SHARE))) is FULL
    assert world.is_in(State.STABLE)
    assert world.heartbeat(member_id, world.group.generation) is ErrorCode.NONE
    assert world.error(world.join(member_id, **says(LIMIT // GROUP_SHARE))) is FULL, "nor may one who is in"
    assert world.is_in(State.STABLE)


def test_a_protocol_that_is_not_chosen_counts_too() -> None:
    world = Many()
    assert world.error(world.join(protocols=(("range", b""), ("other", bytes(LIMIT))))) is FULL
    assert world.machine.memory_bytes == 0


def test_an_assignment_that_is_too_large_is_refused() -> None:
    world = Many()
    joined = world.joined(world.join())
    assert world.error(world.sync(joined.member_id, 1, {joined.member_id: bytes(LIMIT // GROUP_SHARE)})) is FULL
    assert world.error(world.sync(joined.member_id, 1, {joined.member_id: b"little"})) is ErrorCode.NONE


def test_many_groups_share_the_room_and_give_it_back() -> None:
    world = Many()
    joined = {f"g{number}": world.join(group=f"g{number}", **says(4 * KIB)) for number in range(40)}
    served = [group for group, handle in joined.items() if world.error(handle) is ErrorCode.NONE]
    assert 8 < len(served) < 16
    assert {world.error(joined[group]) for group in joined.keys() - served} == {FULL}
    assert world.machine.memory_bytes <= LIMIT
    world.leave((world.joined(joined["g0"]).member_id, None), group="g0")
    assert world.error(world.join(group="late", **says(4 * KIB))) is ErrorCode.NONE


def test_ids_of_members_to_come_count_until_they_come_no_more() -> None:
    world = Many()
    handles = [world.join(group=f"g{number}", require_member_id=True) for number in range(1_000)]
    assert world.error(handles[-1]) is FULL
    assert world.machine.memory_bytes <= LIMIT
    world.wait(11_000)
    assert (world.machine.memory_bytes, world.machine.groups) == (0, {})
    assert world.error(world.join(require_member_id=True)) is ErrorCode.MEMBER_ID_REQUIRED


def test_a_group_that_is_over_a_lowered_limit_goes_on_but_does_not_grow() -> None:
    world = World()
    (member_id,) = world.stable(**says(LIMIT))
    world.limits = world.limits._replace(members_bytes_max=LIMIT)
    world.restart()
    assert world.heartbeat(member_id, world.group.generation) is ErrorCode.NONE
    assert world.error(world.join()) is FULL


def test_so_it_is_with_members_of_the_consumer_protocol() -> None:
    world = ConsumerWorld(members_bytes_max=LIMIT)
    world.topic("t", 2)
    epoch = world.enter("a", "t").member_epoch
    names = tuple(f"topic-{number:0200}" for number in range(500))
    assert world.refused("b", rebalance_timeout_ms=60_000, owned={}, topic_names=names) is FULL
    assert world.refused("a", epoch, topic_names=names) is FULL, "nor may one who is in"
    assert list(world.consumers.members) == ["a"]
    assert world.stay("a", epoch).member_epoch == epoch


def test_a_classic_member_in_a_consumer_group_counts() -> None:
    world = ConsumerWorld(members_bytes_max=LIMIT)
    world.topic("t", 2)
    world.enter("a", "t")
    protocols = (("range", subscription("t")), ("other", bytes(LIMIT)))
    assert world.error(world.join(protocols=protocols)) is FULL
    assert world.error(world.join(protocols=protocols[:1])) is ErrorCode.NONE


def test_topics_that_a_pattern_finds_are_no_members_doing() -> None:
    world = ConsumerWorld(members_bytes_max=LIMIT)
    world.machine.total_memory_bytes = lambda: LIMIT
    world.limits = world.machine.limits = world.limits._replace(members_bytes_max=1 << 30)
    world.topic("t-1", 1)
    epoch = world.enter("a", topic_names=None, topic_regex="t-.*").member_epoch
    world.machine.limits = world.limits._replace(members_bytes_max=LIMIT)
    world.topic("t-2", 1)
    assert world.stay("a", epoch).member_epoch > epoch
    assert world.refused("b", rebalance_timeout_ms=60_000, owned={}, topic_names=("t-1",)) is FULL
    assert world.refused("a", epoch + 1, topic_names=("t-1", "more")) is FULL


def test_a_member_comes_back_after_a_restart_with_all_its_protocols() -> None:
    """The journal has the one that was chosen: the other is not new because it was not known."""
    printed = (("range", b"topics"), ("other", b"topics too"))
    world = World()
    (member_id,) = world.stable(protocols=printed)
    world.restart()
    world.machine.limits = world.limits._replace(members_bytes_max=1)
    more = (("range", b"topics and more"), printed[1])
    assert world.error(world.join(member_id, protocols=more)) is FULL
    assert world.error(world.join(member_id, protocols=printed)) is ErrorCode.NONE
    assert world.error(world.join(member_id, protocols=(*printed, ("third", b"")))) is FULL, "once"
    assert world.error(world.join(member_id, protocols=printed)) is ErrorCode.NONE


def test_so_does_a_static_member() -> None:
    printed = (("range", b"topics"), ("other", b"topics too"))
    world = World()
    world.stable(protocols=printed, instance_id="i")
    world.restart()
    world.machine.limits = world.limits._replace(members_bytes_max=1)
    assert world.error(world.join(protocols=printed, instance_id="i")) is ErrorCode.NONE
    assert world.error(world.join(protocols=printed, instance_id="other")) is FULL


def test_ids_of_members_of_the_consumer_protocol_count() -> None:
    world = ConsumerWorld()
    world.topic("t", 1)
    world.enter("a" * 1_000, "t")
    before = world.machine.memory_bytes
    world.enter("b", "t")
    assert before - (world.machine.memory_bytes - before) == 999


def test_no_group_begins_with_an_id_that_is_too_long() -> None:
    world = World()
    longest, too_long = "g" * NAME_BYTES_MAX, "g" * (NAME_BYTES_MAX - 1) + "ü"
    for require_member_id in (False, True):
        joined = world.join(group=too_long, require_member_id=require_member_id)
        assert world.error(joined) is ErrorCode.INVALID_GROUP_ID
    assert world.commit(1, group_id=too_long) is ErrorCode.INVALID_GROUP_ID
    assert world.commit(1, group_id=too_long, producer_id=7, producer_epoch=0) is ErrorCode.INVALID_GROUP_ID
    assert (world.machine.groups, world.machine.offsets.has(too_long)) == ({}, False)
    assert world.commit(1, group_id=longest) is ErrorCode.NONE
    assert world.error(world.join(group=longest)) is ErrorCode.NONE

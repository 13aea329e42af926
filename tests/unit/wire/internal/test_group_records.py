"""Records of `__consumer_offsets`: byte for byte Kafka's, every version readable, damage noticed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.consumer_groups import subscription

from levada.core.groups.classic.group import Member, restored
from levada.core.groups.events import FORMAT
from levada.errors import KafkaError
from levada.wire.internal import group_records as journal
from levada.wire.internal.group_records import (
    CACHED_BYTES_MAX,
    GROUP_METADATA,
    OFFSET_COMMIT,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    group_record,
    offset_record,
)

texts = st.text(max_size=20).filter(lambda text: "\ud800" not in text)
longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
offset_keys = st.builds(OffsetCommitKey, texts, texts, ints)
offset_values = st.builds(OffsetCommitValue, longs, ints, texts, longs, st.just(-1))
members = st.builds(
    MemberMetadata,
    texts,
    st.none() | texts,
    texts,
    texts,
    ints,
    ints,
    st.binary(max_size=30),
    st.binary(max_size=30),
)
group_values = st.builds(
    GroupMetadataValue,
    texts,
    ints,
    st.none() | texts,
    st.none() | texts,
    longs,
    st.lists(members, max_size=3).map(tuple),
)


def test_an_offset_is_written_as_kafka_writes_it() -> None:
    key, value = FORMAT.encode(
        OffsetCommitKey("group", "topic", 3), OffsetCommitValue(42, 5, "note", 1_700_000_000_000)
    )
    assert key.hex() == "0001" + "0005" + b"group".hex() + "0005" + b"topic".hex() + "00000003"
    assert value is not None
    assert value.hex() == (
        "0003" + "000000000000002a" + "00000005" + "0004" + b"note".hex() + f"{1_700_000_000_000:016x}"
    )


def test_an_offset_with_a_time_of_its_own_is_written_in_the_version_that_has_it() -> None:
    value = OffsetCommitValue(42, -1, "", 1, 9)
    key, data = FORMAT.encode(OffsetCommitKey("g", "t", 0), value)
    assert data is not None
    assert data[:2] == b"\x00\x01"
    assert FORMAT.decode(key, data) == (OffsetCommitKey("g", "t", 0), value)


def test_a_group_is_written_as_kafka_writes_it() -> None:
    member = MemberMetadata("m", None, "c", "/1", 2, 3, b"sub", b"as")
    key, value = FORMAT.encode(GroupMetadataKey("g"), GroupMetadataValue("consumer", 1, "range", "m", 7, (member,)))
    assert key.hex() == "0002" + "0001" + b"g".hex()
    assert value is not None
    assert value.hex() == (
        "0003"
        + ("0008" + b"consumer".hex())
        + "00000001"
        + ("0005" + b"range".hex())
        + ("0001" + b"m".hex())
        + "0000000000000007"
        + "00000001"
        + ("0001" + b"m".hex())
        + "ffff"
        + ("0001" + b"c".hex())
        + ("0002" + b"/1".hex())
        + "00000002"
        + "00000003"
        + ("00000003" + b"sub".hex())
        + ("00000002" + b"as".hex())
    )


def test_what_is_taken_back_has_no_value() -> None:
    key, value = FORMAT.encode(GroupMetadataKey("g"), None)
    assert value is None
    assert FORMAT.decode(key, None) == (GroupMetadataKey("g"), None)


def test_keys_of_old_brokers_are_read() -> None:
    key, value = FORMAT.encode(OffsetCommitKey("g", "t", 1), OffsetCommitValue(1, 2, "", 3))
    assert FORMAT.decode(b"\x00\x00" + key[2:], value) == (
        OffsetCommitKey("g", "t", 1),
        OffsetCommitValue(1, 2, "", 3),
    )


def test_kinds_that_are_not_known_are_nothing() -> None:
    assert FORMAT.decode(b"\x7f\x00rest", b"\x00\x00") is None


@given(offset_keys, offset_values)
def test_offsets_come_back(key: OffsetCommitKey, value: OffsetCommitValue) -> None:
    assert FORMAT.decode(*FORMAT.encode(key, value)) == (key, value)


@given(offset_keys, offset_values, st.sampled_from([-1, 9]))
def test_the_short_way_to_write_an_offset_ends_in_the_same_bytes(
    key: OffsetCommitKey, value: OffsetCommitValue, expire_timestamp: int
) -> None:
    value = replace(value, expire_timestamp=expire_timestamp)
    assert offset_record(*key, value) == FORMAT.encode(key, value)
    assert offset_record(*key, None) == FORMAT.encode(key, None)


@given(texts, group_values)
def test_the_short_way_to_write_a_group_ends_in_the_same_bytes(group: str, value: GroupMetadataValue) -> None:
    assert group_record(group, value) == FORMAT.encode(GroupMetadataKey(group), value)


@pytest.mark.parametrize(("size", "kept"), [(CACHED_BYTES_MAX, 1), (CACHED_BYTES_MAX + 1, 0), (1 << 20, 0)])
def test_what_large_members_say_is_not_kept(size: int, kept: int) -> None:
    """They are gone some day, and what is kept of them is not counted among what members hold."""
    journal._cached_member_start.cache_clear()
    member = MemberMetadata("m", None, "", "/1", 2, 3, bytes(size), b"part")
    value = GroupMetadataValue("consumer", 1, "range", "m", 7, (member,))
    assert group_record("g", value) == FORMAT.encode(GroupMetadataKey("g"), value)
    assert journal._cached_member_start.cache_info().currsize == kept
    named = replace(member, subscription=b"", group_instance_id="n" * size)
    assert size > 30_000 or group_record("g", value._replace(members=(named,)))
    assert journal._cached_member_start.cache_info().currsize == 2 * kept


@given(texts, group_values)
def test_groups_come_back(group: str, value: GroupMetadataValue) -> None:
    assert FORMAT.decode(*FORMAT.encode(GroupMetadataKey(group), value)) == (GroupMetadataKey(group), value)


LOST: dict[tuple[str, int], dict[str, Any]] = {
    ("offset", 0): {"leader_epoch": -1},
    ("offset", 1): {"leader_epoch": -1},
    ("offset", 2): {"leader_epoch": -1},
    ("group", 0): {"current_state_timestamp": -1},
    ("group", 1): {"current_state_timestamp": -1},
}


@pytest.mark.parametrize("version", range(5))
@given(value=offset_values)
def test_offsets_of_every_version_are_read(version: int, value: OffsetCommitValue) -> None:
    written = bytearray(version.to_bytes(2, "big"))
    OFFSET_COMMIT.values[version].write(written, value)
    key, _ = FORMAT.encode(OffsetCommitKey("g", "t", 0), None)
    assert FORMAT.decode(key, bytes(written)) == (
        OffsetCommitKey("g", "t", 0),
        replace(value, **LOST.get(("offset", version), {})),
    )


@pytest.mark.parametrize("version", range(5))
@given(value=group_values)
def test_groups_of_every_version_are_read(version: int, value: GroupMetadataValue) -> None:
    written = bytearray(version.to_bytes(2, "big"))
    GROUP_METADATA.values[version].write(written, value)
    key, _ = FORMAT.encode(GroupMetadataKey("g"), None)
    expected = value._replace(**LOST.get(("group", version), {}))
    if version < 3:
        expected = expected._replace(
            members=tuple(replace(member, group_instance_id=None) for member in expected.members)
        )
    if version < 1:
        expected = expected._replace(
            members=tuple(replace(member, rebalance_timeout=-1) for member in expected.members)
        )
    assert FORMAT.decode(key, bytes(written)) == (GroupMetadataKey("g"), expected)


@given(offset_keys, group_values, st.data())
def test_a_damaged_record_is_noticed_or_read_as_something(
    key: OffsetCommitKey, value: GroupMetadataValue, data: st.DataObject
) -> None:
    for name, content in ((key, OffsetCommitValue(1, 2, "three", 4)), (GroupMetadataKey("g"), value)):
        for part in range(2):
            record = list(FORMAT.encode(name, content))
            whole = bytearray(record[part] or b"")
            cut = data.draw(st.integers(0, len(whole)))
            whole[cut:] = data.draw(st.binary(max_size=8))
            record[part] = bytes(whole)
            assert readable(record[0] or b"", record[1]) in (True, False)


def readable(key: bytes, value: bytes | None) -> bool:
    try:
        FORMAT.decode(key, value)
    except KafkaError:
        return False
    return True


def test_a_group_that_others_left_without_members_is_read() -> None:
    """Levada writes no protocol then; a record of somebody else may not keep a shard from loading."""
    group = restored("g", GroupMetadataValue("consumer", 3, "range", None, -1, ()))
    assert group.is_empty and group.topics == frozenset()


def test_of_a_protocol_that_is_named_twice_the_first_counts() -> None:
    """For the leader, for the journal and for the topics that are in use."""
    printed = (("range", subscription("a")), ("range", subscription("b")))
    group = restored("g", GroupMetadataValue("consumer", 3, "range", None, -1, ()))
    group.members["m"] = member = Member("m", None, "", "", 1, 1, printed)
    assert member.metadata("range") == group.record().members[0].subscription == subscription("a")
    assert group.compute_topics("range") == frozenset({"a"})

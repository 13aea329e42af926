"""The offset map of compaction: the newest offset of each key, in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from levada.storage.compaction.offset_map import ENTRY_BYTES, OffsetMap


@given(st.lists(st.tuples(st.binary(max_size=12), st.integers(0, 2**62))))
def test_the_map_knows_the_newest_offset_of_each_key(pairs: list[tuple[bytes, int]]) -> None:
    offsets = OffsetMap(1 << 20, len(pairs))
    expected: dict[bytes, int] = {}
    for key, offset in pairs:
        assert offsets.put(key, offset)
        expected[key] = offset
    assert offsets.size == len(expected)
    assert {key: offsets.get(key) for key in expected} == expected
    assert offsets.get(b"a key that is not there") == -1


def test_a_full_map_takes_no_new_key_but_new_offsets() -> None:
    offsets = OffsetMap(100 * ENTRY_BYTES, 10_000)
    kept = [b"%d" % number for number in range(10_000) if offsets.put(b"%d" % number, number)]
    assert len(kept) == offsets.capacity == 90
    assert offsets.full and offsets.put(kept[7], 99_999) and not offsets.put(b"new", 1)
    assert offsets.get(kept[7]) == 99_999 and offsets.get(b"new") == -1


def test_the_map_is_no_larger_than_it_must_be() -> None:
    assert OffsetMap(128 << 20, 1_000).capacity < 1_100
    assert OffsetMap(128 << 20, 100_000_000).capacity == int((128 << 20) // 24 * 0.9)

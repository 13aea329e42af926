"""Ranges become tasks, and limits of a micro-batch, without Spark or a broker."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from levada.model import TopicPartition
from levada.spark.read.planner import (
    SMALL_BYTES,
    OffsetRange,
    ReadLimits,
    SplitOptions,
    bytes_per_offset,
    plan_tasks,
    rate_limit,
)

A, B, C = (TopicPartition("t", number) for number in range(3))
EASY = SplitOptions(split_bytes=64 << 20)

places = st.builds(TopicPartition, st.sampled_from("xyz"), st.integers(0, 5))
offsets = st.integers(0, 1_000_000)


@given(
    st.dictionaries(places, st.tuples(offsets, offsets), min_size=1),
    st.dictionaries(places, st.floats(0.1, 5_000)),
    st.builds(SplitOptions, st.integers(1, 1 << 26), st.integers(0, 40), st.just(0) | st.integers(50_000, 1 << 20)),
)
def test_tasks_hold_every_offset_once(
    spans: dict[TopicPartition, tuple[int, int]], sizes: dict[TopicPartition, float], how: SplitOptions
) -> None:
    ranges = [OffsetRange(place, min(span), max(span)) for place, span in spans.items()]
    how = how._replace(split_bytes=max(how.split_bytes, 1 << 20))
    found = [piece for task in plan_tasks(ranges, sizes, how) for piece in task]
    assert all(piece.offsets > 0 for piece in found)
    for one in ranges:
        mine = sorted(piece for piece in found if piece.partition == one.partition)
        edges = [piece.start for piece in mine] + [mine[-1].end] if mine else []
        assert edges[:1] == ([one.start] if one.offsets else [])
        assert edges[-1:] == ([one.end] if one.offsets else [])
        assert all(left.end == right.start for left, right in pairwise(mine))
        if how.max_records:
            assert all(piece.offsets <= how.max_records for piece in mine)


def test_a_big_partition_is_read_by_several_tasks() -> None:
    found = plan_tasks([OffsetRange(A, 0, 1_000)], {A: 1 << 20}, SplitOptions(split_bytes=100 << 20))
    assert [task[0].offsets for task in found] == [100] * 10


def test_small_ranges_are_read_together_and_big_ones_are_not() -> None:
    ranges = [OffsetRange(A, 0, 10), OffsetRange(B, 0, SMALL_BYTES), OffsetRange(C, 0, 10)]
    found = plan_tasks(ranges, {A: 1, B: 1, C: 1}, EASY)
    assert found == [(ranges[1],), (ranges[0], ranges[2])]


def test_many_partitions_share_tasks_and_few_do_not() -> None:
    def tasks(partitions: int, size: int) -> int:
        ranges = [OffsetRange(TopicPartition("a", number), 0, size) for number in range(partitions)]
        return len(plan_tasks(ranges, {one.partition: 1 for one in ranges}, SplitOptions(split_bytes=64 << 20)))

    assert tasks(200, 600_000) == 17
    assert tasks(8, 2 << 20) == 8
    assert tasks(1_000, 2 << 20) == 250
    assert tasks(1_000, 100) == 16  # by the number of ranges in a task


def test_min_partitions_makes_more_tasks_also_of_little() -> None:
    found = plan_tasks([OffsetRange(A, 0, 90), OffsetRange(B, 0, 10)], {}, EASY._replace(min_partitions=10))
    assert len(found) == 10
    assert sum(piece.offsets for (piece,) in found) == 100


def test_there_are_never_more_tasks_than_records() -> None:
    assert len(plan_tasks([OffsetRange(A, 0, 3)], {}, EASY._replace(min_partitions=10))) == 3


def test_everything_is_admitted_without_limits() -> None:
    assert rate_limit({A: 0, B: 5}, {A: 10, B: 5}, ReadLimits(), {}, 0) == {A: 10, B: 5}


def test_a_limit_is_shared_in_proportion_to_what_is_there() -> None:
    end = rate_limit({A: 0, B: 0}, {A: 900, B: 100}, ReadLimits(max_offsets=100), {}, 0)
    assert end == {A: 90, B: 10}


def test_a_limit_in_bytes_counts_what_records_weigh() -> None:
    end = rate_limit({A: 0, B: 0}, {A: 1000, B: 1000}, ReadLimits(max_bytes=55_000), {A: 100.0, B: 10.0}, 0)
    assert end == {A: 500, B: 500}


def test_too_few_records_are_waited_for_but_not_for_ever() -> None:
    limits = ReadLimits(min_offsets=100, max_delay_ms=1_000)
    assert rate_limit({A: 5}, {A: 50}, limits, {}, 999) == {A: 5}
    assert rate_limit({A: 5}, {A: 50}, limits, {}, 1_000) == {A: 50}
    assert rate_limit({A: 5}, {A: 105}, limits, {}, 0) == {A: 105}


@given(
    st.dictionaries(places, st.tuples(offsets, offsets), min_size=1),
    st.builds(ReadLimits, st.integers(0, 10_000), st.integers(0, 1 << 20), st.just(0), st.just(0)),
)
def test_a_limited_batch_moves_on_and_keeps_its_limit(
    spans: dict[TopicPartition, tuple[int, int]], limits: ReadLimits
) -> None:
    start = {place: min(span) for place, span in spans.items()}
    latest = {place: max(span) for place, span in spans.items()}
    end = rate_limit(start, latest, limits, {}, 0)
    taken = sum(end[place] - start[place] for place in start)
    assert all(start[place] <= end[place] <= latest[place] for place in start)
    assert taken > 0 or start == latest
    if limits.max_offsets:
        assert taken <= limits.max_offsets + len(start)  # a share below one record is one


def test_small_partitions_are_not_starved_by_large_ones() -> None:
    assert rate_limit({A: 0, B: 7}, {A: 3_000, B: 8}, ReadLimits(max_offsets=100), {}, 0) == {A: 99, B: 8}


def test_a_log_that_was_made_anew_is_reported_as_it_is() -> None:
    assert rate_limit({A: 100, B: 0}, {A: 3, B: 1000}, ReadLimits(max_offsets=10), {}, 0) == {A: 3, B: 10}


def test_the_weight_of_records_is_the_average_of_their_log() -> None:
    assert bytes_per_offset({A: 1_000, B: 7}, {A: 10, B: 0}, {A: 20, B: 0}) == {A: 100.0}

"""Slices of a replay cover every record once and in order, whatever the timestamps."""

from collections import defaultdict
from random import Random

import pytest

from levada.pipelines.lake.replay import Bucket, slices

Record = tuple[int, int, int]  # partition, offset, span of time


def records(random: Random) -> list[Record]:
    """Some partitions of a log with gaps, with times that jump."""
    found = []
    for partition in range(random.randint(1, 4)):
        offset, now = random.randrange(50), random.randrange(5)
        for _ in range(random.randrange(30)):
            offset += random.choice((1, 1, 1, 7))
            now = max(0, now + random.choice((0, 0, 1, 2, -3)))
            found.append((partition, offset, now))
    return found


def buckets(found: list[Record]) -> list[Bucket]:
    grouped: dict[tuple[int, int], list[int]] = defaultdict(list)
    for partition, offset, span in found:
        grouped[partition, span].append(offset)
    return [Bucket(partition, span, min(all_), len(all_)) for (partition, span), all_ in grouped.items()]


@pytest.mark.parametrize("seed", range(200))
def test_every_record_is_in_one_slice_and_in_order(seed: int) -> None:
    random = Random(seed)
    found = records(random)
    ends = {partition: offset + 1 for partition, offset, _ in found}  # the last of each
    rows_min = random.choice((1, 1, 5, 100))
    sent: list[Record] = []
    for one in slices(buckets(found), ends, rows_min):
        ranges = one.ranges
        for record in found:
            first, end = ranges.get(record[0], (0, 0))
            if first <= record[1] < end:
                sent.append(record)
                if rows_min == 1:  # none is sent before its time
                    assert record[2] <= one.span
    assert sorted(sent) == sorted(found)
    for partition in ends:
        offsets = [offset for index, offset, _ in sent if index == partition]
        assert offsets == sorted(offsets)


def test_slices_follow_the_time() -> None:
    found = [(0, 10, 1), (0, 11, 2), (1, 5, 1), (0, 12, 4)]
    found_slices = list(slices(buckets(found), {0: 13, 1: 6}, 1))
    assert [(one.span, one.ranges, one.rows) for one in found_slices] == [
        (1, {0: (10, 11), 1: (5, 6)}, 2),
        (2, {0: (11, 12)}, 1),
        (4, {0: (12, 13)}, 1),
    ]


def test_slices_are_joined_to_the_size_that_is_wanted() -> None:
    found = [(0, offset, offset) for offset in range(10)]
    found_slices = list(slices(buckets(found), {0: 10}, 4))
    assert [one.ranges[0] for one in found_slices] == [(0, 4), (4, 8), (8, 10)]


def test_nothing_has_no_slices() -> None:
    assert list(slices([], {}, 1)) == []

"""Which part of a log is cleaned, and which log is next."""

import pytest
from tests.support.logs import SOURCES

from levada.storage.compaction.plan import (
    CleaningBounds,
    CompactionLag,
    LogToClean,
    SegmentGroup,
    dirtiest,
    log_to_clean,
)

BOUNDS = CleaningBounds(log_start_offset=0, log_end_offset=35, stable_offset=35, recovery_point=35, active_base=30)


NO_LAG = CompactionLag(0, 1 << 60)


def plan(
    bounds: CleaningBounds = BOUNDS,
    checkpoint: int | None = None,
    lag: CompactionLag = NO_LAG,
    timestamps: list[int] | None = None,
) -> LogToClean:
    return log_to_clean(SOURCES, bounds, checkpoint, lag, timestamps or [], now_ms=3_500)


def test_everything_closed_is_dirty_at_first() -> None:
    assert plan() == LogToClean(0, 30, 0, 300)
    assert plan().dirty_ratio == 1.0


@pytest.mark.parametrize(
    ("bounds", "end"),
    [
        ({"stable_offset": 25}, 20),
        ({"stable_offset": 20}, 20),
        ({"stable_offset": 5}, 0),
        ({"recovery_point": 19}, 10),
        ({"recovery_point": 0}, 0),
    ],
)
def test_nothing_undecided_or_unsynced_is_touched(bounds: dict[str, int], end: int) -> None:
    found = plan(BOUNDS._replace(**bounds))
    assert (found.first_uncleanable_offset, found.dirty_bytes) == (end, end * 10)


def test_young_segments_wait() -> None:
    """min.compaction.lag.ms: from the first that is too young on, also if older ones follow."""
    assert plan(lag=CompactionLag(1_000, 1 << 60)).first_uncleanable_offset == 20
    assert plan(lag=CompactionLag(2_000, 1 << 60)).first_uncleanable_offset == 10
    assert plan(lag=CompactionLag(9_000, 1 << 60)) == LogToClean(0, 0, 0, 0)


def test_a_checkpoint_parts_clean_from_dirty() -> None:
    assert plan(checkpoint=20) == LogToClean(20, 30, 200, 100)
    assert plan(checkpoint=30).dirty_bytes == 0
    assert plan(checkpoint=15) == LogToClean(15, 30, 100, 200)
    assert plan(checkpoint=99).first_dirty_offset == 0  # of another log
    assert plan(BOUNDS._replace(log_start_offset=12), checkpoint=5).first_dirty_offset == 12


def test_an_old_record_makes_a_log_overdue() -> None:
    """max.compaction.lag.ms."""
    assert not plan(lag=CompactionLag(0, 500), timestamps=[3_000, 3_400]).need_compaction_now
    assert plan(lag=CompactionLag(0, 499), timestamps=[3_400, 3_000]).need_compaction_now
    assert not plan(lag=CompactionLag(0, 10), timestamps=[-1]).need_compaction_now


def test_the_dirtiest_log_is_next() -> None:
    half, most, little = LogToClean(0, 1, 50, 50), LogToClean(0, 1, 10, 90), LogToClean(0, 1, 90, 10)
    assert dirtiest([("half", half, 0.4), ("most", most, 0.4), ("little", little, 0.4)]) == "most"
    assert dirtiest([("half", half, 0.5), ("little", little, 0.5)]) is None
    assert dirtiest([("half", half, 0.5), ("little", little._replace(need_compaction_now=True), 0.5)]) == "little"
    assert dirtiest([("clean", LogToClean(9, 9, 90, 0, need_compaction_now=True), 0.0)]) is None
    assert dirtiest(list[tuple[str, LogToClean, float]]()) is None


def test_a_new_segment_grows_only_so_far() -> None:
    growth = SegmentGroup(base_offset=0, sources=1, size=100, index_bytes=8)
    assert growth.fits(SOURCES[1], 20, 200, 16)
    assert not growth.fits(SOURCES[1], 20, 199, 16)
    assert not growth.fits(SOURCES[1], 20, 200, 15)
    assert not growth.fits(SOURCES[1], (1 << 31) + 1, 200, 16)
    assert not growth._replace(sources=64).fits(SOURCES[1], 20, 200, 16)

"""Messages between the broker and its cleaner processes."""

from tests.support.logs import NOW_MS, SOURCES

from levada.storage.compaction.messages import (
    CleanedSegment,
    CleaningFailed,
    CleaningFinished,
    CleaningJob,
    decode_report,
    encode,
    read_job,
)


def test_messages_arrive_as_they_were_sent() -> None:
    job = CleaningJob("/d", SOURCES, [30], 0, 30, NOW_MS, 1, 2, 3, 4, 5, 1e308, [])
    data = encode(job)
    cut = iter([data[:4], data[4:]])
    assert read_job(lambda count: next(cut)) == job
    assert read_job(lambda count: b"") is None
    assert read_job(lambda count: data[:4] if count == 4 else data[4:9]) is None
    for report in (
        CleanedSegment([0, 10], 5, 6, 7),
        CleaningFinished(1, 2, 3, 4, 5, 6),
        CleaningFailed("why", 28, True),
    ):
        assert decode_report(encode(report)[4:]) == report

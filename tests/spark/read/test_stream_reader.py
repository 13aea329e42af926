"""The stream reader: starting offsets, limits of micro-batches, topics that change."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.support.plain import EVERYTHING, Plain, Stream, rows_of

from levada.spark import blocking
from levada.spark.errors import DataLoss, OptionError


def texts(*numbers: int) -> list[str]:
    return [str(number) for number in numbers]


def start(plain: Plain, topic: str, at: object = None, **options: Any) -> Stream:
    """A query over a topic from its beginning, or from where another one was."""
    given: dict[str, Any] = {"subscribe": topic, "startingOffsets": "earliest"}
    return Stream(plain.streaming(**given | options), at)


def test_a_stream_begins_at_the_end_by_default(plain: Plain) -> None:
    topic = plain.broker.topic()
    plain.produce(topic, [1, 2])
    stream = Stream(plain.streaming(subscribe=topic))
    assert stream.at == {topic: {"0": 2}}
    assert stream.batch() is None
    plain.produce(topic, [3])
    assert stream.batch() == ["3"]
    assert stream.at == {topic: {"0": 3}}
    assert stream.batch() is None


def test_it_begins_where_it_is_configured(plain: Plain) -> None:
    topic = plain.broker.topic()
    plain.produce(topic, range(5), timestamp=1_000)
    plain.produce(topic, range(5, 9), timestamp=2_000)
    assert start(plain, topic).batch() == texts(*range(9))
    assert start(plain, topic, startingOffsets={topic: {"0": 7}}).batch() == texts(7, 8)
    assert start(plain, topic, startingTimestamp=1_500).batch() == texts(5, 6, 7, 8)
    assert start(plain, topic, startingOffsetsByTimestamp={topic: {"0": 1_500}}).batch() == texts(5, 6, 7, 8)
    assert start(plain, topic, fromTime=1_500, key="none").batch() == []
    with pytest.raises(OptionError, match=f"{topic}-0 ends at 9, before 20"):
        start(plain, topic, startingOffsets={topic: {"0": 20}})
    with pytest.raises(OptionError, match="there is no topic nosuch"):
        start(plain, "nosuch")


def test_limits_of_a_micro_batch(plain: Plain) -> None:
    topic = plain.broker.topic()
    plain.produce(topic, range(10))
    stream = start(plain, topic, maxOffsetsPerTrigger=4)
    assert [stream.batch(), stream.batch(), stream.batch(), stream.batch()] == [
        texts(0, 1, 2, 3),
        texts(4, 5, 6, 7),
        texts(8, 9),
        None,
    ]


def test_a_limit_in_bytes(plain: Plain) -> None:
    topic = plain.broker.topic()
    for number in range(20):
        plain.produce(topic, [f"{number:03}" + "x" * 10_000])
    stream = start(plain, topic, maxBytesPerTrigger="51k")
    sizes = []
    while (batch := stream.batch()) is not None:
        sizes.append(len(batch))
    assert sum(sizes) == 20 and len(sizes) in (4, 5) and max(sizes) <= 5


def test_too_little_is_waited_for(plain: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])  # of the stream alone: the broker here has a clock too
    monkeypatch.setattr("levada.spark.read.stream.time", clock)
    topic = plain.broker.topic()
    stream = start(plain, topic, minOffsetsPerTrigger=3, maxTriggerDelay="10s")
    plain.produce(topic, [0, 1, 2])
    assert stream.batch() == texts(0, 1, 2)
    plain.produce(topic, [3, 4])
    now[0] += 9.9
    assert stream.batch() is None
    now[0] += 0.2
    assert stream.batch() == texts(3, 4)
    plain.produce(topic, [5, 6, 7])
    assert stream.batch() == texts(5, 6, 7)


def test_available_now_ends_where_it_was_when_it_began(plain: Plain) -> None:
    topic = plain.broker.topic()
    plain.produce(topic, range(5))
    stream = start(plain, topic, maxOffsetsPerTrigger=3, minOffsetsPerTrigger=3)
    stream.reader.prepareForTriggerAvailableNow()
    plain.produce(topic, range(5, 9))
    assert [stream.batch(), stream.batch(), stream.batch()] == [texts(0, 1, 2), texts(3, 4), None]


def test_everything_is_everything(plain: Plain) -> None:
    """As Spark asks with Trigger.Once."""
    topic = plain.broker.topic()
    plain.produce(topic, range(5))
    assert start(plain, topic, maxOffsetsPerTrigger=2).batch(ReadAllAvailable()) == texts(*range(5))


def test_how_far_behind_it_is_can_be_seen(plain: Plain) -> None:
    topic = plain.broker.topic()
    plain.produce(topic, range(5))
    stream = start(plain, topic, maxOffsetsPerTrigger=2)
    stream.batch()
    assert (stream.at, stream.reader.reportLatestOffset()) == ({topic: {"0": 2}}, {topic: {"0": 5}})


def test_progress_is_kept_as_that_of_a_group(plain: Plain) -> None:
    topic = plain.broker.topic(partitions=2)
    stream = start(plain, topic, group=f"spark-{topic}")
    plain.produce(topic, range(3), partition=1)
    assert stream.batch() == texts(0, 1, 2)
    assert plain.broker.committed(f"spark-{topic}").get((topic, 1), 0) == 0  # it is committed with the next micro-batch
    assert stream.batch() is None
    assert plain.broker.committed(f"spark-{topic}") == {(topic, 0): 0, (topic, 1): 3}


def test_a_group_that_cannot_be_committed_stops_nobody(plain: Plain) -> None:
    topic = plain.broker.topic()
    stream = start(plain, topic, group=f"spark-{topic}")
    plain.produce(topic, [1])
    plain.broker.fail_next("OffsetCommit", "GROUP_AUTHORIZATION_FAILED")
    with pytest.warns(UserWarning, match="the offsets of group .* were not committed"):
        assert stream.batch() == ["1"]
    assert stream.batch() is None
    assert plain.broker.committed(f"spark-{topic}") == {(topic, 0): 1}


def test_new_partitions_and_topics_are_read_from_their_beginning(plain: Plain) -> None:
    topic = plain.broker.topic()
    stream = Stream(plain.streaming(subscribePattern=f"{topic}|{topic}x|topic-.*"))
    plain.grow(topic, 2)
    plain.produce(topic, ["grown"], partition=1)
    other = plain.broker.topic()
    plain.produce(other, ["new"])
    assert sorted(stream.batch() or []) == ["grown", "new"]
    assert stream.batch() is None


def test_retention_that_overtakes_the_reader(plain: Plain) -> None:
    topic = plain.broker.topic()
    stream = start(plain, topic)
    plain.produce(topic, range(10))
    plain.delete_records(topic, before=6)
    with pytest.raises(DataLoss, match=f"{topic}-0 begins at offset 6 now, those from 0 on.*failOnDataLoss to false"):
        stream.batch()
    again = start(plain, topic, stream.at, failOnDataLoss="false")
    with pytest.warns(UserWarning, match="the query continues with what is left"):
        assert again.batch() == texts(6, 7, 8, 9)


def test_a_topic_that_is_deleted(plain: Plain) -> None:
    topic, other = plain.broker.topic(), plain.broker.topic()
    plain.produce(topic, [1])
    stream = start(plain, f"{topic},{other}")
    assert stream.batch() == ["1"]
    plain.delete(topic)
    plain.produce(other, [2])
    with pytest.raises(DataLoss, match=f"{topic}-0 was read up to offset 1 and does not exist any more"):
        stream.batch()
    again = start(plain, f"{topic},{other}", stream.at, failOnDataLoss="false")
    with pytest.warns(UserWarning, match="the query continues"):
        assert again.batch() == ["2"]
    assert again.at == {other: {"0": 1}}
    assert again.batch() is None


def test_internal_topics_in_the_checkpoint_of_another_connector(plain: Plain) -> None:
    own, topic = "__levada_own", plain.broker.topic()
    client = blocking.client(plain.broker.bootstrap)
    blocking.run(client.admin.create_topic(own))
    try:
        plain.produce(own, [1])
        plain.produce(topic, [10])
        stream = Stream(plain.streaming(subscribePattern=f"^{topic}$|__.*"), {own: {"0": 0}, topic: {"0": 0}})
        with pytest.warns(UserWarning, match=f"checkpoint has offsets of {own}, which the query does not read"):
            assert stream.batch() == texts(10)
        assert (stream.batch(), stream.at) == (None, {topic: {"0": 1}})
        planned = {own: {"0": 1}, topic: {"0": 1}}  # the other connector has planned this batch and not finished it
        with pytest.warns(UserWarning, match="checkpoint has offsets"):
            parts = stream.reader.partitions({own: {"0": 0}, topic: {"0": 0}}, planned)
        assert [row["value"] for row in rows_of(stream.reader, parts)] == [b"10"]
    finally:
        blocking.run(client.admin.delete_topic(own))
    stream = Stream(stream.reader, {own: {"0": 0}, topic: {"0": 1}})
    with pytest.raises(DataLoss, match=f"{own}-0 was read up to offset 0 and does not exist any more"):
        stream.batch()


def test_a_topic_that_is_made_again(plain: Plain) -> None:
    topic = plain.broker.topic()
    plain.produce(topic, [1, 2, 3])
    stream = start(plain, topic, failOnDataLoss="false")
    strict = start(plain, topic)
    assert stream.batch() == strict.batch() == texts(1, 2, 3)
    plain.delete(topic)
    plain.create(topic)
    plain.produce(topic, [10, 11, 12, 13, 14])
    with pytest.raises(DataLoss, match=f"topic {topic} was deleted and created again"):
        strict.batch()
    with pytest.warns(UserWarning, match="deleted and created again; the query continues"):
        assert stream.batch() == texts(10, 11, 12, 13, 14)
    assert stream.batch() is None


def test_a_topic_that_is_made_again_while_the_query_was_down(plain: Plain) -> None:
    topic = plain.broker.topic()
    plain.produce(topic, [1, 2, 3])
    stream = start(plain, topic)
    stream.batch()
    plain.delete(topic)
    plain.create(topic)
    plain.produce(topic, [10])
    with pytest.raises(DataLoss, match=f"{topic}-0 ends at offset 1 and was read up to 3"):
        start(plain, topic, stream.at).batch()
    again = start(plain, topic, stream.at, failOnDataLoss="false")
    with pytest.warns(UserWarning, match="the query continues"):
        assert again.batch() == ["10"]
    assert again.batch() is None


def test_a_topic_that_goes_while_a_task_reads(plain: Plain) -> None:
    topic = plain.broker.topic()
    plain.produce(topic, [1])
    reader = plain.streaming(subscribe=topic, startingOffsets="earliest")
    end = reader.latestOffset(at := reader.initialOffset(), ReadAllAvailable())
    (part,) = reader.partitions(at, end)
    plain.delete(topic)
    with pytest.raises(DataLoss, match=f"{topic}-0 does not exist any more: its topic was deleted.*failOnDataLoss"):
        list(reader.read(part))
    plain.create(topic)
    with pytest.raises(DataLoss, match=f"topic {topic} was deleted and created again"):
        list(reader.read(part))


def test_an_open_transaction_is_waited_for(plain: Plain) -> None:
    topic = plain.broker.topic()
    stream = start(plain, topic)
    with plain.transaction(topic, ["a"], commit=True):
        plain.produce(topic, ["b"])
        assert stream.batch() is None
    assert stream.batch() == ["a", "b"]
    plain.transact(topic, ["aborted"], commit=False)
    assert stream.batch() == []
    loose = start(plain, topic, isolation="read_uncommitted")
    assert loose.batch() == ["a", "b", "aborted"]


def test_one_that_read_more_than_is_committed_waits_for_it(plain: Plain) -> None:
    """As after a change of `isolation`: what was read is not lost because it is not committed yet."""
    topic = plain.broker.topic()
    loose = start(plain, topic, isolation="read_uncommitted")
    with plain.transaction(topic, ["a"], commit=True):
        assert loose.batch() == ["a"]
        strict = start(plain, topic, loose.at)
        assert strict.batch() is None
    plain.produce(topic, ["b"])
    assert strict.batch() == ["b"]


def test_a_reader_that_cannot_be_made_says_why_when_it_is_asked(plain: Plain) -> None:
    """While it is made would be too early: Spark would tell something else."""
    reader = plain.source({"subscribe": "t", "endingOffsets": "latest"}).streamReader(EVERYTHING)
    for ask in (reader.initialOffset, lambda: reader.latestOffset({}, ReadAllAvailable())):
        with pytest.raises(OptionError, match="endingOffsets is for a batch"):
            ask()
